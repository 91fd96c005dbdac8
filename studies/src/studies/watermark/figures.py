"""Figures of an evaluation: PSNR against the floor, bit errors, attacks, training, and the images themselves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samplewise.training import History
from studies.drawing import COLOURS, Line, bound_line, curve, histogram, legend_below, new_figure, save, series, styled
from studies.watermark.evaluation.measure import REPRESENTATIONS, Column
from studies.watermark.evaluation.output import RunEvaluation, re_embed
from studies.watermark.noise import parse_attack
from studies.watermark.operators import Pixels
from studies.watermark.pipeline import CONSTRAINT
from studies.watermark.recipe import Recipe
from studies.watermark.training import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

KIND_COLOURS = {"grey": COLOURS["sequential"], "rgb": COLOURS["fixed"], "float": COLOURS["faint"]}
PSNR_BINS = 40
GUESSING = 0.5
POINTS_UP_TO = 60  # images; of more, outliers alone are drawn as points
PAPER_LABEL = "the paper's median (floats, 200 bits, 224 x 224)"
PAPER_MEDIANS = {None: 0.23, 30.0: 0.275, 40.0: 0.29, 50.0: 0.33}
"""Median bit error by floor, read from the paper's figure; None is HiDDeN with an image loss in its place."""

CURVE_PANELS = {
    "message_loss": "(a) message loss",
    CONSTRAINT: "(b) mean PSNR (dB)",
    f"{CONSTRAINT}/satisfied": "(c) share of images at the floor",
}
"""Columns of the history that there are for the training and the validation pictures."""
PART_LINES: dict[str, Line] = {"train": (0, (4, 1.5)), "validation": "-"}
TAU = f"tau/{CONSTRAINT}"
COMPARED_RUNS = 4  # runs whose pictures fit beside each other
LONGEST_NAME = 28  # characters of a name that fit beside a picture


def write_figures(folder: Path, evaluations: Sequence[RunEvaluation], *, paper: bool = False) -> list[Path]:
    """Draw all figures that the runs allow, as PNG and SVG; with ``paper`` its medians are marked among bit errors."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        paths = draw_psnr(folder, evaluations) + draw_bit_errors(folder, evaluations, paper=paper)
        paths += draw_curves(folder, [one.run for one in evaluations])
        paths += draw_attacks(folder, evaluations) + draw_lengths(folder, evaluations)
        paths += draw_comparison(folder, evaluations)
    return paths


def published_median(recipe: Recipe) -> float | None:
    """The paper's number at the floor of ``recipe``, whatever the network, if it has one."""
    return PAPER_MEDIANS.get(recipe.own_floor)


def draw_psnr(folder: Path, evaluations: Sequence[RunEvaluation]) -> list[Path]:
    """The distribution of PSNR over the images, with the floor: a panel for each run."""
    columns = len(evaluations) if len(evaluations) < 4 else 2 if len(evaluations) == 4 else 3
    rows = -(-len(evaluations) // columns)
    figure, panels = new_figure(rows, columns, width=3.5 if columns == 1 else 7.0, height=0.5 + 2.5 * rows)
    for panel in panels[len(evaluations) :]:
        panel.set_visible(False)
    for panel, one in zip(panels, evaluations, strict=False):
        _psnr(panel, one)
        panel.set_title(one.run.label, loc="left")
    kinds = dict.fromkeys(kind for one in evaluations for kind in one.measured.representations if kind != "rgb")
    handles = [panels[0].plot([], [], color=KIND_COLOURS[kind], label=REPRESENTATIONS[kind])[0] for kind in kinds]
    legend_below(figure, handles, columns=len(handles))
    return save(figure, folder, "psnr")


def _psnr(panel: Axes, one: RunEvaluation) -> None:
    floor, share = one.summary["floor"], one.summary["quality"]["grey"]["satisfied"]
    found = {
        kind: one.measured.columns[f"{kind}/psnr"] for kind in ("grey", "float") if kind in one.measured.representations
    }
    lowest, highest = (float(limit(list(found.values()))) for limit in (np.min, np.max))
    # The floor belongs in the picture unless the network never came near it.
    if floor is not None and abs(floor - np.median(found["grey"])) < 15:
        lowest, highest = min(lowest, floor), max(highest, floor)
    pad = 0.05 * (highest - lowest) or 0.5
    edges = np.linspace(lowest - pad, highest + pad, min(PSNR_BINS, 8 + len(one.measured) // 10) + 1)
    for kind, values in found.items():
        counts = 100 * np.histogram(values, edges)[0] / len(values)
        histogram(panel, counts, edges, KIND_COLOURS[kind], fill=0.35 if kind == "grey" else 0)
    panel.set_xlim(edges[0] - pad / 2, edges[-1] + pad / 2)
    panel.margins(y=0.28)  # room for the words
    panel.set_ylim(bottom=0)
    if floor is not None and edges[0] <= floor <= edges[-1]:
        right = floor > (edges[0] + edges[-1]) / 2
        bound_line(panel, floor, f"floor {floor:g} dB", side="right" if right else "left")
    words = "no floor was asked for"
    if share is not None:
        met = f"{share['held']:,} of {share['samples']:,} images meet {floor:g} dB"
        at_least = share["at_least"]
        words = met if at_least is None else f"{met}\n(at least {at_least:.1%} of unseen ones)"
    panel.set_xlabel(f"PSNR (dB)\n{words}", fontsize=8)
    panel.set_ylabel("% of images")


def draw_bit_errors(folder: Path, evaluations: Sequence[RunEvaluation], *, paper: bool) -> list[Path]:
    """Bit errors of each run's images (the paper's figure of BER): a box for each representation."""
    figure, (panel,) = new_figure(1, 1, width=max(4.0, min(10.0, 1.6 + 1.3 * len(evaluations))), height=3.2)
    kinds = [kind for kind in REPRESENTATIONS if any(kind in one.measured.representations for one in evaluations)]
    highest = 0.0
    for place, one in enumerate(evaluations):
        own = [kind for kind in kinds if kind in one.measured.representations]
        for number, kind in enumerate(own):
            errors = one.measured.columns[f"{kind}/bit_error"]
            highest = max(highest, float(errors.max()))
            _box(panel, errors, place + 0.26 * (number - (len(own) - 1) / 2), kind)
    medians = [published_median(one.run.recipe) if paper else None for one in evaluations]
    marked = [(place, median) for place, median in enumerate(medians) if median is not None]
    highest = max([highest, *(median for _, median in marked)])
    for place, median in marked:
        panel.plot([place - 0.42, place + 0.42], [median, median], color=COLOURS["bound"], linestyle=":", linewidth=1.2)
    panel.set_ylim(-0.02 * highest, 1.08 * highest if highest else 0.01)
    panel.set_xticks(range(len(evaluations)), [one.run.label.replace(", ", "\n", 1) for one in evaluations])
    panel.set_xlim(-0.6, len(evaluations) - 0.4)
    panel.grid(axis="x", visible=False)
    if highest > 0.4:
        panel.axhline(GUESSING, color=COLOURS["faint"], linewidth=1.0, zorder=1)
        panel.text(0.01, GUESSING, "guessing", transform=panel.get_yaxis_transform(), va="bottom", fontsize=7)
    panel.set_ylabel("bit error rate of an image")
    handles = [panel.plot([], [], "s", color=KIND_COLOURS[kind], label=REPRESENTATIONS[kind])[0] for kind in kinds]
    if marked:
        handles += panel.plot([], [], color=COLOURS["bound"], linestyle=":", linewidth=1.2, label=PAPER_LABEL)
    legend_below(figure, handles, columns=1 if len(evaluations) < 3 else 2)
    return save(figure, folder, "bit-errors")


def _box(panel: Axes, errors: Column, x: float, kind: str) -> None:
    drawn = panel.boxplot([errors], positions=[x], widths=0.2, showfliers=len(errors) > POINTS_UP_TO, patch_artist=True)
    for patch in drawn["boxes"]:
        patch.set(facecolor=KIND_COLOURS[kind], alpha=0.45, edgecolor=COLOURS["classification"], linewidth=0.8)
    for line in (*drawn["whiskers"], *drawn["caps"]):
        line.set(color=COLOURS["classification"], linewidth=0.8)
    for line in drawn["medians"]:
        line.set(color=COLOURS["bound"], linewidth=1.8)
    for line in drawn["fliers"]:
        line.set(marker=".", markersize=3, markeredgecolor=KIND_COLOURS[kind], alpha=0.6)
    if len(errors) <= POINTS_UP_TO:
        places = x + 0.07 * np.linspace(-1, 1, len(errors)) if len(errors) > 1 else np.array([x])
        panel.plot(places, errors, ".", color=COLOURS["classification"], markersize=3, alpha=0.7, zorder=3)


def draw_attacks(folder: Path, evaluations: Sequence[RunEvaluation]) -> list[Path]:
    """Mean bit error after each attack: a line of the chart for each, grouped by what is done."""
    specs = list(dict.fromkeys(found["attack"] for one in evaluations for found in one.summary["attacks"]))
    if not specs:
        return []
    heights: dict[str, float] = {}
    # What an attack does, whatever its strength, keeps its lines together.
    families = groupby(specs, lambda spec: [step.name for step in parse_attack(spec).steps])
    for group, (_, members) in enumerate(families):
        for spec in members:
            heights[spec] = len(heights) + 0.5 * group
    depth = max(heights.values())
    figure, (panel,) = new_figure(1, 1, width=6.0, height=1.3 + 0.19 * (depth + 1) + 0.12 * len(evaluations))
    hollow = False
    for number, one in enumerate(evaluations):
        # Side by side, so that runs that are equally good do not hide each other.
        shift = 0.13 * (number - (len(evaluations) - 1) / 2)
        colour, marker = series(number)
        for kind in ("rgb", "grey"):
            found = [attacked for attacked in one.summary["attacks"] if attacked["representation"] == kind]
            if not found:
                continue
            hollow |= kind == "rgb"
            panel.plot(
                [attacked["reading"]["bit_error_mean"] for attacked in found],
                [heights[attacked["attack"]] + shift for attacked in found],
                color=colour,
                marker=marker,
                linestyle="",
                markersize=5 if kind == "grey" else 8,
                fillstyle="full" if kind == "grey" else "none",
                label=one.run.label if kind == "grey" else None,
            )
    panel.axvline(GUESSING, color=COLOURS["bound"], linestyle=":", linewidth=1.0)
    panel.text(GUESSING, 1.01, "guessing", transform=panel.get_xaxis_transform(), ha="right", va="bottom", fontsize=7)
    panel.set_yticks(list(heights.values()), list(heights))
    panel.set_ylim(depth + 0.7, -0.7)
    panel.set_xlim(-0.015, max(0.53, panel.get_xlim()[1]))
    attacked = evaluations[0].summary["attacks"][0]["reading"]["error_free"]["samples"]
    panel.set_xlabel(f"mean bit error rate after the attack, {attacked:,} images")
    if hollow:
        panel.plot([], [], "o", color=COLOURS["classification"], fillstyle="none", label="hollow: RGB files")
    legend_below(figure, panel.get_legend_handles_labels()[0], columns=min(3, len(evaluations) + hollow))
    return save(figure, folder, "attacks")


def draw_lengths(folder: Path, evaluations: Sequence[RunEvaluation]) -> list[Path]:
    """Mean bit error of the grey files against the bits of a message; nothing if all runs have the same length."""
    lines: defaultdict[float | None, list[RunEvaluation]] = defaultdict(list)
    for one in sorted(evaluations, key=lambda one: one.run.recipe.bits):
        lines[one.summary["floor"]].append(one)
    lengths = sorted({one.run.recipe.bits for one in evaluations})
    if len(lengths) < 2:
        return []
    figure, (panel,) = new_figure(1, 1, width=5.0, height=3.2)
    faultless = False
    for number, (floor, runs) in enumerate(sorted(lines.items(), key=lambda line: line[0] or 0.0)):
        colour, marker = series(number)
        errors = [(one.run.recipe.bits, one.summary["reading"]["grey"]["bit_error_mean"]) for one in runs]
        # Where no bit is wrong: as if half a bit of all that were read were.
        shown = [max(e, 0.5 / (bits * len(one.measured))) for (bits, e), one in zip(errors, runs, strict=True)]
        name = "no floor" if floor is None else f"floor {floor:g} dB"
        panel.plot([bits for bits, _ in errors], shown, color=colour, linewidth=1.2, label=name)
        for (bits, error), y in zip(errors, shown, strict=True):
            panel.plot(bits, y, color=colour, marker=marker, fillstyle="full" if error else "none")
            faultless |= not error
    panel.set_yscale("log")
    panel.set_xticks(lengths)
    panel.set_xlabel("bits in an image" + ("\nhollow: no bit of any image is wrong" if faultless else ""))
    panel.set_ylabel("mean bit error rate")
    legend_below(figure, panel.get_legend_handles_labels()[0], columns=len(lines))
    return save(figure, folder, "lengths")


def draw_curves(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Draw the histories that the runs have kept, if any (the paper's curves of training and validation)."""
    histories = [
        (run, rows, series(n)[0]) for n, run in enumerate(runs) if (rows := History.read(run.folder / "fit").rows)
    ]
    if not histories:
        return []
    figure, panels = new_figure(2, 2, height=4.8)
    for panel, (column, title) in zip(panels, CURVE_PANELS.items(), strict=False):
        for run, rows, colour in histories:
            epochs = [row["epoch"] for row in rows]
            for part, line in PART_LINES.items():
                values = [row.get(f"{part}/{column}") for row in rows]
                curve(panel, epochs, values, colour, line, run.label if part == "validation" else None)
            if column == CONSTRAINT and not run.recipe.image_loss:
                panel.axhline(run.recipe.floor, color=colour, linewidth=0.8, linestyle=":")
        panel.set_title(title, loc="left")
    panels[2].set_ylim(-0.03, 1.03)
    tau = panels[3]
    for place, (_, rows, colour) in enumerate(histories):
        taken = [row for row in rows if row.get(TAU)]  # where there is a penalty
        width = 1.2 + 1.6 * (len(histories) - 1 - place)  # wider below, so that equal schedules are all seen
        tau.plot([row["epoch"] for row in taken], [row[TAU] for row in taken], ".-", color=colour, linewidth=width)
    tau.set_title("(d) tau", loc="left")
    if tau.lines:
        tau.set_yscale("log")
    for panel in panels:
        panel.set_xlim(0, max(row["epoch"] or 0 for _, rows, _ in histories for row in rows))
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("epoch" if all(run.recipe.steps_per_round is None for run in runs) else "round")
    handles, _ = panels[0].get_legend_handles_labels()
    for part, line in PART_LINES.items():
        handles += panels[0].plot([], [], color=COLOURS["classification"], linestyle=line, label=part)
    handles += panels[1].plot([], [], color=COLOURS["classification"], linestyle=":", linewidth=0.8, label="floor")
    legend_below(figure, handles, columns=min(4, len(handles)))
    return save(figure, folder, "curves")


def draw_comparison(folder: Path, evaluations: Sequence[RunEvaluation]) -> list[Path]:
    """One image by all runs that were evaluated on it: the one with the lowest PSNR of the first run.

    Each difference has a scale of its own, which is stated: networks may differ a hundredfold.
    """
    first = evaluations[0]
    name = first.measured.names[int(first.measured.columns["grey/psnr"].argmin())]
    shared = [one for one in evaluations if name in one.measured.names and one.data.store.size == first.data.store.size]
    shared = shared[:COMPARED_RUNS]
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
        covers, marked = re_embed(one, [place])
        (difference,) = _differences(covers, marked)
        if one is first:
            _show(panels[0], covers[0])
        _show(panels[column], marked[0])
        panels[column].set_title(one.run.label.replace(", ", "\n", 1))
        panels[column].set_xlabel(_found(one, place), fontsize=7)
        _show(panels[columns + column], difference, highest=int(difference.max()))
        panels[columns + column].set_xlabel(f"0 (black) to {difference.max()}\nof 255 grey levels", fontsize=7)
    return save(figure, folder, "comparison")


def _found(one: RunEvaluation, place: int) -> str:
    columns = one.measured.columns
    return f"{columns['grey/psnr'][place]:.2f} dB, BER {columns['grey/bit_error'][place]:.3f}"


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else "..." + name[-LONGEST_NAME:]


def _differences(covers: Pixels, marked: Pixels) -> Pixels:
    return np.abs(marked.astype(np.int16) - covers.astype(np.int16)).astype(np.uint8)


def _show(panel: Axes, pixels: Pixels, *, highest: int | None = None) -> AxesImage:
    """An image ``(H, W)`` in grey, or with ``highest`` a difference as heat."""
    colours, top = ("gray", 255) if highest is None else ("inferno", max(1, highest))
    panel.grid(visible=False)
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
    return panel.imshow(pixels, cmap=colours, vmin=0, vmax=top, interpolation="nearest")
