"""The files one row leaves behind, written and read: from these alone tables and figures are made."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from samplewise import checkpoint
from samplewise.audit import Audit
from samplewise.errors import CheckpointError, DataError
from samplewise.studies.mnist.network import CONSTRAINT
from samplewise.studies.mnist.rows import Row, parse_row

__all__ = [
    "METRICS",
    "RESULT_FILE",
    "Result",
    "from_audit",
    "from_history",
    "read_results",
    "write_errors",
    "write_examples",
    "write_history",
]

RESULT_FILE = "result.json"
HISTORY_FILE = "history.csv"
ERRORS_FILE = "errors.csv"
EXAMPLES_FILE = "examples.safetensors"
FORMAT = "samplewise-mnist-row-1"
BINS_TO_THETA = 40  # bins of the error distribution from zero to theta, and as many for each further theta
THETAS = 5

METRICS = ("objective", "accuracy", "mse", "violation", "satisfied")
"""The columns of the paper's Table I, in its order."""

Metrics = dict[str, float]


def from_history(row: Mapping[str, Any], split: str) -> Metrics:
    """Table I's numbers, and those beyond it, of one epoch of a history."""
    prefix = f"{split}/{CONSTRAINT}"
    return {
        "objective": float(row[f"{split}/objective"]),
        "accuracy": float(row[f"{split}/accuracy"]),
        "mse": float(row[prefix]),
        "violation": float(row[f"{prefix}/violation"]),
        "satisfied": float(row[f"{prefix}/satisfied"]),
        "worst": float(row[f"{prefix}/worst"]),
        "violation_rate_upper": float(row[f"{prefix}/violation_rate_upper"]),
    }


def from_audit(audit: Audit) -> Metrics:
    """The same numbers of an audit."""
    part = audit[CONSTRAINT]
    return {
        "objective": audit.objective,
        "accuracy": audit.means["accuracy"],
        "mse": audit.means[CONSTRAINT],
        "violation": part.mean_violation,
        "satisfied": part.satisfied,
        "worst": part.worst,
        "violation_rate_upper": part.violation_rate_upper,
    }


@dataclass(frozen=True)
class Result:
    """What one row with one seed came to."""

    folder: Path
    row: Row
    seed: int
    selected: dict[str, Metrics]
    """By split, at the epoch with the most satisfied training constraints."""
    last: dict[str, Metrics]
    """By split, at the last epoch."""
    selected_epoch: int
    epochs: int
    seconds: float
    stored: dict[str, Any]
    """The whole file, provenance included."""

    def at(self, epoch: str) -> dict[str, Metrics]:
        """The numbers at the ``selected`` or the ``last`` epoch."""
        return self.selected if epoch == "selected" else self.last

    def history(self, *columns: str) -> list[list[float]]:
        """The numbers of every epoch in the given columns."""
        with (self.folder / HISTORY_FILE).open(newline="") as file:
            rows = list(csv.DictReader(file))
        return [[float(row[name]) for row in rows] for name in columns]

    def errors(self) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """Edges of the bins and, by ``split/epoch``, how many samples lie in each; the last bin has no upper edge."""
        with (self.folder / ERRORS_FILE).open(newline="") as file:
            rows = list(csv.DictReader(file))
        columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0] if name != "lower"}
        return np.array([float(row["lower"]) for row in rows]), columns

    def examples(self) -> dict[str, Tensor]:
        """Originals and reconstructions, uint8, by ``split/which/what``."""
        try:
            return load_file(self.folder / EXAMPLES_FILE)
        except (OSError, SafetensorError) as error:
            raise DataError(f"{self.folder / EXAMPLES_FILE}: cannot be read: {error}") from error


def write_result(folder: Path, content: dict[str, Any]) -> None:
    """Write the row's result: its presence says that the row is complete."""
    checkpoint.write_json(folder / RESULT_FILE, {"format": FORMAT, **content})


def read_results(out: Path) -> list[Result]:
    """All complete rows of the run in ``out``, by the order of the table and then by seed."""
    return [_read(path) for path in sorted((out / "rows").glob(f"*/seed-*/{RESULT_FILE}"))]


def _read(path: Path) -> Result:
    try:
        stored = json.loads(path.read_text())
        if stored["format"] != FORMAT:
            raise CheckpointError(f"{path}: was written by another version of the study")
        row = parse_row(stored["row"])
        if row.name != stored["name"]:  # a recipe keeps its name; what it stood for is in the file
            row = Row(stored["name"], row.kind, row.numbers, row.options)
        return Result(
            folder=path.parent,
            row=row,
            seed=stored["seed"],
            selected=stored["selected"]["metrics"],
            last=stored["last"]["metrics"],
            selected_epoch=stored["selected"]["epoch"],
            epochs=stored["last"]["epoch"],
            seconds=stored["seconds"],
            stored=stored,
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: cannot be read as a result of the study: {error!r}") from error


def write_history(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write every epoch's numbers as CSV."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with checkpoint.atomic(folder / HISTORY_FILE) as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def write_errors(folder: Path, theta: float, errors: Mapping[str, Tensor]) -> None:
    """Write the distribution of reconstruction errors, counted in bins, theta being an edge of one.

    Args:
        folder: the row's.
        theta: the bound.
        errors: each sample's error ``(N,)`` by ``split/epoch``.
    """
    edges = np.arange(THETAS * BINS_TO_THETA + 1) * (theta / BINS_TO_THETA)
    counts = {name: np.histogram(values.numpy(), [*edges, np.inf])[0] for name, values in errors.items()}
    with checkpoint.atomic(folder / ERRORS_FILE) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["lower", *counts])
        writer.writerows(zip((f"{edge:.8g}" for edge in edges), *counts.values(), strict=True))


def write_examples(folder: Path, examples: Mapping[str, Tensor]) -> None:
    """Write pictures with values in [0, 1] as bytes; the samples' numbers and errors as they are."""
    stored = {
        name: values if name.endswith(("/index", "/error")) else (values.clamp(0, 1) * 255).round().to(torch.uint8)
        for name, values in examples.items()
    }
    with checkpoint.atomic(folder / EXAMPLES_FILE) as temporary:
        save_file({name: values.contiguous() for name, values in stored.items()}, temporary)
