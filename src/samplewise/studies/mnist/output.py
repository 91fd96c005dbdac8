"""Table and figures of a run, from the files of its rows."""

from pathlib import Path

from samplewise.errors import DataError
from samplewise.studies.mnist.comparison import Comparison, make_comparison
from samplewise.studies.mnist.figures import write_figures
from samplewise.studies.mnist.results import read_results
from samplewise.studies.mnist.settings import read_settings

__all__ = ["write_all"]


def write_all(out: Path) -> tuple[Comparison, list[str]]:
    """Write ``table.md``, ``table.csv``, ``table.json`` and ``figures/`` into the run's folder.

    Returns:
        The table, and the names of figures that are not drawn since no row keeps what they show.
    """
    settings = read_settings(out)
    found = read_results(out)
    if not found:
        raise DataError(f"{out}: no row is complete yet; go on with --resume")
    table = make_comparison(settings, found)
    table.write(out)
    missing = write_figures(out / "figures", settings, found)
    return table, missing
