"""Operators that change grey values and leave every pixel where it is. See the table in ``operators``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageOps
from scipy import ndimage
from torch import Tensor

from studies.watermark.conversion import Attack, Pixels, by_pillow

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from studies.watermark.operators import Step

FIRST_LEVEL = 1.0 / 255.0
"""The darkest level that is not black."""
TECHNICIAN_LABEL = "PORTABLE  AP"


def by_curve(curve: Callable[[NDArray[np.float64], float], NDArray[np.float64]]) -> Attack:
    """An attack from a curve that takes grey values in [0, 1] to others, which are clipped and rounded."""

    def attack(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
        levels = np.rint(255.0 * curve(np.arange(256) / 255.0, strength).clip(0.0, 1.0))
        return levels.astype(np.uint8)[image]

    return attack


gamma_pixels = by_curve(lambda grey, power: grey**power)
window_pixels = by_curve(lambda grey, share: (grey - 0.5) / share + 0.5)
posterize = by_curve(lambda grey, bits: np.rint(grey * (2**bits - 1)) / (2**bits - 1))
invert = by_curve(lambda grey, _: 1.0 - grey)


def gamma(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """A power for each image; straight up to the first level, where the slope of small powers would have no bound."""
    power = step.each(images)
    straight = images * FIRST_LEVEL ** (power - 1.0)
    return torch.where(images < FIRST_LEVEL, straight, images.clamp_min(FIRST_LEVEL) ** power)


def window(images: Tensor, cover: Tensor, step: Step) -> Tensor:
    """A width for each image."""
    return (images - 0.5) / step.each(images) + 0.5


def median(image: Pixels, size: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """Of squares, each channel for itself."""
    return np.asarray(ndimage.median_filter(image, (int(size), int(size), 1)[: image.ndim], mode="nearest"))


def text(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    """Written in white, anywhere, as high as a fifteenth of the image."""
    picture = Image.fromarray(image)
    place = rng.random() * image.shape[1] / 2, rng.random() * image.shape[0] * 0.9
    white = 255 if image.ndim == 2 else (255, 255, 255)
    ImageDraw.Draw(picture).text(place, TECHNICIAN_LABEL, fill=white, font_size=max(1, image.shape[0] // 15))
    return np.asarray(picture)


equalise = by_pillow(lambda picture, _: ImageOps.equalize(picture))
