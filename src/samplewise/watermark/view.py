"""One image as the network sees it, whatever its size and bit depth, and the way back to stored values."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from samplewise.errors import DataError
from samplewise.watermark.formats import StoredImage

__all__ = ["NetworkView"]

TAIL = 0.5
"""Percent of the values at either end that a window leaves out: marking moves the extremes, and hardly these."""
LEAST_SPAN = 32
"""Levels of the narrowest window. Below, the rounding to whole levels would be most of what the network sees."""
SIDE = 256
"""Pixels that the network sees of the shorter side, or up to twice as many; larger images are seen at a fraction."""

MOST = 1 << 22
"""Pixels that the network sees at most. Only images many times as long as they are wide have more."""
BAND = 1 << 20
"""Values that are turned into floating point at once."""


@dataclass(frozen=True)
class NetworkView:
    """Where an image's values and pixels lie in what the network sees.

    It is made anew from the marked image when that is read, so it depends on nothing that marking changes: on the size,
    and with more than 8 bits on percentiles.

    Args:
        height: of the image in pixels.
        width: of the image in pixels.
        lowest: stored value that is seen as 0.
        span: width of the range of values that is seen as 0 to 1.
        factor: side in pixels of the square that is seen as one pixel.
        cell: side in seen pixels of the squares that the network is made of.
    """

    height: int
    width: int
    lowest: float
    span: float
    factor: int
    cell: int

    @classmethod
    def of(cls, image: StoredImage, *, cell: int) -> Self:
        """The view of an image: all of an 8-bit range, but what is used of a deeper one.

        Scanners store 12 bits in 16, or less: seen whole, such an image would be flat and black.

        Raises:
            DataError: the image is too long for its width.
        """
        height, width = image.pixels.shape[:2]
        factor = max(1, min(height, width) // SIDE)
        if height * width > MOST * factor**2:
            raise DataError(f"expected an image less oblong than {width} x {height}: cut it into pieces")
        if image.bits <= 8:
            return cls(height, width, image.lowest, image.peak, factor, cell)
        used = image.pixels[~image.padding(image.pixels)]
        low, high = np.percentile(used if used.size else image.pixels, [TAIL, 100.0 - TAIL])
        return cls(height, width, float(low), float(max(high - low, LEAST_SPAN)), factor, cell)

    @property
    def _side(self) -> int:
        """Of a cell, in pixels of the image."""
        return self.cell * self.factor

    @property
    def cells(self) -> int:
        """How many cells the network has to write into."""
        return -(-self.height // self._side) * -(-self.width // self._side)

    def tensor(self, pixels: NDArray[Any]) -> Tensor:
        """What the network sees of stored values ``(H, W)`` or ``(H, W, 3)``: shape ``(1, 1, h, w)``, in [0, 1]."""
        rows = max(1, BAND // (self._side * self.width)) * self._side
        return torch.cat([self._band(pixels[top : top + rows]) for top in range(0, self.height, rows)], dim=2)

    def _band(self, pixels: NDArray[Any]) -> Tensor:
        seen = (pixels.astype(np.float32) - np.float32(self.lowest)) / np.float32(self.span)
        grey = torch.from_numpy(seen if seen.ndim == 2 else seen.mean(2)).clamp_(0.0, 1.0)[None, None]
        grey = functional.pad(grey, (0, -self.width % self._side, 0, -len(pixels) % self._side), mode="replicate")
        return functional.avg_pool2d(grey, self.factor) if self.factor > 1 else grey

    def residual(self, change: Tensor) -> NDArray[np.float32]:
        """A change of what the network sees, ``(1, 1, h, w)``, in stored values, ``(H, W)``."""
        if self.factor > 1:
            change = functional.interpolate(change, scale_factor=self.factor, mode="nearest")
        values: NDArray[np.float32] = change[0, 0, : self.height, : self.width].numpy() * np.float32(self.span)
        return values
