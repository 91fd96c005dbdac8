"""The study's table: ours, the paper's and the difference, at the selected and at the last epoch."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samplewise.report import markdown_table
from samplewise.storage import provenance, write_csv, write_json, write_text
from studies.mnist.figures import write_figures
from studies.mnist.results import Result, read_results
from studies.mnist.rows import RowLabels
from studies.mnist.settings import StudySettings, read_settings
from studies.mnist.table_one import COLUMNS, TABLE_ONE, Column

EPOCHS = ("selected", "last")
TOLERANCES = {"accuracy": 0.006, "satisfied": 0.03}
"""How near a row must come to the paper's to count as reproduced."""
BLACK = ", against a black image"
Cells = dict[str, dict[str, "Cell"]]
"""By data set and column."""


@dataclass(frozen=True)
class Cell:
    """One number of the table."""

    mean: float
    """Over the seeds."""
    spread: float | None = None
    """Largest minus smallest over the seeds; None for a single one."""
    paper: float | None = None
    difference: float | None = None
    """Ours minus the paper's."""

    def text(self, column: Column) -> str:
        """The number, its spread, and in brackets the paper's and the difference."""
        shown = column.text(self.mean)
        if self.spread is not None:
            shown += f" ±{column.text(self.spread / 2)}"
        if self.paper is not None:
            shown += f" ({column.text(self.paper)}, {self.difference:+.{column.digits}f})"
        return shown


@dataclass(frozen=True)
class Entry:
    """One row of the table at one epoch."""

    name: str
    label: str
    row: str
    epoch: str
    """``selected`` or ``last``."""
    seeds: list[int]
    epochs: list[int]
    """Which epoch it is, for each seed."""
    cells: Cells
    near_paper: bool | None
    """Whether accuracy and share satisfied are within tolerance of the paper's; None if it has no such row."""


@dataclass(frozen=True)
class Comparison:
    """All rows of a run."""

    settings: StudySettings
    shared: list[str]
    """Options that all rows have in common."""
    rows: list[Entry]
    made_by: list[dict[str, Any]]
    """Command, commit and versions of every row that went in."""

    def at(self, epoch: str) -> list[Entry]:
        """The rows at one epoch."""
        return [entry for entry in self.rows if entry.epoch == epoch]

    def to_dict(self) -> dict[str, Any]:
        """The table as plain values."""
        return asdict(self)

    def write(self, out: Path) -> None:
        """Write ``table.json``, ``table.csv`` and ``table.md``."""
        write_json(out / "table.json", {**self.to_dict(), "provenance": provenance()})
        numbers = [
            {
                **{"row": entry.name, "epoch": entry.epoch, "seeds": len(entry.seeds), "split": split, "metric": name},
                **{"ours": cell.mean, "spread": cell.spread, "paper": cell.paper, "difference": cell.difference},
            }
            for entry in self.rows
            for split, cells in entry.cells.items()
            for name, cell in cells.items()
        ]
        write_csv(out / "table.csv", numbers)
        write_text(out / "table.md", self.text() + "\n")

    def text(self) -> str:
        """The table as Markdown."""
        s = self.settings
        shared = "".join(f", {option}" for option in self.shared)
        published = any(cell.paper is not None for entry in self.rows for cell in entry.cells["train"].values())
        brackets = " In brackets: the paper's number and the difference to it." if published else ""
        parts = [
            f"# {s.data}: CE subject to MSE ≤ {s.theta:g} for every sample",
            f"{s.epochs} epochs after {s.warm_epochs} of classification only, batch {s.batch_size}, code of {s.code} "
            f"{s.latent} units{shared}.{brackets} ± is half the range over the seeds. The selected epoch is the one "
            "with the most satisfied training constraints.",
        ]
        if s.shared:
            parts.append(
                f"{s.shared:,} of the {s.held_out} images are training images too: they say nothing of others."
            )
        for epoch in EPOCHS:
            for split in ("train", s.held_out):
                parts += [f"## {split.capitalize()}, {epoch} epoch", self._grid(epoch, split)]
        in_paper = [entry for entry in self.at("selected") if entry.near_paper is not None]
        if in_paper:
            far = [entry.label for entry in in_paper if not entry.near_paper]
            parts.append(
                f"Within {TOLERANCES['accuracy']} in accuracy and {TOLERANCES['satisfied']} in share satisfied of the "
                f"paper, train and {s.held_out}: {len(in_paper) - len(far)} of {len(in_paper)} rows"
                + (f"; not {', '.join(far)}." if far else ".")
            )
        return "\n\n".join(parts)

    def _grid(self, epoch: str, split: str) -> str:
        rows = [["Row", "Epoch", *(column.heading for column in COLUMNS)]]
        for entry in self.at(epoch):
            numbers = (entry.cells[split][column.name].text(column) for column in COLUMNS)
            rows.append([entry.label, "/".join(map(str, entry.epochs)), *numbers])
        return markdown_table(rows)


def make_comparison(settings: StudySettings, found: Sequence[Result]) -> Comparison:
    """The table of all results of a run, seeds put together, in their order."""
    rows: dict[str, list[Result]] = {}
    for result in found:
        rows.setdefault(result.row.name, []).append(result)
    labels = RowLabels(result.row for result in found)
    entries = [
        entry for epoch in EPOCHS for results in rows.values() for entry in _entries(results, epoch, settings, labels)
    ]
    made_by = [{**result.provenance, "row": result.row.name} for result in found]
    return Comparison(settings, list(labels.shared), entries, made_by)


def _entries(results: list[Result], epoch: str, settings: StudySettings, labels: RowLabels) -> list[Entry]:
    """The lines of one row at one epoch."""
    row, label, comparable = results[0].row, labels.label(results[0].row), settings.comparable
    lines = [(row.name, label, False, comparable)]
    if row.kind == "classification":
        # The paper measures this row against a black image, which says nothing of the network: both are shown.
        against = (f"{row.name}{BLACK}", f"{label}{BLACK}", True, comparable)
        lines = [against, (row.name, f"{label}, its untrained decoder", False, False)]
    seeds = [result.seed for result in results]
    epochs = [int(result.epoch(epoch)["epoch"]) for result in results]
    entries = []
    for name, said, black, compared in lines:
        cells = {}
        for split in ("train", settings.held_out):
            found = [{**each.numbers(split, epoch), **(each.black[split] if black else {})} for each in results]
            cells[split] = _cells(found, TABLE_ONE.get(row.name, {}).get(split, {}) if compared else {})
        entries.append(Entry(name, said, row.text, epoch, seeds, epochs, cells, _near(cells)))
    return entries


def _cells(found: list[dict[str, float]], published: Mapping[str, float]) -> dict[str, Cell]:
    """Each column's cell from the numbers of all seeds."""
    cells = {}
    for name in (column.name for column in COLUMNS):
        values = [numbers[name] for numbers in found]
        mean, paper = statistics.fmean(values), published.get(name)
        spread = max(values) - min(values) if len(values) > 1 else None
        cells[name] = Cell(mean, spread, paper, None if paper is None else mean - paper)
    return cells


def _near(cells: Cells) -> bool | None:
    found = [(half[name].difference, limit) for half in cells.values() for name, limit in TOLERANCES.items()]
    if any(difference is None for difference, _ in found):
        return None
    return all(abs(difference or 0.0) <= limit for difference, limit in found)


def write_all(out: Path) -> tuple[Comparison, list[str]]:
    """Write ``table.md``, ``table.csv``, ``table.json`` and ``figures/`` into the run's folder, from its rows' files.

    Returns:
        The table, and the names of figures that are not drawn since no row keeps what they show.
    """
    settings = read_settings(out)
    found = read_results(out)
    table = make_comparison(settings, found)
    table.write(out)
    return table, write_figures(out / "figures", settings, found)
