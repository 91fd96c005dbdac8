"""Charts of what was measured, and of how training went: PSNR against the floor, bit errors, curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samplewise.history import History, Row
from samplewise.report import COLOURS, Line, bound_line, curve, histogram, legend_below, new_figure, save, series
from studies.watermark.evaluation.measure import Column
from studies.watermark.evaluation.output import Judged
from studies.watermark.noise import parse_attack
from studies.watermark.pipeline import CONSTRAINT
from studies.watermark.recipe import Recipe
from studies.watermark.training import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WAY_COLOURS = {"grey": COLOURS["sequential"], "rgb": COLOURS["fixed"], "float": COLOURS["faint"]}
WAY_NAMES = {"grey": "grey file", "rgb": "RGB file", "float": "floats, as in the paper"}
BINS = 40
GUESSING = 0.5
FEW = 60  # images up to which each is drawn as a point
PAPER = "the paper's median (floats, 200 bits, 224 x 224)"
MEDIANS = {None: 0.23, 30.0: 0.275, 40.0: 0.29, 50.0: 0.33}
"""Median bit error by floor, read from the paper's figure; None is HiDDeN with an image loss in its place."""

PANELS = {
    "message_loss": "(a) message loss",
    CONSTRAINT: "(b) mean PSNR (dB)",
    f"{CONSTRAINT}/satisfied": "(c) share of images at the floor",
}
"""Columns of the history that there are for the training and the validation pictures."""
PARTS: dict[str, Line] = {"train": (0, (4, 1.5)), "validation": "-"}
TAU = f"tau/{CONSTRAINT}"
DASH = 4  # line widths


def published_median(recipe: Recipe) -> float | None:
    """The paper's number at the floor of ``recipe``, whatever the network, if it has one."""
    return MEDIANS.get(recipe.own_floor)


def draw_psnr(folder: Path, judged: Sequence[Judged]) -> list[Path]:
    """How PSNR is distributed over the images, with the floor: a panel for each run."""
    columns = len(judged) if len(judged) < 4 else 2 if len(judged) == 4 else 3
    rows = -(-len(judged) // columns)
    figure, panels = new_figure(rows, columns, width=3.5 if columns == 1 else 7.0, height=0.5 + 2.5 * rows)
    for panel in panels[len(judged) :]:
        panel.set_visible(False)
    for panel, one in zip(panels, judged, strict=False):
        _psnr(panel, one)
        panel.set_title(one.run.label, loc="left")
    ways = dict.fromkeys(way for one in judged for way in one.measured.ways if way != "rgb")
    handles = [panels[0].plot([], [], color=WAY_COLOURS[way], label=WAY_NAMES[way])[0] for way in ways]
    legend_below(figure, handles, columns=len(handles))
    return save(figure, folder, "psnr")


def _psnr(panel: Axes, one: Judged) -> None:
    floor, share = one.summary["floor"], one.summary["quality"]["grey"]["satisfied"]
    found = {way: one.measured.columns[f"{way}/psnr"] for way in ("grey", "float") if way in one.measured.ways}
    lowest, highest = (float(limit(list(found.values()))) for limit in (np.min, np.max))
    # The floor belongs in the picture unless the network never came near it.
    if floor is not None and abs(floor - np.median(found["grey"])) < 15:
        lowest, highest = min(lowest, floor), max(highest, floor)
    pad = 0.05 * (highest - lowest) or 0.5
    edges = np.linspace(lowest - pad, highest + pad, min(BINS, 8 + len(one.measured) // 10) + 1)
    for way, values in found.items():
        counts = 100 * np.histogram(values, edges)[0] / len(values)
        histogram(panel, counts, edges, WAY_COLOURS[way], fill=0.35 if way == "grey" else 0)
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


def draw_bit_errors(folder: Path, judged: Sequence[Judged], *, paper: bool) -> list[Path]:
    """Bit errors of each run's images (the paper's figure of BER): a box for each way to take them."""
    figure, (panel,) = new_figure(1, 1, width=max(4.0, min(10.0, 1.6 + 1.3 * len(judged))), height=3.2)
    ways = [way for way in WAY_NAMES if any(way in one.measured.ways for one in judged)]
    highest = 0.0
    for place, one in enumerate(judged):
        own = [way for way in ways if way in one.measured.ways]
        for number, way in enumerate(own):
            errors = one.measured.columns[f"{way}/bit_error"]
            highest = max(highest, float(errors.max()))
            _box(panel, errors, place + 0.26 * (number - (len(own) - 1) / 2), way)
    medians = [published_median(one.run.recipe) if paper else None for one in judged]
    marked = [(place, median) for place, median in enumerate(medians) if median is not None]
    highest = max([highest, *(median for _, median in marked)])
    for place, median in marked:
        panel.plot([place - 0.42, place + 0.42], [median, median], color=COLOURS["bound"], linestyle=":", linewidth=1.2)
    panel.set_ylim(-0.02 * highest, 1.08 * highest if highest else 0.01)
    panel.set_xticks(range(len(judged)), [one.run.label.replace(", ", "\n", 1) for one in judged])
    panel.set_xlim(-0.6, len(judged) - 0.4)
    panel.grid(axis="x", visible=False)
    if highest > 0.4:
        panel.axhline(GUESSING, color=COLOURS["faint"], linewidth=1.0, zorder=1)
        panel.text(0.01, GUESSING, "guessing", transform=panel.get_yaxis_transform(), va="bottom", fontsize=7)
    panel.set_ylabel("bit error rate of an image")
    handles = [panel.plot([], [], "s", color=WAY_COLOURS[way], label=WAY_NAMES[way])[0] for way in ways]
    if marked:
        handles += panel.plot([], [], color=COLOURS["bound"], linestyle=":", linewidth=1.2, label=PAPER)
    legend_below(figure, handles, columns=1 if len(judged) < 3 else 2)
    return save(figure, folder, "bit-errors")


def _box(panel: Axes, errors: Column, x: float, way: str) -> None:
    drawn = panel.boxplot([errors], positions=[x], widths=0.2, showfliers=len(errors) > FEW, patch_artist=True)
    for patch in drawn["boxes"]:
        patch.set(facecolor=WAY_COLOURS[way], alpha=0.45, edgecolor=COLOURS["classification"], linewidth=0.8)
    for line in (*drawn["whiskers"], *drawn["caps"]):
        line.set(color=COLOURS["classification"], linewidth=0.8)
    for line in drawn["medians"]:
        line.set(color=COLOURS["bound"], linewidth=1.8)
    for line in drawn["fliers"]:
        line.set(marker=".", markersize=3, markeredgecolor=WAY_COLOURS[way], alpha=0.6)
    if len(errors) <= FEW:
        places = x + 0.07 * np.linspace(-1, 1, len(errors)) if len(errors) > 1 else np.array([x])
        panel.plot(places, errors, ".", color=COLOURS["classification"], markersize=3, alpha=0.7, zorder=3)


def draw_attacks(folder: Path, judged: Sequence[Judged]) -> list[Path]:
    """Mean bit error after each attack: a line of the chart for each, grouped by what is done."""
    specs = list(dict.fromkeys(found["attack"] for one in judged for found in one.summary["attacks"]))
    if not specs:
        return []
    heights: dict[str, float] = {}
    # What an attack does, whatever its strength, keeps its lines together.
    families = groupby(specs, lambda spec: [step.name for step in parse_attack(spec).steps])
    for group, (_, members) in enumerate(families):
        for spec in members:
            heights[spec] = len(heights) + 0.5 * group
    depth = max(heights.values())
    figure, (panel,) = new_figure(1, 1, width=6.0, height=1.3 + 0.19 * (depth + 1) + 0.12 * len(judged))
    hollow = False
    for number, one in enumerate(judged):
        # Side by side, so that runs that are equally good do not hide each other.
        shift = 0.13 * (number - (len(judged) - 1) / 2)
        colour, marker = series(number)
        for way in ("rgb", "grey"):
            found = [attacked for attacked in one.summary["attacks"] if attacked["way"] == way]
            if not found:
                continue
            hollow |= way == "rgb"
            panel.plot(
                [attacked["reading"]["bit_error_mean"] for attacked in found],
                [heights[attacked["attack"]] + shift for attacked in found],
                color=colour,
                marker=marker,
                linestyle="",
                markersize=5 if way == "grey" else 8,
                fillstyle="full" if way == "grey" else "none",
                label=one.run.label if way == "grey" else None,
            )
    panel.axvline(GUESSING, color=COLOURS["bound"], linestyle=":", linewidth=1.0)
    panel.text(GUESSING, 1.01, "guessing", transform=panel.get_xaxis_transform(), ha="right", va="bottom", fontsize=7)
    panel.set_yticks(list(heights.values()), list(heights))
    panel.set_ylim(depth + 0.7, -0.7)
    panel.set_xlim(-0.015, max(0.53, panel.get_xlim()[1]))
    attacked = judged[0].summary["attacks"][0]["reading"]["error_free"]["samples"]
    panel.set_xlabel(f"mean bit error rate after the attack, {attacked:,} images")
    if hollow:
        panel.plot([], [], "o", color=COLOURS["classification"], fillstyle="none", label="hollow: RGB files")
    legend_below(figure, panel.get_legend_handles_labels()[0], columns=min(3, len(judged) + hollow))
    return save(figure, folder, "attacks")


def draw_lengths(folder: Path, judged: Sequence[Judged]) -> list[Path]:
    """Mean bit error of the grey files against the bits of a message; nothing if all runs have the same length."""
    lines: defaultdict[float | None, list[Judged]] = defaultdict(list)
    for one in sorted(judged, key=lambda one: one.run.recipe.bits):
        lines[one.summary["floor"]].append(one)
    lengths = sorted({one.run.recipe.bits for one in judged})
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
    for panel, (column, title) in zip(panels, PANELS.items(), strict=False):
        for run, rows, colour in histories:
            for part, line in PARTS.items():
                _curve(panel, rows, f"{part}/{column}", colour, line, run.label if part == "validation" else None)
            if column == CONSTRAINT and not run.recipe.image_loss:
                panel.axhline(run.recipe.floor, color=colour, linewidth=0.8, linestyle=":")
        panel.set_title(title, loc="left")
    panels[2].set_ylim(-0.03, 1.03)
    tau = panels[3]
    _taus(tau, [(rows, colour) for _, rows, colour in histories])
    tau.set_title("(d) tau", loc="left")
    if tau.lines:
        tau.set_yscale("log")
    for panel in panels:
        panel.set_xlim(0, max(row["epoch"] or 0 for _, rows, _ in histories for row in rows))
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("epoch" if all(run.recipe.steps_per_round is None for run in runs) else "round")
    handles, _ = panels[0].get_legend_handles_labels()
    for part, line in PARTS.items():
        handles += panels[0].plot([], [], color=COLOURS["classification"], linestyle=line, label=part)
    handles += panels[1].plot([], [], color=COLOURS["classification"], linestyle=":", linewidth=0.8, label="floor")
    legend_below(figure, handles, columns=min(4, len(handles)))
    return save(figure, folder, "curves")


def _taus(panel: Axes, histories: Sequence[tuple[list[Row], str]]) -> None:
    """Each run's tau where there is a penalty; runs with the same schedule take turns along one line."""
    schedules: dict[tuple[float | None, ...], list[tuple[list[Row], str]]] = {}
    for rows, colour in histories:
        schedules.setdefault(tuple(row.get(TAU) for row in rows), []).append((rows, colour))
    for shared in schedules.values():
        for turn, (rows, colour) in enumerate(shared):
            line: Line = (DASH * turn, (DASH, DASH * (len(shared) - 1))) if len(shared) > 1 else "-"
            _curve(panel, [row for row in rows if row.get(TAU)], TAU, colour, line)


def _curve(panel: Axes, rows: list[Row], column: str, colour: str, line: Line, label: str | None = None) -> None:
    curve(panel, [row["epoch"] for row in rows], [row.get(column) for row in rows], colour, line, label)
