"""Which parts of an image carry the message that was read from it: a part of another image does not.

The decoder gives evidence for each bit of a cell, close to none where there is no mark. If the cells of a part agree
with the message only by chance, the part was inserted after marking, unless nothing could be hidden in it: under a text
box, in black or in white.
"""

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from floormark.filters import block_sums
from floormark.network import CELL, CELLS_ACROSS, Array
from floormark.prepared import LEVELS, NetworkInput

PART = 4  # side of a part in cells
COMPARED = CELLS_ACROSS  # side in cells of the window that is compared around each part: a tile
MIN_USABLE = 0.6  # fraction of that window in which something could be hidden
MIN_RANGE, MAX_RANGE = 2.0, 100.0
"""Range of grey levels in a cell of a natural image: flat cells have less, text has more."""
DARK, BRIGHT = 10.0, 245.0  # mean grey levels of a cell between which something can be hidden
TYPICAL = 7.0
"""Standard deviations by which the median part must agree with the message; otherwise no part is evaluated."""
FOREIGN, LONE_FOREIGN = 0.25, 0.12
"""Largest agreement of foreign parts, relative to the median: for adjacent parts, and for a single one. In 36 X-rays
marked at 45 dB no part had less than 0.5 unchanged and 0.3 after JPEG 15, noise or scaling to a quarter; in 45 others
five corners had 0.14 to 0.25. Where a tenth was another image, its parts had at most 0.2."""
PRESENT = 4.0  # standard deviations from which on a part certainly carries the message
MATCHES, OTHER, UNKNOWN = "+", "-", "."

Box = tuple[int, int, int, int]  # left, top, width and height in pixels


@dataclass(frozen=True, eq=False)
class Parts:
    """Which parts of an image carry the message: squares of 32 of the network's pixels."""

    agreement: NDArray[np.float64]
    """Agreement of parts with the message in standard deviations of chance, ``(rows, columns)``; NaN if unknown."""
    least: NDArray[np.float64]
    """The least agreement over windows shifted by half a part too: one of them lies inside an inserted region."""

    @property
    def foreign(self) -> NDArray[np.bool_]:
        """Which parts do not carry the message although they could, ``(rows, columns)``."""
        known = self.agreement[~np.isnan(self.agreement)]
        if not known.size or np.median(known) < TYPICAL:
            return np.zeros(self.agreement.shape, np.bool_)
        ratio = np.nan_to_num(self.least, nan=np.inf) / np.median(known)
        around = sliding_window_view(np.pad(ratio < FOREIGN, 1), (3, 3)).sum((2, 3))
        return np.where(around > 1, ratio < FOREIGN, ratio < LONE_FOREIGN)

    @property
    def within_present(self) -> NDArray[np.bool_]:
        """The foreign parts in the smallest rectangle around what is present."""
        rows, columns = np.nonzero(self.present)
        inside = np.zeros(self.agreement.shape, np.bool_)
        inside[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        return self.foreign & inside

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which parts carry the message; all if none does clearly."""
        clear = np.nan_to_num(self.agreement, nan=-np.inf) >= PRESENT
        return clear if clear.any() else np.ones(clear.shape, np.bool_)

    def shown(self, foreign: NDArray[np.bool_]) -> tuple[str, ...]:
        """A map in characters: ``+`` where the message is, ``-`` where it is missing, ``.`` if nothing can be said."""
        marks = np.where(foreign, OTHER, np.where(np.isnan(self.agreement), UNKNOWN, MATCHES))
        return tuple("".join(row) for row in marks)


def compare_parts(evidence: Array, signs: Array, given: NetworkInput) -> Parts:
    """Compare the evidence of each cell, ``(4, h, w)``, with the signs of its bits, same shape, part by part."""
    usable = _usable(given) & (given.weights > 0)
    agreement = _windows((evidence * signs).sum(0) * usable)
    spread = np.sqrt(np.maximum(_windows(np.square(evidence).sum(0) * usable), 1e-9))
    enough = _windows(usable) >= MIN_USABLE * COMPARED**2
    score = np.where(enough, agreement / spread, np.nan)
    rows, columns = (-(-length // PART) for length in usable.shape)
    moved = [score[i : i + 2 * rows : 2, j : j + 2 * columns : 2] for i, j in np.ndindex(2, 2)]
    return Parts(moved[0], np.fmin.reduce(moved))


def _usable(given: NetworkInput) -> NDArray[np.bool_]:
    """The cells in which something could be hidden, ``(h, w)``."""
    down, across = (length // CELL for length in given.grey.shape)
    cells = given.grey.reshape(down, CELL, across, CELL).swapaxes(1, 2).reshape(down, across, -1)
    difference, mean = cells.max(2) - cells.min(2), cells.mean(2)
    natural = (difference >= MIN_RANGE) & (difference <= MAX_RANGE)
    found: NDArray[np.bool_] = natural & (mean > DARK) & (mean < min(BRIGHT, LEVELS))
    return found


def _windows(values: NDArray[np.generic]) -> NDArray[np.float64]:
    """The sum over each window, ``(h, w)`` in cells; windows are half a part apart.

    The first ones begin half a part before the edge.
    """
    halves = block_sums(values.astype(np.float64), PART // 2)
    across = 2 * COMPARED // PART  # halves of a part
    padded = np.pad(halves, [(1, across + length % 2) for length in halves.shape])
    found: NDArray[np.float64] = sliding_window_view(padded, (across, across)).sum((2, 3))
    return found
