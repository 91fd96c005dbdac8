"""A floor for every patch of an image: a mark shows sooner in a smooth patch, so it must be weaker there."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floormark.filters import Picture, block_means, resized

PATCH_SIDE = 32  # pixels
SQUARE_SIDE = 8  # pixels; the standard deviations of such squares measure how smooth a patch is
MAX_CALMER, MAX_LIVELIER = 18.0, 6.0
"""dB by which the floor of a patch is raised (smooth) and lowered (textured) at most, against a typical patch."""
TYPICAL_BELOW = 3.0
"""dB that the floor of a typical patch lies below the image's: smooth patches spend much less than their part."""
MIN_SPREAD = 1e-4  # standard deviation, of values in [0, 1], at and below which a square is flat
MAX_TYPICAL = -10.0 * math.log10(MIN_SPREAD) - MAX_CALMER
"""dB of smoothness, a standard deviation of 1.6 of 255 levels. No typical patch counts as smoother, so that a flat
patch always has the highest floor, also among other flat patches."""

MASKING_SIDE = 4
"""Side, in the network's pixels, of squares whose standard deviations measure masking: waves of a mark have 2 to 8."""
UNSEEN, HIDDEN = 0.8, 0.5
"""Root mean square of a mark that is invisible: grey levels of 255 on a flat area; part of the local deviation."""


def calmness(picture: NDArray[np.floating[Any]], span: float = 1.0) -> NDArray[np.float64]:
    """How smooth each patch is, in dB, ``(H, W)`` to ``(rows, columns)``; ``span`` is the range of values.

    Computed from the geometric mean of the standard deviations of the squares of 8 x 8 pixels in a patch: one edge does
    not make a smooth patch a textured one. Patches at the edges may be smaller. In float64, since the variance of a
    bright, smooth area is a difference of two nearly equal numbers; for whole numbers it is exact.
    """
    values = picture.astype(np.float64, copy=False)
    variance = block_means(values * values, SQUARE_SIDE) - np.square(block_means(values, SQUARE_SIDE))
    spread = np.sqrt(np.maximum(variance, (MIN_SPREAD * span) ** 2)) / span
    return block_means(-10.0 * np.log10(spread), PATCH_SIDE // SQUARE_SIDE)


def above_image(calm: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many dB the floors of patches lie above that of their image, from :func:`calmness`, same shape.

    A patch as smooth as the mean patch has a floor 3 dB below the image's. The floor of a smoother patch is up to 18 dB
    higher, that of a more textured one up to 6 dB lower. If the mean patch has a standard deviation below 1.6 of 255
    levels, 1.6 levels take its place.
    """
    mean = -10.0 * math.log10(float((10.0 ** (-calm / 10.0)).mean()))
    return np.clip(calm - min(mean, MAX_TYPICAL), -MAX_LIVELIER, MAX_CALMER) - TYPICAL_BELOW


def unseen_floors(picture: Picture, shape: tuple[int, int]) -> NDArray[np.float64]:
    """The least PSNR in dB at which a mark is invisible in each patch, ``(rows, columns)``, which is ``shape``.

    ``picture`` has the shown grey levels from 0 to 255 at the network's pixels, where the structure of the image masks
    waves of the same size, and only these.
    """
    values = picture.astype(np.float64)
    variance = block_means(values * values, MASKING_SIDE) - np.square(block_means(values, MASKING_SIDE))
    # The geometric mean: an edge masks nothing in the smooth area beside it.
    spread = np.exp(resized((0.5 * np.log(np.maximum(variance, 1e-4))).astype(np.float32), shape).astype(np.float64))
    return -20.0 * np.log10(np.hypot(UNSEEN, HIDDEN * spread) / 255.0)
