"""How large the tiles of a mark are in an image, and how they are turned: what repeats shows in the autocorrelation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft, ndimage
from torch.nn import functional

from floormark.registration.place import Picture, whitened

Matrix = NDArray[np.float64]

SIDE = 384
"""Pixels of the shorter side at which periods are looked for; larger images are made smaller first."""
SMOOTH = 1.5
"""Pixels: what is smoother than that is the picture."""
PERIODS = 0.1, 0.62
"""Shortest and longest, as shares of the shorter side."""
PERIOD_STEP, ANGLE_STEP = 0.008, np.deg2rad(0.5)
NEAR = 5
"""Steps within which two candidates are one."""
POINTS = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (0, 2), (2, 1), (1, 2), (2, -1), (1, -2))
"""Multiples of the two periods that are looked at first."""
REACH = 3
"""Multiples that are looked at last, to know a period exactly."""
CANDIDATES = 2
"""Periods that are tried: where there is one, it is nearly always the first."""
LEAST = 4.2
"""Standard deviations. Chance reaches more in most images: the pilot decides, this saves looking for it."""


def periods(picture: Picture) -> list[tuple[float, Matrix]]:
    """How much a picture repeats, in standard deviations, and with which two periods: columns, likeliest first."""
    factor = max(1.0, min(picture.shape) / SIDE)
    small = _smaller(picture, factor)
    likeness = _autocorrelation(whitened(small, SMOOTH))
    reach = len(likeness) // 2
    shortest, longest = (share * min(small.shape) for share in PERIODS)
    lengths = np.exp(np.arange(np.log(shortest), np.log(longest), PERIOD_STEP))
    angles = np.arange(0.0, np.pi / 2, ANGLE_STEP)
    rows, columns = np.outer(lengths, np.cos(angles)), np.outer(lengths, np.sin(angles))
    score, looked = np.zeros_like(rows), np.zeros_like(rows)
    for i, j in POINTS:
        at = np.stack([i * rows - j * columns, i * columns + j * rows])
        inside = (np.abs(at) < reach - 2).all(0)
        score += np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0)
        looked += inside
    score /= np.sqrt(np.maximum(looked, 1.0))
    found = []
    for _ in range(CANDIDATES):
        length, angle = np.unravel_index(int(score.argmax()), score.shape)
        if (height := float(score[length, angle])) < LEAST:
            break
        row, column = rows[length, angle], columns[length, angle]
        found.append((height, factor * _exact(likeness, np.array([[row, -column], [column, row]]))))
        apart = np.abs(np.arange(len(angles)) - angle)
        turned = np.minimum(apart, len(angles) - apart) <= NEAR  # a quarter turn is the same
        score[max(0, length - NEAR) : length + NEAR + 1, turned] = 0.0
    return found


def _smaller(picture: Picture, factor: float) -> Picture:
    """The picture at a fraction of its size, smooth enough for that."""
    if factor == 1.0:
        return picture
    rows, columns = (round(length / factor) for length in picture.shape)
    small = functional.interpolate(
        torch.from_numpy(picture)[None, None], size=(rows, columns), mode="bilinear", antialias=True
    )
    found: Picture = small[0, 0].numpy()
    return found


def _autocorrelation(white: Picture) -> Picture:
    """How like itself a picture is when it is moved, in standard deviations; unmoved in the middle of a square."""
    shape = [fft.next_fast_len(int(1.8 * length), real=True) for length in white.shape]
    power = np.abs(fft.rfft2(white, shape)) ** 2
    # What repeats is narrow in frequency; what a picture has most of is broad.
    power /= (
        ndimage.uniform_filter(power, 9, mode="wrap") + 1e-3 * power.mean() + 1e-20
    )  # which a flat picture is all of
    moved = fft.fftshift(fft.irfft2(power, shape))
    middle = [length // 2 for length in moved.shape]
    reach = min(*middle, int(0.9 * max(white.shape))) - 1
    likeness = moved[middle[0] - reach : middle[0] + reach + 1, middle[1] - reach : middle[1] + reach + 1]
    likeness = likeness - ndimage.uniform_filter(likeness, 15)
    likeness = likeness / np.sqrt(ndimage.uniform_filter(likeness * likeness, 41) + 1e-20)
    smooth = ndimage.gaussian_filter(likeness, 0.8)
    found: Picture = smooth / (smooth.std() + 1e-20)
    return found


def _exact(likeness: Picture, matrix: Matrix) -> Matrix:
    """The periods nearby at which the picture is most like itself, some multiples of them further too."""
    reach = len(likeness) // 2
    points = np.array([(i, j) for i in range(REACH + 1) for j in range(-REACH, REACH + 1) if i or j > 0], np.float64)

    def height(candidates: Matrix) -> Matrix:
        at = np.einsum("nij,pj->inp", candidates, points)
        inside = (np.abs(at) < reach - 2).all(0)
        found: Matrix = np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0).sum(1)
        return found

    length = float(np.linalg.norm(matrix[:, 0]))
    single = np.eye(4).reshape(-1, 2, 2)
    turned = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]]], np.float64) @ matrix / length  # larger, and turned
    directions = np.concatenate([single, -single, turned, -turned])
    step = 0.012 * length
    while step > 0.02:
        tried = np.concatenate([matrix[None], matrix + step * directions])
        best = int(height(tried).argmax())
        matrix = tried[best]
        if best == 0:
            step /= 2
    return matrix
