"""Original, watermarked and what differs between them, as the paper shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samplewise.report.style import new_figure, save
from samplewise.watermark.judging.measure import Measured, Pixels
from samplewise.watermark.judging.output import Judged, again

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

__all__ = ["chosen_images", "draw_comparison", "draw_pictures"]

HEAT = "inferno"
COMPARED = 4  # runs whose pictures fit beside each other


@dataclass(frozen=True)
class _Example:
    """One image before and after, as grey files hold it, ``(H, W)``."""

    why: str
    name: str
    found: str
    cover: Pixels
    marked: Pixels

    @property
    def difference(self) -> Pixels:
        return np.abs(self.marked.astype(np.int16) - self.cover.astype(np.int16)).astype(np.uint8)

    @property
    def largest(self) -> int:
        return int(self.difference.max())


def chosen_images(measured: Measured) -> dict[int, str]:
    """Which images to show, by their place, and why: the worst ones, a typical one and the best."""
    error, psnr = measured.columns["grey/bit_error"], measured.columns["grey/psnr"]
    order = np.argsort(psnr, kind="stable").tolist()
    chosen: dict[int, str] = {order[0]: "lowest PSNR"}
    if error.max() > 0:
        chosen.setdefault(int(error.argmax()), "most bit errors")
    chosen.setdefault(order[len(order) // 2], "median PSNR")
    chosen.setdefault(order[-1], "highest PSNR")
    return chosen


def draw_pictures(folder: Path, one: Judged) -> list[Path]:
    """A few images of a run, with one scale for all differences."""
    examples = [_example(one, place, why) for place, why in chosen_images(one.measured).items()]
    figure, panels = new_figure(len(examples), 3, width=6.6, height=0.5 + 1.75 * len(examples))
    highest = max(example.largest for example in examples)
    for row, example in enumerate(examples):
        left, middle, right = panels[3 * row : 3 * row + 3]
        _show(left, example.cover)
        _show(middle, example.marked)
        heat = _heat(right, example.difference, highest)
        left.set_ylabel(f"{example.why}\n{example.name}\n{example.found}", fontsize=7)
    for panel, title in zip(panels, ("original", "watermarked", "difference"), strict=False):
        panel.set_title(title)
    _scale(figure, heat, panels[2::3])
    figure.suptitle(f"{one.run.label}, as 8-bit grey files", fontsize=9)
    return save(figure, folder, f"pictures-{one.run.name}")


def draw_comparison(folder: Path, judged: Sequence[Judged]) -> list[Path]:
    """One image by all runs that were judged on it: the one with the lowest PSNR of the first run.

    Each difference has a scale of its own, which is stated: networks may differ a hundredfold.
    """
    first = judged[0]
    name = first.measured.names[int(first.measured.columns["grey/psnr"].argmin())]
    shared = [one for one in judged if name in one.measured.names and one.data.store.size == first.data.store.size]
    shared = shared[:COMPARED]
    if len(shared) < 2:
        return []
    columns = len(shared) + 1
    figure, panels = new_figure(2, columns, width=1.65 * columns, height=4.2)
    examples = [_example(one, one.measured.names.index(name), "") for one in shared]
    _show(panels[0], examples[0].cover)
    panels[0].set_title("original")
    panels[0].set_xlabel(examples[0].name, fontsize=7)
    panels[columns].axis("off")
    panels[columns].text(0.5, 0.5, "difference,\neach with its\nown scale", ha="center", va="center")
    for column, (one, example) in enumerate(zip(shared, examples, strict=True), start=1):
        _show(panels[column], example.marked)
        panels[column].set_title(one.run.label.replace(", ", "\n", 1))
        panels[column].set_xlabel(example.found, fontsize=7)
        _heat(panels[columns + column], example.difference, example.largest)
        panels[columns + column].set_xlabel(f"0 (black) to {example.largest}\nof 255 grey levels", fontsize=7)
    return save(figure, folder, "comparison")


def _example(one: Judged, place: int, why: str) -> _Example:
    columns = one.measured.columns
    found = f"{columns['grey/psnr'][place]:.2f} dB, BER {columns['grey/bit_error'][place]:.3f}"
    covers, marked = again(one, [place])
    return _Example(why, _short(one.measured.names[place]), found, covers[0], marked[0])


def _short(name: str, length: int = 28) -> str:
    return name if len(name) <= length else "..." + name[-length:]


def _show(panel: Axes, pixels: Pixels) -> None:
    panel.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    _bare(panel)


def _heat(panel: Axes, difference: Pixels, highest: int) -> AxesImage:
    shown = panel.imshow(difference, cmap=HEAT, vmin=0, vmax=max(1, highest), interpolation="nearest")
    _bare(panel)
    return shown


def _bare(panel: Axes) -> None:
    panel.grid(visible=False)
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set_visible(False)


def _scale(figure: Figure, heat: AxesImage, panels: Sequence[Axes]) -> None:
    """What the colours of all heatmaps mean."""
    from matplotlib.ticker import MaxNLocator

    bar = figure.colorbar(heat, ax=list(panels), shrink=0.8, label="|difference| in grey levels (of 255)")
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(nbins=6, integer=True)
    bar.update_ticks()
