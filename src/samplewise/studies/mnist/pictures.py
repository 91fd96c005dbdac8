"""Reconstructions beside their originals, with the worst violators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samplewise.report.style import COLOURS, save
from samplewise.studies.mnist.results import Result
from samplewise.studies.mnist.rows import Naming
from samplewise.studies.mnist.settings import Settings

__all__ = ["draw_pictures"]


@dataclass(frozen=True)
class Strip:
    """One line of pictures."""

    name: str
    pictures: NDArray[np.uint8]
    """Shape ``(K, D)``."""
    errors: NDArray[np.float64] | None = None
    """Of each picture, ``(K,)``; originals have none."""
    heading: str | None = None
    """Stands above the line where a new block begins."""


def draw_pictures(folder: Path, settings: Settings, shown: Sequence[Result], naming: Naming) -> list[Path]:
    """The first held-out images as each row reconstructs them, then each row's worst.

    Args:
        folder: where the figure goes.
        settings: of the run.
        shown: the rows to compare.
        naming: what the rows are called.
    """
    from matplotlib.figure import Figure

    strips = _strips(settings.held_out, shown, naming)
    count = len(strips[0].pictures)
    ratios = [1.0 + 0.45 * (strip.heading is not None) + 0.3 * (strip.errors is not None) for strip in strips]
    figure = Figure(figsize=(7.0, 0.62 * sum(ratios)))
    top = 1.0
    width = 0.86 / count
    for strip, ratio in zip(strips, ratios, strict=True):
        height = ratio / sum(ratios)
        if strip.heading is not None:
            figure.text(0.01, top - 0.2 / sum(ratios), strip.heading, va="center", weight="bold", fontsize=8.5)
        low = top - height + (0.3 / sum(ratios) if strip.errors is not None else 0.0)
        figure.text(0.01, low + 0.46 / sum(ratios), strip.name, va="center", fontsize=8)
        for column in range(count):
            axes = figure.add_axes((0.13 + column * width, low, width * 0.94, 0.92 / sum(ratios)))
            _draw(axes, strip, column, settings)
        top -= height
    return save(figure, folder, "reconstructions")


def _draw(axes: object, strip: Strip, column: int, settings: Settings) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    side = round(settings.pixels**0.5)
    axes.imshow(strip.pictures[column].reshape(side, -1), cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()
    if strip.errors is not None:
        error = strip.errors[column]
        over = error > settings.theta
        axes.set_title(
            f"{error:.4f}",
            y=-0.34,
            fontsize=6.5,
            color=COLOURS["bound"] if over else COLOURS["classification"],
            weight="bold" if over else "normal",
        )


def _strips(split: str, shown: Sequence[Result], naming: Naming) -> list[Strip]:
    kept = [(result, result.examples()) for result in shown]
    strips = [
        Strip(
            "original",
            kept[0][1][f"{split}/first/original"].numpy(),
            heading=f"First of the {split} set and the error (MSE) of each reconstruction, bold beyond the bound",
        )
    ]
    for result, examples in kept:
        strips.append(
            Strip(
                naming.kind(result.row),
                examples[f"{split}/first/reconstruction"].numpy(),
                examples[f"{split}/first/error"].numpy(),
            )
        )
    for result, examples in kept:
        strips.append(
            Strip(
                "original",
                examples[f"{split}/worst/original"].numpy(),
                heading=f"Worst of the {split} set for {naming.label(result.row)}",
            )
        )
        strips.append(
            Strip(
                naming.kind(result.row),
                examples[f"{split}/worst/reconstruction"].numpy(),
                examples[f"{split}/worst/error"].numpy(),
            )
        )
    return strips
