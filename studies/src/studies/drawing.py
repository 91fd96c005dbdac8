"""How every figure looks: colours and markers of the arms, curves, histograms, bounds, legends, and its files."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from samplewise.report import PALETTE
from samplewise.storage import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
Line = str | tuple[int, tuple[float, ...]]
"""How matplotlib takes a dash."""
BOUND, INK, FAINT, GRID = "#000000", "#6b7280", "#bbbbbb", "#e4e4e4"
"""Colours of bounds, of what belongs to no series, of the background, and of the grid."""
SERIES_MARKERS = "oDs^P*"
COLOURS = {"sequential": PALETTE[0], "fixed": PALETTE[1], "ours": PALETTE[2]}
COLOURS |= {"classification": INK, "bound": BOUND, "faint": FAINT}
"""Colours by what is drawn."""
LINES: dict[str, Line] = {"sequential": "-", "fixed": "--", "classification": ":", "ours": (0, (5, 1, 1, 1))}
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
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.5,
    "legend.frameon": False,
    "svg.hashsalt": "samplewise",  # the same figure gives the same file
    "svg.fonttype": "path",
}
DPI = 200
SMALL = 6.5  # points; names inside a plot


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the common style; figures are made and saved inside, and nothing global is left changed."""
    import matplotlib as mpl

    with mpl.rc_context(RC):
        yield


def new_figure(rows: int, columns: int, *, width: float = 7.0, height: float = 2.8) -> tuple[Figure, list[Axes]]:
    """A figure with ``rows x columns`` axes, row by row; 7 inches fill the text width of a page."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    return figure, list(grid.flat)


def series(number: int, *, beside_ours: bool = False) -> tuple[str, str]:
    """Colour and marker of one series after the other, without ours where that is drawn too."""
    colours = [each for each in PALETTE if not (beside_ours and each == COLOURS["ours"])]
    markers = SERIES_MARKERS.replace(MARKERS["ours"], "") if beside_ours else SERIES_MARKERS
    return colours[number % len(colours)], markers[number % len(markers)]


def curve(
    axes: Axes, x: Iterable[float | None], y: Iterable[float | None], colour: str, line: Line, label: str | None
) -> None:
    """Draw a number over the epochs, between those that have one; a single one is a point."""
    points = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    if points:
        marker = "." if len(points) == 1 else None
        axes.plot(*zip(*points, strict=True), color=colour, linestyle=line, marker=marker, label=label)


def histogram(
    axes: Axes, shares: Numbers, edges: Numbers, colour: str, *, fill: float = 0.2, label: str | None = None
) -> None:
    """Draw shares in bins as steps, the area below them filled as far as ``fill`` says."""
    axes.stairs(shares, edges, color=colour, linewidth=1.2, label=label)
    if fill:
        axes.stairs(shares, edges, color=colour, fill=True, alpha=fill)


def bound_line(axes: Axes, value: float, text: str, *, side: Literal["left", "right"] = "left") -> None:
    """Mark a bound on the horizontal axis, its name to the right of the line, or with ``side`` right to the left."""
    axes.axvline(value, color=COLOURS["bound"], linestyle="--", linewidth=1.0)
    place = (4, -2) if side == "left" else (-4, -2)
    where: Any = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "va": "top", "ha": side}
    axes.annotate(text, (value, 1.0), place, **where)


def legend_below(figure: Figure, handles: Sequence[Any], *, columns: int) -> None:
    """One legend for all axes, below them."""
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)


def label_points(
    axes: Axes, labels: Sequence[tuple[float, float, str, str]], *, others: Sequence[tuple[float, float]]
) -> None:
    """Write names beside points, each where it covers neither another name nor a point, if there is such a place.

    Args:
        axes: with its limits set.
        labels: x, y, text and colour of each.
        others: points without a name that should stay visible too.
    """
    from matplotlib.transforms import Bbox

    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # so that the layout, and with it the place of each point, is known
    unit = figure.dpi / 72
    wide, high, gap = 0.56 * SMALL * unit, 1.15 * SMALL * unit, 5 * unit
    points = [axes.transData.transform(point) for point in [*((x, y) for x, y, _, _ in labels), *others]]
    taken = [Bbox.from_bounds(x - gap / 2, y - gap / 2, gap, gap) for x, y in points]
    frame = axes.get_window_extent()
    sides = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))

    def shared(box: Bbox, other: Bbox) -> float:
        both = Bbox.intersection(box, other)
        return 0.0 if both is None else both.width * both.height

    def hidden(box: Bbox) -> float:
        """What a name there would cover of others, and what of it would lie beyond the frame."""
        return sum(shared(box, other) for other in taken) + shared(box, box) - shared(box, frame)

    for (x, y, text, colour), (px, py) in zip(labels, points, strict=False):
        boxes = []
        for distance, (dx, dy) in itertools.product((1.0, 2.2, 3.4), sides):
            left = px + dx * gap * distance - wide * len(text) * (1 - dx) / 2
            low = py + dy * (gap * distance + high / 2) - high / 2
            boxes.append(Bbox.from_bounds(left, low, wide * len(text), high))
        best = min(boxes, key=hidden)
        taken.append(best)
        place = ((best.x0 - px) / unit, (best.y0 + high / 2 - py) / unit)
        font: Any = {"fontsize": SMALL, "color": colour}
        axes.annotate(text, (x, y), place, textcoords="offset points", va="center", zorder=4, **font)


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.svg``, whole or not at all, and without a date: equal figures are equal files."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, which takes as long as drawing, and not again for each file
    paths = []
    for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None, "Creator": None})):
        path = folder / f"{name}.{suffix}"
        with atomic(path) as temporary:
            figure.savefig(temporary, format=suffix, dpi=DPI, metadata=metadata)
        paths.append(path)
    return paths
