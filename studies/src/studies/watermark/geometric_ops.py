"""Operators that move pixels: whoever reads must find out where the image went. See the table in ``operators``."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor
from torch.nn import functional

from studies.watermark.conversion import Pixels, package, stored

if TYPE_CHECKING:
    from studies.watermark.operators import Step

REACH = np.array([1.0, 1.0, math.radians(0.25), 0.004])
"""How far a jitter of one pixel goes at most: pixels across and down, radians, and what is added to the scale."""
SHOWN = 0.8
"""Share of the area that a screenshot shows."""
ZOOM = 0.5, 0.9
"""Scales at which a screenshot shows it."""
FRAME = 0.05
"""Width of the viewer around it, as a share of the shorter side."""


def scale(image: Pixels, factor: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Resized for good, bicubic as most programs do."""
    pillow = package("PIL.Image")
    height, width = (max(1, round(side * factor)) for side in image.shape[:2])
    return np.asarray(pillow.fromarray(image).resize((width, height), pillow.Resampling.BICUBIC))


def cut(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Both sides lose alike, and what is left may lie anywhere."""
    height, width = (max(1, round(side * math.sqrt(share))) for side in image.shape[:2])
    top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
    return image[top : top + height, left : left + width]


def trim(image: Pixels, pixels: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Rows above and columns to the left, as far as there are more."""
    return image[min(int(pixels), image.shape[0] - 1) :, min(int(pixels), image.shape[1] - 1) :]


def turn(image: Pixels, degrees: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Counter-clockwise around the middle; the corners that come in are black, those that go out are lost."""
    pillow = package("PIL.Image")
    return np.asarray(pillow.fromarray(image).rotate(degrees, pillow.Resampling.BICUBIC))


def flip(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Left becomes right."""
    return image[:, ::-1]


def quarter(image: Pixels, turns: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """Counter-clockwise, no pixel lost."""
    return np.rot90(image, int(turns))


def border(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """One grey on all sides, drawn at random."""
    width = round(share * min(image.shape[:2]))
    around = ((width, width), (width, width), (0, 0))[: image.ndim]
    return np.pad(image, around, constant_values=rng.integers(256, dtype=np.uint8))


def screenshot(image: Pixels, quality: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """A part of the image at the viewer's zoom with some of the viewer around it, kept as JPEG."""
    shown = scale(cut(image, SHOWN, rng), rng.uniform(*ZOOM), rng)
    return stored("JPEG")(border(shown, FRAME, rng), quality, rng, None)


def jitter_pixels(image: Pixels, pixels: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
    """The real form of :func:`jitter`, by SciPy."""
    return shifted_pixels(image, *(rng.uniform(-1.0, 1.0, 4) * pixels * REACH))


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
    """What is left when a reader has found roughly where an image went: a shift, an angle and a scale for each.

    All are drawn on the CPU, as strengths are.
    """
    drawn = (2.0 * torch.rand(len(images), 4, dtype=torch.float64) - 1.0) * step.draw(len(images))[:, None]
    return shifted(images, *(drawn * torch.from_numpy(REACH)).unbind(1))


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
