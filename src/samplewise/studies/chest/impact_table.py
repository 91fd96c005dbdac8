"""Table II beside the paper's, and the files of a comparison: Markdown, CSV and JSON."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from samplewise.data.pictures import PATHOLOGIES
from samplewise.disk import atomic, write_json
from samplewise.studies.chest.auroc import Interval
from samplewise.studies.chest.impact import Impact, Originals
from samplewise.studies.chest.table_two import TABLE_TWO, mean
from samplewise.watermark.judging.output import aligned

__all__ = ["REPORT", "table_text", "write_table"]

FORMAT = "samplewise-chest-impact-1"
REPORT = "report.json"
SUMMARY = ("PSNR mean", "min", "floor met", "BER", "mean \\|Δ AUROC\\|", "significant", "flipped", "mean \\|Δp\\|")


def table_text(originals: Originals, impacts: Sequence[Impact], paper: Mapping[str, str]) -> str:
    """Both tables as Markdown: differences by pathology, and what each run does in all.

    Args:
        originals: what the classifier says of the images themselves.
        impacts: of the runs.
        paper: the paper's column for each run that has one, by name.
    """
    left_out = [name for name, counts in zip(PATHOLOGIES, originals.counts, strict=True) if not counts]
    notes = [
        f"{len(originals.data):,} images of {len(set(originals.data.patients)):,} patients, marked at "
        f"{originals.data.store.size} x {originals.data.store.size} pixels and rounded to 8 bits as a file holds them. "
        "In brackets 95 % intervals from a bootstrap over patients, paired for differences; * marks those that exclude "
        "zero. Paper: HiDDeN on the full data at 224 x 224, another classifier.",
    ]
    if left_out:
        notes.append(f"Too few positives to count in the means: {', '.join(left_out)}.")
    return "\n\n".join([aligned(_differences(originals, impacts, paper)), aligned(_summaries(impacts)), *notes])


def _differences(originals: Originals, impacts: Sequence[Impact], paper: Mapping[str, str]) -> list[list[str]]:
    head = ["", "positives", "AUROC", "paper"]
    for one in impacts:
        head += [one.label] + (["paper"] if one.name in paper else [])
    rows = [head]
    for k, score in enumerate(originals.scores):
        name = score.pathology
        row = [name, str(score.positives), _plain(score.auroc), f"{TABLE_TWO[name].base:.3f}"]
        for one in impacts:
            row.append(_signed(one.differences[k].auroc))
            if one.name in paper:
                row.append(f"{getattr(TABLE_TWO[name], paper[one.name]):+.3f}")
        rows.append(row)
    means = ["mean", "", _plain(originals.mean), f"{mean('base'):.3f}"]
    for one in impacts:
        means += [_signed(one.mean)] + ([f"{mean(paper[one.name]):+.3f}"] if one.name in paper else [])
    return [*rows, means]


def _summaries(impacts: Sequence[Impact]) -> list[list[str]]:
    quantiles, bounds = list(impacts[0].quantiles), list(impacts[0].within)
    names = ["largest" if q == "1" else f"{float(q):.0%}" for q in quantiles]
    head = ["", *SUMMARY, *(f"{name} \\|Δp\\| of images" for name in names), *(f"within {bound}" for bound in bounds)]
    rows = [head]
    for one in impacts:
        rows.append(
            [
                one.label,
                f"{one.psnr_mean:.1f}",
                f"{one.psnr_min:.1f}",
                "" if one.satisfied is None else f"{one.satisfied:.1%}",
                f"{one.bit_error:.3g}",
                f"{one.mean_size:.4f}",
                ", ".join(one.significant) or "none",
                f"{one.flipped:.2%}",
                f"{one.mean_change:.4f}",
                *(f"{one.quantiles[q]:.3f}" for q in quantiles),
                *(f"{one.within[bound]:.1%}" for bound in bounds),
            ]
        )
    return rows


def _plain(interval: Interval) -> str:
    if math.isnan(interval.value):
        return "-"
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _signed(interval: Interval) -> str:
    if math.isnan(interval.value):
        return "-"
    star = "*" if interval.significant else ""
    return f"{interval.value:+.4f}{star} [{interval.low:+.4f}, {interval.high:+.4f}]"


def write_table(
    out: Path,
    originals: Originals,
    impacts: Sequence[Impact],
    paper: Mapping[str, str],
    about: Mapping[str, Any],
) -> dict[str, Any]:
    """Write ``table.md``, ``table.csv`` and ``report.json``; returns what the report holds.

    Args:
        out: the folder.
        originals: what the classifier says of the images themselves.
        impacts: of the runs.
        paper: the paper's column for each run that has one, by name.
        about: where it all comes from.
    """
    with atomic(out / "table.md") as temporary:
        temporary.write_text(table_text(originals, impacts, paper) + "\n", encoding="utf-8")
    with atomic(out / "table.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        rows = _rows(originals, impacts, paper)
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    report = {
        "format": FORMAT,
        "images": len(originals.data),
        "patients": len(set(originals.data.patients)),
        "size": originals.data.store.size,
        "originals": {
            "mean_auroc": asdict(originals.mean),
            "pathologies": [
                {**asdict(score), "counts": bool(counts), "threshold": float(threshold)}
                for score, counts, threshold in zip(
                    originals.scores, originals.counts, originals.thresholds, strict=True
                )
            ],
        },
        "runs": [one.to_dict() for one in impacts],
        "paper": {name: row._asdict() for name, row in TABLE_TWO.items()},
        "paper_column": dict(paper),
        **about,
    }
    write_json(out / REPORT, report)
    return report


def _rows(originals: Originals, impacts: Sequence[Impact], paper: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each run and pathology."""
    return [
        {
            "run": one.name,
            "pathology": score.pathology,
            "positives": score.positives,
            "counts": difference.counts,
            "auroc": score.auroc.value,
            "auroc_low": score.auroc.low,
            "auroc_high": score.auroc.high,
            "difference": difference.auroc.value,
            "difference_low": difference.auroc.low,
            "difference_high": difference.auroc.high,
            "significant": difference.auroc.significant,
            "flipped": difference.flipped,
            "mean_change": difference.mean_change,
            "paper_auroc": TABLE_TWO[score.pathology].base,
            "paper_difference": getattr(TABLE_TWO[score.pathology], paper[one.name]) if one.name in paper else None,
        }
        for one in impacts
        for score, difference in zip(originals.scores, one.differences, strict=True)
    ]
