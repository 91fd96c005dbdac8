"""The study's figures, from the files of its rows: errors, epochs, trade-off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from samplewise.report.style import COLOURS, MARKERS, bound_line, new_figure, save, styled
from samplewise.studies.mnist.network import CONSTRAINT
from samplewise.studies.mnist.paper import TABLE
from samplewise.studies.mnist.pictures import draw_pictures
from samplewise.studies.mnist.results import Result
from samplewise.studies.mnist.rows import GAMMA, Naming, parse_row
from samplewise.studies.mnist.settings import Settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["best", "write_figures"]

ACCURACY_LOSS = 0.025
"""How much training accuracy, against the best of all rows, the "best" row of a family may give up."""
PANELS = "abcdefgh"


def best(found: Sequence[Result], family: str) -> Result | None:
    """The row of a family that satisfies the most training constraints at little loss of training accuracy."""
    accuracies = [result.selected["train"]["accuracy"] for result in found]
    rows = [result for result in found if result.row.family == family]
    if not rows:
        return None
    good = [result for result in rows if result.selected["train"]["accuracy"] >= max(accuracies) - ACCURACY_LOSS]
    if good:
        return max(good, key=lambda result: (result.selected["train"]["satisfied"], -result.seed))
    return max(rows, key=lambda result: result.selected["train"]["accuracy"])


def write_figures(folder: Path, settings: Settings, found: Sequence[Result]) -> list[Path]:
    """Draw all figures that the rows at hand allow.

    Args:
        folder: where they go.
        settings: of the run.
        found: its results.
    """
    folder.mkdir(parents=True, exist_ok=True)
    families = [best(found, family) for family in ("sequential", "fixed", "classification")]
    shown = [result for result in families if result is not None]
    constrained = [result for result in shown if result.row.family != "classification"]
    naming = Naming({result.row.name: result.row for result in found}.values())
    paths: list[Path] = []
    with styled():
        if constrained:
            paths += draw_errors(folder, settings, constrained, naming)
            paths += draw_pictures(folder, settings, constrained, naming)
        paths += draw_epochs(folder, settings, shown, naming)
        paths += draw_trade_off(folder, settings, found, naming)
    return paths


def draw_errors(folder: Path, settings: Settings, shown: Sequence[Result], naming: Naming) -> list[Path]:
    """Distribution of reconstruction errors with the bound marked (the paper's figure 2)."""
    figure, panels = new_figure(1, 2, height=2.7)
    for panel, split, letter in zip(panels, ("train", settings.held_out), PANELS, strict=False):
        for place, result in enumerate(shown):
            edges, counts = result.errors()
            shares = counts[f"{split}/selected"] / counts[f"{split}/selected"].sum()
            widths = 100 * shares[:-1]  # the last bin, without an upper edge, is counted but not drawn
            colour = COLOURS[naming.kind(result.row)]
            panel.stairs(widths, edges, color=colour, linewidth=1.3, label=naming.label(result.row))
            panel.stairs(widths, edges, color=colour, fill=True, alpha=0.18)
            panel.text(
                0.98,
                0.84 - 0.09 * place,
                f"{result.selected[split]['satisfied']:.1%} satisfied",
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
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(shown))
    return save(figure, folder, "errors")


def draw_epochs(folder: Path, settings: Settings, shown: Sequence[Result], naming: Naming) -> list[Path]:
    """Accuracy and share satisfied over the epochs (the paper's figure 3)."""
    figure, panels = new_figure(2, 2, height=4.4)
    splits = ("train", settings.held_out)
    columns = [("accuracy", "accuracy"), (f"{CONSTRAINT}/satisfied", "share satisfied")]
    places = [(column, name, split) for column, name in columns for split in splits]
    for panel, (column, name, split), letter in zip(panels, places, PANELS, strict=False):
        lowest = 1.0
        for result in shown:
            epochs, values = result.history("epoch", f"{split}/{column}")
            panel.plot(epochs, values, color=COLOURS[naming.kind(result.row)], label=naming.label(result.row))
            lowest = min(lowest, float(np.quantile(values, 0.02)))
        panel.set_title(f"({letter}) {name}, {_split_name(split)}", loc="left")
        panel.set_xlim(0, settings.epochs)
        panel.locator_params(axis="x", integer=True)
        panel.set_xlabel("epoch")
        if column == "accuracy":
            panel.set_ylim(max(0.0, lowest - 0.1 * (1.001 - lowest)), 1.001)
        else:
            panel.set_ylim(-0.02, 1.02)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(shown))
    return save(figure, folder, "epochs")


def draw_trade_off(folder: Path, settings: Settings, found: Sequence[Result], naming: Naming) -> list[Path]:
    """Share satisfied against accuracy: every row of the run and, for MNIST, of the paper."""
    comparable = settings.data == "mnist" and settings.held_out == "test"
    figure, panels = new_figure(1, 2, height=4.0)
    for panel, split, letter in zip(panels, ("train", settings.held_out), PANELS, strict=False):
        if comparable:
            for name, paper in TABLE.items():
                point = getattr(paper, split)
                _point(panel, parse_row(name).family, point.accuracy, point.satisfied, filled=False)
        for result in found:
            metrics = result.selected[split]
            _point(panel, naming.kind(result.row), metrics["accuracy"], metrics["satisfied"], filled=True)
        _name_points(panel, found, split, naming)
        panel.set_xlabel("accuracy")
        panel.set_ylabel("share satisfied")
        panel.set_title(f"({letter}) {_split_name(split)}", loc="left")
        panel.margins(x=0.12, y=0.08)
    kinds = [kind for kind in MARKERS if any(naming.kind(result.row) == kind for result in found)]
    names = {
        "sequential": f"sequential penalty (τ₀, {GAMMA})",
        "fixed": "fixed (λ)",
        "classification": "classification only",
        "ours": "other methods and recipes",
    }
    for kind in kinds:
        panels[0].plot([], [], MARKERS[kind], color=COLOURS[kind], label=names[kind], markersize=_size(kind))
    if comparable:
        panels[0].plot([], [], "o", color=COLOURS["bound"], fillstyle="none", label="hollow: the paper's", markersize=5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    return save(figure, folder, "trade_off")


def _size(kind: str) -> float:
    return 9.0 if kind == "ours" else 5.0


def _point(panel: Axes, kind: str, accuracy: float, satisfied: float, *, filled: bool) -> None:
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


def _name_points(panel: Axes, found: Sequence[Result], split: str, naming: Naming) -> None:
    """Write each row's numbers beside its points, once for all seeds."""
    places: dict[str, list[tuple[float, float]]] = {}
    rows = {result.row.name: result.row for result in found}
    for result in found:
        metrics = result.selected[split]
        places.setdefault(result.row.name, []).append((metrics["accuracy"], metrics["satisfied"]))
    taken: list[tuple[float, float]] = []
    for name, points in sorted(places.items(), key=lambda item: item[1]):
        if rows[name].kind == "classification":
            continue
        x, y = (float(np.mean(values)) for values in zip(*points, strict=True))
        # To the left where another name stands close by on the right.
        left = any(abs(x - other_x) < 0.012 and abs(y - other_y) < 0.03 for other_x, other_y in taken)
        panel.annotate(
            naming.short(rows[name]),
            (x, y),
            (-6, 0) if left else (6, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            fontsize=6.5,
            color=COLOURS[naming.kind(rows[name])],
        )
        taken.append((x, y))


def _split_name(split: str) -> str:
    return "training set" if split == "train" else f"{split} set"
