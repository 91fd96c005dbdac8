"""The shown range of values of a stored image, and the floors and squared differences of its patches."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from floormark.filters import block_sizes, block_sums
from floormark.imageio import StoredImage, bands
from floormark.patches import PATCH_SIDE, above_image, calmness

TAIL_PERCENT = 0.5
"""Percentile at either end at which the range in use is cut: marking moves the extremes, but hardly these."""
MIN_SPAN = 32
"""Levels of the narrowest range: in a narrower one, the network's input would be mostly rounding."""


def used_range(image: StoredImage) -> tuple[float, float]:
    """The lowest value and the width of the range in use; with up to 8 bits, of the whole range.

    Scanners store 12 bits or fewer in 16: in the range of all 16, such an image would be flat and black.
    """
    if image.bits <= 8:
        return image.lowest, image.peak
    counts = _counts(image, padding=False)
    if not counts.any():
        counts = _counts(image, padding=True)
    # NumPy's percentiles, linearly interpolated, without a copy of a large image.
    below = counts.cumsum()
    places = (below[-1] - 1) * np.array([TAIL_PERCENT, 100.0 - TAIL_PERCENT]) / 100.0
    before = np.floor(places)
    first, second = (
        image.lowest + below.searchsorted(np.minimum(at, below[-1] - 1), "right") for at in (before, before + 1)
    )
    low, high = first + (second - first) * (places - before)
    return float(low), float(max(high - low, MIN_SPAN))


def _counts(image: StoredImage, *, padding: bool) -> NDArray[np.int64]:
    """The histogram of pixels, from the lowest value on, with padding or without."""
    counts = np.zeros(image.peak + 1, np.int64)
    for rows in bands(image.pixels):
        pixels = image.pixels[rows]
        counted = pixels if padding else pixels[~image.padding(pixels)]
        # Only padding can lie outside.
        places = np.clip(counted.ravel().astype(np.int64) - image.lowest, 0, image.peak)
        counts += np.bincount(places, minlength=len(counts))
    return counts


def shown_range(image: StoredImage) -> tuple[float, float]:
    """The lowest value and the width of what is shown: the display window of a DICOM file, or the range in use."""
    if image.window is None:
        return used_range(image)
    return image.window.low, image.window.high - image.window.low


def shown_grey(pixels: NDArray[Any], shown: tuple[float, float]) -> NDArray[np.float32]:
    """Pixels ``(h, w)`` or ``(h, w, 3)`` of a shown range as grey in [0, 1], ``(h, w)``."""
    lowest, span = shown
    grey = pixels.astype(np.float32) if pixels.ndim == 2 else pixels.mean(2, dtype=np.float32)
    grey -= np.float32(lowest)
    grey /= np.float32(span)
    return np.clip(grey, 0.0, 1.0, out=grey)


def relative_floors(image: StoredImage, shown: tuple[float, float]) -> NDArray[np.float64]:
    """How many dB the floor of each patch lies above that of the image, ``(rows, columns)``.

    ``shown`` is what :func:`shown_range` gives.
    """
    lowest, span = shown
    channels = image.pixels[0, 0].size
    calm = []
    for rows in bands(image.pixels, unit=PATCH_SIDE):
        # The sum of the colours, not their mean: sums of stored values and their squares are whole numbers, so exact.
        pixels = image.pixels[rows]
        grey = pixels.astype(np.float64) if pixels.ndim == 2 else pixels.sum(2, dtype=np.float64)
        np.clip(grey, channels * lowest, channels * (lowest + span), out=grey)
        calm.append(calmness(grey, channels * span))
    return above_image(np.concatenate(calm))


def patch_squares(before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.int64]:
    """The sum of the squared differences in each patch of pixels ``(H, W)`` or ``(H, W, C)``, ``(rows, columns)``."""
    narrow = before.itemsize == 1  # then the sums of a patch fit into 32 bits, which is quicker
    kind = np.int32 if narrow else np.int64
    squares = np.subtract(after, before, dtype=kind)
    squares *= squares
    if squares.ndim == 3:
        squares = squares.sum(2, dtype=kind)
    return block_sums(squares, PATCH_SIDE).astype(np.int64)


def patch_sizes(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Number of values in each patch of an image, ``(rows, columns)``: fewer at the edges."""
    return block_sizes(shape, PATCH_SIDE) * (shape[2] if len(shape) == 3 else 1)
