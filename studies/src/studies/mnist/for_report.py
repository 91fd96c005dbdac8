"""The folder of the study, read for a report: one run for each row and seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from samplewise import report
from samplewise.report import Gallery, Picture, RunReport
from samplewise.storage import decoding
from studies.mnist.digit_network import CONSTRAINT
from studies.mnist.results import ERRORS, EXAMPLES, FIT, Result, read_results
from studies.mnist.rows import RowLabels
from studies.mnist.settings import SETTINGS, StudySettings

MERGED = 4  # bins of the study's files in one bar: they are narrow enough for 60,000 samples


def read_study(folder: Path) -> Sequence[RunReport] | None:
    """Every complete row of the study in a folder; None if the folder is of another kind."""
    if not SETTINGS.belongs_to(folder):
        return None
    settings, found = SETTINGS.read(folder), read_results(folder)
    labels = RowLabels(result.row for result in found)
    several = len({result.seed for result in found}) > 1
    return [
        _run(settings, result, labels.label(result.row) + (f", seed {result.seed}" if several else ""))
        for result in found
    ]


def _run(settings: StudySettings, result: Result, name: str) -> RunReport:
    with decoding(result.folder, "a row of the study"):
        return RunReport(
            name=name,
            folder=str(result.folder),
            problem=f"{settings.data}: minimise the mean cross entropy of the classes",
            requirements=(
                report.Requirement(
                    CONSTRAINT,
                    measure=CONSTRAINT,
                    formula=f"reconstruction error (MSE) <= {settings.theta:g}",
                    upper=settings.theta,
                    margin=result.row.options.margin,
                ),
            ),
            method=result.row.text,
            selected=result.selected["reason"],
            selected_epoch=result.selected["epoch"],
            splits=tuple(_split(name, result, settings) for name in ("train", settings.held_out)),
            curves=tuple(report.read_curves(result.epochs, [CONSTRAINT])),
            distributions=(result.errors(MERGED),) if result.keeps(ERRORS) else (),
            galleries=tuple(_galleries(settings, result)) if result.keeps(EXAMPLES) else (),
            multipliers=report.read_multipliers(result.folder / FIT),
            certificate=report.read_certificate(result.folder / FIT),
            settings={"row": result.row.text, **asdict(settings)},
            provenance=dict(result.provenance),
        )


def _split(name: str, result: Result, settings: StudySettings) -> report.Audited:
    numbers, samples = result.numbers(name), result.samples[name]
    finding = report.Finding(
        violated=round((1 - numbers["satisfied"]) * samples),
        satisfied=numbers["satisfied"],
        mean_violation=numbers["violation"],
        worst=float(result.epoch()[f"{name}/{CONSTRAINT}/worst"]),
    )
    return report.Audited(
        name,
        samples=samples,
        objective=numbers["objective"],
        satisfied=numbers["satisfied"],
        n_comparisons=math.inf if name == "train" or settings.shared else 1,
        means={"accuracy": numbers["accuracy"], CONSTRAINT: numbers["mse"]},
        constraints={CONSTRAINT: finding},
    )


def _galleries(settings: StudySettings, result: Result) -> list[Gallery]:
    """The worst reconstructions, dark on light."""
    kept = {name: values.numpy() for name, values in result.examples().items()}
    galleries = []
    for split in ("train", settings.held_out):
        index, errors, *images = (kept[f"{split}/{what}"] for what in ("index", "error", "original", "reconstruction"))
        pictures = []
        for place, (number, error) in enumerate(zip(index, errors, strict=True)):
            original, reconstructed = (np.uint8(255) - each[place].reshape(settings.shape) for each in images)
            pictures.append(
                Picture(f"sample {int(number):,}: {error:.4f}", {"original": original, "reconstruction": reconstructed})
            )
        galleries.append(Gallery(f"Largest errors on {split}", tuple(pictures)))
    return galleries
