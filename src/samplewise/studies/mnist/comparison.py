"""The study's table: ours, the paper's and the difference, at the selected and at the last epoch."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samplewise import disk
from samplewise.provenance import provenance
from samplewise.studies.mnist.dominance import compare, describe
from samplewise.studies.mnist.results import Result
from samplewise.studies.mnist.rows import Naming, Row
from samplewise.studies.mnist.settings import StudySettings
from samplewise.studies.mnist.table_one import COLUMNS, TABLE_ONE, Column, paper_number

__all__ = ["EPOCHS", "Cell", "Comparison", "Line", "make_comparison"]

EPOCHS = ("selected", "last")
ACCURACY_TOLERANCE, SATISFIED_TOLERANCE = 0.006, 0.03  # how near a row must come to count as reproduced
BLACK = ", against a black image"


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    mean: float
    """Over the seeds."""
    spread: float | None
    """Largest minus smallest over the seeds; None for a single one."""
    paper: float | None

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.paper is None else self.mean - self.paper

    def text(self, column: Column) -> str:
        """The number, its spread, and in brackets the paper's and the difference."""
        shown = column.text(self.mean)
        if self.spread is not None:
            shown += f" ±{column.text(self.spread / 2)}"
        if self.paper is not None and self.difference is not None:
            shown += f" ({column.text(self.paper)}, {self.difference:+.{column.digits}f})"
        return shown


@dataclass(frozen=True)
class Line:
    """One row of the table at one epoch."""

    name: str
    label: str
    row: str
    epoch: str
    """``selected`` or ``last``."""
    seeds: list[int]
    epochs: list[int]
    """Which epoch it is, for each seed."""
    cells: dict[str, dict[str, Cell]]
    """By split and column."""

    def near_paper(self) -> bool | None:
        """Whether accuracy and share satisfied are within tolerance of the paper's; None if it has no such row."""
        differences = [
            (cells["accuracy"].difference, cells["satisfied"].difference)
            for cells in self.cells.values()
            if "accuracy" in cells
        ]
        if not differences or any(a is None or s is None for a, s in differences):
            return None
        return all(
            abs(a) <= ACCURACY_TOLERANCE and abs(s) <= SATISFIED_TOLERANCE
            for a, s in differences
            if a is not None and s is not None
        )


@dataclass(frozen=True)
class Comparison:
    """All rows of a run."""

    settings: StudySettings
    lines: list[Line]
    shared: list[str]
    """Options that all rows have in common."""
    provenance: list[dict[str, Any]]
    """Command, commit and versions of every row that went in."""

    @property
    def splits(self) -> tuple[str, str]:
        """Names of the two data sets."""
        return "train", self.settings.held_out

    def at(self, epoch: str) -> list[Line]:
        """The lines of one epoch."""
        return [line for line in self.lines if line.epoch == epoch]

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values."""
        lines = []
        for line in self.lines:
            plain = asdict(line)
            for split, cells in line.cells.items():
                for metric, cell in cells.items():
                    plain["cells"][split][metric]["difference"] = cell.difference
            plain["near_paper"] = line.near_paper()
            lines.append(plain)
        return {"settings": asdict(self.settings), "shared": self.shared, "rows": lines, "made_by": self.provenance}

    def write(self, out: Path) -> None:
        """Write ``table.json``, ``table.csv`` and ``table.md``."""
        disk.write_json(out / "table.json", {**self.to_dict(), "provenance": provenance()})
        with disk.atomic(out / "table.csv") as temporary, temporary.open("w", newline="") as file:
            csv.writer(file).writerows(self._records())
        with disk.atomic(out / "table.md") as temporary:
            temporary.write_text(self.text() + "\n", encoding="utf-8")

    def _records(self) -> Iterable[list[Any]]:
        yield ["row", "epoch", "seeds", "split", "metric", "ours", "spread", "paper", "difference"]
        for line in self.lines:
            for split, cells in line.cells.items():
                for metric, cell in cells.items():
                    yield [
                        *(line.name, line.epoch, len(line.seeds), split, metric),
                        *(cell.mean, cell.spread, cell.paper, cell.difference),
                    ]

    def text(self) -> str:
        """The table as Markdown."""
        parts = [self._heading()]
        for epoch in EPOCHS:
            for split in self.splits:
                parts += [f"## {split.capitalize()}, {epoch} epoch", self._grid(epoch, split)]
        return "\n\n".join([*parts, *self._verdict(), *self._beaten()])

    def _heading(self) -> str:
        s = self.settings
        shared = "".join(f", {option}" for option in self.shared)
        compared = " In brackets: the paper's number and the difference to it." if self._compared() else ""
        return (
            f"# {s.data}: CE subject to MSE ≤ {s.theta:g} for every sample\n\n"
            f"{s.epochs} epochs after {s.warm_epochs} of classification only, batch {s.batch_size}, code of {s.code} "
            f"{s.latent} units{shared}.{compared} ± is half the range over the seeds. The selected epoch is the one "
            "with the most satisfied training constraints."
        )

    def _grid(self, epoch: str, split: str) -> str:
        headings = " | ".join(column.heading for column in COLUMNS)
        rows = [f"| Row | Epoch | {headings} |", "|---|---|" + "---|" * len(COLUMNS)]
        for line in self.at(epoch):
            cells = line.cells[split]
            shown = (cells[column.name].text(column) if column.name in cells else "" for column in COLUMNS)
            rows.append(f"| {line.label} | {'/'.join(map(str, line.epochs))} | {' | '.join(shown)} |")
        return "\n".join(rows)

    def brief(self) -> str:
        """The selected epoch in plain text, train and held-out side by side, for a terminal."""
        lines = [line for line in self.at("selected") if not line.name.endswith(BLACK)]
        wide = max(len(line.label) for line in lines)
        heading = " ".join(column.heading.rjust(column.width) for column in COLUMNS)
        rows = [
            f"{'':{wide}}  {'  '.join(split.center(len(heading)) for split in self.splits)}",
            "  ".join(["row".ljust(wide), *(heading for _ in self.splits)]),
        ]
        for line in lines:
            halves = (
                " ".join(column.text(line.cells[split][column.name].mean).rjust(column.width) for column in COLUMNS)
                for split in self.splits
            )
            rows.append("  ".join([line.label.ljust(wide), *halves]))
        return "\n".join(row.rstrip() for row in rows)

    def _compared(self) -> bool:
        return any(cell.paper is not None for line in self.lines for cell in line.cells["train"].values())

    def _verdict(self) -> list[str]:
        judged = [line for line in self.at("selected") if line.near_paper() is not None]
        if not judged:
            return []
        far = [line.label for line in judged if not line.near_paper()]
        verdict = (
            f"Within {ACCURACY_TOLERANCE} in accuracy and {SATISFIED_TOLERANCE} in share satisfied of the paper, "
            f"train and {self.settings.held_out}: {len(judged) - len(far)} of {len(judged)} rows"
        )
        return [verdict + (f"; not {', '.join(far)}." if far else ".")]

    def _beaten(self) -> list[str]:
        """How rows beyond the paper's compare with it, if there are any."""
        own = [line for line in self.at("selected") if line.row not in TABLE_ONE and self.settings.comparable]
        if not own:
            return []
        cells = {line.name: line.cells[self.settings.held_out] for line in own}
        found = compare({name: (cell["accuracy"].mean, cell["satisfied"].mean) for name, cell in cells.items()})
        return ["## The paper's rows against ours, test, selected epoch", describe(found)]


def make_comparison(settings: StudySettings, found: Sequence[Result]) -> Comparison:
    """The table of all results of a run, seeds put together, in their order."""
    rows: dict[str, list[Result]] = {}
    for result in found:
        rows.setdefault(result.row.name, []).append(result)
    naming = Naming([results[0].row for results in rows.values()])
    lines = [line for epoch in EPOCHS for results in rows.values() for line in _lines(results, epoch, settings, naming)]
    made_by = [{**result.provenance, "row": result.row.name} for result in found]
    return Comparison(settings, lines, list(naming.shared), made_by)


def _lines(results: list[Result], epoch: str, settings: StudySettings, naming: Naming) -> list[Line]:
    """The lines of one row at one epoch."""
    row = results[0].row
    splits = ("train", settings.held_out)
    own = {split: [result.numbers(split, epoch) for result in results] for split in splits}
    label = naming.label(row)
    if row.kind != "classification":
        cells = {split: _cells(own[split], row, split, compared=settings.comparable) for split in splits}
        return [_line(results, row, epoch, cells, row.name, label)]
    # The paper measures this row against a black image, which says nothing of the network: both are shown.
    black = {
        split: [{**numbers, **result.black[split]} for numbers, result in zip(own[split], results, strict=True)]
        for split in splits
    }
    against = {split: _cells(black[split], row, split, compared=settings.comparable) for split in splits}
    alone = {split: _cells(own[split], row, split, compared=False) for split in splits}
    return [
        _line(results, row, epoch, against, f"{row.name}{BLACK}", f"{label}{BLACK}"),
        _line(results, row, epoch, alone, row.name, f"{label}, its untrained decoder"),
    ]


def _line(
    results: list[Result], row: Row, epoch: str, cells: dict[str, dict[str, Cell]], name: str, label: str
) -> Line:
    numbers = [result.selected_epoch if epoch == "selected" else result.last_epoch for result in results]
    return Line(name, label, row.text, epoch, [result.seed for result in results], numbers, cells)


def _cells(found: list[dict[str, float]], row: Row, split: str, *, compared: bool) -> dict[str, Cell]:
    """Each column's cell from the numbers of all seeds."""
    cells = {}
    for column in COLUMNS:
        values = [numbers[column.name] for numbers in found]
        spread = max(values) - min(values) if len(values) > 1 else None
        paper = paper_number(row.name, split, column.name) if compared else None
        cells[column.name] = Cell(statistics.fmean(values), spread, paper)
    return cells
