"""Where the network's pixels lie in an image, and the image resampled there.

Coordinates are rows and columns in pixels; a pixel's centre lies half a pixel inside of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from floormark.filters import Picture, gaussian, uniform

WHITENED_RANGE = 2.5  # standard deviations beyond which whitened values are clipped: they are edges of the picture
FLAT_VARIANCE = 0.1  # variance, in grey levels, below which whitening amplifies nothing
SHARP_SCALE = 1.15
"""Pixels of the image for one of the network's, up to which nothing needs to be smoothed away before resampling."""


@dataclass(frozen=True, eq=False)
class Alignment:
    """An affine map: the network's pixel ``p`` lies at ``matrix @ p + start`` in the image, where a tile begins."""

    matrix: NDArray[np.float64]
    """Shape ``(2, 2)``."""
    start: NDArray[np.float64]
    """Shape ``(2,)``."""
    inverted: bool = False
    """Whether black has become white."""
    pilot: int = 0
    """Which of the pilots was found there."""
    score: float = 0.0
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


def _reduced(picture: Picture, factor: int) -> Picture:
    """The mean of squares of ``factor`` pixels; what is left over at the edges is left out."""
    if factor < 2:
        return picture
    pooled: Picture = functional.avg_pool2d(torch.from_numpy(picture)[None, None], factor)[0, 0].numpy()
    return pooled


def resample(
    picture: Picture, alignment: Alignment, origin: NDArray[np.int64], shape: tuple[int, int]
) -> tuple[Picture, NDArray[np.bool_]]:
    """The picture at the network's pixels, from its pixel ``origin`` on, and which of these lie inside."""
    factor = max(1, int(alignment.scale + 0.05))
    small = _reduced(np.ascontiguousarray(picture), factor)
    if (rest := alignment.scale / factor) > SHARP_SCALE:  # what is finer than the network's pixels would alias
        small = gaussian(small, 0.4 * np.sqrt(rest * rest - 1.0))
    rows, columns = (np.arange(length) + 0.5 + first for length, first in zip(shape, origin, strict=True))
    at = alignment.matrix[:, 0, None, None] * rows[:, None] + alignment.matrix[:, 1, None, None] * columns
    at = (at + alignment.start[:, None, None]) / factor
    height, width = small.shape
    inside: NDArray[np.bool_] = (at[0] > 0) & (at[0] < height) & (at[1] > 0) & (at[1] < width)
    where = np.stack([2.0 * at[1] / width - 1.0, 2.0 * at[0] / height - 1.0], axis=-1).astype(np.float32)
    resampled = functional.grid_sample(
        torch.from_numpy(small)[None, None],
        torch.from_numpy(where)[None],
        mode="bicubic",
        padding_mode="border",
        align_corners=False,
    )
    return resampled[0, 0].numpy(), inside


def whitened(picture: Picture, sigma: float) -> Picture:
    """A picture of grey levels without what is smooth in it, of variance 1 everywhere: there a mark stands out most."""
    rough = picture - gaussian(picture, sigma, truncate=3.0)
    variance = uniform(rough * rough, int(8 * sigma))
    white: Picture = np.clip(rough / np.sqrt(variance + FLAT_VARIANCE), -WHITENED_RANGE, WHITENED_RANGE)
    return white
