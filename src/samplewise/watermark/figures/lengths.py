"""Bit errors against the length of the message, a line for each floor."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from samplewise.report.style import legend_below, new_figure, save, series
from samplewise.watermark.judging.output import Judged

__all__ = ["draw_lengths"]


def draw_lengths(folder: Path, judged: Sequence[Judged]) -> list[Path]:
    """Mean bit error of the grey files against the bits of a message; nothing if all runs have the same length."""
    lines: defaultdict[float | None, list[Judged]] = defaultdict(list)
    for one in sorted(judged, key=lambda one: one.run.recipe.bits):
        lines[one.summary.floor].append(one)
    lengths = sorted({one.run.recipe.bits for one in judged})
    if len(lengths) < 2:
        return []
    figure, (panel,) = new_figure(1, 1, width=5.0, height=3.2)
    faultless = False
    for number, (floor, runs) in enumerate(sorted(lines.items(), key=lambda line: line[0] or 0.0)):
        bits = [one.run.recipe.bits for one in runs]
        errors = [one.summary.reading["grey"].bit_error_mean for one in runs]
        # Where no bit is wrong: as if half a bit of all that were read were.
        least = [0.5 / (length * len(one.measured)) for length, one in zip(bits, runs, strict=True)]
        faultless |= not all(errors)
        colour, marker = series(number)
        shown = [max(error, low) for error, low in zip(errors, least, strict=True)]
        panel.plot(
            bits, shown, color=colour, linewidth=1.2, label="no floor" if floor is None else f"floor {floor:g} dB"
        )
        for x, y, error in zip(bits, shown, errors, strict=True):
            panel.plot(x, y, color=colour, marker=marker, fillstyle="full" if error else "none")
    panel.set_yscale("log")
    panel.set_xticks(lengths)
    panel.set_xlabel("bits in an image" + ("\nhollow: no bit of any image is wrong" if faultless else ""))
    panel.set_ylabel("mean bit error rate")
    legend_below(figure, panel.get_legend_handles_labels()[0], columns=len(lines))
    return save(figure, folder, "lengths")
