"""Pictures of the study: blocks below the floor, bits against share, and what a decibel costs in each block."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from studies.compression.arms import KINDS
from studies.compression.blocks import Grey, cut, joined
from studies.compression.codec import LEVELS, PIXELS, SIDE, Codec
from studies.compression.study import OURS, POWERS, Row, bits_at, curve
from studies.drawing import COLOURS, MARKERS, histogram, legend_below, new_figure, save, series, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BELOW = "#e0202a"
POWERS_OF_TEN = (0.5, 0.1, 0.01, 0.001)
"""Fractions below the floor that are marked on an axis."""
EDGE = POWERS_OF_TEN[-1] / 3
"""Fraction at the end of the axis: smaller ones, zero among them, are drawn there."""


class DecodedPicture(NamedTuple):
    """A picture decoded by a codec, with its bits and the blocks below the floor."""

    pixels: Grey
    bits: Tensor
    """Of each block, ``(rows, columns)``."""
    below: NDArray[np.bool_]
    """A mask of the blocks below the floor."""
    prices: NDArray[np.float64]
    """The cost of one decibel more in each block, in bits; NaN where it cannot be said."""


@torch.no_grad()
def decode_picture(codec: Codec, picture: Grey) -> DecodedPicture:
    """Code a picture in one pass."""
    grid = cut(picture)
    rows, columns, _ = grid.shape
    blocks = grid.reshape(-1, PIXELS)
    coded = codec(blocks)
    pixels = joined(codec.shown(coded.symbols).view(rows, columns, PIXELS), *picture.shape)
    per_decibel, _ = prices(codec, blocks, coded.symbols.level)
    table = (rows, columns)
    return DecodedPicture(
        pixels, coded.bits.view(table), (coded.error > 1).view(table).numpy(), per_decibel.view(table).numpy()
    )


@torch.no_grad()
def prices(codec: Codec, blocks: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """Marginal costs of blocks ``(B, PIXELS)`` in bits: for one decibel more, and for a unit of error less.

    Measured between the gains one level below and above that of a block; NaN where the error does not fall. The second
    is the multiplier of the block's bound: the weight that would have made the block choose this gain.
    """
    less, more = (codec(blocks, (level + step).clamp(0, LEVELS - 1)) for step in (-1, 1))
    paid, fall = more.bits - less.bits, less.error - more.error
    falls = (paid > 0) & (fall > 1e-3)
    decibels = 10 * torch.log10(less.error / more.error)
    return torch.where(falls, paid / decibels, math.nan), torch.where(falls, paid / fall, math.nan)


def draw_beside(shown: Mapping[str, DecodedPicture], folder: Path, name: str) -> None:
    """Pictures beside each other, blocks below the floor outlined."""
    with styled():
        first = next(iter(shown.values()))
        height = 3.5 * first.pixels.shape[0] / first.pixels.shape[1] + 0.45
        figure, panels = new_figure(1, len(shown), height=height)
        for axes, (title, each) in zip(panels, shown.items(), strict=True):
            _picture(axes, each.pixels)
            for row, column in np.argwhere(each.below):
                _outline(axes, row, column)
            axes.set_title(title, loc="left")
        save(figure, folder, name)


def _picture(axes: Axes, pixels: Grey) -> None:
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()


def _outline(axes: Axes, row: int, column: int) -> None:
    from matplotlib.patches import Rectangle

    corner = (column * SIDE - 0.5, row * SIDE - 0.5)
    axes.add_patch(Rectangle(corner, SIDE, SIDE, fill=False, edgecolor=BELOW, linewidth=1.1))


def draw_study(rows: Sequence[Row], folder: Path) -> None:
    """Bits against share in one pass, with the first seed: the bound beside the fixed weights that were run."""
    curves = {kind: curve(rows, kind, rows[0].seed, searched=False) for kind in ("fixed", *POWERS, OURS)}
    if drawn := {kind: points for kind, points in curves.items() if points}:
        draw_front(drawn, folder, "front")


def draw_front(curves: Mapping[str, Sequence[tuple[float, float]]], folder: Path, name: str) -> None:
    """Bits of a block against the share of unseen samples above the floor, a line for each kind of arm.

    ``curves`` has (share, bits) of each kind. The axis spreads the last percents: what counts is how few are below.
    """
    with styled():
        figure, (axes,) = new_figure(1, 1, width=6.0, height=3.4)
        others = [kind for kind in curves if kind != OURS]
        for kind, points in curves.items():
            colour, marker = COLOURS["ours"], MARKERS["ours"]
            if kind != OURS:
                colour, marker = series(others.index(kind), beside_ours=True)
            size, width = (11, 2.0) if kind == OURS else (4, 1.0)
            title = KINDS[kind].title.replace("`", "")
            axes.plot(*_along(points), linewidth=width, color=colour)
            below, bits = zip(*((_below(share), bits) for share, bits in points), strict=True)
            axes.plot(below, bits, marker, markersize=size, color=colour, label=title)
        axes.set_xscale("log")
        axes.invert_xaxis()
        ticks = {below: f"{1 - below:.1%}".replace(".0%", "%") for below in POWERS_OF_TEN}
        if any(_below(share) == EDGE for points in curves.values() for share, _ in points):
            ticks[EDGE] = f"\N{GREATER-THAN OR EQUAL TO} {1 - EDGE:.2%}"
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.set_xlabel("unseen samples above the floor")
        axes.set_ylabel("bits a block")
        legend_below(figure, axes.get_legend_handles_labels()[0], columns=2)
        save(figure, folder, name)


def _below(share: float) -> float:
    return max(1 - share, EDGE)


def _along(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Fractions below the floor, and bits, along the curve of an arm, with mixtures between its runs."""
    lowest, highest = (reach(share for share, _ in points) for reach in (min, max))
    steps = np.geomspace(_below(lowest), _below(highest), 60).tolist()
    line = [(below, bits_at(points, min(1 - below, highest))) for below in steps]
    line.append((steps[-1], bits_at(points, highest)))  # straight up at the edge, where all beyond it is drawn
    found = [(below, bits) for below, bits in line if bits is not None]
    return [below for below, _ in found], [bits for _, bits in found]


def draw_prices(
    picture: Grey, shown: DecodedPicture, multipliers: Mapping[str, Tensor], folder: Path, name: str
) -> None:
    """Draw the bits that a decibel costs in each block, and the distribution of the multipliers of each arm."""
    with styled():
        figure, (left, right) = new_figure(1, 2, height=3.3)
        _picture(left, picture)
        height, width = picture.shape
        extent = (-0.5, shown.prices.shape[1] * SIDE - 0.5, shown.prices.shape[0] * SIDE - 0.5, -0.5)
        drawn = left.imshow(
            shown.prices, cmap="inferno", alpha=0.7, extent=extent, vmin=0, vmax=np.nanquantile(shown.prices, 0.98)
        )
        left.set(xlim=(-0.5, width - 0.5), ylim=(height - 0.5, -0.5))
        left.set_title("(a) bits for one dB more, by block", loc="left")
        figure.colorbar(drawn, ax=left, shrink=0.8)
        edges = np.geomspace(1, 10_000, 45)
        for (title, values), kind in zip(multipliers.items(), ("fixed", "ours"), strict=False):
            known = values[~values.isnan()]
            counts = np.histogram(known.numpy(), edges)[0] / len(known)
            histogram(right, counts, edges, COLOURS[kind], label=title)
        right.set_xscale("log")
        right.set_xlabel("bits for a unit of error (multiplier)")
        right.set_ylabel("fraction of blocks")
        right.set_title("(b) every block its own", loc="left")
        right.legend()
        save(figure, folder, name)
