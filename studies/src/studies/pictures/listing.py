"""The pictures of a folder, with their patients and findings; no picture is decoded here.

ChestX-ray8 adds to any folder: file names that begin with the patient, a CSV with the findings, two lists for a split.
"""

import csv
import hashlib
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from floormark.imageio import SUFFIXES
from floormark.processes import cores
from samplewise.errors import DataError, did_you_mean
from samplewise.storage import decoding

PATHOLOGIES = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
"""The columns of every label array, in the order of the publication."""
NO_FINDING = "No Finding"
LABELS_CSV = "Data_Entry_2017*.csv"
OFFICIAL_LISTS = ("train_val_list.txt", "test_list.txt")
CSV_COLUMNS = NAME, FINDINGS, PATIENT = "Image Index", "Finding Labels", "Patient ID"
LEVELS_UP = 2  # from .../images to the folder of the CSV when sizes have folders of their own
OFFICIAL_NAME = re.compile(r"(\d{8})_\d{3}")


@dataclass(frozen=True, slots=True)
class PictureFile:
    """One file."""

    name: str
    """Its path below the folder; in ChestX-ray8, whose names are unique, the file name alone."""
    path: Path
    patient: str
    """Pictures of one patient stay together in a split; a picture of unknown origin is its own patient."""
    findings: tuple[str, ...] = ()
    """Of :data:`PATHOLOGIES`."""


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

    @cached_property
    def contents(self) -> tuple[str, ...]:
        """A hash of the bytes of each file, since a file may be edited without a change of length or time."""
        with ThreadPoolExecutor(cores(), thread_name_prefix="hash") as pool:
            return tuple(pool.map(_content, self.pictures))

    def fingerprint(self) -> str:
        """A short hash of names, contents, patients and findings: a store goes on only with what it began with."""
        digest = hashlib.blake2b(digest_size=16)
        for picture, content in zip(self.pictures, self.contents, strict=True):
            parts = (picture.name, content, picture.patient, "|".join(picture.findings))
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
    """
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; expected one with pictures ({', '.join(SUFFIXES)})")
    paths = list(_walk(root))
    if not paths:
        raise DataError(f"{root}: holds no pictures ({', '.join(SUFFIXES)}), nor do the folders below it")
    if odd := [repr(str(path)) for path in paths if not str(path).isprintable()]:
        raise DataError(f"{root}: {len(odd):,} names are not plain text: {some(odd)}; rename them")
    table = find_above(root, LABELS_CSV) if labels is not False else None
    if table is None and labels:
        raise DataError(
            f"{root}: no {LABELS_CSV} there or in the two folders above; it holds the labels of ChestX-ray8 and comes "
            "with its images: put it beside them"
        )
    if table is not None and (labels or any(_patient(path.stem) for path in paths)):
        return _labelled(root, paths, table)
    named = sorted((path.relative_to(root).as_posix(), path) for path in paths)
    return Listing(root, tuple(PictureFile(name, path, _patient(path.stem) or name) for name, path in named))


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
        for path in (Path(folder, name) for name in files if name.lower().endswith(SUFFIXES) and name[0] != "."):
            # A pipe, a socket or a device would be waited for; a link to nowhere is none of these.
            if path.is_file() or not path.exists():
                yield path


def _content(picture: PictureFile) -> str:
    """The hash of a file's bytes; of one that cannot be read none, as decoding it says why."""
    with suppress(OSError), picture.path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
    return ""


def _labelled(root: Path, paths: list[Path], table: Path) -> Listing:
    """The pictures with what the CSV says of them."""
    rows = read_rows(table)
    places: defaultdict[str, list[Path]] = defaultdict(list)
    for path in paths:
        places[path.stem].append(path)
    if twice := {stem: found for stem, found in sorted(places.items()) if len(found) > 1}:
        folders = sorted({str(path.parent) for found in twice.values() for path in found})
        raise DataError(
            f"{root}: {len(twice):,} names come twice ({some(twice)}), in the folders {some(folders)}; "
            "give the folder with one picture for each name"
        )
    paths = sorted(paths, key=lambda path: path.name)
    return Listing(
        root,
        tuple(PictureFile(path.name, path, *rows[path.stem]) for path in paths if path.stem in rows),
        table,
        unlisted=tuple(path.name for path in paths if path.stem not in rows),
        absent=tuple(sorted(rows.keys() - places.keys())),
    )


def _patient(stem: str) -> str | None:
    """The patient that an official file name begins with, or None for any other name."""
    match = OFFICIAL_NAME.fullmatch(stem)
    return match[1] if match else None


def read_rows(path: Path) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Patient and findings in the official CSV, by picture name without its suffix."""
    rows: dict[str, tuple[str, tuple[str, ...]]] = {}
    unknown: Counter[str] = Counter()
    with decoding(path, "a CSV file"), path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        missing = [column for column in CSV_COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError(f"{path}: the columns {', '.join(missing)} are missing; is this the official CSV?")
        for row in reader:
            name, cell, patient = ((row[column] or "").strip() for column in CSV_COLUMNS)
            stem = name.rpartition(".")[0] or name  # Path would take most of the time here
            findings = [label.strip() for label in cell.split("|")]
            if wrong := "a second row for this picture" if stem in rows else _wrong(stem, patient, findings):
                raise DataError(f"{path}, line {reader.line_num} ({name}): {wrong}; mend the row or remove it")
            unknown.update({*findings}.difference(PATHOLOGIES, [NO_FINDING]))
            rows[stem] = patient.zfill(8), tuple(finding for finding in findings if finding != NO_FINDING)
    if unknown:
        ranked = sorted(unknown, key=lambda label: (-unknown[label], label))
        listed = some(f"{label!r} (rows: {unknown[label]:,})" for label in ranked)
        raise DataError(
            f"{path}: unknown labels in {FINDINGS}: {listed}; expected {NO_FINDING!r} or some of the "
            f"{len(PATHOLOGIES)} pathologies, with | between them.{did_you_mean(ranked[0], PATHOLOGIES)}"
        )
    return rows


def _wrong(stem: str, patient: str, findings: list[str]) -> str | None:
    """The fault of a row; None if it has none."""
    if not patient.isascii() or not patient.isdigit():
        return f"expected a number as {PATIENT}, got {patient!r}"
    if _patient(stem) not in (None, patient.zfill(8)):
        return f"the name says patient {_patient(stem)}, the column {PATIENT} {patient.zfill(8)}"
    if NO_FINDING in findings and len(findings) > 1:
        return f"{NO_FINDING!r} beside other findings: {'|'.join(findings)}"
    return None


def read_list(path: Path) -> frozenset[str]:
    """The names in one of the official lists, one on each line, without their suffixes."""
    with decoding(path, "a list of names"):
        lines = path.read_text(encoding="utf-8-sig").split()
    if not lines:
        raise DataError(f"{path}: is empty; expected a file name on each line")
    return frozenset(Path(line).stem for line in lines)


def find_above(folder: Path, pattern: str) -> Path | None:
    """The newest file of that pattern in ``folder`` or, if there is none, in the nearest folder above it."""
    folder = folder.resolve()
    for place in (folder, *folder.parents[:LEVELS_UP]):
        if found := sorted(place.glob(pattern)):
            return found[-1]
    return None


def some(names: Iterable[str], shown: int = 3) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
