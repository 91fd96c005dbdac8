"""Table and figures of a run, from the files of its rows."""

from dataclasses import dataclass
from pathlib import Path

from samplewise.errors import DataError
from samplewise.studies.mnist import results
from samplewise.studies.mnist.figures import write_figures
from samplewise.studies.mnist.settings import read_settings
from samplewise.studies.mnist.table import Table, make_table

__all__ = ["Outcome", "complete", "write_all"]


@dataclass(frozen=True)
class Outcome:
    """What was made."""

    table: Table
    text: str
    """The table for people."""


def complete(out: Path) -> list[results.Result]:
    """The rows that have come to their end."""
    return results.read_results(out)


def write_all(out: Path) -> Outcome:
    """Write ``table.md``, ``table.csv``, ``table.json`` and ``figures/`` into the run's folder."""
    settings = read_settings(out)
    found = complete(out)
    if not found:
        raise DataError(f"{out}: no row is complete yet; go on with --resume")
    table = make_table(settings, found)
    table.write(out)
    write_figures(out / "figures", settings, found)
    return Outcome(table, table.text())
