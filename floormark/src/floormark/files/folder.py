"""Whole folders of images, marked by several processes in constant memory; killed at any moment, a run can resume."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floormark.api import Watermarker
from floormark.certificate import ImageCertificate, certificate_path, read_entries, sha256
from floormark.disk import clear_partial, locked, read_json, write_json
from floormark.errors import ConfigurationError, DataError, RefusedError, prefix_path
from floormark.files.marking import FileMarker
from floormark.files.messages import MessageTable
from floormark.imageio import SUFFIXES, looks_like_image, read, suffix_format
from floormark.payload import Extracted
from floormark.processes import each_of

if TYPE_CHECKING:
    from floormark.signing import Signer


FOLDER_FILE, FOLDER_FORMAT = ".floormark.json", "floormark-folder-1"
"""The file of settings, by which ``--resume`` recognises a folder."""
MAX_SETTINGS_BYTES = 1 << 16  # bytes


class Status(Enum):
    """What became of one file."""

    WRITTEN = "written"
    DONE = "done before"
    REFUSED = "refused"
    BAD = "bad input"


@dataclass(frozen=True)
class Task:
    """One file to be marked."""

    name: str  # relative to the folder
    source: Path
    target: Path


@dataclass(frozen=True)
class FileResult:
    """What became of one file, and why."""

    name: str
    status: Status
    reason: str = ""
    certificate: ImageCertificate | None = None  # of a file that was written
    notes: tuple[str, ...] = ()


def image_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """The image files in a folder and below, in order, and the skipped ones: links, hidden and other files.

    Links are not followed: they may lead out of the folder, or form cycles.
    """
    found: list[Path] = []
    left: list[Path] = []

    def stop(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be read: {error.strerror}") from error

    for base, folders, files in os.walk(folder, onerror=stop):
        skipped = [name for name in folders if name.startswith(".") or Path(base, name).is_symlink()]
        folders[:] = sorted(set(folders) - set(skipped))
        for path in (Path(base, name) for name in sorted(files + skipped)):
            other = path.is_symlink() or path.name.startswith(".") or path.name == "DICOMDIR"
            (left if other or not looks_like_image(path) else found).append(path)
    if not found:
        raise DataError(f"{folder}: expected image files ({', '.join(SUFFIXES)}), got none")
    return found, left


def marked_name(name: Path, *, lossy: bool) -> Path:
    """The name of a marked image in another folder: the same, but JPEG becomes PNG unless ``lossy``."""
    written = suffix_format(name)
    return name if lossy or written is None or written.exact else name.with_suffix(".png")


def tasks(source: Path, files: list[Path], target: Path, *, lossy: bool = False) -> list[Task]:
    """Where each file of ``source`` goes below ``target``: to its :func:`marked_name`."""
    inner, outer = source.resolve(), target.resolve()
    if inner == outer or inner in outer.parents or outer in inner.parents:
        raise ConfigurationError(f"expected two folders apart, got {source} and {target}: one lies in the other")
    found: dict[Path, Task] = {}
    for path in files:
        name = path.relative_to(source)
        goal = marked_name(name, lossy=lossy)
        if goal in found:
            raise ConfigurationError(f"{source}: {found[goal].name} and {name} would both become {goal}: rename one")
        found[goal] = Task(str(name), path, target / goal)
    return list(found.values())


def mark_folder(
    marker: FileMarker, found: list[Task], out: Path, *, workers: int, resume: bool
) -> Iterator[FileResult]:
    """Mark files one by one and say what became of each, in order; with one worker in this process.

    The folder ``out`` is new or empty, or with ``resume`` left by an earlier run of the same call: files in it are done
    if their certificates say that they were made from these images.
    """
    if isinstance(marker.message, MessageTable):
        marker.message.check_files([task.name for task in found])
    folders = {out, *(task.target.parent for task in found)}
    _check_links(out, folders)
    _open_folder(out, _settings(marker), resume=resume)
    with locked(out):
        for folder in folders:  # of a run that was killed
            clear_partial(folder)
        yield from each_of(found, _mark, replace(marker, force=False), workers=workers)


def _settings(marker: FileMarker) -> dict[str, Any]:
    """The settings that are written into a folder of marked images."""
    return {
        "model": marker.marker.model,
        "message_and_key": marker.message_and_key,
        "lossy": marker.lossy,
        "to_rgb": marker.to_rgb,
        "keep_series": marker.keep_series,
        "signed_by": None if marker.signer is None else marker.signer.public.fingerprint,
        "c2pa": None if marker.credentials is None else marker.credentials.fingerprint,
        "register": None if marker.register is None else marker.register.identity,
        **marker.options.settings(),
    }


def _open_folder(folder: Path, settings: dict[str, Any], *, resume: bool) -> None:
    """Begin to fill ``folder``, new or empty; with ``resume``, continue one with the same settings."""
    path = folder / FOLDER_FILE
    if not path.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigurationError(f"{folder}: exists and holds other files; choose an empty or a new folder")
        write_json(path, {"format": FOLDER_FORMAT, "settings": settings})
        return
    stored = read_json(path, "the settings of a folder of marked images", largest=MAX_SETTINGS_BYTES)
    there = stored.get("settings")
    if stored.get("format") != FOLDER_FORMAT or not isinstance(there, dict) or there.keys() != settings.keys():
        raise ConfigurationError(f"{path}: is not of this version of floormark; choose another folder")
    if differ := [f"{name} {there[name]} there, {here} here" for name, here in settings.items() if there[name] != here]:
        raise ConfigurationError(f"{folder}: was marked otherwise ({'; '.join(differ)}); choose another folder")
    if not resume:
        raise ConfigurationError(f"{folder}: holds marked images already; add --resume, or choose another folder")


def _check_links(out: Path, folders: set[Path]) -> None:
    """Refuse folders behind links: files would be written elsewhere."""
    below = {part for folder in folders for part in (folder, *folder.parents) if out in part.parents}
    if links := sorted(part for part in below if part.is_symlink()):
        raise ConfigurationError(f"{links[0]}: is a link, which may lead out of {out}: remove it")


def extract_file(marker: Watermarker, path: Path) -> list[Extracted]:
    """The results for all marked images in a file; of several frames, from the first with a result.

    One entry without a message if there are none.
    """
    found: list[Extracted] = []
    with prefix_path(path):
        for frame in read(path).frames():
            found = marker.extract_all(frame) or found
            if any(found):
                break
    return found or [Extracted()]


def extract_files(marker: Watermarker, paths: list[Path], *, workers: int) -> Iterator[list[Extracted] | DataError]:
    """The results for each file, or why it cannot be read, in order; with one worker in this process."""
    return each_of(paths, _extract, marker, workers=workers)


def _extract(marker: Watermarker, path: Path) -> list[Extracted] | DataError:
    try:
        return extract_file(marker, path)
    except DataError as error:
        return DataError(str(error))


def _mark(marker: FileMarker, task: Task) -> FileResult:
    """Mark one file; an error of the file is a result, an error of the disk ends the run."""
    try:
        if os.path.lexists(task.target):
            _check_done(task, marker.signer)
            if marker.register is not None:
                marker.register.settle_pending(task.target)  # of a run that was killed
            return FileResult(task.name, Status.DONE)
        certificate, notes = marker.mark_file(task.source, task.target, name=task.name)
        return FileResult(task.name, Status.WRITTEN, "", certificate, notes)
    except RefusedError as error:
        return FileResult(task.name, Status.REFUSED, str(error))
    except (DataError, ConfigurationError) as error:
        return FileResult(task.name, Status.BAD, str(error))


def _check_done(task: Task, signer: Signer | None) -> None:
    """Refuse an existing file that is damaged or was made from another image."""
    told, entries = read_entries(certificate_path(task.target))
    wrong = ""
    if signer is not None and not signer.signed(entries, told.signature):
        wrong = "but its certificate is not signed by this key: remove it, and it is made again"
    elif told.original_sha256 != sha256(task.source):
        wrong = "made of another image: choose another folder, or remove it"
    elif told.result_sha256 != sha256(task.target):
        wrong = "but not as its certificate says, perhaps cut off: remove it, and it is made again"
    if wrong:
        raise ConfigurationError(f"{task.source}: {task.target} is there already, {wrong}")
