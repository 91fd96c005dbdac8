"""The run of a pathology classifier, for a report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samplewise.errors import DataError
from samplewise.report.fits import read_fit
from samplewise.report.reading import read_json, reading
from samplewise.report.run import RunReport, Table
from samplewise.report.words import count
from samplewise.studies.chest.classifier import RESULT_FILE, SETTINGS_FILE

__all__ = ["read_classifier_training"]

PROBLEM = "Find 14 pathologies in chest X-rays"


def read_classifier_training(folder: Path) -> Sequence[RunReport] | None:
    """The run in a folder of ``samplewise chest classifier``, ended or not; None if the folder is of another kind."""
    path = folder / SETTINGS_FILE.name
    if not path.exists():
        return None
    stored = read_json(path)
    if stored.get("format") != SETTINGS_FILE.format:
        return None
    found = read_fit(folder / "fit")
    if found is None:
        raise DataError(f"{folder}: its training has not begun yet; make the report later")
    (run,) = found
    result = folder / RESULT_FILE
    with reading(path):
        settings = {"classifier": stored["settings"], **run.settings}
    return [
        replace(
            run,
            name=folder.resolve().name,
            folder=str(folder),
            problem=PROBLEM,
            tables=(*run.tables, *(_scores(result) if result.exists() else ())),
            settings=settings,
        )
    ]


def _scores(path: Path) -> list[Table]:
    """AUROC by pathology, a table for each part that was judged."""
    result = read_json(path)
    with reading(path):
        return [_table(part, result[part]) for part in ("test", "validation")]


def _table(part: str, found: Mapping[str, Any]) -> Table:
    rows = [(one["pathology"].replace("_", " "), count(one["positives"]), one["auroc"]) for one in found["pathologies"]]
    rows.append(("mean of those with enough positives", "", found["mean_auroc"]))
    return Table(
        f"AUROC on {part}, {count(found['images'])} images of {count(found['patients'])} patients",
        ("", "positives", "AUROC", "95 % interval"),
        tuple((name, positives, *_interval(auroc)) for name, positives, auroc in rows),
    )


def _interval(auroc: Mapping[str, float | None]) -> tuple[str, str]:
    if auroc["value"] is None:  # with one kind of label only there is none
        return "-", "-"
    return f"{auroc['value']:.3f}", f"{auroc['low']:.3f} to {auroc['high']:.3f}"
