"""A floor for every patch of an image: where a patch is calm a mark is seen sooner, so there it must be weaker."""

import torch
from torch import Tensor
from torch.nn import functional

PATCH = 32
"""Side of a patch in pixels."""
GRAIN = 8
"""Side of the squares whose spread is looked at: in a patch with one edge, most are calm."""
CALM, LIVELY = 18.0, 6.0
"""dB that a patch's floor lies at most above, and below, that of the image."""
LEAST = 1e-4
"""Spread, of values in [0, 1], below which nothing is told apart."""
CEILING = 120.0
"""dB that stand for "unchanged"."""


def patch_means(values: Tensor) -> Tensor:
    """The mean of each patch, ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``; patches at the edges may be smaller."""
    return functional.avg_pool2d(values, PATCH, ceil_mode=True, count_include_pad=False)


def local_floors(covers: Tensor, floor: float) -> Tensor:
    """The floor in dB of each patch of images in [0, 1], ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``.

    It lies as many dB above that of the image as the patch is calmer than the image's mean patch, in between 18 above
    and 6 below. How calm a patch is, is the geometric mean of the standard deviations of its squares of 8 x 8 pixels.
    """
    mean = functional.avg_pool2d(covers, GRAIN, ceil_mode=True, count_include_pad=False)
    square = functional.avg_pool2d(covers.square(), GRAIN, ceil_mode=True, count_include_pad=False)
    spread = (square - mean.square()).clamp_min(LEAST**2).sqrt()
    logarithms = functional.avg_pool2d(
        10.0 * spread.log10(), PATCH // GRAIN, ceil_mode=True, count_include_pad=False
    )
    typical = 10.0 * (10.0 ** (logarithms / 10.0)).mean((1, 2, 3), keepdim=True).log10()
    return floor + (typical - logarithms).clamp(-LIVELY, CALM)


def patch_psnr(marked: Tensor, covers: Tensor) -> Tensor:
    """The PSNR of each patch, images in [0, 1] as for :func:`local_floors`."""
    squares = patch_means((marked - covers).square())
    return -10.0 * squares.clamp_min(10.0 ** (-CEILING / 10.0)).log10()


def patch_room(marked: Tensor, covers: Tensor, floor: float) -> Tensor:
    """How many dB each patch is above its own floor, ``(B, C, H, W)`` twice to ``(B, patches)``."""
    grey, cover = marked.mean(1, keepdim=True), covers.mean(1, keepdim=True)
    with torch.no_grad():
        floors = local_floors(cover, floor)
    return (patch_psnr(grey, cover) - floors).flatten(1)
