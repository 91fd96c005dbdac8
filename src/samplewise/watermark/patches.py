"""A floor for every patch of an image: where a patch is calm a mark is seen sooner, so there it must be weaker."""

import torch
from torch import Tensor
from torch.nn import functional

PATCH = 32
"""Side of a patch in pixels."""
GRAIN = 8
"""Side in pixels of the squares whose spread is looked at."""
CALM, LIVELY = 18.0, 6.0
"""dB that a patch counts as calmer, and as livelier, than the mean one at most."""
EASE = 3.0
"""dB that the floor of a mean patch lies below that of the image, since the calm ones have much less than that."""
LEAST = 1e-4
"""Spread, of values in [0, 1], below which nothing is told apart."""
CEILING = 120.0
"""dB that stand for "unchanged"."""


def patch_means(values: Tensor) -> Tensor:
    """The mean of each patch, ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``; patches at the edges may be smaller."""
    return functional.avg_pool2d(values, PATCH, ceil_mode=True, count_include_pad=False)


def calmness(covers: Tensor) -> Tensor:
    """How calm each patch of images in [0, 1] is, in dB, ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``.

    The geometric mean of the standard deviations of its squares of 8 x 8 pixels: of a patch with one edge, most are
    calm.
    """
    mean = functional.avg_pool2d(covers, GRAIN, ceil_mode=True, count_include_pad=False)
    square = functional.avg_pool2d(covers.square(), GRAIN, ceil_mode=True, count_include_pad=False)
    spread = (square - mean.square()).clamp_min(LEAST**2).sqrt()
    logarithms = -10.0 * spread.log10()
    return functional.avg_pool2d(logarithms, PATCH // GRAIN, ceil_mode=True, count_include_pad=False)


def above_image(calm: Tensor) -> Tensor:
    """How many dB the floors of patches lie above that of their image, of how calm they are, ``(B, 1, r, c)`` both.

    As many as the patch is calmer than the image's mean patch, in between 18 more and 6 less, and 3 less than that.
    """
    typical = -10.0 * (10.0 ** (-calm / 10.0)).mean((1, 2, 3), keepdim=True).log10()
    return (calm - typical).clamp(-LIVELY, CALM) - EASE


def patch_psnr(marked: Tensor, covers: Tensor) -> Tensor:
    """The PSNR of each patch, images in [0, 1] as for :func:`calmness`."""
    squares = patch_means((marked - covers).square())
    return -10.0 * squares.clamp_min(10.0 ** (-CEILING / 10.0)).log10()


def patch_room(marked: Tensor, covers: Tensor, floor: float) -> Tensor:
    """How many dB each patch is above its own floor, ``(B, C, H, W)`` twice to ``(B, patches)``."""
    grey, cover = marked.mean(1, keepdim=True), covers.mean(1, keepdim=True)
    with torch.no_grad():
        floors = floor + above_image(calmness(cover))
    return (patch_psnr(grey, cover) - floors).flatten(1)
