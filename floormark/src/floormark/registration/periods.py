"""How large the tiles of a mark are in an image, and their angle: what repeats shows in the autocorrelation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from floormark.filters import Picture
from floormark.registration.alignment import whitened

Matrix = NDArray[np.float64]

SEARCHED_SIDE = 384  # pixels of the shorter side at which periods are searched for; larger images are reduced first
PERIOD_SIGMA = 1.5  # pixels: what is smoother than that belongs to the picture and not to the mark
PERIOD_RANGE = 0.1, 0.62  # shortest and longest period, relative to the shorter side
PERIOD_STEP, ANGLE_STEP = 0.008, np.deg2rad(0.5)
SAME_STEPS = 5  # steps within which two candidates are one
FIRST_MULTIPLES = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (0, 2), (2, 1), (1, 2), (2, -1), (1, -2))
"""Multiples of the two periods that make up a candidate's score."""
LAST_MULTIPLE = 3  # the highest multiple by which a period is refined
CANDIDATES = 2  # periods that are tried: where there is one, it is nearly always the first
MIN_SCORE = 4.2
"""Standard deviations. Chance reaches more in most images: the pilot decides, this saves searching for it."""


def periods(picture: Picture) -> list[tuple[float, Matrix]]:
    """How much a picture repeats, in standard deviations, and with which two periods: columns, likeliest first."""
    from scipy import ndimage  # here, since reading an image that nobody moved does without it

    factor = max(1.0, min(picture.shape) / SEARCHED_SIDE)
    small = _reduced(picture, factor)
    likeness = _autocorrelation(whitened(small, PERIOD_SIGMA))
    reach = len(likeness) // 2
    shortest, longest = (part * min(small.shape) for part in PERIOD_RANGE)
    lengths = np.exp(np.arange(np.log(shortest), np.log(longest), PERIOD_STEP))
    angles = np.arange(0.0, np.pi / 2, ANGLE_STEP)
    rows, columns = np.outer(lengths, np.cos(angles)), np.outer(lengths, np.sin(angles))
    score, counted = np.zeros_like(rows), np.zeros_like(rows)
    for i, j in FIRST_MULTIPLES:
        at = np.stack([i * rows - j * columns, i * columns + j * rows])
        inside = (np.abs(at) < reach - 2).all(0)
        score += np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0)
        counted += inside
    score /= np.sqrt(np.maximum(counted, 1.0))
    found = []
    for _ in range(CANDIDATES):
        length, angle = np.unravel_index(int(score.argmax()), score.shape)
        if (height := float(score[length, angle])) < MIN_SCORE:
            break
        row, column = rows[length, angle], columns[length, angle]
        found.append((height, factor * _refined(likeness, np.array([[row, -column], [column, row]]))))
        distance = np.abs(np.arange(len(angles)) - angle)
        near = np.minimum(distance, len(angles) - distance) <= SAME_STEPS  # a rotation by 90 degrees is the same
        score[max(0, length - SAME_STEPS) : length + SAME_STEPS + 1, near] = 0.0
    return found


def _reduced(picture: Picture, factor: float) -> Picture:
    """The picture at a fraction of its size, smoothed as far as that needs."""
    if factor == 1.0:
        return picture
    rows, columns = (round(length / factor) for length in picture.shape)
    small = functional.interpolate(
        torch.from_numpy(picture)[None, None], size=(rows, columns), mode="bilinear", antialias=True
    )
    found: Picture = small[0, 0].numpy()
    return found


def _autocorrelation(white: Picture) -> Picture:
    """The autocorrelation of a picture in standard deviations, a square with the shift of zero in its middle."""
    from scipy import fft, ndimage

    shape = [fft.next_fast_len(int(1.8 * length), real=True) for length in white.shape]
    power = np.abs(fft.rfft2(white, shape)) ** 2
    # What repeats is narrow in frequency; what a picture has most of is broad. The last term is for flat pictures.
    power /= ndimage.uniform_filter(power, 9, mode="wrap") + 1e-3 * power.mean() + 1e-20
    shifted = fft.fftshift(fft.irfft2(power, shape))
    middle = [length // 2 for length in shifted.shape]
    reach = min(*middle, int(0.9 * max(white.shape))) - 1
    likeness = shifted[middle[0] - reach : middle[0] + reach + 1, middle[1] - reach : middle[1] + reach + 1]
    likeness = likeness - ndimage.uniform_filter(likeness, 15)
    likeness = likeness / np.sqrt(ndimage.uniform_filter(likeness * likeness, 41) + 1e-20)
    smooth = ndimage.gaussian_filter(likeness, 0.8)
    found: Picture = smooth / (smooth.std() + 1e-20)
    return found


def _refined(likeness: Picture, matrix: Matrix) -> Matrix:
    """The periods nearby at which the autocorrelation, summed over their multiples, is highest."""
    from scipy import ndimage

    reach, last = len(likeness) // 2, LAST_MULTIPLE
    points = np.array([(i, j) for i in range(last + 1) for j in range(-last, last + 1) if i or j > 0], np.float64)

    def height(candidates: Matrix) -> Matrix:
        at = np.einsum("nij,pj->inp", candidates, points)
        inside = (np.abs(at) < reach - 2).all(0)
        found: Matrix = np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0).sum(1)
        return found

    length = float(np.linalg.norm(matrix[:, 0]))
    single = np.eye(4).reshape(-1, 2, 2)
    whole = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]]], np.float64) @ matrix / length  # resized, and rotated
    directions = np.concatenate([single, -single, whole, -whole])
    step = 0.012 * length
    while step > 0.02:
        candidates = np.concatenate([matrix[None], matrix + step * directions])
        best = int(height(candidates).argmax())
        matrix = candidates[best]
        if best == 0:
            step /= 2
    return matrix
