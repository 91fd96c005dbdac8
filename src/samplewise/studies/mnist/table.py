"""The study's table: ours, the paper's and the difference, at the selected and at the last epoch."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samplewise import checkpoint
from samplewise.provenance import provenance
from samplewise.studies.mnist.dominance import compare, describe
from samplewise.studies.mnist.paper import TABLE
from samplewise.studies.mnist.results import METRICS, Result
from samplewise.studies.mnist.rows import Naming, Row
from samplewise.studies.mnist.settings import Settings

__all__ = ["EPOCHS", "Cell", "Line", "Table", "make_table"]

EPOCHS = ("selected", "last")
HEADINGS = {
    "objective": "CE",
    "accuracy": "Accuracy",
    "mse": "MSE",
    "violation": "Violation",
    "satisfied": "Satisfied",
}
DIGITS = {"objective": 4, "accuracy": 4, "mse": 5, "violation": 5, "satisfied": 3}
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

    def text(self, metric: str) -> str:
        """The number, its spread, and in brackets the paper's and the difference."""
        digits = DIGITS[metric]
        shown = f"{self.mean:.{digits}f}"
        if self.spread is not None:
            shown += f" ±{self.spread / 2:.{digits}f}"
        if self.paper is not None and self.difference is not None:
            shown += f" ({self.paper:.{digits}f}, {self.difference:+.{digits}f})"
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
    """By split and metric."""

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
class Table:
    """All rows of a run."""

    settings: Settings
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
        checkpoint.write_json(out / "table.json", {**self.to_dict(), "provenance": provenance()})
        with checkpoint.atomic(out / "table.csv") as temporary, temporary.open("w", newline="") as file:
            csv.writer(file).writerows(self._records())
        with checkpoint.atomic(out / "table.md") as temporary:
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
        rows = ["| Row | Epoch | " + " | ".join(HEADINGS.values()) + " |", "|---|---|" + "---|" * len(HEADINGS)]
        for line in self.at(epoch):
            cells = line.cells[split]
            shown = (cells[metric].text(metric) if metric in cells else "" for metric in METRICS)
            rows.append(f"| {line.label} | {'/'.join(map(str, line.epochs))} | {' | '.join(shown)} |")
        return "\n".join(rows)

    def brief(self) -> str:
        """The selected epoch in plain text, train and held-out side by side, for a terminal."""
        lines = [line for line in self.at("selected") if not line.name.endswith(BLACK)]
        wide = max(len(line.label) for line in lines)
        halves = [split.center(len(_brief_heading())) for split in self.splits]
        rows = [
            f"{'':{wide}}  {'  '.join(halves)}",
            "  ".join(["row".ljust(wide), *(_brief_heading() for _ in halves)]),
        ]
        for line in lines:
            cells = (_brief_cells(line.cells[split]) for split in self.splits)
            rows.append("  ".join([line.label.ljust(wide), *cells]))
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
        own = [line for line in self.at("selected") if line.row not in TABLE and self.settings.comparable]
        if not own:
            return []
        cells = {line.name: line.cells[self.settings.held_out] for line in own}
        found = compare({name: (cell["accuracy"].mean, cell["satisfied"].mean) for name, cell in cells.items()})
        return ["## The paper's rows against ours, test, selected epoch", describe(found)]


def make_table(settings: Settings, found: Sequence[Result]) -> Table:
    """The table of all results of a run, seeds put together, in the paper's order and then by name."""
    rows: dict[str, list[Result]] = {}
    for result in found:
        rows.setdefault(result.row.name, []).append(result)
    order = [name for name in TABLE if name in rows] + sorted(name for name in rows if name not in TABLE)
    naming = Naming([results[0].row for results in rows.values()])
    lines = []
    for epoch in EPOCHS:
        for name in order:
            lines += _lines(rows[name], epoch, settings, naming, comparable=settings.comparable)
    return Table(
        settings,
        lines,
        list(naming.shared),
        [result.stored["provenance"] | {"row": result.row.name} for result in found],
    )


def _lines(results: list[Result], epoch: str, settings: Settings, naming: Naming, *, comparable: bool) -> list[Line]:
    row = results[0].row
    splits = ("train", settings.held_out)
    if row.kind != "classification":
        cells = {split: _cells(results, epoch, split, row, METRICS, comparable=comparable) for split in splits}
        return [_line(results, row, epoch, cells, name=row.name, label=naming.label(row))]
    # The paper measures this row against a black image, which says nothing of the network: both are shown.
    own = {split: _cells(results, epoch, split, row, METRICS, comparable=False) for split in splits}
    black = {split: _black_cells(results, epoch, split, row, comparable=comparable) for split in splits}
    return [
        _line(results, row, epoch, black, name=f"{row.name}{BLACK}", label=f"{naming.label(row)}{BLACK}"),
        _line(results, row, epoch, own, name=row.name, label=f"{naming.label(row)}, its untrained decoder"),
    ]


def _line(
    results: list[Result], row: Row, epoch: str, cells: dict[str, dict[str, Cell]], *, name: str, label: str
) -> Line:
    numbers = [result.selected_epoch if epoch == "selected" else result.epochs for result in results]
    return Line(name, label, row.text, epoch, [result.seed for result in results], numbers, cells)


def _cells(
    results: list[Result], epoch: str, split: str, row: Row, metrics: Iterable[str], *, comparable: bool
) -> dict[str, Cell]:
    return {
        metric: _cell([result.at(epoch)[split][metric] for result in results], row, split, metric, comparable)
        for metric in metrics
    }


def _black_cells(results: list[Result], epoch: str, split: str, row: Row, *, comparable: bool) -> dict[str, Cell]:
    cells = _cells(results, epoch, split, row, ("objective", "accuracy"), comparable=comparable)
    for metric in ("mse", "violation", "satisfied"):
        values = [result.stored["black_image"][split][metric] for result in results]
        cells[metric] = _cell(values, row, split, metric, comparable)
    return cells


def _cell(values: list[float], row: Row, split: str, metric: str, comparable: bool) -> Cell:
    paper = getattr(getattr(TABLE[row.name], split), metric) if comparable and row.name in TABLE else None
    spread = max(values) - min(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), spread, paper)


WIDTHS = {"objective": 8, "accuracy": 8, "mse": 8, "violation": 9, "satisfied": 9}


def _brief_heading() -> str:
    return " ".join(HEADINGS[metric].rjust(WIDTHS[metric]) for metric in METRICS)


def _brief_cells(cells: dict[str, Cell]) -> str:
    return " ".join(f"{cells[metric].mean:.{DIGITS[metric]}f}".rjust(WIDTHS[metric]) for metric in METRICS)
