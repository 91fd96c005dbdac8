"""The look that all figures share: size, type, and colours that colour-blind readers and printers keep apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplewise import checkpoint
from samplewise.errors import ConfigurationError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "LINES", "MARKERS", "bound_line", "label_points", "new_figure", "save", "styled"]

COLOURS = {
    "sequential": "#0072B2",
    "fixed": "#D55E00",
    "classification": "#555555",
    "ours": "#009E73",
    "bound": "#000000",
    "faint": "#BBBBBB",
}
"""From the palette of Okabe and Ito, by what is drawn; also apart in lightness, for print without colour."""
LINES = {"sequential": "-", "fixed": "--", "classification": ":", "ours": (0, (5, 1, 1, 1))}
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
SMALL = 6.5  # points; names inside a plot
Box = tuple[float, float, float, float]


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


def label_points(
    axes: Axes, labels: Sequence[tuple[float, float, str, str]], *, others: Sequence[tuple[float, float]]
) -> None:
    """Write names beside points, each where it covers neither another name nor a point, if there is such a place.

    Args:
        axes: with its limits set.
        labels: x, y, text and colour of each.
        others: points without a name that should stay visible too.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that the layout, and with it the place of each point, is known
    unit = figure.dpi / 72
    wide, high, gap = 0.56 * SMALL * unit, 1.15 * SMALL * unit, 5 * unit
    points = [axes.transData.transform(point) for point in [*((x, y) for x, y, _, _ in labels), *others]]
    taken = [(x - gap / 2, y - gap / 2, x + gap / 2, y + gap / 2) for x, y in points]
    frame = axes.get_window_extent()
    for (x, y, text, colour), (px, py) in zip(labels, points, strict=False):
        boxes = []
        for distance in (1.0, 2.2, 3.4):
            for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
                left = px + dx * gap * distance - wide * len(text) * (1 - dx) / 2
                low = py + dy * (gap * distance + high / 2) - high / 2
                boxes.append((left, low, left + wide * len(text), low + high))
        best = min(boxes, key=lambda box: (_covered(box, taken) + _outside(box, frame.bounds), boxes.index(box)))
        taken.append(best)
        place = ((best[0] - px) / unit, (best[1] + high / 2 - py) / unit)
        axes.annotate(
            text, (x, y), place, textcoords="offset points", va="center", fontsize=SMALL, color=colour, zorder=4
        )


def _covered(box: Box, taken: Sequence[Box]) -> float:
    """The area that a box shares with others."""
    return sum(
        max(0.0, min(box[2], other[2]) - max(box[0], other[0]))
        * max(0.0, min(box[3], other[3]) - max(box[1], other[1]))
        for other in taken
    )


def _outside(box: Box, frame: Box) -> float:
    """The area of a box that lies beyond a frame, given as left, bottom, width and height."""
    inside = (frame[0], frame[1], frame[0] + frame[2], frame[1] + frame[3])
    return (box[2] - box[0]) * (box[3] - box[1]) - _covered(box, [inside])


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg``, whole or not at all, and without a date: equal figures are equal files."""
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{name}.{suffix}"
        with checkpoint.atomic(path) as temporary:
            figure.savefig(temporary, format=suffix, dpi=DPI, metadata=metadata)
        paths.append(path)
    return paths
