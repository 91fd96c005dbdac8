"""One image as the network sees it, whatever its size and bit depth, and the way back to stored values."""

import math
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from floormark.display_range import shown_grey, used_range
from floormark.imageio import StoredImage, bands
from floormark.strength import Drawing
from samplewise.errors import DataError
from studies.watermark.networks import Network

SIDE = 256
"""Pixels that the network sees of the shorter side, or up to twice as many; larger images are seen at a fraction."""

MOST = 1 << 22
"""Pixels that the network sees at most. Only images many times as long as they are wide have more."""
BAND = 1 << 20
"""Values that are turned into floating point at once."""


def fraction(image: StoredImage) -> int:
    """Pixels of an image for one that a network sees, in rows and in columns; too oblong an image is refused."""
    height, width = image.pixels.shape[:2]
    factor: int = max(1, min(height, width) // SIDE)
    if height * width > MOST * factor**2:
        raise DataError(f"expected an image less oblong than {width} x {height}: cut it into pieces")
    return factor


@dataclass(frozen=True)
class NetworkView:
    """One image as a network sees it: where its values and pixels lie, what is written into it and read from it.

    It is made anew from the marked image when that is read, so it depends on nothing that marking changes: on the size,
    and with more than 8 bits on percentiles.
    """

    image: StoredImage
    network: Network
    lowest: float
    """Stored value that is seen as 0."""
    span: float
    """Width of the range of values that is seen as 0 to 1."""
    factor: int
    """Side in pixels of the square that is seen as one pixel."""

    @classmethod
    def of(cls, image: StoredImage, network: Network) -> Self:
        """The view of an image."""
        return cls(image, network, *used_range(image), fraction(image))

    @property
    def _side(self) -> int:
        """Of a cell of the network, in pixels of the image."""
        return self.network.cell * self.factor

    @property
    def room(self) -> float:
        """How many times the cells that the network needs there are; below 1 the image is too small."""
        height, width = self.image.pixels.shape[:2]
        cells: int = -(-height // self._side) * -(-width // self._side)
        return cells / self.network.least_cells

    def check_room(self) -> None:
        """Refuse an image that is too small."""
        if self.room < 1:
            cell, least = self.network.cell, self.network.least_cells
            side, (height, width) = cell * math.ceil(math.sqrt(least)), self.image.pixels.shape[:2]
            raise DataError(
                f"expected an image of at least {least} squares of {cell} x {cell} pixels for "
                f"{self.network.bits} bits, such as {side} x {side}, got {width} x {height}"
            )

    def tensor(self) -> Tensor:
        """What the network sees: shape ``(1, C, h, w)``, in [0, 1]."""
        pixels = self.image.pixels
        grey = torch.cat([self._band(pixels[rows]) for rows in bands(pixels, BAND, unit=self._side)], dim=2)
        return grey.expand(-1, self.network.channels, -1, -1)

    def _band(self, pixels: NDArray[Any]) -> Tensor:
        grey = torch.from_numpy(shown_grey(pixels, (self.lowest, self.span)))[None, None]
        height, width = pixels.shape[:2]
        grey = functional.pad(grey, (0, -width % self._side, 0, -height % self._side), mode="replicate")
        return functional.avg_pool2d(grey, self.factor) if self.factor > 1 else grey

    def drawing(self, bits: NDArray[np.uint8]) -> Drawing:
        """What the network adds to hide ``bits (L,)``: one residual for all channels, as files may be in grey."""
        seen = self.tensor()
        with torch.inference_mode():
            change = (self.network.embed(seen, torch.from_numpy(bits)[None].float()) - seen).mean(1)
        return Drawing(bits, change[0].numpy() * np.float32(self.span), float(self.factor))

    def logits(self) -> NDArray[np.float32]:
        """What the network reads, ``(L,)``."""
        with torch.inference_mode():
            read: NDArray[np.float32] = self.network.extract(self.tensor())[0].numpy()
        return read
