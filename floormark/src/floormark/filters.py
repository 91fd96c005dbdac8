"""Smoothing filters over grey pictures, as ``scipy.ndimage`` has them to the last bit.

Importing SciPy would take longer than reading a message does; it is left to the search for images that were moved.
"""

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Picture = NDArray[np.float32]  # grey, ``(H, W)``
Edges = Literal["symmetric", "wrap"]  # what lies beyond the edges of a picture: its mirror image, or the picture again


def gaussian(picture: Picture, sigma: float, *, truncate: float = 4.0, mode: Edges = "symmetric") -> Picture:
    """``scipy.ndimage.gaussian_filter``; beyond the edges the picture is mirrored or repeated.

    The last two axes of an array are filtered.
    """
    reach = int(truncate * sigma + 0.5)
    weights = np.exp(-0.5 / (sigma * sigma) * np.arange(-reach, reach + 1) ** 2)
    weights /= weights.sum()
    for axis in (-2, -1):
        padded = _padded(picture, axis, (reach, reach), mode)
        length = picture.shape[axis]
        total = _part(padded, axis, reach, length) * weights[reach]
        term = np.empty_like(total)
        for before in range(reach):  # in this order, which decides how sums are rounded
            np.add(_part(padded, axis, before, length), _part(padded, axis, 2 * reach - before, length), out=term)
            term *= weights[before]
            total += term
        picture = total.astype(np.float32)
    return picture


def uniform(picture: Picture, size: int) -> Picture:
    """``scipy.ndimage.uniform_filter``: the mean of squares of ``size`` pixels; mirrored beyond the edges."""
    for axis in (-2, -1):
        length = picture.shape[axis]
        padded = _padded(picture, axis, (size // 2, size - size // 2 - 1), "symmetric")
        # A running sum: each step takes in one value and leaves out another.
        steps = np.concatenate(
            [
                np.cumsum(_part(padded, axis, 0, size), axis=axis).take([-1], axis=axis),
                _part(padded, axis, size, length - 1) - _part(padded, axis, 0, length - 1),
            ],
            axis=axis,
        )
        picture = (np.cumsum(steps, axis=axis) / size).astype(np.float32)
    return picture


def minimum_3x3(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least of each value and its eight neighbours."""
    least: NDArray[np.float64] = -functional.max_pool2d(torch.from_numpy(-values)[None, None], 3, 1, 1)[0, 0].numpy()
    return least


def _padded(picture: Picture, axis: int, width: tuple[int, int], mode: Edges) -> NDArray[np.float64]:
    """In double precision, with more values at both ends of an axis."""
    widths = [(0, 0)] * picture.ndim
    widths[axis] = width
    return np.pad(picture.astype(np.float64), widths, mode=mode)


def _part(values: NDArray[np.float64], axis: int, first: int, length: int) -> NDArray[np.float64]:
    """So many values along an axis (the last or the one before), from ``first`` on."""
    part = slice(first, first + length)
    return values[..., part, :] if axis == -2 else values[..., part]
