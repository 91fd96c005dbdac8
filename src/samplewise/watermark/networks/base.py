"""What every watermarking network does: hide a message in an image, and read it from an image."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

__all__ = ["Network"]


class Network(nn.Module, ABC):
    """An encoder and a decoder trained together.

    Args:
        bits: length of a message.
        size: height and width of the images it is made for.
        channels: of an image.
    """

    def __init__(self, bits: int, *, size: int, channels: int = 1) -> None:
        super().__init__()
        self.bits = bits
        self.size = size
        self.channels = channels

    @abstractmethod
    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        """Images that carry messages, neither clamped nor rounded.

        Args:
            images: in [0, 1], shape ``(B, C, H, W)``.
            messages: zeros and ones, shape ``(B, L)``.

        Returns:
            Shape ``(B, C, H, W)``.
        """

    @abstractmethod
    def extract(self, images: Tensor) -> Tensor:
        """What the network reads from images, ``(B, C, H, W)`` to ``(B, L)``; a value above zero reads as 1."""

    @abstractmethod
    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        """How far what was read is from the message, ``(B, L)`` twice to ``(B,)``."""
