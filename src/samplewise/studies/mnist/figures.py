"""The study's figures, from the files of its rows: errors, epochs, trade-off."""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samplewise.report.style import (
    COLOURS,
    LINES,
    MARKERS,
    bound_line,
    curve,
    histogram,
    label_points,
    legend_below,
    new_figure,
    save,
    styled,
)
from samplewise.studies.mnist.digit_network import CONSTRAINT
from samplewise.studies.mnist.pictures import draw_pictures
from samplewise.studies.mnist.results import Result
from samplewise.studies.mnist.rows import GAMMA, Naming, parse_row
from samplewise.studies.mnist.settings import StudySettings
from samplewise.studies.mnist.table_one import TABLE_ONE, paper_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["best", "write_figures"]

ACCURACY_LOSS = 0.025
"""How much training accuracy, against the best of all rows, the "best" row of a family may give up."""
MANY = 5000  # samples from which on narrow bins are smooth
PANELS = "abcdefgh"
LONG_NAME = 40  # letters from which on a name takes a line of the legend for itself


def best(found: Sequence[Result], naming: Naming, kind: str) -> Result | None:
    """Of the rows of one kind the one that satisfies the most training constraints at little loss of accuracy."""
    accuracies = [result.numbers("train")["accuracy"] for result in found]
    rows = [result for result in found if naming.kind(result.row) == kind]
    if not rows:
        return None
    good = [result for result in rows if result.numbers("train")["accuracy"] >= max(accuracies) - ACCURACY_LOSS]
    if good:
        return max(good, key=lambda result: (result.numbers("train")["satisfied"], -result.seed))
    return max(rows, key=lambda result: result.numbers("train")["accuracy"])


def write_figures(folder: Path, settings: StudySettings, found: Sequence[Result]) -> list[str]:
    """Draw all figures that the rows at hand allow; returns the names of those for which they keep too little.

    Args:
        folder: where they go.
        settings: of the run.
        found: its results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    naming = Naming({result.row.name: result.row for result in found}.values())
    shown = [result for kind in COLOURS if (result := best(found, naming, kind)) is not None]
    constrained = [result for result in shown if result.row.family != "classification"]
    kept = {
        "errors": (draw_errors, [result for result in constrained if result.has_errors]),
        "reconstructions": (draw_pictures, [result for result in constrained if result.has_examples]),
    }
    with styled():
        for draw, drawn in kept.values():
            if drawn:
                draw(folder, settings, drawn, naming)
        draw_epochs(folder, settings, shown, naming)
        draw_trade_off(folder, settings, found, naming)
    return [name for name, (_, drawn) in kept.items() if constrained and not drawn]


def draw_errors(folder: Path, settings: StudySettings, shown: Sequence[Result], naming: Naming) -> list[Path]:
    """Distribution of reconstruction errors with the bound marked (the paper's figure 2)."""
    figure, panels = new_figure(1, 2, height=2.7)
    for panel, split, letter in zip(panels, ("train", settings.held_out), PANELS, strict=False):
        for place, result in enumerate(shown):
            edges, counts = result.errors()
            total = counts[f"{split}/selected"].sum()
            # The last bin, without an upper edge, is counted but not drawn; few samples need wider bins.
            merged = 1 if total >= MANY else 4
            widths = 100 * counts[f"{split}/selected"][:-1].reshape(-1, merged).sum(1) / total
            edges = edges[::merged]
            colour = COLOURS[naming.kind(result.row)]
            histogram(panel, widths, edges, colour, label=naming.label(result.row))
            panel.text(
                0.98,
                0.84 - 0.09 * place,
                f"{result.numbers(split)['satisfied']:.1%} satisfied",
                transform=panel.transAxes,
                ha="right",
                color=colour,
            )
        panel.set_xlim(0, 3 * settings.theta)
        panel.set_ylim(bottom=0)
        bound_line(panel, settings.theta, f"θ = {settings.theta:g}")
        panel.set_xlabel("reconstruction error (MSE)")
        panel.set_ylabel("% of samples in a bin")
        panel.set_title(f"({letter}) {_split_name(split)}", loc="left")
    _legend(figure, panels[0])
    return save(figure, folder, "errors")


def draw_epochs(folder: Path, settings: StudySettings, shown: Sequence[Result], naming: Naming) -> list[Path]:
    """Accuracy and share satisfied over the epochs (the paper's figure 3)."""
    figure, panels = new_figure(2, 2, height=4.4)
    splits = ("train", settings.held_out)
    columns = [("accuracy", "accuracy"), (f"{CONSTRAINT}/satisfied", "share satisfied")]
    places = [(column, name, split) for column, name in columns for split in splits]
    for panel, (column, name, split), letter in zip(panels, places, PANELS, strict=False):
        lowest = 1.0
        for result in shown:
            epochs, values = result.history("epoch", f"{split}/{column}")
            kind = naming.kind(result.row)
            curve(panel, epochs, values, COLOURS[kind], LINES[kind], naming.label(result.row))
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
    handles, labels = panel.get_legend_handles_labels()
    columns = 1 if max(map(len, labels)) > LONG_NAME else min(3, len(labels))
    legend_below(figure, handles, columns=columns)


def draw_trade_off(folder: Path, settings: StudySettings, found: Sequence[Result], naming: Naming) -> list[Path]:
    """Share satisfied against accuracy: every row of the run and, for MNIST, of the paper.

    Classification only, which satisfies next to nothing, is a line at its accuracy, so that the others are seen.
    """
    comparable = settings.comparable
    figure, panels = new_figure(1, 2, height=4.0)
    for panel, split, letter in zip(panels, ("train", settings.held_out), PANELS, strict=False):
        for name, point in _papers(split).items() if comparable else ():
            _point(panel, parse_row(name).family, *point, filled=False)
        for result in found:
            metrics = result.numbers(split)
            _point(panel, naming.kind(result.row), metrics["accuracy"], metrics["satisfied"], filled=True)
        panel.set_xlabel("accuracy")
        panel.set_ylabel("share satisfied")
        panel.set_title(f"({letter}) {_split_name(split)}", loc="left")
        panel.margins(x=0.12, y=0.08)
    letters = _letters(found, naming)
    _trade_off_legend(
        figure, panels[0], {naming.kind(result.row) for result in found}, letters.values(), comparable=comparable
    )
    for panel, split in zip(panels, ("train", settings.held_out), strict=False):
        papers = list(_papers(split).values()) if comparable else []
        label_points(panel, _names(found, split, naming, letters), others=papers)
    return save(figure, folder, "trade_off")


def _papers(split: str) -> dict[str, tuple[float, float]]:
    """Accuracy and share satisfied of the paper's rows."""
    pairs = {row: [paper_number(row, split, name) for name in ("accuracy", "satisfied")] for row in TABLE_ONE}
    return {row: (x, y) for row, (x, y) in pairs.items() if x is not None and y is not None}


def _letters(found: Sequence[Result], naming: Naming) -> dict[str, tuple[str, str]]:
    """A letter for each row whose name is too long for a place beside its point, and what the legend says of it."""
    ours = {result.row.name: result.row for result in found if naming.kind(result.row) == "ours"}
    return {
        name: (letter, f"{letter}: {naming.short(row)}")
        for letter, (name, row) in zip(string.ascii_uppercase, ours.items(), strict=False)
    }


def _trade_off_legend(
    figure: Figure, panel: Axes, kinds: set[str], ours: Collection[tuple[str, str]], *, comparable: bool
) -> None:
    names = [("sequential", f"sequential penalty (τ₀, {GAMMA})"), ("fixed", "fixed (λ)")]
    for kind, name in [*names, *(("ours", text) for _, text in ours)]:
        if kind in kinds:
            panel.plot([], [], MARKERS[kind], color=COLOURS[kind], label=name, markersize=_size(kind))
    if "classification" in kinds:
        panel.plot([], [], LINES["classification"], color=COLOURS["classification"], label="classification only")
    if comparable:
        panel.plot([], [], "o", color=COLOURS["bound"], fillstyle="none", label="hollow, faint: the paper's")
    legend_below(figure, panel.get_legend_handles_labels()[0], columns=2 if ours else 3)


def _size(kind: str) -> float:
    return 9.0 if kind == "ours" else 5.0


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
        markersize=_size(kind) if filled else _size(kind) + 2,
        markeredgewidth=0.9,
        alpha=0.9,
    )


def _names(
    found: Sequence[Result], split: str, naming: Naming, letters: Mapping[str, tuple[str, str]]
) -> list[tuple[float, float, str, str]]:
    """Where each row's name belongs, once for all seeds, and its colour."""
    places: dict[str, list[tuple[float, float]]] = {}
    rows = {result.row.name: result.row for result in found if result.row.kind != "classification"}
    for result in found:
        metrics = result.numbers(split)
        places.setdefault(result.row.name, []).append((metrics["accuracy"], metrics["satisfied"]))
    names = []
    for name, row in rows.items():
        x, y = (float(np.mean(values)) for values in zip(*places[name], strict=True))
        text = letters[name][0] if name in letters else naming.short(row)
        names.append((x, y, text, COLOURS[naming.kind(row)]))
    return names


def _split_name(split: str) -> str:
    return "training set" if split == "train" else f"{split} set"
