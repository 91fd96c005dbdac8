"""Which pictures a folder holds, whose they are and what they show; no picture is opened here."""

import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from samplewise.data.pictures.chest import TABLE, find_above, patient_of, read_rows, some
from samplewise.errors import DataError

__all__ = ["SUFFIXES", "Listing", "PictureFile", "find"]

SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff")


@dataclass(frozen=True, slots=True)
class PictureFile:
    """One file."""

    name: str
    """Its path below the folder; in ChestX-ray8, whose names are unique, the file name alone."""
    path: Path
    length: int
    """Of the file, in bytes."""
    patient: str
    """Pictures of one patient stay together in a split; a picture of unknown origin is its own patient."""
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """The pictures of a folder, sorted by name."""

    root: Path
    pictures: tuple[PictureFile, ...]
    table: Path | None = None
    """The CSV that patients and findings were read from, if there is one."""
    unlisted: tuple[str, ...] = ()
    """Pictures that the CSV has no row for; they are skipped."""
    absent: tuple[str, ...] = ()
    """Rows of the CSV without a file, as in a part of the data set."""

    def fingerprint(self) -> str:
        """A short hash of names, lengths, patients and findings: a store goes on only with what it began with."""
        digest = hashlib.blake2b(digest_size=16)
        for picture in self.pictures:
            parts = (picture.name, str(picture.length), picture.patient, "|".join(picture.findings))
            digest.update("\0".join(parts).encode() + b"\n")
        digest.update(b"labelled" if self.table else b"")
        return digest.hexdigest()


def find(root: Path | str, *, labels: bool | None = None) -> Listing:
    """List the pictures in ``root`` and all folders below it.

    The CSV of ChestX-ray8 is looked for in ``root`` and up to two folders above, so that the folder of the data set,
    one of its sizes or its ``images`` folder may be given.

    Args:
        root: any folder of pictures. Names that begin with a dot are passed over.
        labels: whether the CSV is needed; if not given, it is used where there is one and the names are official.

    Raises:
        DataError: no such folder, no pictures, no CSV though labels are needed, or one name in two folders.
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; expected one with pictures ({', '.join(SUFFIXES)})")
    paths = list(_walk(root))
    if not paths:
        raise DataError(f"{root}: holds no pictures ({', '.join(SUFFIXES)}), nor do the folders below it")
    if odd := [repr(str(path)) for path in paths if not str(path).isprintable()]:
        raise DataError(f"{root}: {len(odd):,} names are not plain text: {some(odd)}; rename them")
    table = find_above(root, TABLE) if labels is not False else None
    if table is None and labels:
        raise DataError(
            f"{root}: no {TABLE} there or in the two folders above; it holds the labels of ChestX-ray8 and comes with "
            "its images: put it beside them"
        )
    if table is not None and (labels or any(patient_of(path.stem) for path in paths)):
        return _labelled(root, paths, table)
    named = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return Listing(
        root,
        tuple(PictureFile(name, path, _length(path), patient_of(path.stem) or name) for name, path in named),
    )


def _walk(root: Path) -> Iterator[Path]:
    """The picture files; folders may be links, as when parts of a data set lie on several disks."""

    def refuse(error: OSError) -> None:
        raise DataError(f"{error.filename}: cannot be listed: {error.strerror or error}") from error

    seen: set[str] = set()
    for folder, below, files in os.walk(root, onerror=refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:  # a link to a folder above would never end
            below.clear()
            continue
        seen.add(real)
        below[:] = [name for name in below if not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if name.lower().endswith(SUFFIXES) and not name.startswith(".") and not _is_special(path):
                yield path


def _is_special(path: Path) -> bool:
    """Whether it is a pipe, a socket or a device, which would be waited for; a link to nowhere is none of these."""
    return path.exists() and not path.is_file()


def _length(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}; mend or remove it") from error


def _labelled(root: Path, paths: list[Path], table: Path) -> Listing:
    """The pictures with what the CSV says of them."""
    rows = read_rows(table)
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for path in paths:
        places[path.stem].append(path)
    twice = {stem: found for stem, found in sorted(places.items()) if len(found) > 1}
    if twice:
        folders = sorted({str(path.parent) for found in twice.values() for path in found})
        raise DataError(
            f"{root}: {len(twice):,} names come twice ({some(twice)}), in the folders {some(folders)}; "
            "give the folder with one picture for each name"
        )
    pictures, unlisted = [], []
    for path in sorted(paths, key=lambda path: path.name):
        row = rows.get(path.stem)
        if row is None:
            unlisted.append(path.name)
        else:
            pictures.append(PictureFile(path.name, path, _length(path), row.patient, row.findings))
    absent = sorted(set(rows) - set(places))
    return Listing(root, tuple(pictures), table, tuple(unlisted), tuple(absent))
