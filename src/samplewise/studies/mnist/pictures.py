"""Reconstructions beside their originals, with the worst violators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from samplewise.report.style import COLOURS, save
from samplewise.studies.mnist.results import Result
from samplewise.studies.mnist.rows import Naming
from samplewise.studies.mnist.settings import StudySettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_pictures"]

WIDTH, LEFT = 7.0, 0.9  # inches: of the figure, and of the names at its left
SIZE, HEADING, CAPTION = 0.6, 0.3, 0.2  # inches: of a line of pictures, a heading, the numbers under a line


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


def draw_pictures(folder: Path, settings: StudySettings, shown: Sequence[Result], naming: Naming) -> list[Path]:
    """The first held-out images as each row reconstructs them, then each row's worst.

    Args:
        folder: where the figure goes.
        settings: of the run.
        shown: the rows to compare.
        naming: what the rows are called.
    """
    from matplotlib.figure import Figure

    strips = _strips(settings.held_out, shown, naming)
    heights = [SIZE + HEADING * (strip.heading is not None) + CAPTION * (strip.errors is not None) for strip in strips]
    figure = Figure(figsize=(WIDTH, sum(heights)))
    # One pair of axes, measured in inches from the lower left: a pair for each picture would take seconds.
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    top = sum(heights)
    for strip, height in zip(strips, heights, strict=True):
        _draw(axes, strip, top, settings)
        top -= height
    axes.set_xlim(0, WIDTH)
    axes.set_ylim(0, sum(heights))
    return save(figure, folder, "reconstructions")


def _draw(axes: Axes, strip: Strip, top: float, settings: StudySettings) -> None:
    """Draw a line of pictures downward from ``top``, its heading first and the errors last."""
    if strip.heading is not None:
        axes.text(0.07, top - HEADING / 2, strip.heading, va="center", weight="bold", fontsize=8.5)
        top -= HEADING
    axes.text(0.07, top - SIZE / 2, strip.name, va="center", fontsize=8)
    step = (WIDTH - LEFT) / len(strip.pictures)
    for column, picture in enumerate(strip.pictures):
        centre = LEFT + (column + 0.5) * step
        axes.imshow(
            picture.reshape(settings.shape),
            cmap="gray_r",
            vmin=0,
            vmax=255,
            interpolation="nearest",
            aspect="auto",
            extent=(centre - 0.46 * SIZE, centre + 0.46 * SIZE, top - 0.96 * SIZE, top - 0.04 * SIZE),
        )
        if strip.errors is not None:
            over = strip.errors[column] > settings.theta
            axes.text(
                centre,
                top - SIZE - 0.3 * CAPTION,
                f"{strip.errors[column]:.4f}",
                ha="center",
                va="center",
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
