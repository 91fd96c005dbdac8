"""The base of every network of the study: an encoder and a decoder trained together, and its file."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from floormark.disk import decoding
from floormark.network import GROUPS, read_weights, save_weights
from floormark.network import network_name as name_of

Channel = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the encoder's output and the covers to the images as they are written and as they are received."""


class Network(nn.Module, ABC):
    """An encoder and a decoder trained together, for messages of ``bits`` bits in images ``(channels, size, size)``.

    ``width`` is the number of channels of its layers. Files know a subclass by its name in small letters.
    """

    cell: ClassVar[int] = 1
    """The sides of the images it takes are multiples of this."""

    def __init__(self, bits: int, *, size: int, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.bits, self.size, self.channels, self.width = bits, size, channels, width

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments of the constructor that build the same network."""
        return {"bits": self.bits, "size": self.size, "channels": self.channels, "width": self.width}

    def forward(self, images: Tensor, messages: Tensor, channel: Channel) -> tuple[Tensor, Tensor]:
        """The images that ship with messages in them, and what is read of those that a channel delivers.

        Training calls this, not the parts: wrappers for several devices see only calls of the whole model.
        """
        shipped, arrived = channel(self.embed(images, messages), images)
        return shipped, self.extract(arrived)

    @abstractmethod
    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` in [0, 1] with messages ``(B, L)`` of zeros and ones; neither clamped nor rounded."""

    @abstractmethod
    def extract(self, images: Tensor) -> Tensor:
        """A number for each bit in images, ``(B, C, H, W)`` to ``(B, L)``: above zero is a 1."""

    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        """The loss of what was read against the message, ``(B, L)`` twice to ``(B,)``: the mean cross entropy."""
        return functional.binary_cross_entropy_with_logits(read, messages, reduction="none").mean(1)

    @classmethod
    def kind(cls) -> str:
        """The name of this kind in files and commands."""
        return cls.__name__.lower()


def block(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution, group norm, ReLU."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU())


def cell_decoder(width: int, slots: int) -> nn.Sequential:
    """From an image whose squares of 4 x 4 pixels are channels to a log-likelihood ratio of each slot of each cell."""
    layers = block(16, width), block(width, width), block(width, 2 * width, stride=2), block(2 * width, 2 * width)
    return nn.Sequential(*layers, nn.Conv2d(2 * width, slots, 1))


def network_name(network: Network) -> str:
    """The name of a network in certificates: its kind, and a part of the hash of all its weights."""
    return name_of(network.kind(), network.arguments, arrays(network))


def save_network(path: Path, network: Network) -> None:
    """Write a network to a safetensors file, whole or not at all; the tool reads it too if its kind is shipped."""
    save_weights(path, network.kind(), network.arguments, arrays(network))


def arrays(network: Network) -> dict[str, Any]:
    """A network's weights as NumPy arrays, by their names."""
    return {key: value.detach().cpu().numpy() for key, value in network.state_dict().items()}


def load_network(path: Path, kinds: Mapping[str, type[Network]]) -> Network:
    """Build the network that :func:`save_network` wrote, in eval mode.

    Raises:
        DataError: the file is torn, foreign or damaged, or of a kind that is not among ``kinds``, classes by name.
    """
    saved = read_weights(path, kinds)
    with decoding(path, "a network"):
        with torch.device("meta"):  # the weights of the file are all that takes memory, whatever it asks for
            network = kinds[saved.kind](**saved.arguments)
        weights = {key: torch.from_numpy(value) for key, value in saved.weights.items()}
        for key, value in network.state_dict().items():
            if weights[key].dtype != value.dtype:
                raise ValueError(f"expected {key} of type {value.dtype}, got {weights[key].dtype}")
        network.load_state_dict(weights, assign=True)
    return network.eval()
