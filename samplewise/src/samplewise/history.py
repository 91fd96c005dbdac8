"""The history of a run: a row of numbers for each epoch."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from samplewise.audits.audit import Audit
from samplewise.constraints import ViolationStats
from samplewise.errors import DataError, MissingColumnError, did_you_mean
from samplewise.methods import Round
from samplewise.storage.disk import cannot_write, strict_json, write_text

Row = dict[str, Any]
JSONL, CSV = "history.jsonl", "history.csv"


class History:
    """Rows of numbers by name, such as ``train/objective``.

    Args:
        folder: where ``history.jsonl`` and ``history.csv`` are kept; nowhere if None.
        rows: rows to start from; they replace what the files held.
    """

    def __init__(self, folder: Path | None = None, rows: Iterable[Row] = ()) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self.columns: list[str] = []
        """Names of all columns, in the order in which they first appeared."""
        for row in rows:
            self._add(row)
        if folder is not None:
            self._rewrite(folder)

    def append(self, row: Row) -> None:
        known = len(self.columns)
        self._add(row)
        if self.folder is None:
            return
        if len(self.columns) > known:
            self._rewrite(self.folder)  # a CSV has one header, so new columns need a new file
            return
        try:
            with (self.folder / JSONL).open("a") as file:
                file.write(_line(row))
                file.flush()
                os.fsync(file.fileno())
            with (self.folder / CSV).open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(strict_json(row))
        except OSError as error:
            raise cannot_write(self.folder, error) from error

    def column(self, name: str) -> list[Any]:
        """The values of one column, None where a row does not have it."""
        if name not in self.columns and self.rows:
            near = did_you_mean(name, self.columns)
            raise MissingColumnError(f"no column is called {name!r}.{near} There are {', '.join(self.columns)}")
        return [row.get(name) for row in self.rows]

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.columns += [name for name in row if name not in self.columns]

    def _rewrite(self, folder: Path) -> None:
        write_text(folder / JSONL, "".join(map(_line, self.rows)))
        table = io.StringIO()
        writer = csv.DictWriter(table, self.columns)
        writer.writeheader()
        writer.writerows(strict_json(row) for row in self.rows)
        write_text(folder / CSV, table.getvalue())

    @classmethod
    def read(cls, folder: Path) -> "History":
        """The history of the run in ``folder``; its files are not touched. A last line that was cut off is left out."""
        path = Path(folder) / JSONL
        try:
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
            return cls(rows=[{**json.loads(line)} for line in lines if line.endswith("\n") and line.strip()])
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"{path}: cannot be read as the history of a run: {error}") from error


def _line(row: Row) -> str:
    return json.dumps(strict_json(row), allow_nan=False) + "\n"


def _violation_row(name: str, part: ViolationStats) -> Row:
    row = {f"{name}/satisfied": part.satisfied, f"{name}/violation": part.mean_violation, f"{name}/worst": part.worst}
    return row if part.share == 1 else {**row, f"{name}/met": part.met}


def round_row(summary: Round) -> Row:
    """The method's statistics of a round, measured during training, as numbers by name."""
    row: Row = {"running/objective": summary.objective}
    for name, part in summary.constraints.items():
        row |= {f"tau/{name}": summary.taus[name], **_violation_row(f"running/{name}", part)}
    return row


def audit_row(split: str, found: Audit, target: float | None = None) -> Row:
    """An audit of the data set ``split`` as numbers by name; without confidence bounds for training data."""
    own = {"objective": found.objective, "satisfied": found.satisfied, "selection_loss": found.selection_loss(target)}
    # Ours also where a measure is called so: it decides which model is kept.
    row: Row = {f"{split}/{name}": value for name, value in {**own, **found.means, **own}.items()}
    for name, part in found.items():
        row |= _violation_row(f"{split}/{name}", part)
    if found and found.n_comparisons < math.inf:
        row[f"{split}/violation_rate_upper"] = found.violation_rate_upper
        row |= {f"{split}/{name}/violation_rate_upper": part.violation_rate_upper for name, part in found.items()}
    return row
