"""What happens to images: each operator with its limits, its form for training and what a real tool does.

A new one takes its functions and a line in :data:`OPERATORS`; the language, training and attacks know it by that.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor
from torch.nn import functional

from samplewise.errors import ConfigurationError
from studies.watermark import geometric_ops, intensity_ops
from studies.watermark.conversion import Attack, Pixels, as_images, as_pixels, by_pillow, stored_as

Differentiable = Callable[[Tensor, Tensor, "Step"], Tensor]
"""From images ``(B, C, H, W)`` in [0, 1], their covers and the step to images, which may leave [0, 1]."""

NARROWEST_BLUR = 1e-3  # pixels: the narrowest Gaussian, which kornia's kernel cannot tell from no blur
BLUR_RADIUS = 4.0  # standard deviations


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
    attack: Attack
    train: Differentiable | None = None
    """None: no such form is known, so it cannot be trained for."""
    geometric: bool = False
    """Whether size, orientation or place change, by more than a network can bear without registration."""


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


def _straight_through(tool: Attack) -> Differentiable:
    """What a real tool makes of each image, differentiated as the identity (a straight-through estimator).

    A smooth imitation of a file lets through a trace of what the file loses, and a network learns to read that.
    """

    def through(images: Tensor, cover: Tensor, step: Step) -> Tensor:
        strengths = step.draw(len(images)).round().tolist()
        rng = np.random.default_rng(0)  # a file is not a matter of chance
        pixels = as_pixels(images.detach(), "grey" if images.shape[1] == 1 else "rgb")
        files = [tool(each, strength, rng, None) for each, strength in zip(pixels, strengths, strict=True)]
        found = as_images(np.stack(files), channels=images.shape[1], device=images.device).to(images)
        return images + (found - images).detach()

    return through


def _resize_back(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """One scale for the batch. By torch and not by kornia: its antialiased bilinear filter is Pillow's."""
    height, width = images.shape[2:]
    scale = float(step.draw(1))
    small = max(1, round(height * scale)), max(1, round(width * scale))
    for size in (small, (height, width)):
        images = functional.interpolate(images, size, mode="bilinear", antialias=True)
    return images


def _resize_back_pixels(picture: Image.Image, scale: float) -> Image.Image:
    bilinear = Image.Resampling.BILINEAR
    width, height = picture.size
    scaled = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), bilinear)
    return scaled.resize((width, height), bilinear)


def _crop_zero_fill(images: Tensor, cover: Tensor, step: Step) -> Tensor:
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


def _crop_zero_fill_pixels(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
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
    if cover is None or cover.shape != image.shape:
        raise ConfigurationError(
            "dropout puts pixels of the cover back: give the cover and change no size before, or leave this attack out"
        )
    dropped = rng.random(image.shape[:2]) < chance
    attacked = image.copy()
    attacked[dropped] = cover[dropped]
    return attacked


def _gaussian_pixels(image: Pixels, sigma: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    noisy = image + 255.0 * sigma * rng.standard_normal(image.shape)
    return np.asarray(np.rint(noisy.clip(0.0, 255.0)), dtype=np.uint8)


def _blur(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """By kornia, the border extended, with a standard deviation for each image."""
    sigmas = step.draw(len(images)).clamp_min(NARROWEST_BLUR).to(images)[:, None].expand(-1, 2)
    size = 2 * math.ceil(BLUR_RADIUS * step.high) + 1
    from kornia.filters import gaussian_blur2d  # takes seconds

    blurred: Tensor = gaussian_blur2d(images, size, sigmas, border_type="replicate")
    return blurred


def _contrast(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    from kornia.enhance import adjust_contrast_with_mean_subtraction

    adjusted: Tensor = adjust_contrast_with_mean_subtraction(images, step.draw(len(images)))
    return adjusted


def _enhance(kind: Callable[[Image.Image], Any]) -> Attack:
    return by_pillow(lambda picture, factor: kind(picture).enhance(factor))


OPERATORS: dict[str, Operator] = {
    "identity": Operator(None, lambda image, *_: image, lambda images, *_: images),
    "jpeg": Operator(Limits(1, 100, whole=True), stored_as("JPEG"), _straight_through(stored_as("JPEG"))),
    "webp": Operator(Limits(1, 100, whole=True), stored_as("WEBP"), _straight_through(stored_as("WEBP"))),
    "resize_back": Operator(Limits(0.05, 4), by_pillow(_resize_back_pixels), _resize_back),
    "crop_zero_fill": Operator(Limits(0.05, 1), _crop_zero_fill_pixels, _crop_zero_fill),
    "dropout": Operator(Limits(0, 1), _dropout_pixels, _dropout),
    "gaussian": Operator(
        Limits(0, 1), _gaussian_pixels, lambda images, _, step: images + step.each(images) * torch.randn_like(images)
    ),
    "blur": Operator(
        Limits(0, 16),
        by_pillow(lambda picture, sigma: picture.filter(ImageFilter.GaussianBlur(sigma))),
        _blur,
    ),
    "brightness": Operator(
        Limits(0, 4), _enhance(ImageEnhance.Brightness), lambda images, _, step: images * step.each(images)
    ),
    "contrast": Operator(Limits(0, 4), _enhance(ImageEnhance.Contrast), _contrast),
    "gamma": Operator(Limits(0.1, 10), intensity_ops.gamma_pixels, intensity_ops.gamma),
    "window": Operator(Limits(0.05, 1), intensity_ops.window_pixels, intensity_ops.window),
    "jitter": Operator(Limits(0, 16), geometric_ops.jitter_pixels, geometric_ops.jitter),
    # None of the following has a differentiable form that would be of use.
    "posterize": Operator(Limits(1, 8, whole=True), intensity_ops.posterize),
    "median": Operator(Limits(1, 15, whole=True), intensity_ops.median),
    "equalise": Operator(None, intensity_ops.equalise),
    "invert": Operator(None, intensity_ops.invert),
    "text": Operator(None, intensity_ops.text),
    "resize": Operator(Limits(0.05, 4), geometric_ops.resize, geometric=True),
    "crop": Operator(Limits(0.01, 1), geometric_ops.crop, geometric=True),
    "trim": Operator(Limits(0, 1024, whole=True), geometric_ops.trim, geometric=True),
    "rotate": Operator(Limits(-180, 180), geometric_ops.rotate, geometric=True),
    "flip": Operator(None, geometric_ops.flip, geometric=True),
    "rotate90": Operator(Limits(0, 3, whole=True), geometric_ops.rotate90, geometric=True),
    "border": Operator(Limits(0, 1), geometric_ops.border, geometric=True),
    "screenshot": Operator(Limits(1, 100, whole=True), geometric_ops.screenshot, geometric=True),
}
"""Every operator by name.

======================  ============================================================================
identity                nothing
jpeg(quality)           JPEG compression, 1 to 100, standard tables, 4:2:0
webp(quality)           WebP compression with loss, 1 to 100
resize_back(scale)      resized and back, antialiased bilinear
crop_zero_fill(share)   a rectangle of that share of both sides stays in its place, the rest is black
dropout(chance)         each pixel is replaced with the cover's with that probability
gaussian(sigma)         normal noise with that standard deviation, where white is 1
blur(sigma)             Gaussian blur, sigma in pixels
brightness(factor)      values times the factor
contrast(factor)        distance to the mean grey times the factor
gamma(power)            values, where white is 1, to that power
window(share)           the middle share of the grey range stretched to all of it
jitter(pixels)          shifted by up to that, with a quarter of a degree and 0.4 % of scale for each pixel
for attacks only:
posterize(bits)         rounded to that many bits
median(size)            the median of squares of so many pixels a side
equalise                as many pixels of each grey as of any other
invert                  black becomes white
text                    a label burned into the image
geometric, for attacks only:
resize(factor)          resized, bicubic
crop(share)             a rectangle of that share of the area, anywhere in the image, is all that is left
trim(pixels)            so many rows above and columns to the left are gone
rotate(degrees)         counter-clockwise around the middle, the canvas kept, black corners
flip                    mirrored
rotate90(turns)         by so many times 90 degrees
border(share)           a border of one grey, as wide as that share of the shorter side
screenshot(quality)     a part, resized, with a border, as JPEG
======================  ============================================================================
"""
