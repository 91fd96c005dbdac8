"""Original, watermarked and what differs between them, as the paper shows them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samplewise.report import new_figure, save
from studies.watermark.evaluation.measure import Measured, Pixels
from studies.watermark.evaluation.output import Judged, again

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


COMPARED = 4  # runs whose pictures fit beside each other
LONGEST = 28  # characters of a name that fit beside a picture


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
    from matplotlib.ticker import MaxNLocator

    chosen = chosen_images(one.measured)
    covers, marked = again(one, list(chosen))
    differences = _differences(covers, marked)
    figure, panels = new_figure(len(chosen), 3, width=6.6, height=0.5 + 1.75 * len(chosen))
    for row, (place, why) in enumerate(chosen.items()):
        left, middle, right = panels[3 * row : 3 * row + 3]
        _show(left, covers[row])
        _show(middle, marked[row])
        heat = _show(right, differences[row], highest=int(differences.max()))
        left.set_ylabel(f"{why}\n{_short(one.measured.names[place])}\n{_found(one, place)}", fontsize=7)
    for panel, title in zip(panels, ("original", "watermarked", "difference"), strict=False):
        panel.set_title(title)
    bar = figure.colorbar(heat, ax=panels[2::3], shrink=0.8, label="|difference| in grey levels (of 255)")
    bar.outline.set_visible(False)
    bar.locator = MaxNLocator(nbins=6, integer=True)
    bar.update_ticks()
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
    panels[0].set_title("original")
    panels[0].set_xlabel(_short(name), fontsize=7)
    panels[columns].axis("off")
    panels[columns].text(0.5, 0.5, "difference,\neach with its\nown scale", ha="center", va="center")
    for column, one in enumerate(shared, start=1):
        place = one.measured.names.index(name)
        covers, marked = again(one, [place])
        (difference,) = _differences(covers, marked)
        if one is first:
            _show(panels[0], covers[0])
        _show(panels[column], marked[0])
        panels[column].set_title(one.run.label.replace(", ", "\n", 1))
        panels[column].set_xlabel(_found(one, place), fontsize=7)
        _show(panels[columns + column], difference, highest=int(difference.max()))
        panels[columns + column].set_xlabel(f"0 (black) to {difference.max()}\nof 255 grey levels", fontsize=7)
    return save(figure, folder, "comparison")


def _found(one: Judged, place: int) -> str:
    columns = one.measured.columns
    return f"{columns['grey/psnr'][place]:.2f} dB, BER {columns['grey/bit_error'][place]:.3f}"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else "..." + name[-LONGEST:]


def _differences(covers: Pixels, marked: Pixels) -> Pixels:
    return np.abs(marked.astype(np.int16) - covers.astype(np.int16)).astype(np.uint8)


def _show(panel: Axes, pixels: Pixels, *, highest: int | None = None) -> AxesImage:
    """An image ``(H, W)`` in grey, or with ``highest`` a difference as heat."""
    colours, top = ("gray", 255) if highest is None else ("inferno", max(1, highest))
    panel.grid(visible=False)
    panel.set_xticks([])
    panel.set_yticks([])
    for spine in panel.spines.values():
        spine.set_visible(False)
    return panel.imshow(pixels, cmap=colours, vmin=0, vmax=top, interpolation="nearest")
