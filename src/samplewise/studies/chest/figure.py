"""The figure of Table II: what each run changes for each pathology, with intervals."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from samplewise.report.style import COLOURS, legend_below, new_figure, save, series, styled
from samplewise.studies.chest.impact import Impact

__all__ = ["draw_impact"]

HEIGHT = 0.16
"""Inches for each run within a pathology."""


def draw_impact(folder: Path, impacts: Sequence[Impact]) -> list[Path]:
    """Differences of the AUROC with their intervals, a group for each pathology that counts, and their mean.

    Args:
        folder: where the files go.
        impacts: of the runs, at least one.
    """
    names = [one.pathology for one in impacts[0].differences if one.counts]
    height = 1.2 + (len(names) + 1) * (HEIGHT * len(impacts) + 0.12)
    with styled():
        figure, (panel,) = new_figure(1, 1, width=7.0, height=height)
        places = np.arange(len(names) + 1)
        step = 0.8 / len(impacts)
        for number, one in enumerate(impacts):
            intervals = [each.auroc for each in one.differences if each.counts] + [one.mean]
            values = np.array([each.value for each in intervals])
            reach = [values - [each.low for each in intervals], [each.high for each in intervals] - values]
            colour, marker = series(number)
            panel.errorbar(
                values,
                places + (number - (len(impacts) - 1) / 2) * step,
                xerr=np.clip(reach, 0, None),
                fmt=marker,
                color=colour,
                markersize=3.5,
                linewidth=1.0,
                label=one.label,
            )
        panel.axvline(0, color=COLOURS["bound"], linewidth=0.8)
        panel.axhline(len(names) - 0.5, color=COLOURS["bound"], linewidth=0.4)
        panel.set_yticks(places, [*(name.replace("_", " ") for name in names), "mean"])
        panel.set_ylim(len(names) + 0.5, -0.5)
        panel.grid(axis="y", visible=False)
        panel.set_xlabel("change of the AUROC by the watermark, with 95 % intervals")
        legend_below(figure, panel.get_legend_handles_labels()[0], columns=min(3, len(impacts)))
        return save(figure, folder, "impact")
