"""The numbers of a run, one row an epoch, in memory and as JSON lines and CSV."""

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from samplewise.audit import Audit
from samplewise.checkpoint import atomic, strict_json
from samplewise.errors import OutputError
from samplewise.methods import Round

__all__ = ["History", "audit_row", "round_row"]

Row = dict[str, Any]
JSONL, CSV = "history.jsonl", "history.csv"


class History:
    """Rows of numbers by name, such as ``train/objective``.

    Args:
        folder: where ``history.jsonl`` and ``history.csv`` are kept; nowhere if None.
        rows: rows to start from; they replace what the files held.

    Example:
        >>> history = History()
        >>> history.append({"epoch": 1, "loss": 0.5})
        >>> history.column("loss")
        [0.5]
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
        """Add a row, here and to the files."""
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
            raise OutputError(f"cannot write to {self.folder}: {error}. Free some space and resume the run") from error

    def column(self, name: str) -> list[Any]:
        """The values of one column, None where a row does not have it."""
        return [row.get(name) for row in self.rows]

    def _add(self, row: Row) -> None:
        self.rows.append(row)
        self.columns += [name for name in row if name not in self.columns]

    def _rewrite(self, folder: Path) -> None:
        with atomic(folder / JSONL) as temporary:
            temporary.write_text("".join(map(_line, self.rows)))
        with atomic(folder / CSV) as temporary, temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(strict_json(row) for row in self.rows)

    @classmethod
    def read(cls, folder: Path) -> "History":
        """The history of the run in ``folder``; its files are not touched. A last line that was cut off is left out."""
        path = Path(folder) / JSONL
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return cls(rows=[json.loads(line) for line in lines if line.endswith("\n") and line.strip()])


def _line(row: Row) -> str:
    return json.dumps(strict_json(row), allow_nan=False) + "\n"


def round_row(summary: Round) -> Row:
    """What a method saw while the weights moved, as numbers by name."""
    row: Row = {"running/objective": summary.objective}
    for name, part in summary.constraints.items():
        row[f"tau/{name}"] = part.tau
        row[f"running/{name}/satisfied"] = part.satisfied
        row[f"running/{name}/violation"] = part.mean_violation
        row[f"running/{name}/worst"] = part.worst
    return row


def audit_row(split: str, found: Audit) -> Row:
    """What an audit found on the data set ``split``, as numbers by name."""
    row: Row = {f"{split}/objective": found.objective, f"{split}/satisfied": found.satisfied}
    row |= {f"{split}/{name}": value for name, value in found.means.items()}
    for name, part in found.items():
        row[f"{split}/{name}/satisfied"] = part.satisfied
        row[f"{split}/{name}/violation"] = part.mean_violation
        row[f"{split}/{name}/worst"] = part.worst
        row[f"{split}/{name}/violation_rate_upper"] = part.violation_rate_upper
    return row
