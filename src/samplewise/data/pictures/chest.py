"""What ChestX-ray8 adds to a folder of pictures: file names with the patient, a CSV with the findings, two lists."""

import csv
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import DataError, did_you_mean

__all__ = ["LISTS", "PATHOLOGIES", "Row", "find_above", "label_array", "patient_of", "read_list", "read_rows", "some"]

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

NONE = "No Finding"
KNOWN = frozenset((*PATHOLOGIES, NONE))
TABLE = "Data_Entry_2017*.csv"
LISTS = ("train_val_list.txt", "test_list.txt")
NAME, FINDINGS, PATIENT = "Image Index", "Finding Labels", "Patient ID"
LEVELS_UP = 2  # from .../images to the folder of the CSV when sizes have folders of their own
OFFICIAL_NAME = re.compile(r"(\d{8})_\d{3}")


@dataclass(frozen=True, slots=True)
class Row:
    """What the CSV says of one picture."""

    patient: str
    findings: tuple[str, ...]
    """Of :data:`PATHOLOGIES`; empty for "No Finding"."""


def some(names: Iterable[str], shown: int = 3) -> str:
    """The first few names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def patient_of(stem: str) -> str | None:
    """The patient that an official file name begins with, or None for any other name."""
    match = OFFICIAL_NAME.fullmatch(stem)
    return match[1] if match else None


def find_above(folder: Path, pattern: str) -> Path | None:
    """The newest file of that pattern in ``folder`` or, if there is none, in the nearest folder above it."""
    folder = folder.resolve()
    for place in (folder, *folder.parents[:LEVELS_UP]):
        if found := sorted(place.glob(pattern)):
            return found[-1]
    return None


def read_rows(path: Path) -> dict[str, Row]:
    """Read the official CSV into rows by picture name without its suffix.

    Raises:
        DataError: the file is not that CSV, a label is unknown, a name comes twice or contradicts its patient.
    """
    rows: dict[str, Row] = {}
    unknown: Counter[str] = Counter()
    for number, name, patient, findings in _cells(path):
        stem = name.rpartition(".")[0] or name  # Path would take most of the time here
        if wrong := _wrong(stem, patient, findings, rows):
            raise DataError(f"{path}, line {number} ({name}): {wrong}")
        unknown.update(set(findings) - KNOWN)
        rows[stem] = Row(patient.zfill(8), tuple(finding for finding in findings if finding != NONE))
    if unknown:
        ranked = sorted(unknown, key=lambda label: (-unknown[label], label))
        listed = some(f"{label!r} (rows: {unknown[label]:,})" for label in ranked)
        raise DataError(
            f"{path}: unknown labels in {FINDINGS}: {listed}; expected {NONE!r} or some of the {len(PATHOLOGIES)} "
            f"pathologies, with | between them.{did_you_mean(ranked[0], PATHOLOGIES)}"
        )
    return rows


def _wrong(stem: str, patient: str, findings: list[str], rows: Mapping[str, Row]) -> str | None:
    """What is wrong with a row, after those that are read already."""
    if stem in rows:
        return "a second row for this picture; remove one of them"
    if not patient.isascii() or not patient.isdigit():
        return f"expected a number as {PATIENT}, got {patient!r}"
    named = patient_of(stem)
    if named is not None and named != patient.zfill(8):
        return f"the name says patient {named}, the column {PATIENT} {patient.zfill(8)}"
    if NONE in findings and len(findings) > 1:
        return f"{NONE!r} beside other findings: {'|'.join(findings)}"
    return None


def _cells(path: Path) -> list[tuple[int, str, str, list[str]]]:
    """Line number, name, patient and findings of each row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [column for column in (NAME, FINDINGS, PATIENT) if column not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"{path}: the columns {', '.join(missing)} are missing; is this the official CSV?")
            return [
                (reader.line_num, (row[NAME] or "").strip(), (row[PATIENT] or "").strip(), _findings(row[FINDINGS]))
                for row in reader
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as a CSV file: {error}") from error


def _findings(cell: str | None) -> list[str]:
    return [label.strip() for label in (cell or "").split("|")]


def read_list(path: Path) -> frozenset[str]:
    """The names in one of the official lists, one on each line, without their suffixes."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as a list of names: {error}") from error
    if not lines:
        raise DataError(f"{path}: is empty; expected a file name on each line")
    return frozenset(Path(line).stem for line in lines)


def label_array(findings: Sequence[Iterable[str]]) -> NDArray[np.uint8]:
    """Findings as zeros and ones, shape ``(N, 14)``, one column for each of :data:`PATHOLOGIES`."""
    labels = np.zeros((len(findings), len(PATHOLOGIES)), np.uint8)
    column = {pathology: number for number, pathology in enumerate(PATHOLOGIES)}
    for row, names in enumerate(findings):
        for name in names:
            labels[row, column[name]] = 1
    return labels
