"""The folder of the study, read for a report: one run for each row and seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from samplewise.data.records import decoding, read_json
from samplewise.errors import DataError
from samplewise.report.fits import read_certificate, read_curves, read_multipliers
from samplewise.report.run import Distribution, Finding, Gallery, Picture, Requirement, RunReport, Split
from samplewise.studies.mnist.digit_network import CONSTRAINT, study_problem
from samplewise.studies.mnist.results import FIT, Result, read_results
from samplewise.studies.mnist.rows import Naming
from samplewise.studies.mnist.settings import FORMAT, RUN_FILE, StudySettings, read_settings

__all__ = ["read_study"]

MERGED = 4  # bins of the study's files in one bar: they are narrow enough for 60,000 samples


def read_study(folder: Path) -> Sequence[RunReport] | None:
    """Every complete row of the study in a folder; None if the folder is of another kind."""
    path = folder / RUN_FILE
    if not path.exists():
        return None
    if not str(read_json(path, "a run").get("format", "")).startswith(FORMAT.rstrip("0123456789")):
        return None
    settings = read_settings(folder)
    found = read_results(folder)
    if not found:
        raise DataError(f"{folder}: no row is complete yet; go on with --resume")
    naming = Naming({result.row.name: result.row for result in found}.values())
    several = len({result.seed for result in found}) > 1
    return [_run(settings, result, naming, several_seeds=several) for result in found]


def _run(settings: StudySettings, result: Result, naming: Naming, *, several_seeds: bool) -> RunReport:
    with decoding(result.folder, "a row of the study"):
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
            selected=result.reason,
            selected_epoch=result.selected_epoch,
            splits=tuple(_split(name, result) for name in ("train", settings.held_out)),
            curves=tuple(read_curves(result.epochs, [CONSTRAINT])),
            distributions=(_errors(result),) if result.has_errors else (),
            galleries=tuple(_galleries(settings, result)),
            multipliers=read_multipliers(result.folder / FIT),
            certificate=read_certificate(result.folder / FIT),
            settings={"row": result.row.text, **asdict(settings)},
            provenance=dict(result.provenance),
        )


def _split(name: str, result: Result) -> Split:
    epoch, numbers, samples = result.epoch("selected"), result.numbers(name), result.samples(name)
    return Split(
        name,
        samples=samples,
        objective=numbers["objective"],
        satisfied=numbers["satisfied"],
        trained_on=name == "train",
        means={"accuracy": numbers["accuracy"], CONSTRAINT: numbers["mse"]},
        constraints={
            CONSTRAINT: Finding(
                violated=round((1 - numbers["satisfied"]) * samples),
                satisfied=numbers["satisfied"],
                mean_violation=numbers["violation"],
                worst=float(epoch[f"{name}/{CONSTRAINT}/worst"]),
            )
        },
    )


def _errors(result: Result) -> Distribution:
    """The distribution of errors; the file's last bin has no upper edge."""
    edges, columns = result.errors()
    counts = {name.removesuffix("/selected"): column for name, column in columns.items() if name.endswith("/selected")}
    return Distribution(
        CONSTRAINT,
        edges=tuple(edges[::MERGED].tolist()),
        counts={split: tuple(column[:-1].reshape(-1, MERGED).sum(1).tolist()) for split, column in counts.items()},
        beyond={split: (0, int(column[-1])) for split, column in counts.items()},
    )


def _galleries(settings: StudySettings, result: Result) -> list[Gallery]:
    """The worst reconstructions, dark on light; a copy of the results without pictures has none."""
    if not result.has_examples:
        return []
    kept = {name: values.numpy() for name, values in result.examples().items()}
    galleries = []
    for split in ("train", settings.held_out):
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
