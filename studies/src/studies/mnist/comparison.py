"""The study's table: ours, the paper's and the difference, at the selected and at the last epoch."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from samplewise.storage import provenance, write_json, write_text
from studies.mnist.figures import write_figures
from studies.mnist.results import Result, read_results
from studies.mnist.rows import RowLabels
from studies.mnist.settings import SETTINGS, StudySettings
from studies.mnist.table_one import COLUMNS, TABLE_ONE, Column
from studies.records import markdown_table

EPOCHS = ("selected", "last")
TOLERANCES = {"accuracy": 0.006, "satisfied": 0.03}
"""Largest differences from the paper's row for a row to count as reproduced."""
BLACK = ", against a black image"


@dataclass(frozen=True)
class Cell:
    """One number of the table: the mean over the seeds."""

    mean: float
    spread: float | None = None
    """Largest minus smallest over the seeds; None for a single one."""
    paper: float | None = None
    difference: float | None = None
    """Ours minus the paper's."""

    @classmethod
    def of(cls, values: Sequence[float], paper: float | None) -> "Cell":
        """From the values of all seeds."""
        mean, spread = statistics.fmean(values), max(values) - min(values) if len(values) > 1 else None
        return cls(mean, spread, paper, None if paper is None else mean - paper)

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
    """The epoch's number for each seed."""
    cells: dict[str, dict[str, Cell]]
    """By data set and column."""
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
    """Command, commit and versions of every row."""

    def at(self, epoch: str) -> list[Entry]:
        """The rows at one epoch."""
        return [entry for entry in self.rows if entry.epoch == epoch]

    def write(self, out: Path) -> None:
        """Write ``table.json`` and ``table.md``."""
        write_json(out / "table.json", {**asdict(self), "provenance": provenance()})
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
                rows = [["Row", "Epoch", *(column.heading for column in COLUMNS)]]
                for entry in self.at(epoch):
                    numbers = (entry.cells[split][column.name].text(column) for column in COLUMNS)
                    rows.append([entry.label, "/".join(map(str, entry.epochs)), *numbers])
                parts += [f"## {split.capitalize()}, {epoch} epoch", markdown_table(rows)]
        in_paper = [entry for entry in self.at("selected") if entry.near_paper is not None]
        if in_paper:
            far = [entry.label for entry in in_paper if not entry.near_paper]
            parts.append(
                f"Within {TOLERANCES['accuracy']} in accuracy and {TOLERANCES['satisfied']} in share satisfied of the "
                f"paper, train and {s.held_out}: {len(in_paper) - len(far)} of {len(in_paper)} rows"
                + (f"; not {', '.join(far)}." if far else ".")
            )
        return "\n\n".join(parts)


def make_comparison(settings: StudySettings, found: Sequence[Result]) -> Comparison:
    """The table of all results of a run, seeds put together, in their order."""
    rows: dict[str, list[Result]] = {}
    for result in found:
        rows.setdefault(result.row.name, []).append(result)
    labels, entries = RowLabels(result.row for result in found), []
    for epoch in EPOCHS:
        for results in rows.values():
            row, label = results[0].row, labels.label(results[0].row)
            if row.kind == "classification":
                # The paper measures this row against a black image, which says nothing of the network: both are shown.
                entries.append(_entry(results, epoch, settings, f"{label}{BLACK}", black=True))
                entries.append(_entry(results, epoch, settings, f"{label}, its untrained decoder", compared=False))
            else:
                entries.append(_entry(results, epoch, settings, label))
    made_by = [{**result.provenance, "row": result.row.name} for result in found]
    return Comparison(settings, list(labels.shared), entries, made_by)


def _entry(
    results: Sequence[Result],
    epoch: str,
    settings: StudySettings,
    label: str,
    *,
    black: bool = False,
    compared: bool = True,
) -> Entry:
    row, cells = results[0].row, {}
    for split in ("train", settings.held_out):
        paper = TABLE_ONE.get(row.name, {}).get(split, {}) if compared and settings.comparable else {}
        found = [{**each.numbers(split, epoch), **(each.black[split] if black else {})} for each in results]
        cells[split] = {
            column.name: Cell.of([numbers[column.name] for numbers in found], paper.get(column.name))
            for column in COLUMNS
        }
    off = [(half[name].difference, limit) for half in cells.values() for name, limit in TOLERANCES.items()]
    near = all(difference is not None and abs(difference) <= limit for difference, limit in off)
    return Entry(
        name=row.name + (BLACK if black else ""),
        label=label,
        row=row.text,
        epoch=epoch,
        seeds=[result.seed for result in results],
        epochs=[int(result.epoch(epoch)["epoch"]) for result in results],
        cells=cells,
        near_paper=None if any(difference is None for difference, _ in off) else near,
    )


def write_all(out: Path) -> Comparison:
    """Write the table and the figures into the run's folder, from its rows' files."""
    settings, found = SETTINGS.read(out), read_results(out)
    table = make_comparison(settings, found)
    table.write(out)
    write_figures(out / "figures", settings, found)
    return table
