"""A batch on its way through a watermarking network."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["Embedding"]


class Embedding(NamedTuple):
    """What the network made of a batch, so that a step which needs it twice computes it once."""

    images: Tensor
    """The covers as the network takes them, ``(B, C, H, W)``."""
    messages: Tensor
    """Zeros and ones, ``(B, L)``."""
    marked: Tensor
    """The images that ship, ``(B, C, H, W)``."""
    logits: Tensor
    """What the decoder read after shipping and noise, ``(B, L)``."""
    adversarial: Tensor | None = None
    """How far each marked image is from passing for a cover, ``(B,)``; None without a discriminator."""
