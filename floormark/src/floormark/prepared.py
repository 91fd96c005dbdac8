"""One image prepared for marking and reading: each quantity is measured once."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from floormark.display_range import patch_sizes, relative_floors, shown_grey, shown_range
from floormark.errors import DataError
from floormark.filters import Picture, filled, local_maximum, resized, shrunk
from floormark.imageio import StoredImage, bands
from floormark.network import CELL
from floormark.patches import unseen_floors
from floormark.payload import Key, derived
from floormark.periods import Window
from floormark.registration import Alignment, resample

NETWORK_SIDE = 256
"""The network's pixels along the shorter side of an image, whatever its size; smaller images are not resized."""
PICTURE_SIDE = 1024
"""Pixels of the shorter side, or up to twice as many, of the picture in which a mark is searched for."""
MAX_NETWORK_PIXELS = 1 << 22
"""Most pixels of the network's input. Only images many times as long as they are wide have more."""
LEVELS = np.float32(255)  # steps of grey between black and white
LEAST_STRETCH, MOST_STRETCH = 0.03, 0.12
"""Bounds on the logarithm by which a key stretches the layout in height and in width: enough that tiles of two layouts
disagree within an image, and little enough that as many tiles fit."""
COVERED_SHAPES, COVERED_RANGE = ((7, 7), (3, 21), (21, 3)), 3.0
"""Windows (rows and columns of the network's pixels) and their largest range of grey levels, where something flat may
cover the image: a box, or a stripe."""
MIN_UNCOVERED = 0.3  # least visible part of a cell that counts


@dataclass(frozen=True)
class TileLayout:
    """How the tiles of a key lie in an image that was not moved; a mark of another key disturbs only few of them.

    Without a key they begin at its corner, and the network's pixels are square.
    """

    stretch: tuple[float, float] = (1.0, 1.0)
    """Height and width of the network's pixels, relative to those without a key."""
    shift: tuple[float, float] = (0.0, 0.0)
    """Rows and columns by which tiles begin before the corner, in the network's pixels: less than a cell."""

    @classmethod
    def of(cls, key: Key | None) -> Self:
        if key is None:
            return cls()
        draws = np.frombuffer(derived(key, "layout", 12), "<u2") / 65536.0
        sizes = LEAST_STRETCH + (MOST_STRETCH - LEAST_STRETCH) * draws[:2]
        stretch = np.exp(np.where(draws[2:4] < 0.5, -sizes, sizes)).tolist()
        shift = (CELL * draws[4:]).tolist()
        return cls((stretch[0], stretch[1]), (shift[0], shift[1]))

    def alignment(self, scale: float) -> Alignment:
        """Where the network's pixels lie in a picture with ``scale`` pixels for each of them without a key."""
        matrix = scale * np.diag(self.stretch)
        return Alignment(matrix, -matrix @ np.array(self.shift))

    def places(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """Points ``(..., 2)`` in the network's pixels with the key, from those without a key."""
        found: NDArray[np.float64] = points / np.array(self.stretch) + np.array(self.shift)
        return found


@dataclass(frozen=True, eq=False)
class NetworkInput:
    """The network's input for an image: grey levels at the network's pixels, of which the first begins a tile."""

    grey: Picture  # from 0 to 255
    inside: NDArray[np.bool_]  # which pixels lie in the image, same shape
    alignment: Alignment  # where they lie
    origin: NDArray[np.int64]  # the row and the column of the first pixel, in whole cells or tiles
    missing: NDArray[np.bool_] | None = None  # pixels covered by something flat, such as a text box

    @cached_property
    def picture(self) -> Picture:
        """The grey levels scaled to [0, 1], as the network takes them."""
        return np.asarray(self.grey / LEVELS)

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Which pixels show the image, same shape."""
        return self.inside if self.missing is None else self.inside & ~self.missing

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """The visible part of each cell, 0 if it is small, shape ``(h / 8, w / 8)``."""
        down, across = (length // CELL for length in self.grey.shape)
        shown = self.usable.reshape(down, CELL, across, CELL).mean((1, 3), dtype=np.float32)
        return np.where(shown >= MIN_UNCOVERED, shown, np.float32(0.0))

    def uncovered(self) -> "NetworkInput | None":
        """The same with flat regions, such as text boxes and stripes, filled in; None if nothing or all is flat.

        Otherwise their edges would mask the mark around them.
        """
        missing = np.zeros(self.grey.shape, np.bool_)
        for rows, columns in COVERED_SHAPES:
            flat = (
                local_maximum(self.grey, (rows, columns)) + local_maximum(-self.grey, (rows, columns)) <= COVERED_RANGE
            )
            missing |= local_maximum(flat.astype(np.float32), (rows + 2, columns + 2)) > 0  # its edges as well
        if not missing.any() or missing.all():
            return None
        return replace(self, grey=filled(self.grey, missing), missing=missing)


@dataclass(frozen=True, eq=False)
class PreparedImage:
    """A stored image and its quantities for marking, reading and certifying, each computed when first needed.

    Reading has only the marked image, so it uses what marking hardly changes: the size, the display window and, with
    more than 8 bits and no window, percentiles.
    """

    image: StoredImage
    _inputs: dict[TileLayout, NetworkInput] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def of(cls, image: Any) -> Self:
        """Prepare an array, a Pillow image, or an image that was read from a file."""
        if isinstance(image, cls):
            return image
        return cls(image if isinstance(image, StoredImage) else _stored(image))

    def with_pixels(self, pixels: NDArray[Any]) -> Self:
        """The same image with other pixels, with nothing computed yet."""
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

    @cached_property
    def unseen_floors(self) -> NDArray[np.float64]:
        """The least PSNR in dB at which a mark is invisible in each patch, ``(rows, columns)``."""
        rows, columns = patch_sizes(self.pixels.shape).shape
        height, width = (max(1, round(length / self.scale)) for length in self.pixels.shape[:2])
        return unseen_floors(resized(self.picture, (height, width)), (rows, columns))

    @property
    def scale(self) -> float:
        """Pixels of the image per pixel of the network, without a key, if it was not moved."""
        return max(1.0, float(min(self.pixels.shape[:2])) / NETWORK_SIDE)

    @property
    def factor(self) -> int:
        """Pixels of the image per pixel of :attr:`picture`."""
        factor: int = max(1, min(self.pixels.shape[:2]) // PICTURE_SIDE)
        return factor

    @cached_property
    def picture(self) -> Picture:
        """The shown range in grey levels from 0 to 255; large images are reduced.

        Raises:
            DataError: the image is too oblong.
        """
        height, width = self.pixels.shape[:2]
        if height * width > MAX_NETWORK_PIXELS * max(1, min(height, width) // NETWORK_SIDE) ** 2:
            raise DataError(f"expected an image less oblong than {width} x {height}: cut it into pieces")
        parts = []
        for rows in bands(self.pixels, unit=self.factor):
            grey = shown_grey(self.pixels[rows], self.shown)
            parts.append(shrunk(grey, self.factor) if self.factor > 1 else grey)
        return np.concatenate(parts) * LEVELS

    def network_input(self, layout: TileLayout) -> NetworkInput:
        """The network's input if the image was not moved."""
        if layout not in self._inputs:
            self._inputs[layout] = self.resample(layout.alignment(self.scale / self.factor), CELL)
        return self._inputs[layout]

    def resample(self, alignment: Alignment, unit: int, window: Window | None = None) -> NetworkInput:
        """The network's input at an alignment, in whole units of pixels; from a window of the picture, if given."""
        picture = self.picture if window is None else window.of(self.picture)
        seen = alignment if window is None else alignment.seen_from(window.top, window.left)
        origin, shape = seen.covering(picture.shape, unit)
        grey, inside = resample(picture, seen, origin, shape)
        grey = np.clip(LEVELS - grey if alignment.inverted else grey, 0, LEVELS)
        return NetworkInput(grey, inside, alignment, origin)

    def too_large(self, alignment: Alignment, window: Window) -> bool:
        """Whether a window has too many of the network's pixels, such as a very oblong one at an angle."""
        return math.prod(alignment.covering(window.of(self.picture).shape, CELL)[1]) > MAX_NETWORK_PIXELS


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
