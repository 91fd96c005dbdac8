"""What everything that is drawn looks like, on a page or in a figure: colours, dashes and symbols."""

from collections.abc import Sequence

from samplewise.report.run import TRAINING, RunReport

__all__ = ["BEYOND", "BOUND", "DASHES", "FAINT", "GRID", "INK", "MARKERS", "PALETTE", "SYMBOLS", "Look", "colour"]

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
"""Each keeps a contrast of 3 to paper, to the light and to the dark page; the first ones stay apart for colour-blind
readers. Lines and points that may be printed without colour also differ in dash or symbol."""
BOUND, INK, FAINT, GRID = "#000000", "#6b7280", "#bbbbbb", "#e4e4e4"
"""Of bounds, of what belongs to no series, and on paper of what stands in the background, and of the grid."""
BEYOND = PALETTE[6]
"""Of the side of a bound where a requirement is missed."""
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = {
    "circle-open": "rings",
    "diamond": "diamonds",
    "square": "squares",
    "triangle-up": "triangles",
    "cross": "crosses",
    "star": "stars",
}
"""By plotly's name, what a reader calls them."""
MARKERS = ("o", "D", "s", "^", "P", "*")
"""The same as matplotlib names them."""


def colour(number: int) -> str:
    """Of one series after the other."""
    return PALETTE[number % len(PALETTE)]


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
        return colour(run) if self.several else self.split_colour(split)

    def split_colour(self, split: str) -> str:
        """Of a data set where only one run is shown."""
        return colour(self._place(split))

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
