"""A floor for every patch of an image: where a patch is calm a mark is seen sooner, so there it must be weaker."""

import math

import torch
from torch import Tensor
from torch.nn import functional

PATCH = 32
"""Side of a patch in pixels."""
GRAIN = 8
"""Side in pixels of the squares whose spread is looked at."""
CALM, LIVELY = 18.0, 6.0
"""dB that a patch counts as calmer, and as livelier, than the typical one at most."""
EASE = 3.0
"""dB that the floor of a typical patch lies below that of the image, since the calm ones have much less than that."""
LEAST = 1e-4
"""Spread, of values in [0, 1], below which nothing is told apart: a patch of that is flat."""
CALMEST_TYPICAL = -10.0 * math.log10(LEAST) - CALM
"""dB of calmness, a spread of 1.6 of 255 levels: no typical patch is calmer, so that a flat one always has the highest
floor, also among others that are flat."""
CEILING = 120.0
"""dB that stand for "unchanged"."""


def patch_means(values: Tensor) -> Tensor:
    """The mean of each patch, ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``; patches at the edges may be smaller."""
    return functional.avg_pool2d(values, PATCH, ceil_mode=True, count_include_pad=False)


def calmness(covers: Tensor, span: float = 1.0) -> Tensor:
    """How calm each patch of images of values ``span`` wide is, in dB, ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``.

    The geometric mean of the standard deviations of its squares of 8 x 8 pixels: of a patch with one edge, most are
    calm. In float64 where a floor is measured: the variance of what is bright and calm is a difference of two numbers
    that are nearly equal. Of whole numbers it is exact.
    """
    mean = functional.avg_pool2d(covers, GRAIN, ceil_mode=True, count_include_pad=False)
    square = functional.avg_pool2d(covers.square(), GRAIN, ceil_mode=True, count_include_pad=False)
    spread = (square - mean.square()).clamp_min((LEAST * span) ** 2).sqrt() / span
    logarithms = -10.0 * spread.log10()
    return functional.avg_pool2d(logarithms, PATCH // GRAIN, ceil_mode=True, count_include_pad=False)


def above_image(calm: Tensor) -> Tensor:
    """How many dB the floors of patches lie above that of their image, of how calm they are, ``(B, 1, r, c)`` both.

    As many as the patch is calmer than the typical one, at most 18, or less if it is livelier, at most 6; and 3 less
    than that. Typical is the image's mean patch, or a spread of 1.6 of 255 levels where that is calmer.
    """
    mean = -10.0 * (10.0 ** (-calm / 10.0)).mean((1, 2, 3), keepdim=True).log10()
    return (calm - mean.clamp_max(CALMEST_TYPICAL)).clamp(-LIVELY, CALM) - EASE


def patch_psnr(marked: Tensor, covers: Tensor) -> Tensor:
    """The PSNR of each patch, images in [0, 1] as for :func:`calmness`."""
    squares = patch_means((marked - covers).square())
    return -10.0 * squares.clamp_min(10.0 ** (-CEILING / 10.0)).log10()


def patch_room(marked: Tensor, covers: Tensor, floor: float) -> Tensor:
    """How many dB each patch is above its own floor, ``(B, C, H, W)`` twice to ``(B, patches)``."""
    grey, cover = marked.mean(1, keepdim=True), covers.mean(1, keepdim=True)
    with torch.no_grad():
        floors = floor + above_image(calmness(cover.double())).to(cover)
    return (patch_psnr(grey, cover) - floors).flatten(1)
