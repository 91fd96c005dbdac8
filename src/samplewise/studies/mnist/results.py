"""What one row left behind, read: fit's own folder, and beside it which row it is, its seed and some pictures."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from samplewise import disk
from samplewise.data.records import decoding, read_json
from samplewise.errors import DataError
from samplewise.studies.mnist.rows import Row, parse_row
from samplewise.studies.mnist.table_one import TABLE_ONE, numbers_of

__all__ = ["FIT", "RESULT_FILE", "Result", "read_results", "write_errors", "write_examples", "write_result"]

FIT = "fit"
"""The folder of fit's run below the row's."""
RESULT_FILE = "result.json"
ERRORS_FILE = "errors.csv"
EXAMPLES_FILE = "examples.safetensors"
FORMAT = "samplewise-mnist-row-1"
BINS_TO_THETA = 40  # bins of the error distribution from zero to theta, and as many for each further theta
THETAS = 5


@dataclass(frozen=True)
class Result:
    """What one row with one seed came to."""

    folder: Path
    row: Row
    seed: int
    selected_epoch: int
    reason: str
    """Why that one was selected."""
    black: Mapping[str, Mapping[str, float]]
    """What an all-black picture would score, by data set and column."""
    provenance: Mapping[str, Any]
    sizes: Mapping[str, int]
    """Samples by data set; earlier versions left it to the distribution of errors."""

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The history of fit, which audits every data set after each epoch."""
        path = self.folder / FIT / "history.csv"
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = [{name: value for name, value in row.items() if value != ""} for row in csv.DictReader(file)]
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        if not rows:
            raise DataError(f"{path}: holds no epoch")
        return rows

    @property
    def last_epoch(self) -> int:
        """The number of the last epoch."""
        return int(self.epochs[-1]["epoch"])

    def epoch(self, which: str) -> dict[str, Any]:
        """The history's row of the ``selected`` or the ``last`` epoch."""
        number = self.selected_epoch if which == "selected" else self.last_epoch
        found = [row for row in self.epochs if int(row["epoch"]) == number]
        if not found:
            raise DataError(f"{self.folder / FIT}: its history lacks epoch {number}")
        return found[0]

    def numbers(self, split: str, which: str = "selected") -> dict[str, float]:
        """Table I's numbers on one data set, at the ``selected`` or the ``last`` epoch."""
        return numbers_of(self.epoch(which), split)

    def samples(self, split: str) -> int:
        """How many samples the data set has."""
        return self.sizes[split] if split in self.sizes else int(self.errors()[1][f"{split}/selected"].sum())

    def history(self, *columns: str) -> list[list[float]]:
        """The numbers of every epoch in the given columns."""
        return [[float(row[name]) for row in self.epochs] for name in columns]

    @property
    def has_errors(self) -> bool:
        """Whether the distribution of errors was kept."""
        return (self.folder / ERRORS_FILE).exists()

    @property
    def has_examples(self) -> bool:
        """Whether pictures were kept."""
        return (self.folder / EXAMPLES_FILE).exists()

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


def read_results(out: Path) -> list[Result]:
    """All complete rows of the run in ``out``: those of the paper in its order, the others by name; each by seed."""
    found = [_read(path) for path in (out / "rows").glob(f"*/seed-*/{RESULT_FILE}")]
    order = list(TABLE_ONE)

    def place(result: Result) -> tuple[int, str, int]:
        name = result.row.name
        return order.index(name) if name in order else len(order), name, result.seed

    return sorted(found, key=place)


def _read(path: Path) -> Result:
    stored = read_json(path, "a result of the study", format=FORMAT)
    with decoding(path, "a result of the study"):
        row = parse_row(stored["row"])
        if row.name != stored["name"]:  # a recipe keeps its name; what it stood for is in the file
            row = Row(stored["name"], row.kind, row.numbers, row.options)
        return Result(
            folder=path.parent,
            row=row,
            seed=int(stored["seed"]),
            selected_epoch=int(stored["selected"]["epoch"]),
            reason=str(stored["selected"]["reason"]),
            black=stored["black_image"],
            provenance=stored["provenance"],
            sizes=stored.get("samples", {}),
        )


def write_result(folder: Path, content: Mapping[str, Any]) -> None:
    """Write which row it is and which epoch was selected; last, since it says that the row is complete."""
    disk.write_json(folder / RESULT_FILE, {"format": FORMAT, **content})


def write_errors(folder: Path, theta: float, errors: Mapping[str, Tensor]) -> None:
    """Write the distribution of reconstruction errors, counted in bins, theta being an edge of one.

    Args:
        folder: the row's.
        theta: the bound.
        errors: each sample's error ``(N,)`` by ``split/epoch``.
    """
    edges = np.arange(THETAS * BINS_TO_THETA + 1) * (theta / BINS_TO_THETA)
    counts = {name: np.histogram(values.numpy(), [*edges, np.inf])[0] for name, values in errors.items()}
    with disk.atomic(folder / ERRORS_FILE) as temporary, temporary.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["lower", *counts])
        writer.writerows(zip((f"{edge:.8g}" for edge in edges), *counts.values(), strict=True))


def write_examples(folder: Path, examples: Mapping[str, Tensor]) -> None:
    """Write pictures with values in [0, 1] as bytes; the samples' numbers and errors as they are."""
    stored = {
        name: values if name.endswith(("/index", "/error")) else (values.clamp(0, 1) * 255).round().to(torch.uint8)
        for name, values in examples.items()
    }
    with disk.atomic(folder / EXAMPLES_FILE) as temporary:
        save_file({name: values.contiguous() for name, values in stored.items()}, temporary)
