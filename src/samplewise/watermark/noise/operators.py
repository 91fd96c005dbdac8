"""Differentiable stand-ins for what real tools do to images: ``(B, C, H, W)`` in [0, 1] to the same shape.

Strengths are drawn on the CPU, so that no accelerator is stalled and every device sees the same ones.
"""

import importlib
import io
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from samplewise.errors import MissingPackageError
from samplewise.watermark.noise.grammar import Step

__all__ = ["DIFFERENTIABLE", "Operator"]

Operator = Callable[[Tensor, Tensor, Step], Tensor]
"""From images, their covers and the step to images, which may leave [0, 1]."""

TABLES_AS_GIVEN = 50.0  # the quality at which JPEG scales its tables by 100 percent
NARROWEST = 1e-3  # pixels: the narrowest Gaussian, which kornia's kernel cannot tell from no blur
REACH = 4.0  # standard deviations a blur kernel reaches


def identity(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """The images as they are."""
    return images


def jpeg(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """JPEG compression with 4:2:0 chroma, by kornia, whose rounding has a slope; a quality for each image.

    The quantisation tables are the real encoder's: kornia scales its own smoothly, to steps far below 1 near quality
    100, where it then loses nothing.
    """
    codec = _package("kornia.enhance").jpeg_codec_differentiable
    qualities = _draw(step, len(images)).round().int().tolist()
    luma, chroma = torch.stack([_tables(quality) for quality in qualities], dim=1)
    coloured = images.expand(-1, 3, -1, -1)  # grey has no chroma, so each of its three channels is the luma
    coded: Tensor = codec(coloured, torch.tensor([TABLES_AS_GIVEN]), luma, chroma)
    return coded[:, : images.shape[1]]


@lru_cache(maxsize=100)
def _tables(quality: int) -> Tensor:
    """The tables for luma and chroma that Pillow's encoder writes into a file of that quality, ``(2, 8, 8)``."""
    pillow = _package("PIL.Image")
    file = io.BytesIO()
    pillow.new("RGB", (1, 1)).save(file, "JPEG", quality=quality)
    tables = pillow.open(file).quantization
    return torch.tensor([tables[0], tables[1]], dtype=torch.float32).view(2, 8, 8)


def resize(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Scaled and back to the old size, one scale for the batch.

    By torch and not by kornia: its antialiased bilinear filter is Pillow's, kornia's is another.
    """
    height, width = images.shape[2:]
    scale = float(_draw(step, 1))
    small = _interpolate(images, (max(1, round(height * scale)), max(1, round(width * scale))))
    return _interpolate(small, (height, width))


def _interpolate(images: Tensor, size: tuple[int, int]) -> Tensor:
    return functional.interpolate(images, size, mode="bilinear", antialias=True)


def crop(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Only a rectangle at a random place is kept, there; the rest is black. Size and place for each image."""
    shares = _draw(step, len(images))
    rows, columns = (_kept(side, shares).to(images.device) for side in images.shape[2:])
    return images * (rows[:, None, :, None] & columns[:, None, None, :])


def _kept(side: int, shares: Tensor) -> Tensor:
    """Marks a run of ``shares`` of a side that begins anywhere, ``(B,)`` to ``(B, side)``."""
    lengths = (shares * side).round().clamp_min(1)
    starts = (torch.rand(len(shares), dtype=torch.float64) * (side - lengths + 1)).floor()
    places = torch.arange(side)
    return (places >= starts[:, None]) & (places < (starts + lengths)[:, None])


def dropout(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Each pixel, with all its channels, is the cover's again with a probability, one for each image."""
    chances = torch.rand(len(images), 1, *images.shape[2:], device=images.device)
    return torch.where(chances < _each(step, images), cover, images)


def gaussian(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Independent normal noise, with a standard deviation for each image."""
    return images + _each(step, images) * torch.randn_like(images)


def blur(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Gaussian blur by kornia, the border extended, with a standard deviation for each image."""
    sigmas = _draw(step, len(images)).clamp_min(NARROWEST).to(images)[:, None].expand(-1, 2)
    size = 2 * math.ceil(REACH * step.high) + 1
    blurred: Tensor = _package("kornia.filters").gaussian_blur2d(images, size, sigmas, border_type="replicate")
    return blurred


def brightness(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Every value times a factor, one for each image."""
    return images * _each(step, images)


def contrast(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """The distance to the image's mean grey times a factor, one for each image, by kornia."""
    adjust = _package("kornia.enhance").adjust_contrast_with_mean_subtraction
    adjusted: Tensor = adjust(images, _draw(step, len(images)))
    return adjusted


DIFFERENTIABLE: dict[str, Operator] = {
    operator.__name__: operator
    for operator in (identity, jpeg, resize, crop, dropout, gaussian, blur, brightness, contrast)
}
"""The operators of the grammar by name."""


def _draw(step: Step, count: int) -> Tensor:
    """Strengths within the step's range, on the CPU in double precision, ``(count,)``."""
    if step.low == step.high:
        return torch.full((count,), step.low, dtype=torch.float64)
    return step.low + (step.high - step.low) * torch.rand(count, dtype=torch.float64)


def _each(step: Step, images: Tensor) -> Tensor:
    """A strength for each image, ``(B, 1, 1, 1)``, where the images are."""
    return _draw(step, len(images)).to(images).view(-1, 1, 1, 1)


def _package(name: str) -> Any:
    """A module of one of the packages that come with an extra, imported when it is first needed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingPackageError(f"this noise needs {name}: pip install 'samplewise[watermark]'") from error
