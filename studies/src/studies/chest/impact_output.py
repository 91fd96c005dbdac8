"""Table II beside the paper's, the files of a comparison (Markdown and JSON), and its figure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from samplewise.storage import write_json, write_text
from studies.chest.auroc import Interval
from studies.chest.impact import Impact, Originals
from studies.drawing import COLOURS, legend_below, new_figure, save, series, styled
from studies.pictures import PATHOLOGIES
from studies.records import markdown_table
from studies.watermark.recipe import Recipe

FORMAT = "samplewise-chest-impact-1"
SUMMARY_HEADINGS = ("PSNR mean", "min", "floor met", "BER", "mean |Δ AUROC|", "significant", "flipped", "mean |Δp|")
RUN_HEIGHT = 0.16  # inches of the figure for each run within a pathology


class PaperRow(NamedTuple):
    """One row of Table II."""

    base: float
    """AUROC on the original images."""
    hidden: float
    """Signed difference for images marked by HiDDeN with an image loss; below, under a PSNR floor in dB."""
    floor30: float
    floor40: float
    floor50: float


TABLE_TWO: dict[str, PaperRow] = {
    "Atelectasis": PaperRow(0.771, -0.077, -0.018, 0.000, 0.001),
    "Cardiomegaly": PaperRow(0.883, -0.064, -0.013, -0.001, 0.000),
    "Effusion": PaperRow(0.832, -0.054, -0.009, -0.001, -0.001),
    "Infiltration": PaperRow(0.710, -0.038, -0.001, 0.000, 0.000),
    "Mass": PaperRow(0.813, -0.114, -0.021, -0.001, 0.000),
    "Nodule": PaperRow(0.764, -0.091, -0.023, 0.001, 0.000),
    "Pneumonia": PaperRow(0.711, -0.054, -0.010, -0.001, 0.000),
    "Pneumothorax": PaperRow(0.881, -0.158, -0.015, -0.001, 0.000),
    "Consolidation": PaperRow(0.749, -0.080, -0.015, 0.000, 0.000),
    "Edema": PaperRow(0.850, -0.036, -0.004, 0.000, -0.001),
    "Emphysema": PaperRow(0.910, -0.200, -0.016, -0.002, 0.000),
    "Fibrosis": PaperRow(0.840, -0.090, -0.010, 0.001, 0.000),
    "Pleural_Thickening": PaperRow(0.781, -0.066, -0.009, -0.001, 0.000),
    "Hernia": PaperRow(0.858, -0.102, -0.021, 0.002, 0.001),
}
"""Of the paper (arXiv 2601.16812), transcribed: AUROC of its classifier, and what watermarks change."""


def column_of(recipe: Recipe) -> str | None:
    """The paper's column of a run's configuration; None if it has none, as for another network than HiDDeN."""
    if recipe.network != "hidden" or recipe.diagnosis is not None:
        return None
    return "hidden" if recipe.image_loss else {30.0: "floor30", 40.0: "floor40", 50.0: "floor50"}.get(recipe.floor)


def mean(column: str) -> float:
    """Mean of a column over all pathologies."""
    return float(np.mean([getattr(row, column) for row in TABLE_TWO.values()]))


def table_text(originals: Originals, impacts: Sequence[Impact], paper: Mapping[str, str]) -> str:
    """Both tables as Markdown: differences by pathology, and what each run does in all.

    ``paper`` names the paper's column for each run that has one.
    """
    data = originals.data
    notes = [
        f"{len(data):,} images of {len(set(data.patients)):,} patients, marked at {data.store.size} x "
        f"{data.store.size} pixels and rounded to 8 bits as a file holds them. In brackets 95 % intervals from a "
        "bootstrap over patients, paired for differences; * marks those that exclude zero. Paper: HiDDeN on the full "
        "data at 224 x 224, another classifier.",
    ]
    notes += [
        f"{one.label}: the tool refused {one.refused:,} of these images, which stay as they are; PSNR, floor and BER "
        "are of the others."
        for one in impacts
        if one.refused
    ]
    left_out = [name for name, counts in zip(PATHOLOGIES, originals.counts, strict=True) if not counts]
    if left_out:
        notes.append(f"Too few positives to count in the means: {', '.join(left_out)}.")
    return "\n\n".join(
        [markdown_table(_differences(originals, impacts, paper)), markdown_table(_summaries(impacts)), *notes]
    )


def _differences(originals: Originals, impacts: Sequence[Impact], paper: Mapping[str, str]) -> list[list[str]]:
    head, means = ["", "positives", "AUROC", "paper"], ["mean", "", _shown(originals.aurocs.mean(originals.counts))]
    means.append(f"{mean('base'):.3f}")
    positives = originals.labels.sum(0)
    rows = [
        [name, str(positives[k]), _shown(auroc), f"{TABLE_TWO[name].base:.3f}"]
        for k, (name, auroc) in enumerate(zip(PATHOLOGIES, originals.aurocs.intervals, strict=True))
    ]
    for one in impacts:
        head.append(one.label)
        means.append(_difference(one.mean))
        for row, difference in zip(rows, one.differences, strict=True):
            row.append(_difference(difference.auroc))
        if one.name in paper:
            head.append("paper")
            means.append(f"{mean(paper[one.name]):+.3f}")
            for row in rows:
                row.append(f"{getattr(TABLE_TWO[row[0]], paper[one.name]):+.3f}")
    return [head, *rows, means]


def _summaries(impacts: Sequence[Impact]) -> list[list[str]]:
    names = ["largest" if q == "1" else f"{float(q):.0%}" for q in impacts[0].quantiles]
    bounds = [f"within {bound}" for bound in impacts[0].within]
    rows = [["", *SUMMARY_HEADINGS, *(f"{name} |Δp| of images" for name in names), *bounds]]
    for one in impacts:
        rows.append(
            [
                one.label,
                f"{one.psnr_mean:.1f}",
                f"{one.psnr_min:.1f}",
                "" if one.satisfied is None else f"{one.satisfied:.1%}",
                f"{one.bit_error:.3%}",
                f"{one.mean_size:.4f}",
                ", ".join(one.significant) or "none",
                f"{one.flipped:.2%}",
                f"{one.mean_change:.4f}",
                *(f"{value:.3f}" for value in one.quantiles.values()),
                *(f"{value:.1%}" for value in one.within.values()),
            ]
        )
    return rows


def _shown(interval: Interval, style: str = ".3f", star: str = "") -> str:
    value, low, high = (format(each, style) for each in (interval.value, interval.low, interval.high))
    return "-" if math.isnan(interval.value) else f"{value}{star} [{low}, {high}]"


def _difference(interval: Interval) -> str:
    return _shown(interval, "+.4f", "*" if interval.significant else "")


def write_table(
    out: Path, originals: Originals, impacts: Sequence[Impact], paper: Mapping[str, str], about: Mapping[str, Any]
) -> dict[str, Any]:
    """Write ``table.md`` and ``report.json``; returns what the report holds, with ``about`` in it."""
    data, scores = originals.data, originals.aurocs.by_pathology(originals.labels)
    write_text(out / "table.md", table_text(originals, impacts, paper) + "\n")
    columns = zip(scores, originals.counts.tolist(), originals.thresholds.tolist(), strict=True)
    report = {
        "format": FORMAT,
        "images": len(data),
        "patients": len(set(data.patients)),
        "size": data.store.size,
        "originals": {
            "mean_auroc": asdict(originals.aurocs.mean(originals.counts)),
            "pathologies": [{**score, "counts": counts, "threshold": point} for score, counts, point in columns],
        },
        "runs": [asdict(one) for one in impacts],
        "paper": {name: row._asdict() for name, row in TABLE_TWO.items()},
        "paper_column": dict(paper),
        **about,
    }
    write_json(out / "report.json", report)
    return report


def draw_impact(folder: Path, impacts: Sequence[Impact]) -> list[Path]:
    """Differences of the AUROC with their intervals, a group for each pathology that counts, and their mean."""
    names = [one.pathology for one in impacts[0].differences if one.counts]
    height = 1.2 + (len(names) + 1) * (RUN_HEIGHT * len(impacts) + 0.12)
    with styled():
        figure, (panel,) = new_figure(1, 1, height=height)
        places = np.arange(len(names) + 1)
        step = 0.8 / len(impacts)
        for number, one in enumerate(impacts):
            intervals = [each.auroc for each in one.differences if each.counts] + [one.mean]
            values, low, high = np.array([(each.value, each.low, each.high) for each in intervals]).T
            colour, marker = series(number)
            panel.errorbar(
                values,
                places + (number - (len(impacts) - 1) / 2) * step,
                xerr=np.clip([values - low, high - values], 0, None),
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
