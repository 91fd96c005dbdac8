"""What ties a message to its image: how pairs of places compare, which no usual treatment of an image changes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from floormark.network import TILE
from floormark.payload import Key, derived
from floormark.registration import Picture

PAIRS = 40
"""Bits that are embedded: for each pair, which of its places is brighter than what is around it."""
CORE = 256
"""Side in the network's pixels of the square that the pairs are in; the shorter side of every larger image."""
REACH = 24
"""Pixels between the places of a pair, at most, in rows and in columns."""
SCALES = 2.5, 6.0
"""Standard deviations in pixels: what is finer may be lost or be the mark, what is coarser is alike in all X-rays."""
TIED, FREE, FREE_MOVED = 3.0, 2.6, 1.0
"""Standard deviations of chance: from the first on an image is the message's own, below the second another's.

Below the third if it was moved: less of the right image may be left than of a wrong place.
"""
MOST = 0.7
"""Share of the square that a moved image must cover to be another's."""
ENOUGH = 3.6
"""What the pairs of the right image reach if each agrees; where less is left of it, nothing is said."""
FAINT = 1.0
"""Grey levels: a difference that is nothing."""
CLEAR = 0.11
"""How much the places of pairs differ, as root mean square of what :func:`_relief` gives, from which on an image may be
another's. X-rays have 0.12 and more; of a mark at 40 dB where nothing else is, 0.1."""


class Content:
    """The pairs of a key, and what they say of an image."""

    def __init__(self, key: Key | None) -> None:
        draws = np.frombuffer(derived(key, "content", 8 * PAIRS), "<u2").reshape(PAIRS, 4)
        first = draws[:, :2] % (CORE - 16) + 8
        second = first + draws[:, 2:].astype(np.int64) % (2 * REACH + 1) - REACH
        self.places = np.stack([first, np.clip(second, 4, CORE - 5)])
        """Rows and columns, ``(2, 40, 2)``."""

    def bits(self, seen: Picture) -> tuple[int, ...]:
        """What is embedded with a message, of what the network sees of an image, in grey levels."""
        values = self._values(_relief(seen), np.ones(seen.shape, np.bool_), np.zeros(2, np.int64))
        return tuple((values > 0).astype(int).tolist())

    def belongs(
        self, bits: tuple[int, ...], seen: Picture, inside: NDArray[np.bool_], origin: NDArray[np.int64], *, moved: bool
    ) -> bool | None:
        """Whether a message with these bits was written into the image that is seen.

        Args:
            bits: as they were read.
            seen: what the network sees, in grey levels, from its pixel ``origin`` on.
            inside: which of these pixels are of the image.
            origin: a multiple of a tile.
            moved: whether whole tiles may be missing before the first, or have been added. All ways are tried then, and
                the best must be the better for it.
        """
        signs, relief = 2.0 * np.array(bits) - 1.0, _relief(seen)
        tiles = [range(-length // TILE, -(-CORE // TILE) + 1) if moved else (0,) for length in seen.shape]
        agree, tries, clear = 0.0, 0, False
        for rows in tiles[0]:
            for columns in tiles[1]:
                at = (TILE * np.array([rows, columns]) if moved else origin).astype(np.int64)
                values = self._values(relief, inside, at)
                length = float(np.linalg.norm(values))
                reachable = float(np.abs(values).sum()) / (length + 1e-9)
                if reachable >= ENOUGH:
                    tries += 1
                    clear |= length >= CLEAR * math.sqrt(PAIRS)
                    agree = max(agree, float(values @ signs) / (length + 1e-9))
        if not tries:
            return None
        agree = math.sqrt(max(0.0, agree**2 - 2.0 * math.log(tries)))  # the best of so many is better by chance
        if agree >= TIED:
            return True
        if not clear:
            return None
        if moved:
            return False if agree < FREE_MOVED and inside.sum() >= MOST * CORE**2 else None
        return False if agree < FREE else None

    def _values(self, relief: Picture, inside: NDArray[np.bool_], origin: NDArray[np.int64]) -> NDArray[np.float64]:
        """By how much the first place of each pair is brighter, none by more than the median; zero if not seen."""
        at = self.places - origin
        there: NDArray[np.bool_] = np.all((at >= 0) & (at < relief.shape), axis=(0, 2))
        rows, columns = np.where(there[:, None], at, 0).transpose(2, 0, 1)
        there &= inside[rows, columns].all(0)
        difference = np.where(there, relief[rows[0], columns[0]] - relief[rows[1], columns[1]], 0.0)
        most = float(np.median(np.abs(difference[there]))) if there.any() else 0.0
        return np.clip(difference, -most, most)


def _relief(seen: Picture) -> Picture:
    """What is brighter and darker than what is around it, everywhere of one size."""
    fine, coarse = (ndimage.gaussian_filter(seen, scale, truncate=3.0) for scale in SCALES)
    relief = fine - coarse
    size = np.sqrt(ndimage.gaussian_filter(relief * relief, 2.0 * SCALES[1], truncate=2.0))
    found: Picture = relief / (size + FAINT)
    return found
