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
    for _ in range(2):  # along the columns, then along the rows
        padded = _padded(picture.swapaxes(-2, -1), (reach, reach), mode)
        length = padded.shape[-1] - 2 * reach
        total = padded[..., reach : reach + length] * weights[reach]
        term = np.empty_like(total)
        for before in range(reach):  # in this order, which decides how sums are rounded
            after = 2 * reach - before
            np.add(padded[..., before : before + length], padded[..., after : after + length], out=term)
            term *= weights[before]
            total += term
        picture = total.astype(np.float32)
    return picture


def uniform(picture: Picture, size: int) -> Picture:
    """``scipy.ndimage.uniform_filter``: the mean of squares of ``size`` pixels; mirrored beyond the edges."""
    for _ in range(2):
        padded = _padded(picture.swapaxes(-2, -1), (size // 2, size - size // 2 - 1), "symmetric")
        # A running sum: each step takes in one value and leaves out another.
        first = np.cumsum(padded[..., :size], axis=-1)[..., -1:]
        steps = np.concatenate([first, padded[..., size:] - padded[..., :-size]], axis=-1)
        picture = (np.cumsum(steps, axis=-1) / size).astype(np.float32)
    return picture


def minimum_3x3(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least of each value and its eight neighbours."""
    least: NDArray[np.float64] = -functional.max_pool2d(torch.from_numpy(-values)[None, None], 3, 1, 1)[0, 0].numpy()
    return least


def _padded(picture: Picture, width: tuple[int, int], mode: Edges) -> NDArray[np.float64]:
    """In double precision, with more values at both ends of the last axis."""
    return np.pad(picture.astype(np.float64), [*[(0, 0)] * (picture.ndim - 1), width], mode=mode)
