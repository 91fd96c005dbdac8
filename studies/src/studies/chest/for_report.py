"""The run of a pathology classifier, for a report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samplewise.report import RunReport, Table, count
from samplewise.storage import decoding, read_json
from studies.chest.classifier import SCORES_FILE, SETTINGS_FILE
from studies.records import read_fit_within

PROBLEM = "Find 14 pathologies in chest X-rays"


def read_classifier_training(folder: Path) -> Sequence[RunReport] | None:
    """The run in a folder of ``studies chest classifier``, ended or not; None if the folder is of another kind."""
    found = read_fit_within(folder, SETTINGS_FILE, "classifier")
    if found is None:
        return None
    run, _ = found
    result = folder / SCORES_FILE
    return [replace(run, problem=PROBLEM, tables=tuple(_scores(result)) if result.exists() else ())]


def _scores(path: Path) -> list[Table]:
    """AUROC by pathology, a table for each part that was evaluated."""
    result = read_json(path, "a result of chest classifier")
    with decoding(path, "a result of chest classifier"):
        return [score_table(part, result[part]) for part in ("test", "validation")]


def score_table(part: str, found: Mapping[str, Any]) -> Table:
    """AUROC by pathology on one part, as a result of the classifier has it."""
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
