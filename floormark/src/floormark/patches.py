"""A floor for every patch of an image: where a patch is calm a mark is seen sooner, so there it must be weaker."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floormark.filters import Picture, block_means, resized

PATCH_SIDE = 32  # pixels
SQUARE_SIDE = 8  # pixels of the squares of a patch whose standard deviations say how calm it is
MAX_CALMER, MAX_LIVELIER = 18.0, 6.0
"""dB by which the floor of a patch is raised and lowered at most, against that of a typical one."""
TYPICAL_BELOW = 3.0
"""dB that the floor of a typical patch lies below that of the image: calm patches use up much less than theirs."""
MIN_SPREAD = 1e-4  # standard deviation, of values in [0, 1], at and below which a square is flat
MAX_TYPICAL = -10.0 * math.log10(MIN_SPREAD) - MAX_CALMER
"""dB of calmness, a standard deviation of 1.6 of 255 levels. No typical patch counts as calmer, so that a flat patch
always has the highest floor, also among others that are flat."""

MASKING_SIDE = 4
"""Side, in the network's pixels, of squares whose standard deviations say what hides a mark: its waves have 2 to 8."""
UNSEEN, HIDDEN = 0.8, 0.5
"""Root mean square of a mark that nobody sees: grey levels of 255 on a flat area, and part of the deviation around."""


def calmness(picture: NDArray[np.floating[Any]], span: float = 1.0) -> NDArray[np.float64]:
    """How calm each patch is, in dB, ``(H, W)`` to ``(rows, columns)``; ``span`` is the range of values.

    It is the geometric mean of the standard deviations of the squares of 8 x 8 pixels in a patch, so that one edge does
    not make a calm patch a lively one. Patches at the edges may be smaller. In float64: the variance of a bright, calm
    area is the difference of two nearly equal numbers, and exact for whole ones.
    """
    values = picture.astype(np.float64, copy=False)
    variance = block_means(values * values, SQUARE_SIDE) - np.square(block_means(values, SQUARE_SIDE))
    spread = np.sqrt(np.maximum(variance, (MIN_SPREAD * span) ** 2)) / span
    return block_means(-10.0 * np.log10(spread), PATCH_SIDE // SQUARE_SIDE)


def above_image(calm: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many dB the floors of patches lie above that of their image, from :func:`calmness`, same shape.

    A patch as calm as the mean patch of its image has a floor 3 dB below the image's. The floor rises with calmness by
    at most 18 dB, and falls by at most 6. The mean counts as no calmer than a deviation of 1.6 of 255 levels.
    """
    mean = -10.0 * math.log10(float((10.0 ** (-calm / 10.0)).mean()))
    return np.clip(calm - min(mean, MAX_TYPICAL), -MAX_LIVELIER, MAX_CALMER) - TYPICAL_BELOW


def unseen_floors(picture: Picture, shape: tuple[int, int]) -> NDArray[np.float64]:
    """The PSNR in dB from which on a mark in a patch is not seen, for so many rows and columns of patches.

    Of the grey levels from 0 to 255 that are shown, at the network's pixels: there the structure of the image hides
    waves of the same size, and only these.
    """
    values = picture.astype(np.float64)
    variance = block_means(values * values, MASKING_SIDE) - np.square(block_means(values, MASKING_SIDE))
    # The geometric mean: an edge hides nothing in the calm area beside it.
    spread = np.exp(resized((0.5 * np.log(np.maximum(variance, 1e-4))).astype(np.float32), shape).astype(np.float64))
    return -20.0 * np.log10(np.hypot(UNSEEN, HIDDEN * spread) / 255.0)
