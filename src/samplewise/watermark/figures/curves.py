"""Curves over the training of each run: message loss, PSNR, share of images at the floor, tau."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from samplewise.report.style import COLOURS, Line, curve, legend_below, new_figure, save, series
from samplewise.watermark.judging.runs import HistoryRow, Run
from samplewise.watermark.pipeline import CONSTRAINT

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_curves"]

PANELS = {
    "message_loss": "(a) message loss",
    CONSTRAINT: "(b) mean PSNR (dB)",
    f"{CONSTRAINT}/satisfied": "(c) share of images at the floor",
}
"""Columns of the history that there are for the training and the validation pictures."""
PARTS: dict[str, Line] = {"train": (0, (4, 1.5)), "validation": "-"}
TAU = f"tau/{CONSTRAINT}"
DASH = 4  # line widths


def draw_curves(folder: Path, runs: Sequence[Run]) -> list[Path]:
    """Draw the histories that the runs have kept, if any (the paper's curves of training and validation)."""
    histories = [(run, rows, series(n)[0]) for n, run in enumerate(runs) if (rows := run.history())]
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


def _taus(panel: Axes, histories: Sequence[tuple[list[HistoryRow], str]]) -> None:
    """Each run's tau where there is a penalty; runs with the same schedule take turns along one line."""
    schedules: dict[tuple[float | None, ...], list[tuple[list[HistoryRow], str]]] = {}
    for rows, colour in histories:
        schedules.setdefault(tuple(row.get(TAU) for row in rows), []).append((rows, colour))
    for shared in schedules.values():
        for turn, (rows, colour) in enumerate(shared):
            line: Line = (DASH * turn, (DASH, DASH * (len(shared) - 1))) if len(shared) > 1 else "-"
            _curve(panel, [row for row in rows if row.get(TAU)], TAU, colour, line)


def _curve(panel: Axes, rows: list[HistoryRow], column: str, colour: str, line: Line, label: str | None = None) -> None:
    curve(panel, [row["epoch"] for row in rows], [row.get(column) for row in rows], colour, line, label)
