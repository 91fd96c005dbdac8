"""Processes that mark what was received, and what they say of each file."""

from __future__ import annotations

import json
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

from floormark.certificate import certificate_path
from floormark.errors import ConfigurationError, DataError, OutputError, RefusedError, unexpected
from floormark.files.marking import FileMarker
from floormark.payload import Kind, Payload
from floormark.processes import Workers, side_by_side
from floormark.register import WRITTEN

SUCCESS, OUT_OF_RESOURCES = 0x0000, 0xA700
UNREADABLE, UNMARKABLE = 0xC001, 0xC002
"""Both are of the range that the standard calls "cannot understand" (PS3.4, B.2.3), which implementations divide."""
REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """What became of one file."""

    event: str
    """How the log calls it: ``marked``, ``again``, ``unmarked`` or ``refused``."""
    status: int = SUCCESS
    """With which DICOM status it is answered."""
    reason: str = ""
    comment: str = ""
    """What the peer is told instead of the reason, if that names what is none of its business."""


def mark(marker: FileMarker, received: Path, place: Path) -> Outcome:
    """Mark one file; what is wrong with it is told without its name, and without what it says of a patient."""
    try:
        _mark_once(marker, received, place)
    except RefusedError as error:
        return Outcome(REFUSED, UNMARKABLE, str(error).removeprefix(f"{received}: "))
    except (DataError, ConfigurationError) as error:
        return Outcome(REFUSED, UNREADABLE, str(error).removeprefix(f"{received}: "))
    except OutputError as error:
        # It may have its name by now, and only the register be full: what the peer is not told of must not be sent on.
        place.unlink(missing_ok=True)
        certificate_path(place).unlink(missing_ok=True)
        return not_written(error)
    except MemoryError:
        return Outcome(REFUSED, OUT_OF_RESOURCES, "not enough memory")
    except Exception as error:
        return Outcome(REFUSED, UNREADABLE, unexpected(error))
    return Outcome("marked")


def not_written(error: OSError) -> Outcome:
    """What becomes of a file for which the disk has no room."""
    return Outcome(REFUSED, OUT_OF_RESOURCES, str(error), "the disk of the node takes no files for now")


def _mark_once(marker: FileMarker, received: Path, place: Path) -> None:
    """Mark a file with the identifier that the register has for it, if any: sent again, it becomes the same image.

    Marked at another floor it becomes another image, with an identifier of its own.
    """
    register, key = marker.register, marker.marker.scheme.key
    asked = place.stem, "" if key is None else key.fingerprint, marker.marker.model, marker.options.psnr
    for record in [] if register is None else register.find_hash(place.stem):
        row, told = record.row, json.loads(record.row.certificate)
        if asked == (row.original_sha256, row.key, told["model"], told["floor"]):
            identifier = bytes.fromhex(row.identifier)
            replace(marker, register=None, message=Payload(Kind.HEX, identifier)).mark_file(received, place)
            if record.state != WRITTEN and register is not None:  # what was begun before is done now
                register.settle(identifier)
            return
    marker.mark_file(received, place)


class MarkingPool:
    """Processes that mark; when one is killed, as for want of memory, fresh ones take their place."""

    def __init__(self, marker: FileMarker, count: int) -> None:
        self._start = partial(side_by_side, count, partial(copy, marker), threads=1)
        self._stack, self._lock = ExitStack(), Lock()
        self._workers = self._started()

    def _started(self) -> Workers[FileMarker]:
        workers = self._stack.enter_context(self._start())
        for _ in range(workers.count):  # they begin before there is work
            workers.submit(_ready)
        return workers

    def mark(self, received: Path, place: Path) -> Outcome:
        """:func:`mark` in one of the processes."""
        try:
            with self._lock:
                workers = self._workers
                waiting: Future[Outcome] = workers.submit(mark, received, place)
            return waiting.result()
        except BrokenProcessPool:
            with self._lock:
                if self._workers is workers:
                    self._stack.close()
                    self._workers = self._started()
            return Outcome(REFUSED, OUT_OF_RESOURCES, "a process that marks was ended from outside")

    def close(self) -> None:
        """End the processes when they have done what they are at."""
        self._stack.close()


def _ready(marker: FileMarker) -> None:
    """Nothing: a process that is given it has started."""
