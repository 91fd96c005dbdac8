"""One row of numbers for each run: the table that compares networks."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samplewise.checkpoint import atomic
from samplewise.watermark.evaluation.judged import Judged

__all__ = ["HEADINGS", "aligned", "table_rows", "table_text", "write_table"]

HEADINGS = {
    "run": "run",
    "network": "network",
    "bits": "bits",
    "size": "size",
    "floor": "floor (dB)",
    "noise": "noise",
    "images": "images",
    "psnr_mean": "PSNR mean",
    "psnr_min": "PSNR min",
    "satisfied": "meet the floor",
    "satisfied_at_least": "at least",
    "bit_error": "BER",
    "error_free": "error-free",
    "usable_bits": "usable bits",
    "bit_error_rgb": "BER (RGB file)",
    "bit_error_float": "BER (floats)",
    "max_difference": "max diff",
    "ssim": "SSIM",
    "minutes": "training (min)",
}
"""Of the columns, by their names in the CSV file."""
FORMATS = {
    "floor": "g",
    "psnr_mean": ".2f",
    "psnr_min": ".2f",
    "satisfied": ".2%",
    "satisfied_at_least": ".2%",
    "bit_error": ".3g",
    "error_free": ".2%",
    "usable_bits": ".1f",
    "bit_error_rgb": ".3g",
    "bit_error_float": ".3g",
    "max_difference": ".0f",
    "ssim": ".4f",
    "minutes": ".1f",
}


def table_rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """The numbers, by column; None where a run has no such number."""
    return [_row(one) for one in judged]


def _row(one: Judged) -> dict[str, Any]:
    recipe, summary = one.run.recipe, one.summary
    grey, reading = summary.quality["grey"], summary.reading["grey"]
    rgb = summary.reading.get("rgb")
    # The baseline has no floor of its own, only one that it may be judged by.
    judged = not recipe.image_loss or summary.floor != recipe.floor
    return {
        "run": one.run.name,
        "network": recipe.network,
        "bits": recipe.bits,
        "size": recipe.size,
        "floor": summary.floor if judged else None,
        "noise": recipe.noise,
        "images": summary.images,
        "psnr_mean": grey.psnr_mean,
        "psnr_min": grey.psnr_min,
        "satisfied": grey.satisfied.share if judged else None,
        "satisfied_at_least": grey.satisfied.at_least if judged else None,
        "bit_error": reading.bit_error_mean,
        "error_free": reading.error_free.share,
        "usable_bits": reading.usable_bits,
        "bit_error_rgb": None if rgb is None else rgb.bit_error_mean,
        "bit_error_float": summary.reading["float"].bit_error_mean,
        "max_difference": grey.max_difference,
        "ssim": grey.ssim_mean,
        "minutes": one.run.minutes,
    }


def table_text(judged: Sequence[Judged]) -> str:
    """The table as Markdown, with what its columns mean."""
    rows = table_rows(judged)
    shown = [name for name in HEADINGS if any(row[name] is not None for row in rows)]
    cells = [[HEADINGS[name] for name in shown], *([_cell(name, row[name]) for name in shown] for row in rows)]
    baseline = ", ".join(one.run.name for one in judged if one.run.recipe.image_loss)
    notes = [
        "PSNR, SSIM, largest difference (grey levels) and BER are those of the 8-bit grey PNG files as written and "
        f"read back. At least: what holds for images like these with {judged[0].summary.confidence:.0%} confidence "
        "(exact, images taken as independent). Usable bits: L(1 - H2(BER)).",
    ]
    if baseline:
        notes.append(f"Trained without a floor, on a weighted image loss: {baseline}.")
    return "\n\n".join([aligned(cells), *notes])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up; the first row is its head."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    return format(value, FORMATS.get(name, "")) if name in FORMATS else str(value).replace("|", "\\|")


def write_table(out: Path, judged: Sequence[Judged]) -> None:
    """Write ``table.csv`` and ``table.md``."""
    with atomic(out / "table.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(HEADINGS))
        writer.writeheader()
        writer.writerows(table_rows(judged))
    with atomic(out / "table.md") as temporary:
        temporary.write_text(table_text(judged) + "\n", encoding="utf-8")
