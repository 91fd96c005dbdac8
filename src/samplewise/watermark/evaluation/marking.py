"""Marked images as a network gives them and as 8-bit files hold them, grey or RGB."""

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samplewise.errors import NotFiniteError
from samplewise.watermark.messages import fixed_messages
from samplewise.watermark.networks import Network
from samplewise.watermark.pipeline import LEVELS

__all__ = ["FileKind", "Marked", "Pixels", "as_images", "as_pixels", "file_kinds", "mark"]

FileKind = Literal["grey", "rgb"]
Pixels: TypeAlias = NDArray[np.uint8]
"""Images as files hold them, ``(B, H, W)`` or ``(B, H, W, 3)``."""


class Marked(NamedTuple):
    """A batch of images and what the network made of it."""

    covers: Tensor
    """In [0, 1], as the network takes them, ``(B, C, H, W)``."""
    messages: Tensor
    """Zeros and ones, ``(B, L)``."""
    images: Tensor
    """With the messages in them, neither clamped nor rounded, ``(B, C, H, W)``."""


def file_kinds(network: Network) -> tuple[FileKind, ...]:
    """The files a network's images can be stored in: grey, and RGB where its channels may differ."""
    return ("grey", "rgb") if network.channels == 3 else ("grey",)


def mark(network: Network, images: Tensor, numbers: Tensor) -> Marked:
    """Hide each image's own message in it.

    Args:
        network: in eval mode.
        images: grey in [0, 1], shape ``(B, 1, H, W)``.
        numbers: the images' rows in their store, which their messages depend on, shape ``(B,)``.

    Raises:
        NotFiniteError: the network gives NaN or infinities, which no file holds.
    """
    messages = fixed_messages(numbers, network.bits)
    covers = images.expand(-1, network.channels, -1, -1)
    with torch.no_grad():
        marked = network.embed(covers, messages)
    finite = marked.isfinite().flatten(1).all(1)
    if not finite.all():
        rows = numbers[~finite].tolist()
        raise NotFiniteError(f"the network gives values that are not finite for images {rows}: its training diverged")
    return Marked(covers, messages, marked)


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
