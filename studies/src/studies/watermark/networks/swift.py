"""Our own network: every bit has cells of its own in the image, so it is learned within minutes on a processor."""

import functools
import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from floormark.network import CELL, GROUPS
from samplewise.errors import ConfigurationError
from studies.watermark.networks.base import Network, block, cell_decoder

COPIES = 3
"""Slots that each bit should have."""
SLOTS_PER_CELL = 4
"""At most: more disturb each other."""
STRENGTH = 0.1
"""Largest change of a pixel, whatever the network would like."""


class Swift(Network):
    """Messages laid out over cells of 8 x 8 pixels; a decoder that adds up what the cells of a bit say.

    The image is cut into cells, each with a few slots, and each slot carries one bit, the same bit in several places
    all over the image. The decoder gives a log-likelihood ratio for every slot, and those of a bit are added: so it
    learns by itself how far each place can be trusted, a black border less than a lung. Both halves are convolutional
    and have no batch norm: the weights depend neither on the size of the image nor on the number of bits, and an image
    is treated alike in training and in use.

    One residual serves all channels of an image, so nothing is lost where a file is stored in grey.

    Args:
        bits: length of a message.
        size: height and width of the images, a multiple of 8. Others, also oblong ones, can be given later.
        channels: of an image.
        width: channels of the first convolutions, a multiple of 8.
        slots: bits written into each cell; chosen such that each bit has three slots, if not given.
    """

    cell = CELL

    def __init__(self, bits: int, *, size: int, channels: int = 1, width: int = 32, slots: int | None = None) -> None:
        super().__init__(bits, size=size, channels=channels, width=width)
        if size < CELL or size % CELL:
            raise ConfigurationError(f"expected a size that is a multiple of {CELL} pixels, got {size}")
        if width < GROUPS or width % GROUPS:
            raise ConfigurationError(f"expected a width that is a multiple of {GROUPS} channels, got {width}")
        cells = (size // CELL) ** 2
        if not 1 <= bits <= cells * SLOTS_PER_CELL:
            raise ConfigurationError(
                f"images of {size} x {size} hold 1 to {cells * SLOTS_PER_CELL} bits, got {bits}: use fewer bits or "
                "larger images"
            )
        self.slots = slots or min(SLOTS_PER_CELL, -(-COPIES * bits // cells))
        self.encoder = _Encoder(width, self.slots)
        self.decoder = cell_decoder(width, self.slots)

    @property
    def arguments(self) -> dict[str, int]:
        return {**super().arguments, "slots": self.slots}

    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        height, width = images.shape[2] // CELL, images.shape[3] // CELL
        count = self.slots * height * width
        owners = _owners(count, self.bits).to(images.device)
        laid_out = (2.0 * messages - 1.0)[:, owners].view(len(images), self.slots, height, width)
        residual: Tensor = self.encoder(images.mean(1, keepdim=True) - 0.5, laid_out.to(images.dtype))
        return images + STRENGTH * residual

    def extract(self, images: Tensor) -> Tensor:
        grey = images.mean(1, keepdim=True) - 0.5
        evidence = self.decoder(functional.pixel_unshuffle(grey, 4)).flatten(1)
        by_bit = evidence[:, _by_bit(evidence.shape[1], self.bits).to(images.device)]
        missing = -by_bit.shape[1] % self.bits
        return functional.pad(by_bit, (0, missing)).view(len(images), -1, self.bits).sum(1)


class _Encoder(nn.Module):
    """A small U: the image at a quarter of its size, the message where cells are single points."""

    def __init__(self, width: int, slots: int) -> None:
        super().__init__()
        self.fine = block(16, width)
        self.coarse = block(width, 2 * width, stride=2)
        self.mix = block(2 * width + slots, 2 * width)
        self.up = nn.Conv2d(2 * width, 4 * width, 1)
        self.join = block(2 * width, width)
        self.out = nn.Conv2d(width, 16, 1)

    def forward(self, grey: Tensor, laid_out: Tensor) -> Tensor:
        fine = self.fine(functional.pixel_unshuffle(grey, 4))
        mixed = self.mix(torch.cat([self.coarse(fine), laid_out], dim=1))
        joined = self.join(torch.cat([functional.pixel_shuffle(self.up(mixed), 2), fine], dim=1))
        return torch.tanh(functional.pixel_shuffle(self.out(joined), 4))


@functools.lru_cache(maxsize=64)
def _by_bit(slots: int, bits: int) -> Tensor:
    """The slots in an order in which number i belongs to bit ``i % bits``, scattered over the image.

    By a hash and not by a random generator: files must be readable by every later version.
    """
    draws = np.frombuffer(hashlib.shake_256(f"samplewise {bits}".encode()).digest(8 * slots), "<u8")
    return torch.from_numpy(np.argsort(draws, kind="stable"))


@functools.lru_cache(maxsize=64)
def _owners(slots: int, bits: int) -> Tensor:
    """The bit that each slot carries."""
    return _by_bit(slots, bits).argsort() % bits  # to sort an order is to invert it
