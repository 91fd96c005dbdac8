"""Figures of an evaluation: quality, training, bit errors, attacks, and the images themselves."""

from collections.abc import Sequence
from pathlib import Path

from samplewise.report.style import styled
from studies.watermark.evaluation.output import Judged
from studies.watermark.figures.charts import draw_attacks, draw_bit_errors, draw_curves, draw_lengths, draw_psnr
from studies.watermark.figures.pictures import draw_comparison, draw_pictures

__all__ = ["write_figures"]


def write_figures(folder: Path, judged: Sequence[Judged], *, paper: bool = False) -> list[Path]:
    """Draw all figures that the runs allow, as PNG and SVG; with ``paper`` its medians are marked among bit errors."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        paths = draw_psnr(folder, judged) + draw_bit_errors(folder, judged, paper=paper)
        paths += draw_curves(folder, [one.run for one in judged])
        paths += draw_attacks(folder, judged) + draw_lengths(folder, judged)
        for one in judged:
            paths += draw_pictures(folder, one)
        paths += draw_comparison(folder, judged)
    return paths
