"""The folder of the study, read for a report: one run for each row and seed."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samplewise.errors import DataError
from samplewise.report.fits import read_certificate, read_multipliers
from samplewise.report.reading import read_curves, reading
from samplewise.report.run import Distribution, Finding, Gallery, Picture, Requirement, RunReport, Split
from samplewise.studies.mnist import results
from samplewise.studies.mnist.network import CONSTRAINT, study_problem
from samplewise.studies.mnist.rows import Naming
from samplewise.studies.mnist.settings import FORMAT, RUN_FILE, Settings, read_settings

__all__ = ["read_study"]

MERGED = 4  # bins of the study's files in one bar: they are narrow enough for 60,000 samples


def read_study(folder: Path) -> Sequence[RunReport] | None:
    """Every complete row of the study in a folder; None if the folder is of another kind."""
    path = folder / RUN_FILE
    if not path.exists():
        return None
    with reading(path):
        stored = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(stored, dict) or not str(stored.get("format", "")).startswith(FORMAT.rstrip("0123456789")):
            return None
    settings = read_settings(folder)
    found = results.read_results(folder)
    if not found:
        raise DataError(f"{folder}: no row is complete yet; go on with --resume")
    naming = Naming({result.row.name: result.row for result in found}.values())
    several = len({result.seed for result in found}) > 1
    return [_run(settings, result, naming, several_seeds=several) for result in found]


def _run(settings: Settings, result: results.Result, naming: Naming, *, several_seeds: bool) -> RunReport:
    with reading(result.folder):
        label = naming.label(result.row)
        constraint = study_problem(settings.theta).constraints[0]
        return RunReport(
            name=f"{label}, seed {result.seed}" if several_seeds else label,
            folder=str(result.folder),
            problem=f"{settings.data}: minimise the mean cross entropy of the classes",
            requirements=(
                Requirement(
                    CONSTRAINT,
                    measure=CONSTRAINT,
                    formula=f"reconstruction error (MSE) <= {settings.theta:g}",
                    upper=constraint.interval[1],
                    margin=result.row.options.margin,
                ),
            ),
            method=result.row.text,
            selected=str(result.stored["selected"]["reason"]),
            selected_epoch=result.selected_epoch,
            splits=tuple(_split(name, metrics, result) for name, metrics in result.selected.items()),
            curves=tuple(read_curves(_history(result), [CONSTRAINT])),
            distributions=(_errors(result),),
            galleries=tuple(_galleries(settings, result)),
            multipliers=read_multipliers(result.folder / "fit"),
            certificate=read_certificate(result.folder / "fit"),
            settings={"row": result.row.text, **result.stored["settings"]},
            provenance=dict(result.stored["provenance"]),
        )


def _history(result: results.Result) -> list[Mapping[str, Any]]:
    with (result.folder / results.HISTORY_FILE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise DataError(f"{result.folder / results.HISTORY_FILE}: holds no epoch")
    return [{name: value for name, value in row.items() if value != ""} for row in rows]


def _split(name: str, metrics: Mapping[str, float], result: results.Result) -> Split:
    _, counts = result.errors()
    samples = int(counts[f"{name}/selected"].sum())
    return Split(
        name,
        samples=samples,
        objective=metrics["objective"],
        satisfied=metrics["satisfied"],
        trained_on=name == "train",
        means={"accuracy": metrics["accuracy"], CONSTRAINT: metrics["mse"]},
        constraints={
            CONSTRAINT: Finding(
                violated=round((1 - metrics["satisfied"]) * samples),
                satisfied=metrics["satisfied"],
                mean_violation=metrics["violation"],
                worst=metrics["worst"],
            )
        },
    )


def _errors(result: results.Result) -> Distribution:
    """The distribution of errors; the file's last bin has no upper edge."""
    edges, columns = result.errors()
    counts = {name.removesuffix("/selected"): column for name, column in columns.items() if name.endswith("/selected")}
    return Distribution(
        CONSTRAINT,
        edges=tuple(edges[::MERGED].tolist()),
        counts={split: tuple(column[:-1].reshape(-1, MERGED).sum(1).tolist()) for split, column in counts.items()},
        beyond={split: (0, int(column[-1])) for split, column in counts.items()},
    )


def _galleries(settings: Settings, result: results.Result) -> list[Gallery]:
    """The worst reconstructions, dark on light; a copy of the results without pictures has none."""
    if not (result.folder / results.EXAMPLES_FILE).exists():
        return []
    kept = {name: values.numpy() for name, values in result.examples().items()}
    galleries = []
    for split in result.selected:
        pictures = []
        for place, index in enumerate(kept[f"{split}/worst/index"]):
            error = float(kept[f"{split}/worst/error"][place])
            images = {
                what: np.uint8(255) - kept[f"{split}/worst/{what}"][place].reshape(settings.shape)
                for what in ("original", "reconstruction")
            }
            pictures.append(Picture(f"sample {int(index):,}: {error:.4f}", images))
        galleries.append(Gallery(f"Largest errors on {split}", tuple(pictures)))
    return galleries
