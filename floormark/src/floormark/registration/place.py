"""Where a network's pixels lie in an image, and the image as it is seen there.

Coordinates are rows and columns in pixels; a pixel's centre lies half a pixel inside of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch.nn import functional

Picture = NDArray[np.float32]
"""Grey, ``(H, W)``."""

CLIP = 2.5
"""Standard deviations beyond which a value is an edge, and no more than that."""
FLAT = 0.1
"""Variance, in grey levels, below which nothing is made larger."""
SHARP = 1.15
"""Pixels of the image for one of the network's, up to which none is left out."""


@dataclass(frozen=True, eq=False)
class Place:
    """A network's pixel ``p`` lies at ``matrix @ p + start`` in the image; the first tile begins at ``start``."""

    matrix: NDArray[np.float64]
    """Shape ``(2, 2)``."""
    start: NDArray[np.float64]
    """Shape ``(2,)``."""
    inverted: bool = False
    """Whether black has become white."""
    pilot: int = 0
    """Which of the pilots was found there."""
    sure: float = 0.0
    """By how many standard deviations."""

    @property
    def scale(self) -> float:
        """Pixels of the image for one of the network's."""
        return float(np.sqrt(abs(np.linalg.det(self.matrix))))

    def covering(self, shape: tuple[int, ...], unit: int) -> tuple[NDArray[np.int64], tuple[int, int]]:
        """The first of the network's pixels and how many there are, in whole units, such that an image is covered."""
        corners = np.array([(row, column) for row in (0, shape[0]) for column in (0, shape[1])], np.float64)
        at = np.linalg.solve(self.matrix, (corners - self.start).T)
        first = np.floor(at.min(1) / unit + 1e-6).astype(np.int64)
        last = np.ceil(at.max(1) / unit - 1e-6).astype(np.int64)
        rows, columns = (unit * np.maximum(last - first, 1)).tolist()
        return unit * first, (rows, columns)


def reduced(picture: Picture, factor: int) -> Picture:
    """The picture with squares of ``factor`` pixels as one; what is left over at the edges is left out."""
    if factor < 2:
        return picture
    pooled: Picture = functional.avg_pool2d(torch.from_numpy(picture)[None, None], factor)[0, 0].numpy()
    return pooled


def seen_at(
    picture: Picture, place: Place, origin: NDArray[np.int64], shape: tuple[int, int]
) -> tuple[Picture, NDArray[np.bool_]]:
    """The picture as the network sees it at a place, from its pixel ``origin`` on, and which pixels lie inside."""
    factor = max(1, int(place.scale + 0.05))
    small = reduced(np.ascontiguousarray(picture), factor)
    if (rest := place.scale / factor) > SHARP:  # what is finer than the network's pixels would be taken for something
        small = ndimage.gaussian_filter(small, 0.4 * np.sqrt(rest * rest - 1.0))
    rows, columns = (np.arange(length) + 0.5 + first for length, first in zip(shape, origin, strict=True))
    at = place.matrix[:, 0, None, None] * rows[:, None] + place.matrix[:, 1, None, None] * columns
    at = (at + place.start[:, None, None]) / factor
    height, width = small.shape
    inside: NDArray[np.bool_] = (at[0] > 0) & (at[0] < height) & (at[1] > 0) & (at[1] < width)
    where = np.stack([2.0 * at[1] / width - 1.0, 2.0 * at[0] / height - 1.0], axis=-1).astype(np.float32)
    seen = functional.grid_sample(
        torch.from_numpy(small)[None, None],
        torch.from_numpy(where)[None],
        mode="bicubic",
        padding_mode="border",
        align_corners=False,
    )
    return seen[0, 0].numpy(), inside


def whitened(picture: Picture, smooth: float) -> Picture:
    """What is not smooth in a picture of grey levels, everywhere of one size: a mark stands out most in that."""
    rough = picture - ndimage.gaussian_filter(picture, smooth, truncate=3.0)
    size = ndimage.uniform_filter(rough * rough, int(8 * smooth))
    return np.clip(rough / np.sqrt(size + FLAT), -CLIP, CLIP)
