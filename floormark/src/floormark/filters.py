"""Filters over grey pictures: smoothing (bit-identical to ``scipy.ndimage``), resizing, means of blocks.

Importing SciPy would take longer than reading a message; only the search for images that were moved imports it.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Picture = NDArray[np.float32]  # grey, ``(H, W)``
Edges = Literal["symmetric", "wrap"]  # padding beyond the edges: the mirror image, or the picture repeated


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
        for before in range(reach):  # in this order, which determines rounding
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
    padded = np.pad(values, 1, constant_values=np.inf)
    columns = np.minimum(np.minimum(padded[:, :-2], padded[:, 1:-1]), padded[:, 2:])
    least: NDArray[np.float64] = np.minimum(np.minimum(columns[:-2], columns[1:-1]), columns[2:])
    return least


def median(values: NDArray[np.floating[Any]]) -> float:
    """The median; NumPy's own imports masked arrays, which takes longer than everything else here."""
    ordered = np.sort(values)
    return 0.5 * float(ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2])


def resized(
    picture: Picture,
    shape: tuple[int, int],
    *,
    box: tuple[float, float, float, float] | None = None,
    how: Image.Resampling = Image.Resampling.BILINEAR,
) -> Picture:
    """A picture, or its ``box`` (left, top, right, bottom in pixels), at another size.

    Averaged where it gets smaller.
    """
    return np.asarray(Image.fromarray(picture).resize(shape[::-1], how, box=box))


def block_sums(values: NDArray[Any], side: int) -> NDArray[Any]:
    """Sums over blocks of ``side`` x ``side`` pixels, ``(H, W)`` to ``(rows, columns)``; smaller at edges."""
    # Whole rows of blocks at once: sums along an axis are several times quicker than np.add.reduceat.
    whole = len(values) // side * side
    down = values[:whole].reshape(-1, side, values.shape[1]).sum(1, dtype=values.dtype)
    if whole < len(values):
        down = np.concatenate([down, values[whole:].sum(0, keepdims=True, dtype=values.dtype)])
    found: NDArray[Any] = np.add.reduceat(down, np.arange(0, values.shape[1], side), axis=1)
    return found


def block_sizes(shape: tuple[int, ...], side: int) -> NDArray[np.int64]:
    """Number of pixels in each block of :func:`block_sums`."""
    height, width = (np.minimum(side, length - np.arange(0, length, side)) for length in shape[:2])
    return np.outer(height, width)


def block_means(values: NDArray[np.float64], side: int) -> NDArray[np.float64]:
    """The mean of each block of :func:`block_sums`."""
    found: NDArray[np.float64] = block_sums(values, side) / block_sizes(values.shape, side)
    return found


def shrunk(picture: Picture, factor: int) -> Picture:
    """The mean of each whole block of ``factor`` x ``factor`` pixels; the rest at the right and bottom is dropped."""
    down, across = (length // factor for length in picture.shape)
    whole = picture[: down * factor, : across * factor]
    means: Picture = whole.reshape(down, factor, across, factor).mean((1, 3), dtype=np.float32)
    return means


def local_maximum(picture: Picture, shape: tuple[int, int]) -> Picture:
    """A maximum filter with a window of ``shape`` (odd rows and columns); beyond the edges, edge values repeat."""
    for side in shape:
        padded = np.pad(picture, [(side // 2, side // 2), (0, 0)], mode="edge")
        highest = padded[: len(picture)].copy()
        for place in range(1, side):
            np.maximum(highest, padded[place : place + len(picture)], out=highest)
        picture = highest.T
    return picture


def filled(picture: Picture, missing: NDArray[np.bool_]) -> Picture:
    """A picture with missing values filled in smoothly: from coarser and coarser means of the known ones."""
    if not missing.any():
        return picture
    if missing.all() or min(picture.shape) < 2:
        there = picture[~missing]
        return np.where(missing, np.float32(there.mean() if there.size else 0.0), picture)
    counts = block_sums((~missing).astype(np.float32), 2)
    sums = block_sums(np.where(missing, np.float32(0.0), picture), 2)
    coarse = filled((sums / np.maximum(counts, 1.0)).astype(np.float32), counts == 0)
    return np.where(missing, resized(coarse, (picture.shape[0], picture.shape[1])), picture)


def _padded(picture: Picture, width: tuple[int, int], mode: Edges) -> NDArray[np.float64]:
    """The picture in double precision, padded at both ends of the last axis."""
    return np.pad(picture.astype(np.float64), [*[(0, 0)] * (picture.ndim - 1), width], mode=mode)
