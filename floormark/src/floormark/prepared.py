"""One image prepared for marking and reading: what is measured of it is measured once."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from floormark.display_range import relative_floors, shown_grey, shown_range
from floormark.errors import DataError
from floormark.filters import Picture
from floormark.imageio import StoredImage, bands
from floormark.network import CELL
from floormark.registration import Alignment, resample

NETWORK_SIDE = 256
"""The network's pixels along the shorter side of an image, whatever its size; smaller images are taken as they are."""
PICTURE_SIDE = 1024
"""Pixels of the shorter side, or up to twice as many, of the picture in which a mark is searched for."""
MAX_NETWORK_PIXELS = 1 << 22
"""Pixels that the network is given at most. Only images many times as long as they are wide have more."""
LEVELS = np.float32(255)  # steps of grey between black and white


@dataclass(frozen=True, eq=False)
class NetworkInput:
    """What the network is given of an image: grey levels at its own pixels, of which the first begins a tile."""

    grey: Picture  # from 0 to 255
    inside: NDArray[np.bool_]  # which pixels lie in the image, same shape
    origin: NDArray[np.int64]  # the row and the column of the first pixel; zeros unless the image was registered

    def tensor(self) -> Tensor:
        """In [0, 1], shape ``(1, 1, h, w)``."""
        return torch.from_numpy(self.grey / LEVELS)[None, None]

    def weights(self) -> Tensor:
        """1 for cells that lie in the image, else 0, shape ``(1, 1, h / 8, w / 8)``."""
        down, across = self.grey.shape[0] // CELL, self.grey.shape[1] // CELL
        cells = self.inside.reshape(down, CELL, across, CELL).all((1, 3)).astype(np.float32)
        return torch.from_numpy(cells)[None, None]


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """A stored image and what marking, reading and certifying need to know of it, each computed when first needed.

    Reading starts from the marked image alone, so it uses only what marking hardly changes: the size, the display
    window and, with more than 8 bits and no window, percentiles.
    """

    image: StoredImage

    @classmethod
    def of(cls, image: Any) -> Self:
        """Of an array, a Pillow image, or an image that was read from a file."""
        if isinstance(image, cls):
            return image
        return cls(image if isinstance(image, StoredImage) else _stored(image))

    def with_pixels(self, pixels: NDArray[Any]) -> Self:
        """The same image with other pixels, of which nothing is known yet."""
        return type(self)(self.image.with_pixels(pixels))

    @property
    def pixels(self) -> NDArray[Any]:
        """The stored integers, ``(H, W)`` or ``(H, W, 3)``."""
        return self.image.pixels

    @cached_property
    def shown(self) -> tuple[float, float]:
        """The lowest stored value and the width of the range that is shown."""
        return shown_range(self.image)

    @cached_property
    def relative_floors(self) -> NDArray[np.float64]:
        """How many dB the floor of each patch lies above that of the image, ``(rows, columns)``."""
        return relative_floors(self.image, self.shown)

    @property
    def scale(self) -> float:
        """Pixels of the image for one of the network's, where nobody moved it."""
        return max(1.0, float(min(self.pixels.shape[:2])) / NETWORK_SIDE)

    @property
    def factor(self) -> int:
        """Pixels of the image for one of :attr:`picture`."""
        factor: int = max(1, min(self.pixels.shape[:2]) // PICTURE_SIDE)
        return factor

    @cached_property
    def picture(self) -> Picture:
        """What is shown, in grey levels from 0 to 255, large images at a fraction of their size.

        Raises:
            DataError: the image is too oblong.
        """
        height, width = self.pixels.shape[:2]
        if height * width > MAX_NETWORK_PIXELS * max(1, min(height, width) // NETWORK_SIDE) ** 2:
            raise DataError(f"expected an image less oblong than {width} x {height}: cut it into pieces")
        parts = []
        for rows in bands(self.pixels, unit=self.factor):
            grey = torch.from_numpy(shown_grey(self.pixels[rows], self.shown))[None, None]
            parts.append(functional.avg_pool2d(grey, self.factor) if self.factor > 1 else grey)
        picture: Picture = torch.cat([part for part in parts if part.shape[2]], dim=2)[0, 0].numpy()
        return picture * LEVELS

    @property
    def unmoved(self) -> Alignment:
        """Where the network's pixels lie if nobody moved the image."""
        return Alignment(self.scale / self.factor * np.eye(2), np.zeros(2))

    @cached_property
    def network_input(self) -> NetworkInput:
        """What the network is given if nobody moved the image."""
        return self.resample(self.unmoved, CELL)

    def resample(self, alignment: Alignment, unit: int) -> NetworkInput:
        """What the network is given at an alignment, in whole units of pixels."""
        origin, shape = alignment.covering(self.picture.shape, unit)
        grey, inside = resample(self.picture, alignment, origin, shape)
        return NetworkInput(np.clip(LEVELS - grey if alignment.inverted else grey, 0, LEVELS), inside, origin)


def _stored(image: Any) -> StoredImage:
    """An array or a Pillow image as stored integers."""
    mode = None if isinstance(image, np.ndarray) else getattr(image, "mode", None)  # that of np.memmap is another
    if mode is not None and mode not in ("L", "RGB", "I;16"):
        raise DataError(f"expected an image in grey (L, I;16) or RGB, got mode {mode}: convert it first")
    pixels = np.array(image)
    shaped = pixels.ndim >= 2 and pixels.size and pixels.shape[2:] in ((), (3,))
    if not shaped or pixels.dtype not in (np.uint8, np.uint16):
        raise DataError(
            f"expected an image (H, W) or (H, W, 3) of uint8 or uint16, got shape {pixels.shape} of {pixels.dtype}"
        )
    return StoredImage(pixels, 8 * pixels.itemsize)
