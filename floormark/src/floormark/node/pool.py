"""Processes that mark what was received, and what they say of each file."""

from __future__ import annotations

from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock

from floormark.errors import ConfigurationError, DataError, OutputError, RefusedError
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


def mark(marker: FileMarker, received: Path, place: Path) -> Outcome:
    """Mark one file; what is wrong with it is told without its name, and without what it says of a patient."""
    try:
        _same_identifier(marker, place.stem).mark_file(received, place)
    except RefusedError as error:
        return Outcome(REFUSED, UNMARKABLE, str(error).removeprefix(f"{received}: "))
    except (DataError, ConfigurationError) as error:
        return Outcome(REFUSED, UNREADABLE, str(error).removeprefix(f"{received}: "))
    except OutputError as error:
        return Outcome(REFUSED, OUT_OF_RESOURCES, str(error))
    return Outcome("marked")


def _same_identifier(marker: FileMarker, sha256: str) -> FileMarker:
    """A marker that gives a file the identifier that the register has for it: sent again, it becomes the same image."""
    if marker.register is None:
        return marker
    key = marker.marker.scheme.key
    for record in marker.register.find_hash(sha256):
        row = record.row
        if (
            row.original_sha256 == sha256
            and record.state == WRITTEN
            and row.key == ("" if key is None else key.fingerprint)
        ):
            return replace(marker, register=None, message=Payload(Kind.HEX, bytes.fromhex(row.identifier)))
    return marker


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
