"""Images as files and real tools hold them, and Pillow's ways to be such a tool."""

import importlib
import io
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.errors import needed_for

Pixels: TypeAlias = NDArray[np.uint8]
"""One stored image, ``(H, W)`` or ``(H, W, 3)``."""
Real: TypeAlias = Callable[[Pixels, float, np.random.Generator, Pixels | None], Pixels]
"""From one image, the strength, the source of chance and the cover, if there is one, to the image of a real tool."""
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


def package(name: str) -> Any:
    """A module of one of the packages that come with an extra, imported when it is first needed."""
    with needed_for("this", "watermark"):
        importlib.import_module(name.partition(".")[0])
        return importlib.import_module(name)


def by_pillow(change: Callable[[Any, float], Any]) -> Real:
    """A real tool from what Pillow does to one of its pictures."""

    def attack(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
        return np.asarray(change(package("PIL.Image").fromarray(image), strength))

    return attack


def stored(kind: str) -> Real:
    """A file of that kind, written with a quality and read."""

    def through_a_file(picture: Any, quality: float) -> Any:
        file = io.BytesIO()
        picture.save(file, kind, quality=int(quality))
        return package("PIL.Image").open(file).convert(picture.mode)

    return by_pillow(through_a_file)
