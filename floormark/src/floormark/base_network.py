"""What every watermarking network does: hide a message in an image, and read it from an image."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

Channel = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From what the encoder gave, and the covers, to the images that ship and those that arrive."""


class Network(nn.Module, ABC):
    """An encoder and a decoder trained together: all that training, evaluation and the tool ask of one.

    A subclass takes these arguments and gives the three methods below. With a name in
    :data:`studies.watermark.networks.NETWORKS`, commands and files know it too.

    Args:
        bits: length of a message.
        size: height and width of the images it is made for.
        channels: of an image.
        width: channels of the layers.
    """

    cell: ClassVar[int] = 1
    """The sides of the images it takes are multiples of this."""

    def __init__(self, bits: int, *, size: int, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.bits = bits
        self.size = size
        self.channels = channels
        self.width = width

    @property
    def arguments(self) -> dict[str, int]:
        """What to build the same network from."""
        return {"bits": self.bits, "size": self.size, "channels": self.channels, "width": self.width}

    @property
    def least_cells(self) -> int:
        """How many squares of :attr:`cell` an image must have to hold a message; as many as one of its own size."""
        return (self.size // self.cell) ** 2

    def forward(self, images: Tensor, messages: Tensor, channel: Channel) -> tuple[Tensor, Tensor]:
        """Hide messages, send the images through a channel; the images that ship, and what is read of what arrives.

        Training calls this, not the parts: wrappers for several devices see only calls of the whole model.
        """
        shipped, arrived = channel(self.embed(images, messages), images)
        return shipped, self.extract(arrived)

    @abstractmethod
    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` in [0, 1] with messages ``(B, L)`` of zeros and ones; neither clamped nor rounded."""

    @abstractmethod
    def extract(self, images: Tensor) -> Tensor:
        """What the network reads from images, ``(B, C, H, W)`` to ``(B, L)``; a value above zero reads as 1."""

    @abstractmethod
    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        """How far what was read is from the message, ``(B, L)`` twice to ``(B,)``."""
