"""Colours, dashes and symbols of a report's charts."""

from collections.abc import Sequence

from samplewise.report.run import TRAINING, RunReport

__all__ = ["DASHES", "PALETTE", "SYMBOLS", "Look"]

PALETTE = (
    "#2a7fca",
    "#cf6410",
    "#1b8f6a",
    "#c0579b",
    "#8568d6",
    "#a8730c",
    "#d24b4b",
    "#12899c",
    "#6f8a1d",
    "#7d8590",
    "#a06a4f",
    "#5a76e0",
)
"""Each keeps a contrast of 3 to the light and to the dark page."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = {
    "circle-open": "rings",
    "diamond": "diamonds",
    "square": "squares",
    "triangle-up": "triangles",
    "cross": "crosses",
    "star": "stars",
}


class Look:
    """Which colour, dash and symbol stand for which run and data set: by run, or by data set if there is one run.

    Args:
        runs: of the report.
    """

    def __init__(self, runs: Sequence[RunReport]) -> None:
        names = [curve.split for run in runs for curve in run.curves if curve.split and curve.split != TRAINING]
        names += [split.name for run in runs for split in run.splits]
        trained = {split.name for run in runs for split in run.splits if split.trained_on}
        self.splits = sorted(dict.fromkeys(names), key=lambda name: name not in trained)
        if any(curve.split == TRAINING for run in runs for curve in run.curves):
            self.splits.append(TRAINING)
        self.several = len(runs) > 1

    def colour(self, run: int, split: str) -> str:
        """Of a line among those of all runs."""
        return PALETTE[run % len(PALETTE)] if self.several else self.split_colour(split)

    def split_colour(self, split: str) -> str:
        """Of a data set where only one run is shown."""
        return PALETTE[self._place(split) % len(PALETTE)]

    def dash(self, split: str) -> str:
        """Of a line."""
        return DASHES[self._place(split) % len(DASHES)]

    def symbol(self, split: str) -> str:
        """Of a point."""
        return list(SYMBOLS)[self._place(split) % len(SYMBOLS)]

    def _place(self, split: str) -> int:
        return self.splits.index(split) if split in self.splits else 0

    def hidden(self, runs: Sequence[RunReport]) -> set[str]:
        """Data sets not shown at first: what was seen while training, if audits of several epochs show the same."""
        audited = any(
            curve.split not in ("", TRAINING) and len(curve.epochs) > 1 for run in runs for curve in run.curves
        )
        return {TRAINING} if audited else set()
