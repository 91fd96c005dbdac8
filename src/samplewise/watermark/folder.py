"""A whole folder of images marked: several processes, killed at any moment, gone on with, in flat memory."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from samplewise.checkpoint import alone
from samplewise.errors import ConfigurationError, DataError, OutputError, RefusedError
from samplewise.settings_file import SettingsFile
from samplewise.watermark.certificate import Certificate, sha256
from samplewise.watermark.files import FileMarker, Written, certificate_path
from samplewise.watermark.formats.files import is_dicom

__all__ = ["FOLDER_FILE", "FolderSettings", "Outcome", "Status", "Task", "image_files", "mark_folder", "tasks"]

SUFFIXES = (".png", ".tif", ".tiff", ".bmp", ".jpg", ".jpeg", ".dcm", ".dicom")
"""Of files that are taken for images. DICOM under other names, such as a UID, is known by its first bytes."""
LOSSY_SUFFIXES = (".jpg", ".jpeg")
QUEUED = 4
"""Files in the hands of each process, so that none waits and none piles up."""


@dataclass(frozen=True)
class FolderSettings:
    """What a folder of marked images was made with."""

    model: str
    message_and_key: str
    """Of the SHA-256 of the bits that are hidden: another message or key gives another."""
    floor: float
    protect: str
    lossy: bool


FOLDER_FILE = SettingsFile(".samplewise-watermark.json", "samplewise-marked-1", FolderSettings, "marked images")


class Status(Enum):
    """What became of one file."""

    WRITTEN = "written"
    DONE = "done before"
    REFUSED = "refused"
    BAD = "bad input"


@dataclass(frozen=True)
class Task:
    """One file to be marked."""

    name: str
    """Relative to the folder."""
    source: Path
    target: Path


@dataclass(frozen=True)
class Outcome:
    """What became of one file, and why."""

    name: str
    status: Status
    reason: str = ""
    written: Written | None = None


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files in a folder and below, in order, and what is left alone: links, hidden and other files.

    Links are not followed: they may lead out of the folder, or round in circles.

    Raises:
        DataError: there are no images.
    """
    found: list[Path] = []
    left: list[Path] = []
    for path in _walk(folder):
        (found if _is_image(path) else left).append(path)
    if not found:
        raise DataError(f"{folder}: expected image files ({', '.join(SUFFIXES)}), got none")
    return found, left


def tasks(source: Path, files: list[Path], target: Path, *, lossy: bool = False) -> list[Task]:
    """Where each file of the folder ``source`` goes below ``target``: to the same name, but JPEG files become PNG.

    Args:
        source: the folder.
        files: in it.
        target: a folder apart from it.
        lossy: keep JPEG.

    Raises:
        ConfigurationError: one folder lies in the other, or two files would get one name.
    """
    inner, outer = source.resolve(), target.resolve()
    if inner == outer or inner in outer.parents or outer in inner.parents:
        raise ConfigurationError(f"expected two folders apart, got {source} and {target}: one lies in the other")
    found: dict[Path, Task] = {}
    for path in files:
        name = path.relative_to(source)
        goal = name.with_suffix(".png") if path.suffix.lower() in LOSSY_SUFFIXES and not lossy else name
        if goal in found:
            raise ConfigurationError(f"{source}: {found[goal].name} and {name} would both become {goal}: rename one")
        found[goal] = Task(str(name), path, target / goal)
    return list(found.values())


def _is_image(path: Path) -> bool:
    if path.is_symlink() or path.name.startswith(".") or path.name == "DICOMDIR":
        return False
    return path.suffix.lower() in SUFFIXES or is_dicom(path)


def _walk(folder: Path) -> Iterator[Path]:
    def stop(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    for base, folders, files in os.walk(folder, onerror=stop):
        apart = [name for name in folders if name.startswith(".") or Path(base, name).is_symlink()]
        folders[:] = sorted(set(folders) - set(apart))
        yield from (Path(base, name) for name in sorted(files + apart))


def mark_folder(marker: FileMarker, found: list[Task], out: Path, *, workers: int, resume: bool) -> Iterator[Outcome]:
    """Mark files one by one and say what became of each, in order.

    Args:
        marker: how.
        found: the files.
        out: the folder they go to. It is new or empty, or with ``resume`` one that the same call was at work on.
        workers: processes. One marks in this process.
        resume: go on; files that are there, with the certificate that they were made of these images, are done.
    """
    hidden = hashlib.sha256(marker.marker.codec.encode(marker.payload).tobytes()).hexdigest()[:16]
    protect = marker.protect.identity if marker.protect is not None else ""
    settings = FolderSettings(marker.marker.model, hidden, marker.floor, protect, marker.lossy)
    FOLDER_FILE.open(out, settings, resume=resume)
    with alone(out, "folder"):
        for torn in out.rglob(".*.tmp"):  # of a run that was killed
            torn.unlink()
        marker = replace(marker, force=False)
        yield from (_mark(marker, task) for task in found) if workers == 1 else _side_by_side(marker, found, workers)


def _side_by_side(marker: FileMarker, found: list[Task], workers: int) -> Iterator[Outcome]:
    # Not forked: a forked process may hang in the locks of PyTorch's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(marker,)) as pool:
        waiting: deque[Future[Outcome]] = deque()
        try:
            for task in found:
                waiting.append(pool.submit(_mark_here, task))
                if len(waiting) >= QUEUED * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as error:
            raise OutputError(
                "a process that was marking images was killed, perhaps for want of memory: use fewer workers and "
                "go on with resume"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_marker: FileMarker | None = None
"""Of this process."""


def _begin(marker: FileMarker) -> None:
    import torch

    global _marker
    torch.set_num_threads(1)  # the processes share the cores between them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process is interrupted too, and ends this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _marker = marker


def _end_with_parent() -> None:
    """Leave no process behind when the first one is killed, which would go on to write."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _mark_here(task: Task) -> Outcome:
    assert _marker is not None
    return _mark(_marker, task)


def _mark(marker: FileMarker, task: Task) -> Outcome:
    """Mark one file; what is wrong with it is told, what is wrong with the disk ends the run."""
    try:
        if os.path.lexists(task.target):
            return _done(task)
        return Outcome(task.name, Status.WRITTEN, written=marker.embed(task.source, task.target))
    except RefusedError as error:
        return Outcome(task.name, Status.REFUSED, str(error))
    except (DataError, ConfigurationError) as error:
        return Outcome(task.name, Status.BAD, str(error))


def _done(task: Task) -> Outcome:
    """What is there was made of this image, or else it is in the way: of another folder, or the image has changed."""
    if Certificate.read(certificate_path(task.target)).original_sha256 != sha256(task.source):
        raise ConfigurationError(
            f"{task.source}: {task.target} is there already, made of another image: choose another folder, or remove it"
        )
    return Outcome(task.name, Status.DONE)
