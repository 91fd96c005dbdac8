"""How strong a residual may be so that the stored integers keep a floor, image and patches; which floors there are."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from floormark.display_range import patch_sizes, patch_squares, relative_floors, shown_range
from floormark.errors import ConfigurationError, finite_number
from floormark.imageio import StoredImage, bands
from floormark.patches import PATCH

LOWEST_FLOOR, HIGHEST_FLOOR = 25.0, 100.0
"""dB; a file below is no longer the same picture to anybody, and above not a pixel of it may change."""
FLOOR_STEP = 0.5
"""dB between the floors that are tried where one is too high."""
STRIDE = 4
"""Steps that are taken at once where none works yet."""
CLOSE = 0.995
"""Share of the squared error that a floor allows; more is not worth another look."""
LOOKS = 8
"""At different strengths, or twice as many if none has kept all floors until then."""
BACK, FAR_BACK = 0.97, 0.6
"""What is left of the strength of a patch that rounding took below its floor, beside what its excess says; the second
where that was not enough: in a patch that is all alike, all values round to the next one at once."""
BAND = 1 << 18
"""Values that are looked at at once."""
KEPT = 1 << 22
"""Values of an image whose residual is kept at full size; that of a larger one is made anew for each look."""


def checked_floor(psnr: float) -> float:
    """``psnr``, or say which floors there are."""
    floor = finite_number(psnr, "the PSNR floor")
    if not LOWEST_FLOOR <= floor <= HIGHEST_FLOOR:
        raise ConfigurationError(f"expected a PSNR floor of {LOWEST_FLOOR:g} to {HIGHEST_FLOOR:g} dB, got {floor:g}")
    return floor


def highest_floor(works: Callable[[float], bool], below: float, *, step: float = FLOOR_STEP) -> float | None:
    """The highest floor below ``below`` that works, to the step; None if none does.

    From above, as the lowest floors may not work: so strong a mark can be clipped, or move the range of the values.
    """
    fails = math.ceil((below - LOWEST_FLOOR) / step)  # in steps above the lowest
    found = max(0, fails - STRIDE)
    while not works(LOWEST_FLOOR + step * found):
        if found == 0:
            return None
        found, fails = max(0, found - STRIDE), found
    while fails - found > 1:
        middle = (found + fails) // 2
        found, fails = (middle, fails) if works(LOWEST_FLOOR + step * middle) else (found, middle)
    return LOWEST_FLOOR + step * found


@dataclass(frozen=True, eq=False)
class Drawing:
    """What a network adds to an image to hide bits in it."""

    bits: NDArray[np.uint8]
    residual: NDArray[np.float32]
    """To be added, to all colours alike, in stored values, at the network's scale ``(h, w)``."""
    scale: float
    """Pixels of the image for one of the network's."""


def enlarged(
    values: NDArray[np.float32], scale: float, rows: slice, width: int, *, smooth: bool = True
) -> NDArray[Any]:
    """Rows of ``values`` at ``scale`` times its size, between its points along cubic curves, or straight lines."""
    from PIL import Image

    box = (0.0, rows.start / scale, width / scale, rows.stop / scale)
    how = Image.Resampling.BICUBIC if smooth else Image.Resampling.BILINEAR
    return np.asarray(Image.fromarray(values).resize((width, rows.stop - rows.start), how, box=box))


@dataclass(frozen=True)
class Strongest:
    """The strongest marking of one image at any floor."""

    image: StoredImage
    drawing: Drawing
    limit: float
    """How many times the residual is taken at most."""
    protect: NDArray[np.bool_] | None = None
    """Where no pixel may change, ``(H, W)``."""
    largest: float | None = None
    """The most that a stored value may change."""

    @cached_property
    def _bands(self) -> list[slice]:
        """Rows that are looked at at once."""
        height = len(self.image.pixels)
        return [slice(rows.start, min(rows.stop, height)) for rows in bands(self.image.pixels, BAND, unit=PATCH)]

    @cached_property
    def _kept(self) -> list[NDArray[np.float32]] | None:
        return None if self.image.pixels.size > KEPT else [self._residual(rows) for rows in self._bands]

    def _residual(self, rows: slice) -> NDArray[np.float32]:
        """At full size, in single rows, zero where nothing may change."""
        scale, width = self.drawing.scale, self.image.pixels.shape[1]
        residual = (
            enlarged(self.drawing.residual, scale, rows, width) if scale > 1 else self.drawing.residual[rows, :width]
        )
        return residual if self.protect is None else np.where(self.protect[rows], np.float32(0.0), residual)

    def pixels(self, floor: float) -> NDArray[Any]:
        """The image with as much of the residual as keeps the image and every patch of it at its floor or above.

        Rounding makes the PSNR a ragged function of the strength, so what is returned was itself measured. In a patch
        the strength is no more than it can take, and goes over into that of its neighbours.
        """
        span, sizes = shown_range(self.image)[1], patch_sizes(self.image.pixels.shape)
        allowed = sizes * span**2 * 10.0 ** (-(floor + self._relative_floors) / 10.0)
        whole = span**2 * self.image.pixels.size * 10.0 ** (-floor / 10.0)
        if not self.drawing.residual.any():
            return self.image.pixels
        rms = math.sqrt(float(np.square(self.drawing.residual).mean()))
        strength = min(span * 10.0 ** (-floor / 20.0) / rms, self.limit)
        caps = np.full(sizes.shape, self.limit)
        best, reached, unit = None, 0.0, np.zeros(sizes.shape)
        for look in range(2 * LOOKS):
            if look >= LOOKS and best is not None:
                break
            taken = _taken(caps, strength)
            if best is not None and np.allclose(taken, best, rtol=1e-4):
                break  # no patch can take more
            squares = self._squares(taken)
            excess, total = squares / allowed, float(squares.sum()) / whole
            if look == 0:
                unit = squares / strength**2
            if (excess <= 1.0).all() and total <= 1.0 and total >= reached:
                best, reached = taken, total
                if total > CLOSE or strength >= self.limit:
                    break
            with np.errstate(divide="ignore"):
                room = taken / np.sqrt(np.maximum(excess, 1e-12))
            # At first what each patch can take is known from how it fared; then only those beyond are put right.
            back = BACK if look < LOOKS else FAR_BACK
            caps = (
                np.minimum(np.maximum(room, 1e-3), self.limit) if look == 0 else np.where(excess > 1, back * room, caps)
            )
            strength = _strength(unit, caps, self.limit, whole, found=(taken, squares))
        found = np.empty_like(self.image.pixels)
        self._squares(np.zeros(sizes.shape) if best is None else best, found)
        return found

    @cached_property
    def _relative_floors(self) -> NDArray[np.float64]:
        return relative_floors(self.image)

    def _squares(self, strength: NDArray[np.float64], into: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Sums of squared differences in patches of so much strength; the pixels are written to ``into``, if given."""
        found = []
        for number, rows in enumerate(self._bands):
            residual = self._residual(rows) if self._kept is None else self._kept[number]
            change = residual * enlarged(strength.astype(np.float32), PATCH, rows, residual.shape[1], smooth=False)
            if self.largest is not None:
                np.clip(change, -self.largest, self.largest, out=change)
            own = self.image.with_pixels(self.image.pixels[rows])
            pixels = own.nearest(own.pixels + (change if own.pixels.ndim == 2 else change[..., None]))
            found.append(patch_squares(pixels.astype(np.int32) - own.pixels))
            if into is not None:
                into[rows] = pixels
        return np.concatenate(found)


def _taken(caps: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    """The strength of each patch: no more than it or its neighbours can take, as it goes over into theirs."""
    taken: NDArray[np.float64] = ndimage.minimum_filter(np.minimum(caps, strength), 3, mode="nearest")
    return taken


def _strength(
    unit: NDArray[np.float64],
    caps: NDArray[np.float64],
    limit: float,
    whole: float,
    *,
    found: tuple[NDArray[np.float64], NDArray[np.int64]],
) -> float:
    """At which strength, up to ``limit``, the squared error would be ``whole``, what the floor allows.

    A patch has ``unit`` times the square of its strength, and as much more in all, since the strengths of neighbours
    go over into each other, as the sums that were ``found`` at the last strengths have.
    """
    taken, squares = found
    more = float(squares.sum()) / max(float((unit * taken**2).sum()), 1e-9)
    low, high = 0.0, limit
    for _ in range(40):
        middle = 0.5 * (low + high)
        inside = more * float((unit * _taken(caps, middle) ** 2).sum()) <= 0.998 * whole
        low, high = (middle, high) if inside else (low, middle)
    return max(low, 1e-6)
