"""What a run leaves of its epochs: a row of numbers each, and which samples stayed violated audit after audit."""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samplewise.audits.audit import Audit
from samplewise.constraints import ViolationStats
from samplewise.errors import (
    CheckpointError,
    ConfigurationError,
    DataError,
    MissingColumnError,
    constraint_named,
    did_you_mean,
)
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


def _fared(name: str, part: ViolationStats) -> Row:
    row = {f"{name}/satisfied": part.satisfied, f"{name}/violation": part.mean_violation, f"{name}/worst": part.worst}
    return row if part.share == 1 else {**row, f"{name}/met": part.met}


def round_row(summary: Round) -> Row:
    """What a method saw while the weights moved, as numbers by name."""
    row: Row = {"running/objective": summary.objective}
    for name, part in summary.constraints.items():
        row |= {f"tau/{name}": summary.taus[name], **_fared(f"running/{name}", part)}
    return row


def audit_row(split: str, found: Audit, target: float | None = None) -> Row:
    """What an audit found on the data set ``split``, as numbers by name; of training data without bounds on others."""
    own = {"objective": found.objective, "satisfied": found.satisfied, "selection_loss": found.selection_loss(target)}
    # Ours also where a measure is called so: it decides which model is kept.
    row: Row = {f"{split}/{name}": value for name, value in {**own, **found.means, **own}.items()}
    for name, part in found.items():
        row |= _fared(f"{split}/{name}", part)
    if found and found.n_comparisons < math.inf:
        row[f"{split}/violation_rate_upper"] = found.violation_rate_upper
        row |= {f"{split}/{name}/violation_rate_upper": part.violation_rate_upper for name, part in found.items()}
    return row


class Streaks:
    """How many audits in a row each sample has been violated: look there if a problem will not become feasible."""

    def __init__(self) -> None:
        self.audits = 0
        self._lengths: dict[str, Tensor] = {}
        self._excess: dict[str, Tensor] = {}  # in the last audit

    def update(self, audit: Audit) -> None:
        for name, part in audit.items():
            before = self._lengths.get(name, torch.zeros(audit.samples, dtype=torch.int16))
            # Saturating, since what matters is "at least r rounds".
            grown = before + (before < torch.iinfo(torch.int16).max).to(torch.int16)
            self._lengths[name] = torch.where(part.excess > 0, grown, 0)
            self._excess[name] = part.excess.float()
        self.audits += 1

    def persistent(self, name: str, *, rounds: int) -> list[tuple[int, float]]:
        """The samples that the constraint ``name`` found violated in each of the last ``rounds`` audits, worst first.

        As pairs of number and violation in the last audit, in the measure's units.
        """
        lengths: Tensor = constraint_named(name, self._lengths)
        if not 1 <= rounds <= self.audits:
            raise ConfigurationError(f"expected rounds from 1 to {self.audits}, the audits counted, got {rounds}")
        kept = torch.where(lengths >= rounds, self._excess[name], 0.0)
        order = kept.argsort(descending=True, stable=True)[: int((lengths >= rounds).sum())]
        return list(zip(order.tolist(), kept[order].tolist(), strict=True))

    def state_dict(self) -> dict[str, Any]:
        return {"lengths": dict(self._lengths), "excess": dict(self._excess), "audits": self.audits}

    def load_state_dict(self, state: Mapping[str, Any], samples: int) -> None:
        """Take back what :meth:`state_dict` gave, of a data set of so many samples."""
        for kept in (*state["lengths"].values(), *state["excess"].values()):
            if kept.shape != (samples,):
                raise CheckpointError(f"has streaks of {len(kept)} samples, expected {samples}")
        self._lengths, self._excess, self.audits = dict(state["lengths"]), dict(state["excess"]), int(state["audits"])
