"""The study's figures, from the files of its rows: errors, epochs, trade-off."""

from __future__ import annotations

import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies import drawing
from studies.drawing import COLOURS, LINES, MARKERS, legend_below, new_figure, save
from studies.mnist.digit_network import CONSTRAINT
from studies.mnist.results import ERRORS, Result
from studies.mnist.rows import GAMMA, RowLabels, parse_row
from studies.mnist.settings import StudySettings
from studies.mnist.table_one import TABLE_ONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCURACY_LOSS = 0.025
"""How much training accuracy, against the best of all rows, the "best" row of a family may lose."""
SMOOTH_FROM = 5000  # samples from which on narrow bins are smooth
LONG_NAME = 40  # letters from which on a name takes a line of the legend for itself
MARKER_SIZES = {"ours": 9.0}
"""Points of a marker, where they are not 5."""


def best(found: Sequence[Result], labels: RowLabels, kind: str) -> Result | None:
    """Of the rows of one kind the one that satisfies the most training constraints at little loss of accuracy."""
    accuracies = {id(result): result.numbers("train")["accuracy"] for result in found}
    rows = [result for result in found if labels.kind(result.row) == kind]
    good = [result for result in rows if accuracies[id(result)] >= max(accuracies.values()) - ACCURACY_LOSS]
    if good:
        return max(good, key=lambda result: (result.numbers("train")["satisfied"], -result.seed))
    return max(rows, key=lambda result: accuracies[id(result)], default=None)


def write_figures(folder: Path, settings: StudySettings, found: Sequence[Result]) -> None:
    """Draw all figures that the rows allow: no errors if a copy does not keep them, no curve of a single epoch."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = RowLabels(result.row for result in found)
    shown = [result for kind in COLOURS if (result := best(found, labels, kind)) is not None]
    spread = [result for result in shown if result.row.family != "classification" and result.keeps(ERRORS)]
    with drawing.styled():
        if spread:
            draw_errors(folder, settings, spread, labels)
        if settings.epochs > 1:
            draw_epochs(folder, settings, shown, labels)
        draw_trade_off(folder, settings, found, labels)


def draw_errors(folder: Path, settings: StudySettings, shown: Sequence[Result], labels: RowLabels) -> list[Path]:
    """Distribution of reconstruction errors with the bound marked (the paper's figure 2)."""
    figure, panels = new_figure(1, 2, height=2.7)
    for panel, split, letter in zip(panels, ("train", settings.held_out), "ab", strict=True):
        for place, result in enumerate(shown):
            total, colour = result.samples[split], COLOURS[labels.kind(result.row)]
            spread = result.errors(merged=1 if total >= SMOOTH_FROM else 4)
            shares = 100 * np.array(spread.counts[split]) / total
            drawing.histogram(panel, shares, np.array(spread.edges), colour, label=labels.label(result.row))
            text = f"{result.numbers(split)['satisfied']:.1%} satisfied"
            panel.text(0.98, 0.84 - 0.09 * place, text, transform=panel.transAxes, ha="right", color=colour)
        panel.set_xlim(0, 3 * settings.theta)
        panel.set_ylim(bottom=0)
        drawing.bound_line(panel, settings.theta, f"θ = {settings.theta:g}")
        panel.set_xlabel("reconstruction error (MSE)")
        panel.set_ylabel("% of samples in a bin")
        panel.set_title(f"({letter}) {_split_name(split)}", loc="left")
    _legend(figure, panels[0])
    return save(figure, folder, "errors")


def draw_epochs(folder: Path, settings: StudySettings, shown: Sequence[Result], labels: RowLabels) -> list[Path]:
    """Accuracy and share satisfied over the epochs (the paper's figure 3)."""
    figure, panels = new_figure(2, 2, height=4.4)
    columns = [("accuracy", "accuracy"), (f"{CONSTRAINT}/satisfied", "share satisfied")]
    places = [(*column, split) for column in columns for split in ("train", settings.held_out)]
    for panel, (column, name, split), letter in zip(panels, places, "abcd", strict=True):
        lowest = 1.0
        for result in shown:
            epochs, values = result.history("epoch", f"{split}/{column}")
            kind = labels.kind(result.row)
            drawing.curve(panel, epochs, values, COLOURS[kind], LINES[kind], labels.label(result.row))
            lowest = min(lowest, float(np.quantile(values, 0.02)))
        panel.set_title(f"({letter}) {name}, {_split_name(split)}", loc="left")
        panel.set_xlim(0, settings.epochs)
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("epoch")
        if column == "accuracy":
            panel.set_ylim(max(0.0, lowest - 0.1 * (1.001 - lowest)), 1.001)
        else:
            panel.set_ylim(-0.02, 1.02)
    _legend(figure, panels[0])
    return save(figure, folder, "epochs")


def _legend(figure: Figure, panel: Axes) -> None:
    handles, names = panel.get_legend_handles_labels()
    columns = 1 if max(map(len, names)) > LONG_NAME else min(3, len(names))
    legend_below(figure, handles, columns=columns)


def _split_name(split: str) -> str:
    return "training set" if split == "train" else f"{split} set"


def draw_trade_off(folder: Path, settings: StudySettings, found: Sequence[Result], labels: RowLabels) -> list[Path]:
    """Share satisfied against accuracy: every row of the run and, for MNIST, of the paper.

    Classification only, which satisfies next to nothing, is a line at its accuracy, so that the others are seen. A row
    whose name is too long for a place beside its point has a letter there, and its name in the legend.
    """
    figure, panels = new_figure(1, 2, height=4.0)
    halves = list(zip(panels, ("train", settings.held_out), strict=True))
    papers: dict[str, list[tuple[float, float]]] = {split: [] for _, split in halves}
    for (panel, split), letter in zip(halves, "ab", strict=True):
        for name, published in TABLE_ONE.items() if settings.comparable else ():
            papers[split].append((published[split]["accuracy"], published[split]["satisfied"]))
            _point(panel, parse_row(name).family, *papers[split][-1], filled=False)
        for result in found:
            numbers = result.numbers(split)
            _point(panel, labels.kind(result.row), numbers["accuracy"], numbers["satisfied"], filled=True)
        panel.set_xlabel("accuracy")
        panel.set_ylabel("share satisfied")
        panel.set_title(f"({letter}) {_split_name(split)}", loc="left")
        panel.margins(x=0.12, y=0.08)
    rows = {result.row.name: result.row for result in found}
    ours = [name for name, row in rows.items() if labels.kind(row) == "ours"]
    letters = dict(zip(ours, string.ascii_uppercase, strict=False))
    legend = [("sequential", f"sequential penalty (τ₀, {GAMMA})"), ("fixed", "fixed (λ)")]
    legend += [("ours", f"{letter}: {labels.short(rows[name])}") for name, letter in letters.items()]
    kinds = {labels.kind(row) for row in rows.values()}
    for kind, text in legend:
        if kind in kinds:
            panels[0].plot(
                [], [], MARKERS[kind], color=COLOURS[kind], label=text, markersize=MARKER_SIZES.get(kind, 5.0)
            )
    if "classification" in kinds:
        panels[0].plot([], [], LINES["classification"], color=COLOURS["classification"], label="classification only")
    if settings.comparable:
        panels[0].plot([], [], "o", color=COLOURS["bound"], fillstyle="none", label="hollow, faint: the paper's")
    legend_below(figure, panels[0].get_legend_handles_labels()[0], columns=2 if ours else 3)
    for panel, split in halves:
        names = []
        for name, row in rows.items():
            if row.kind != "classification":  # once for all seeds
                seeds = [result.numbers(split) for result in found if result.row.name == name]
                x, y = (float(np.mean([each[column] for each in seeds])) for column in ("accuracy", "satisfied"))
                names.append((x, y, letters.get(name) or labels.short(row), COLOURS[labels.kind(row)]))
        drawing.label_points(panel, names, others=papers[split])
    return save(figure, folder, "trade_off")


def _point(panel: Axes, kind: str, accuracy: float, satisfied: float, *, filled: bool) -> None:
    if kind == "classification":
        panel.axvline(accuracy, linestyle=LINES[kind], color=COLOURS[kind], alpha=1.0 if filled else 0.4, linewidth=1.1)
        return
    panel.plot(
        [accuracy],
        [satisfied],
        MARKERS[kind],
        color=COLOURS[kind],
        fillstyle="full" if filled else "none",
        markersize=MARKER_SIZES.get(kind, 5.0) + (0.0 if filled else 2.0),
        markeredgewidth=0.9,
        alpha=0.9,
    )
