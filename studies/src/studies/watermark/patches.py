"""The floors of patches as the tool measures them (:mod:`floormark.patches`), for batches in training."""

import torch
from torch import Tensor
from torch.nn import functional

from floormark import patches as tool
from floormark.patches import PATCH_SIDE, SQUARE_SIDE

MAX_PSNR = 120.0  # dB that stand for "unchanged"


def patch_means(values: Tensor) -> Tensor:
    """The mean of each patch, ``(B, 1, H, W)`` to ``(B, 1, rows, columns)``; patches at the edges may be smaller."""
    return functional.avg_pool2d(values, PATCH_SIDE, ceil_mode=True, count_include_pad=False)


def calmness(covers: Tensor) -> Tensor:
    """The calmness of each patch in dB, images ``(B, 1, H, W)`` in [0, 1] to ``(B, 1, rows, columns)``.

    It is the geometric mean of the standard deviations of the squares of 8 x 8 pixels in a patch, so that one edge does
    not make a calm patch a lively one. Measure floors in float64: the variance of a bright, calm area is the difference
    of two nearly equal numbers, and exact for whole ones.
    """
    mean = functional.avg_pool2d(covers, SQUARE_SIDE, ceil_mode=True, count_include_pad=False)
    square = functional.avg_pool2d(covers.square(), SQUARE_SIDE, ceil_mode=True, count_include_pad=False)
    spread = (square - mean.square()).clamp_min(tool.MIN_SPREAD**2).sqrt()
    logarithms = -10.0 * spread.log10()
    return functional.avg_pool2d(logarithms, PATCH_SIDE // SQUARE_SIDE, ceil_mode=True, count_include_pad=False)


def above_image(calm: Tensor) -> Tensor:
    """The floors of patches in dB above that of their image, from :func:`calmness`, ``(B, 1, r, c)`` both.

    A patch as calm as the mean patch of its image has a floor 3 dB below the image's. The floor rises with calmness by
    at most 18 dB, and falls by at most 6. The mean counts as no calmer than a deviation of 1.6 of 255 levels.
    """
    mean = -10.0 * (10.0 ** (-calm / 10.0)).mean((1, 2, 3), keepdim=True).log10()
    return (calm - mean.clamp_max(tool.MAX_TYPICAL)).clamp(-tool.MAX_LIVELIER, tool.MAX_CALMER) - tool.TYPICAL_BELOW


def patch_psnr(marked: Tensor, covers: Tensor) -> Tensor:
    """The PSNR of each patch, images in [0, 1] as for :func:`calmness`."""
    squares = patch_means((marked - covers).square())
    return -10.0 * squares.clamp_min(10.0 ** (-MAX_PSNR / 10.0)).log10()


def patch_room(marked: Tensor, covers: Tensor, floor: float) -> Tensor:
    """The PSNR of each patch in dB above its own floor, ``(B, C, H, W)`` twice to ``(B, patches)``."""
    grey, cover = marked.mean(1, keepdim=True), covers.mean(1, keepdim=True)
    with torch.no_grad():
        floors = floor + above_image(calmness(cover.double())).to(cover)
    return (patch_psnr(grey, cover) - floors).flatten(1)
