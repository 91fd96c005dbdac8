"""What the demo draws, and its page: every run with what holds on each part, and the digits it redraws worst."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from samplewise import Audit
from samplewise.problem import evaluation_mode
from samplewise.report import (
    COLOURS,
    LINES,
    MARKERS,
    Audited,
    Finding,
    Gallery,
    Picture,
    Requirement,
    RunReport,
    bound_line,
    curve,
    distribution,
    label_points,
    legend_below,
    new_figure,
    read_curves,
    save,
    styled,
    write_page,
)
from samplewise.storage import provenance
from studies.demo.runs import AIM, SHARE, THETA, TUNE, UNSEEN, Compared, Trained
from studies.mnist.digit_network import CONSTRAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REPORT = "report.html"
DIGIT_SIDE = 8  # pixels
GALLERY = 10  # pictures
PROMISE = "ours"
"""The style of figures that the promise has."""


def draw(found: Compared, folder: Path) -> None:
    """Accuracy against share, on the part that chose and on the unseen one; and how the one run was steered."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        figure, panels = new_figure(1, 2, height=3.2)
        for axes, part, title in zip(panels, (TUNE, UNSEEN), ("(a) tune_on, which chose", "(b) unseen"), strict=True):
            _draw_front(axes, found, part)
            axes.set_title(title, loc="left")
        legend_below(figure, panels[0].get_legend_handles_labels()[0], columns=3)
        for axes, part in zip(panels, (TUNE, UNSEEN), strict=True):
            names = [(*_point(run, part), f"{run.weight:g}", COLOURS["fixed"]) for run in found.search]
            label_points(axes, names, others=[_point(found.promise, part)])
        save(figure, folder, "front")
        figure, panels = new_figure(1, 2, height=2.8)
        _draw_epochs(panels, found)
        legend_below(figure, panels[0].get_legend_handles_labels()[0], columns=3)
        save(figure, folder, "epochs")


def _point(run: Trained, part: str) -> tuple[float, float]:
    return run.audits[part].satisfied, run.audits[part].means["accuracy"]


def _draw_front(axes: Axes, found: Compared, part: str) -> None:
    shares, accuracies = zip(*(_point(run, part) for run in found.search), strict=True)
    colour, marker = COLOURS["fixed"], MARKERS["fixed"]
    line: Any = {"linestyle": LINES["fixed"], "linewidth": 1.0, "label": f"fixed weights, {len(shares)} runs"}
    axes.plot(shares, accuracies, marker, color=colour, markersize=4, **line)
    x, y = _point(found.shipped, part)
    axes.plot(x, y, "o", color=colour, markersize=11, fillstyle="none", label="the one that the search ships")
    x, y = _point(found.promise, part)
    axes.plot(x, y, MARKERS[PROMISE], color=COLOURS[PROMISE], markersize=11, zorder=3, label="promise, 1 run")
    if part == TUNE:
        bound_line(axes, AIM, f"aim {AIM:.1%}", side="right")
    else:
        bound_line(axes, SHARE, f"promised {SHARE:.0%}")
    axes.margins(x=0.08, y=0.12)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_xlabel("share within the bound")
    axes.set_ylabel("accuracy")


def _draw_epochs(panels: list[Axes], found: Compared) -> None:
    """The share on ``tune_on`` over the epochs, and the weight of the constraint beside it."""
    for run, kind in ((found.promise, PROMISE), (found.shipped, "fixed")):
        label = "promise" if run is found.promise else f"fixed weight {run.weight:g}"
        rows = run.solution.history.rows
        for axes, column in zip(panels, (f"{TUNE}/satisfied", f"tau/{CONSTRAINT}"), strict=True):
            values = [row.get(column) or None for row in rows]  # zero while the constraint has no weight yet
            curve(axes, [row["epoch"] for row in rows], values, COLOURS[kind], LINES[kind], label)
            axes.set_xlabel("epoch")
    panels[0].axhline(AIM, color=COLOURS["bound"], linestyle="--", linewidth=1.0, label=f"aim {AIM:.1%}")
    panels[0].yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    panels[0].set_title("(a) share of tune_on within the bound", loc="left")
    panels[1].set_yscale("log")
    panels[1].set_title("(b) weight of the constraint (tau)", loc="left")


def write_report(found: Compared, path: Path, said: str) -> None:
    """The page: the promise and what the search would ship first, then the other weights."""
    others = [run for run in found.search if run is not found.shipped]
    runs = [_report(found, run, said, path.parent) for run in (found.promise, found.shipped, *others)]
    write_page(path, runs, title=f"Handwritten digits: {SHARE:.0%} of unseen ones within a bound")


def _report(found: Compared, run: Trained, said: str, folder: Path) -> RunReport:
    history, selected = run.solution.history.rows, run.solution.selected
    notes = tuple(said.splitlines()) if run is found.promise else ()
    shipped = ", shipped" if run is found.shipped else ""
    values = {part: audit[CONSTRAINT].values.numpy() for part, audit in run.audits.items()}
    return RunReport(
        name=f"{run.label}{shipped}",
        folder=str(folder),
        problem="Digits: minimise the mean cross entropy of the classes",
        requirements=(
            Requirement(
                CONSTRAINT,
                measure=CONSTRAINT,
                formula=f"reconstruction error (MSE) <= {THETA:g} for {SHARE:.0%} of unseen samples",
                upper=THETA,
            ),
        ),
        method=str(run.solution.method),
        selected=selected.reason,
        selected_epoch=selected.epoch,
        splits=tuple(_audited(part, audit) for part, audit in run.audits.items()),
        curves=tuple(read_curves(history, [CONSTRAINT])),
        notes=notes,
        distributions=(distribution(CONSTRAINT, values, [THETA]),),
        galleries=(_gallery(found, run),),
        provenance=provenance(seed=found.seed),
    )


def _audited(part: str, audit: Audit) -> Audited:
    found = audit[CONSTRAINT]
    return Audited(
        part,
        samples=audit.samples,
        objective=audit.objective,
        satisfied=audit.satisfied,
        constraints={CONSTRAINT: Finding(found.violated, found.satisfied, found.mean_violation, found.worst)},
        means=audit.means,
        confidence=audit.confidence,
        n_comparisons=audit.n_comparisons,
    )


def _gallery(found: Compared, run: Trained) -> Gallery:
    """The unseen digits with the largest errors, dark on light."""
    images = found.parts[UNSEEN].tensors[0]
    wrong = run.audits[UNSEEN][CONSTRAINT].values
    worst = wrong.argsort(descending=True)[:GALLERY]
    with evaluation_mode(run.solution.model):
        _, redrawn = run.solution.model(images[worst])
    pairs = [
        (255 * (1 - each)).round().to(torch.uint8).view(-1, DIGIT_SIDE, DIGIT_SIDE).numpy()
        for each in (images[worst], redrawn)
    ]
    pictures = [
        Picture(f"sample {int(index):,}: {float(wrong[index]):.4f}", {"original": before, "reconstruction": after})
        for index, before, after in zip(worst, *pairs, strict=True)
    ]
    return Gallery("Largest errors on unseen digits", tuple(pictures))
