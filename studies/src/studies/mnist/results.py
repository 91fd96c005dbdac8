"""The results of one row: fit's own folder and, beside it, the row, its seed, its errors and some pictures."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file
from torch import Tensor

from samplewise.errors import DataError
from samplewise.report import Distribution
from samplewise.storage import decoding, read_json, write_json, write_tensors, write_text
from studies.mnist.digit_network import CONSTRAINT
from studies.mnist.rows import Row, parse_row
from studies.mnist.table_one import TABLE_ONE, numbers_of

FIT = "fit"
"""The folder of fit's run below the row's."""
RESULT, ERRORS, EXAMPLES = "result.json", "errors.csv", "examples.safetensors"
FORMAT = "samplewise-mnist-row-1"
BINS_TO_THETA = 40  # bins of the error distribution from zero to theta, and as many for each further theta
THETAS = 5


@dataclass(frozen=True)
class Result:
    """The results of one row with one seed."""

    folder: Path
    row: Row
    seed: int
    selected: Mapping[str, Any]
    """The selected epoch, and the reason."""
    black: Mapping[str, Mapping[str, float]]
    """The scores of an all-black picture, by data set and column."""
    provenance: Mapping[str, Any]
    samples: Mapping[str, int]
    """By data set."""

    @cached_property
    def epochs(self) -> list[dict[str, Any]]:
        """The history of fit, which audits every data set after each epoch."""
        path = self.folder / FIT / "history.csv"
        with decoding(path, "a history"), path.open(newline="", encoding="utf-8") as file:
            rows = [{name: value for name, value in row.items() if value != ""} for row in csv.DictReader(file)]
        if not rows:
            raise DataError(f"{path}: holds no epoch")
        return rows

    def epoch(self, which: str = "selected") -> dict[str, Any]:
        """The history's row of the ``selected`` or the ``last`` epoch."""
        number = int((self.epochs[-1] if which == "last" else self.selected)["epoch"])
        found = [row for row in self.epochs if int(row["epoch"]) == number]
        if not found:
            raise DataError(f"{self.folder / FIT}: its history lacks epoch {number}")
        return found[0]

    def numbers(self, split: str, which: str = "selected") -> dict[str, float]:
        """Table I's numbers on one data set, at the ``selected`` or the ``last`` epoch."""
        return numbers_of(self.epoch(which), split)

    def history(self, *columns: str) -> list[list[float]]:
        """The numbers of every epoch in the given columns."""
        return [[float(row[name]) for row in self.epochs] for name in columns]

    def keeps(self, name: str) -> bool:
        """Whether the row has its :data:`ERRORS` or :data:`EXAMPLES`; a copy may be without."""
        return (self.folder / name).exists()

    def errors(self, merged: int) -> Distribution:
        """The distribution of the errors of the selected epoch; ``merged`` of the file's narrow bins become one."""
        path = self.folder / ERRORS
        with decoding(path, "a distribution of errors"), path.open(newline="") as file:
            names, *rows = csv.reader(file)
            columns = dict(zip(names, np.array(rows, dtype=np.float64).T, strict=True))
            found = {split: columns[f"{split}/selected"] for split in self.samples}
            # The last bin has no upper edge.
            bins = {split: counts[:-1].reshape(-1, merged).sum(1).tolist() for split, counts in found.items()}
            return Distribution(
                CONSTRAINT,
                edges=tuple(columns["lower"][::merged].tolist()),
                counts={split: tuple(counts) for split, counts in bins.items()},
                beyond={split: (0, int(counts[-1])) for split, counts in found.items()},
            )

    def examples(self) -> dict[str, Tensor]:
        """The worst originals and reconstructions as bytes, with the samples' numbers and errors, by ``split/what``."""
        with decoding(self.folder / EXAMPLES, "pictures of a row"):
            return load_file(self.folder / EXAMPLES)


def read_results(out: Path) -> list[Result]:
    """All complete rows of the run in ``out``: those of the paper in its order, the others by name; each by seed."""
    found = [_read(path) for path in (out / "rows").glob(f"*/seed-*/{RESULT}")]
    if not found:
        raise DataError(f"{out}: no row is complete yet; go on with --resume")
    order = {name: place for place, name in enumerate(TABLE_ONE)}
    return sorted(found, key=lambda each: (order.get(each.row.name, len(order)), each.row.name, each.seed))


def _read(path: Path) -> Result:
    stored = read_json(path, "a result of the study", format=FORMAT)
    with decoding(path, "a result of the study"):
        row = parse_row(stored["row"])
        return Result(
            folder=path.parent,
            # A recipe keeps its name; what it stood for is in the file.
            row=row if row.name == stored["name"] else Row(row.kind, row.numbers, row.options, stored["name"]),
            seed=int(stored["seed"]),
            selected={"epoch": int(stored["selected"]["epoch"]), "reason": str(stored["selected"]["reason"])},
            black=stored["black_image"],
            provenance=stored["provenance"],
            samples=stored["samples"],
        )


def write_row(
    folder: Path, content: Mapping[str, Any], *, theta: float, errors: Mapping[str, Tensor], examples: dict[str, Tensor]
) -> None:
    """Write what fit's folder does not hold; of each sample's error the distribution, theta being an edge of a bin."""
    edges = np.arange(THETAS * BINS_TO_THETA + 1) * (theta / BINS_TO_THETA)
    counts = [np.histogram(values.numpy(), [*edges, np.inf])[0] for values in errors.values()]
    lines = [["lower", *(f"{split}/selected" for split in errors)]]
    lines += [[f"{edge:.8g}", *map(str, row)] for edge, *row in zip(edges, *counts, strict=True)]
    write_text(folder / ERRORS, "".join(f"{','.join(line)}\r\n" for line in lines))
    write_tensors(folder / EXAMPLES, examples)
    write_json(folder / RESULT, {"format": FORMAT, **content})  # last: it says that the row is complete
