"""Geometric operators: who reads the message must first register the image. See the table in ``operators``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from studies.watermark.conversion import Pixels, by_pillow, stored_as

if TYPE_CHECKING:
    from studies.watermark.operators import Step

BICUBIC = Image.Resampling.BICUBIC  # as most programs do
JITTER = np.array([1.0, 1.0, math.radians(0.25), 0.004])
"""The most that a jitter of one pixel does: pixels across and down, radians, and what is added to the scale."""
SCREEN_PART, SCREEN_ZOOM, SCREEN_BORDER = 0.8, (0.5, 0.9), 0.05
"""Of a screenshot: the part of the area that it shows, the scales, and the viewer around it by the shorter side."""

resize = by_pillow(lambda image, factor: image.resize([max(1, round(side * factor)) for side in image.size], BICUBIC))
rotate = by_pillow(lambda image, degrees: image.rotate(degrees, BICUBIC))


def crop(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Both sides lose alike, and what is left may lie anywhere."""
    height, width = (max(1, round(side * math.sqrt(share))) for side in image.shape[:2])
    top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
    return image[top : top + height, left : left + width]


def trim(image: Pixels, pixels: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Rows above and columns to the left, as far as there are more."""
    return image[min(int(pixels), image.shape[0] - 1) :, min(int(pixels), image.shape[1] - 1) :]


def flip(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Left becomes right."""
    return image[:, ::-1]


def rotate90(image: Pixels, turns: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Counter-clockwise, no pixel lost."""
    return np.rot90(image, int(turns))


def border(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """One grey on all sides, drawn at random."""
    width = round(share * min(image.shape[:2]))
    around = ((width, width), (width, width), (0, 0))[: image.ndim]
    return np.pad(image, around, constant_values=rng.integers(256, dtype=np.uint8))


def screenshot(image: Pixels, quality: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """A part of the image at the viewer's zoom with some of the viewer around it, kept as JPEG."""
    shown = resize(crop(image, SCREEN_PART, rng), rng.uniform(*SCREEN_ZOOM), rng, None)
    return stored_as("JPEG")(border(shown, SCREEN_BORDER, rng), quality, rng, None)


def jitter_pixels(image: Pixels, pixels: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """The real form of :func:`jitter`, by SciPy."""
    return shifted_pixels(image, *(rng.uniform(-1.0, 1.0, 4) * pixels * JITTER))


def shifted_pixels(image: Pixels, across: float, down: float, angle: float, growth: float) -> Pixels:
    """As :func:`shifted`, by SciPy."""
    cosine, sine = (1.0 + growth) * math.cos(angle), (1.0 + growth) * math.sin(angle)
    matrix = np.array([[cosine, sine], [-sine, cosine]])
    middle = (np.array(image.shape[:2]) - 1.0) / 2.0
    offset = middle + np.array([down, across]) - matrix @ middle
    channels = [
        ndimage.affine_transform(channel, matrix, offset, order=1, mode="nearest", output=np.float64)
        for channel in np.atleast_3d(image).transpose(2, 0, 1)
    ]
    moved: Pixels = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    return moved.reshape(image.shape)


def jitter(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """The error of a registration: a small shift, angle and scale for each image, drawn on the CPU as strengths are."""
    drawn = (2.0 * torch.rand(len(images), 4, dtype=torch.float64) - 1.0) * step.draw(len(images))[:, None]
    return shifted(images, *(drawn * torch.from_numpy(JITTER)).unbind(1))


def shifted(images: Tensor, across: Tensor, down: Tensor, angle: Tensor, growth: Tensor) -> Tensor:
    """Each pixel is fetched from where it was: turned, grown, and so many pixels away, ``(B,)`` each.

    Bilinear; beyond the edge the edge goes on.
    """
    height, width = images.shape[2:]
    cosine, sine = (1.0 + growth) * angle.cos(), (1.0 + growth) * angle.sin()
    # Torch's grids go from -1 to 1 along either side, whatever its length.
    first = torch.stack([cosine, -sine * height / width, 2.0 * across / width], dim=1)
    second = torch.stack([sine * width / height, cosine, 2.0 * down / height], dim=1)
    matrices = torch.stack([first, second], dim=1).to(images)
    grid = functional.affine_grid(matrices, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
