"""What happens to images: each operator with its limits, its form for training and what a real tool does.

A new one takes its functions and a line in :data:`OPERATORS`; the language, training and attacks know it by that.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from samplewise.errors import ConfigurationError, needed_for

Pixels: TypeAlias = NDArray[np.uint8]
"""One stored image, ``(H, W)`` or ``(H, W, 3)``."""
Differentiable = Callable[[Tensor, Tensor, "Step"], Tensor]
"""From images ``(B, C, H, W)`` in [0, 1], their covers and the step to images, which may leave [0, 1]."""
Real = Callable[[Pixels, float, np.random.Generator, "Pixels | None"], Pixels]
"""From one image, the strength, the source of chance and the cover, if there is one, to the image of a real tool."""

TABLES_AS_GIVEN = 50.0  # the quality at which JPEG scales its tables by 100 percent
NARROWEST = 1e-3  # pixels: the narrowest Gaussian, which kornia's kernel cannot tell from no blur
REACH = 4.0  # standard deviations a blur kernel reaches


class Limits(NamedTuple):
    """Which strengths make sense for an operator."""

    lowest: float
    highest: float
    whole: bool = False
    """Only whole numbers."""

    def __str__(self) -> str:
        return f"{'a whole number' if self.whole else 'a number'} from {self.lowest:g} to {self.highest:g}"

    def hold(self, value: float) -> bool:
        """Whether ``value`` lies within."""
        return self.lowest <= value <= self.highest and not (self.whole and value % 1)


def shortest(value: float) -> str:
    """The shortest text that reads back as ``value``, 50 rather than 50.0."""
    return str(int(value)) if value == int(value) else repr(value)


@dataclass(frozen=True)
class Operator:
    """One thing that may happen to an image."""

    limits: Limits | None
    """Of its strength; None if it has none."""
    attack: Real
    train: Differentiable | None = None
    """None: no such form is known, so it cannot be trained for."""


@dataclass(frozen=True)
class Step:
    """One operator whose strength lies between ``low`` and ``high``; identity has none."""

    name: str
    low: float = 0.0
    high: float = 0.0

    def __str__(self) -> str:
        if OPERATORS[self.name].limits is None:
            return self.name
        low, high = shortest(self.low), shortest(self.high)
        return f"{self.name}({low if low == high else f'{low}..{high}'})"

    def draw(self, count: int) -> Tensor:
        """Strengths within the range, ``(count,)``, in double precision.

        On the CPU, so that no accelerator is stalled and every device sees the same ones.
        """
        if self.low == self.high:
            return torch.full((count,), self.low, dtype=torch.float64)
        return self.low + (self.high - self.low) * torch.rand(count, dtype=torch.float64)

    def each(self, images: Tensor) -> Tensor:
        """A strength for each image, ``(B, 1, 1, 1)``, where the images are."""
        return self.draw(len(images)).to(images).view(-1, 1, 1, 1)


def _package(name: str) -> Any:
    """A module of one of the packages that come with an extra, imported when it is first needed."""
    package = name.partition(".")[0]
    with needed_for("this", "watermark"):
        importlib.import_module(package)
        return importlib.import_module(name)


def _by_pillow(change: Callable[[Any, float], Any]) -> Real:
    """A real tool from what Pillow does to one of its pictures."""

    def attack(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
        return np.asarray(change(_package("PIL.Image").fromarray(image), strength))

    return attack


def _stored(kind: str) -> Real:
    """A file of that kind, written with a quality and read."""

    def stored(picture: Any, quality: float) -> Any:
        file = io.BytesIO()
        picture.save(file, kind, quality=int(quality))
        return _package("PIL.Image").open(file).convert(picture.mode)

    return _by_pillow(stored)


def _jpeg(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """By kornia, whose rounding has a slope; 4:2:0 chroma, a quality for each image.

    The quantisation tables are the real encoder's: kornia scales its own smoothly, to steps far below 1 near quality
    100, where it then loses nothing.
    """
    codec = _package("kornia.enhance").jpeg_codec_differentiable
    qualities = step.draw(len(images)).round().int().tolist()
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


def _resize(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """One scale for the batch. By torch and not by kornia: its antialiased bilinear filter is Pillow's."""
    height, width = images.shape[2:]
    scale = float(step.draw(1))
    small = max(1, round(height * scale)), max(1, round(width * scale))
    for size in (small, (height, width)):
        images = functional.interpolate(images, size, mode="bilinear", antialias=True)
    return images


def _resize_picture(picture: Any, scale: float) -> Any:
    bilinear = _package("PIL.Image").Resampling.BILINEAR
    width, height = picture.size
    scaled = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), bilinear)
    return scaled.resize((width, height), bilinear)


def _crop(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """Size and place for each image."""
    shares = step.draw(len(images))
    rows, columns = (_kept(side, shares).to(images.device) for side in images.shape[2:])
    return images * (rows[:, None, :, None] & columns[:, None, None, :])


def _kept(side: int, shares: Tensor) -> Tensor:
    """Marks a run of ``shares`` of a side that begins anywhere, ``(B,)`` to ``(B, side)``."""
    lengths = (shares * side).round().clamp_min(1)
    starts = (torch.rand(len(shares), dtype=torch.float64) * (side - lengths + 1)).floor()
    places = torch.arange(side)
    return (places >= starts[:, None]) & (places < (starts + lengths)[:, None])


def _crop_pixels(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    height, width = (max(1, round(side * share)) for side in image.shape[:2])
    top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
    window = np.s_[top : top + height, left : left + width]
    kept = np.zeros_like(image)
    kept[window] = image[window]
    return kept


def _dropout(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """A pixel goes with all its channels; a probability for each image."""
    chances = torch.rand(len(images), 1, *images.shape[2:], device=images.device)
    return torch.where(chances < step.each(images), cover, images)


def _dropout_pixels(image: Pixels, chance: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    if cover is None:
        raise ConfigurationError("dropout puts pixels of the cover back: give the cover, or leave this attack out")
    dropped = rng.random(image.shape[:2]) < chance
    attacked = image.copy()
    attacked[dropped] = cover[dropped]
    return attacked


def _gaussian_pixels(image: Pixels, sigma: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    noisy = image + 255.0 * sigma * rng.standard_normal(image.shape)
    return np.asarray(np.rint(noisy.clip(0.0, 255.0)), dtype=np.uint8)


def _blur(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """By kornia, the border extended, with a standard deviation for each image."""
    sigmas = step.draw(len(images)).clamp_min(NARROWEST).to(images)[:, None].expand(-1, 2)
    size = 2 * math.ceil(REACH * step.high) + 1
    blurred: Tensor = _package("kornia.filters").gaussian_blur2d(images, size, sigmas, border_type="replicate")
    return blurred


def _contrast(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    adjust = _package("kornia.enhance").adjust_contrast_with_mean_subtraction
    adjusted: Tensor = adjust(images, step.draw(len(images)))
    return adjusted


def _enhance(name: str) -> Real:
    return _by_pillow(lambda picture, factor: getattr(_package("PIL.ImageEnhance"), name)(picture).enhance(factor))


OPERATORS: dict[str, Operator] = {
    "identity": Operator(None, lambda image, *_: image, lambda images, *_: images),
    "jpeg": Operator(Limits(1, 100, whole=True), _stored("JPEG"), _jpeg),
    "resize": Operator(Limits(0.05, 4), _by_pillow(_resize_picture), _resize),
    "crop": Operator(Limits(0.05, 1), _crop_pixels, _crop),
    "dropout": Operator(Limits(0, 1), _dropout_pixels, _dropout),
    "gaussian": Operator(
        Limits(0, 1), _gaussian_pixels, lambda images, _, step: images + step.each(images) * torch.randn_like(images)
    ),
    "blur": Operator(
        Limits(0, 16),
        _by_pillow(lambda picture, sigma: picture.filter(_package("PIL.ImageFilter").GaussianBlur(sigma))),
        _blur,
    ),
    "brightness": Operator(Limits(0, 4), _enhance("Brightness"), lambda images, _, step: images * step.each(images)),
    "contrast": Operator(Limits(0, 4), _enhance("Contrast"), _contrast),
    "webp": Operator(Limits(1, 100, whole=True), _stored("WEBP")),  # its prediction has no differentiable form
}
"""Every operator by name.

==================  ================================================================================
identity            nothing
jpeg(quality)       JPEG compression, 1 to 100, standard tables, 4:2:0
resize(scale)       scaled and back, antialiased bilinear
crop(share)         a rectangle with that share of both sides stays in its place, the rest is black
dropout(chance)     each pixel is replaced with the cover's with that probability
gaussian(sigma)     normal noise with that standard deviation, where white is 1
blur(sigma)         Gaussian blur, sigma in pixels
brightness(factor)  values times the factor
contrast(factor)    distance to the mean grey times the factor
webp(quality)       WebP compression with loss, 1 to 100; for attacks only
==================  ================================================================================
"""
