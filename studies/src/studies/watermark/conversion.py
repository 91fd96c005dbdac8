"""Images as files and real tools hold them, and Pillow as such a tool."""

import io
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

Pixels: TypeAlias = NDArray[np.uint8]
"""One stored image, ``(H, W)`` or ``(H, W, 3)``."""
Attack: TypeAlias = Callable[[Pixels, float, np.random.Generator, Pixels | None], Pixels]
"""A real tool: from an image, the strength, the random generator and the cover, if there is one, to an image."""
LEVELS = 255
"""Steps between black and white."""
FileKind = Literal["grey", "rgb"]


def as_pixels(images: Tensor, kind: FileKind) -> Pixels:
    """What a file holds of images ``(B, C, H, W)``: clamped and rounded to 8 bits; grey is the channels' mean."""
    if kind == "grey":
        images = images.mean(1, keepdim=True)
    levels = (images.clamp(0.0, 1.0) * LEVELS).round().to(torch.uint8)
    pixels: Pixels = levels.permute(0, 2, 3, 1).cpu().numpy()
    return pixels[..., 0] if kind == "grey" else np.ascontiguousarray(pixels)


def as_images(pixels: Pixels, *, channels: int, device: torch.device | None = None) -> Tensor:
    """Pixels read from files as a network takes them: in [0, 1], ``(B, C, H, W)``, grey ones repeated."""
    images = torch.from_numpy(pixels).to(device)
    images = images.unsqueeze(1) if pixels.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.float().div_(LEVELS).expand(-1, channels, -1, -1)


def by_pillow(change: Callable[[Image.Image, float], Image.Image]) -> Attack:
    """An attack from what Pillow does to one of its images."""

    def attack(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
        return np.asarray(change(Image.fromarray(image), strength))

    return attack


def stored_as(format: str) -> Attack:
    """A file of that format, written with a quality and read."""

    def through_a_file(picture: Image.Image, quality: float) -> Image.Image:
        file = io.BytesIO()
        picture.save(file, format, quality=int(quality))
        return Image.open(file).convert(picture.mode)

    return by_pillow(through_a_file)
