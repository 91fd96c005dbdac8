"""The look that all figures share: size, type, and colours that colour-blind readers and printers keep apart."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplewise import checkpoint
from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "MARKERS", "bound_line", "decimals", "new_figure", "save", "styled"]

COLOURS = {
    "sequential": "#0072B2",
    "fixed": "#D55E00",
    "classification": "#555555",
    "ours": "#009E73",
    "bound": "#000000",
    "faint": "#BBBBBB",
}
"""From the palette of Okabe and Ito, by what is drawn; also apart in lightness, for print without colour."""
MARKERS = {"sequential": "o", "fixed": "s", "classification": "D", "ours": "*"}

RC: Any = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "svg.hashsalt": "samplewise",  # the same figure gives the same file
    "svg.fonttype": "path",
}
DPI = 200


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the common style; figures are made and saved inside, and nothing global is left changed."""
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigurationError("figures need matplotlib: pip install 'samplewise[plots]'") from error
    with mpl.rc_context(RC):
        yield


def new_figure(rows: int, columns: int, *, width: float = 7.0, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """A figure with ``rows x columns`` axes, row by row.

    Args:
        rows: of axes.
        columns: of axes.
        width: in inches; 7 fills the text width of a page.
        height: in inches.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def bound_line(axes: Axes, value: float, text: str) -> None:
    """Mark the bound of a constraint on the horizontal axis."""
    axes.axvline(value, color=COLOURS["bound"], linestyle="--", linewidth=1.0)
    axes.annotate(text, (value, 1.0), (4, -2), xycoords=("data", "axes fraction"), textcoords="offset points", va="top")


def decimals(value: float) -> int:
    """Decimals that show three digits of a number below one, such as 0.00857."""
    return 3 if value <= 0 else max(0, 2 - math.floor(math.log10(value)))


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg``, whole or not at all, and without a date: equal figures are equal files."""
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{name}.{suffix}"
        with checkpoint.atomic(path) as temporary:
            figure.savefig(temporary, format=suffix, dpi=DPI, metadata=metadata)
        paths.append(path)
    return paths
