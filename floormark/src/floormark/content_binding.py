"""The content code binds a message to its image: one bit for each pair of points, which of them is brighter.

Usual processing does not change it.
"""

import math

import numpy as np
from numpy.typing import NDArray

from floormark.filters import Picture, gaussian, median
from floormark.network import TILE
from floormark.payload import Key, derived
from floormark.prepared import NetworkInput, TileLayout

PAIRS = 40  # bits of the content code: which point of each pair is brighter, relative to its surroundings
CODE_SIDE = 256
"""Side of the square that holds the pairs, in the network's pixels: the shorter side of every larger image."""
PAIR_REACH = 24  # pixels between the points of a pair, at most, in rows and in columns
FINE_SIGMA, COARSE_SIGMA = 2.5, 6.0
"""Standard deviations in pixels: finer detail may be lost or be the mark; coarser detail is alike in all X-rays."""
OWN_SCORE, OTHER_SCORE, OTHER_PARTLY_SHOWN_SCORE = 3.0, 2.6, 1.0
"""Scores in standard deviations of chance. From the first on the message belongs to the image; below the second it
belongs to another. The third replaces the second if the image was registered or much of it is covered, as less of the
right image may be left than of a wrong one."""
MIN_SHOWN = 0.7  # part of the square that is shown; with less, a registered image is never called another's
MIN_REACHABLE = 3.6
"""Score that must be reachable if all pairs agree; if too little of an image is left for that, the answer is None."""
FAINT_LEVELS = 1.0  # grey levels: a difference that counts as none
CLEAR_RELIEF = 0.11
"""Least root mean square difference of paired points in :func:`_relief` at which an image may be called another's.
X-rays have 0.12 and more; a mark at 40 dB with no image under it has 0.1."""


class ContentBinding:
    """The pairs of points that a key draws, and the content code that they give an image."""

    def __init__(self, key: Key | None) -> None:
        draws = np.frombuffer(derived(key, "content", 8 * PAIRS), "<u2").reshape(PAIRS, 4)
        first = draws[:, :2] % (CODE_SIDE - 16) + 8
        second = first + draws[:, 2:].astype(np.int64) % (2 * PAIR_REACH + 1) - PAIR_REACH
        points = np.stack([first, np.clip(second, 4, CODE_SIDE - 5)])
        self.points = np.floor(TileLayout.of(key).places(points)).astype(np.int64)
        """Rows and columns of the network's pixels, ``(2, 40, 2)``."""

    def code(self, given: NetworkInput) -> tuple[int, ...]:
        """The content code of an image, computed from the network's input; it is embedded with the message."""
        values = self._values(_relief(given.grey), given.usable, given.origin)
        return tuple((values > 0).astype(int).tolist())

    def belongs(self, code: tuple[int, ...], given: NetworkInput, *, registered: bool) -> bool | None:
        """Whether a message with this content code was written into an image; None if that cannot be said.

        In a registered image whole tiles may be missing at the top and left, or have been added. All such shifts are
        tried; the more there are, the higher the best must score.
        """
        signs, relief = 2.0 * np.array(code) - 1.0, _relief(given.grey)
        score, trials, clear = 0.0, 0, False
        origins = [given.origin]
        if registered:
            down, across = (range(-length // TILE, -(-CODE_SIDE // TILE) + 1) for length in given.grey.shape)
            origins = [np.array([TILE * rows, TILE * columns], np.int64) for rows in down for columns in across]
        for origin in origins:
            values = self._values(relief, given.usable, origin)
            length = float(np.linalg.norm(values))
            reachable = float(np.abs(values).sum()) / (length + 1e-9)
            if reachable >= MIN_REACHABLE:
                trials += 1
                clear |= length >= CLEAR_RELIEF * math.sqrt(PAIRS)
                score = max(score, float(values @ signs) / (length + 1e-9))
        if not trials:
            return None
        score = math.sqrt(max(0.0, score**2 - 2.0 * math.log(trials)))  # the maximum over trials is higher by chance
        if score >= OWN_SCORE:
            return True
        if not clear:
            return None
        shown = given.usable.sum() >= MIN_SHOWN * CODE_SIDE**2
        if registered:
            return False if score < OTHER_PARTLY_SHOWN_SCORE and shown else None
        if not shown:
            return False if score < OTHER_PARTLY_SHOWN_SCORE else None
        return False if score < OTHER_SCORE else None

    def _values(self, relief: Picture, usable: NDArray[np.bool_], origin: NDArray[np.int64]) -> NDArray[np.float64]:
        """By how much the first point of each pair is brighter, clipped to the median; zero if not usable."""
        at = self.points - origin
        there: NDArray[np.bool_] = np.all((at >= 0) & (at < relief.shape), axis=(0, 2))
        rows, columns = np.where(there[:, None], at, 0).transpose(2, 0, 1)
        there &= usable[rows, columns].all(0)
        difference = np.where(there, relief[rows[0], columns[0]] - relief[rows[1], columns[1]], 0.0)
        most = median(np.abs(difference[there])) if there.any() else 0.0
        return np.clip(difference, -most, most)


def _relief(grey: Picture) -> Picture:
    """By how much each point is brighter than its surroundings, scaled to the same local variance everywhere."""
    fine, coarse = (gaussian(grey, sigma, truncate=3.0) for sigma in (FINE_SIGMA, COARSE_SIGMA))
    relief = fine - coarse
    size = np.sqrt(gaussian(relief * relief, 2.0 * COARSE_SIGMA, truncate=2.0))
    return np.asarray(relief / (size + FAINT_LEVELS), np.float32)
