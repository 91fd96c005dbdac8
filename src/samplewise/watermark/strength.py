"""How strong a residual may be so that the stored integers keep a PSNR floor, and which floors there are."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, finite_number
from samplewise.watermark.formats import StoredImage, bands

LOWEST_FLOOR, HIGHEST_FLOOR = 25.0, 100.0
"""dB; a file below is no longer the same picture to anybody, and above not a pixel of it may change."""
FLOOR_STEP = 0.5
"""dB between the floors that are tried where one is too high."""
STRIDE = 4
"""Steps that are taken at once where none works yet."""
CLOSE = 0.02
"""dB above the floor that are not worth another look."""
LOOKS = 24
BAND = 1 << 18
"""Values that are looked at at once."""


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


@dataclass(frozen=True)
class Strongest:
    """The strongest marking of one image at any floor."""

    image: StoredImage
    residual: NDArray[np.float32]
    """To be added, to all colours alike, zero where nothing may change; shape ``(H, W)``."""
    peak: float
    """What the floor is measured against."""
    limit: float
    """How many times the residual is taken at most."""

    def pixels(self, floor: float) -> NDArray[Any]:
        """The image with as much of the residual as keeps the PSNR of the stored integers at ``floor`` dB or above.

        Rounding makes the PSNR a ragged function of the strength, so what is returned was itself measured.
        """
        rms = math.sqrt(np.vdot(self.residual, self.residual) / self.residual.size)
        if rms == 0.0:
            return self.image.pixels
        low, high = 0.0, 2.0 * self.limit
        # Were there neither rounding nor clipping, this would be it.
        strength = min(self.peak / 10.0 ** (floor / 20.0) / rms, self.limit)
        for _ in range(LOOKS):
            squares = self._squares(strength)
            reached = 10.0 * math.log10(self.peak**2 * self.image.pixels.size / squares) if squares else None
            if reached is None or reached >= floor:
                low = strength
                if strength == self.limit or (reached is not None and reached - floor < CLOSE):
                    break
            else:
                high = strength
            if high - low < 1e-4 * high:
                break
            # In proportion; if that leads outside of what is known, the middle.
            guess = strength * 10.0 ** ((reached - floor) / 20.0) * 0.9995 if reached is not None else 2.0 * strength
            strength = min(guess if low < guess < high else 0.5 * (low + high), self.limit)
        found = np.empty_like(self.image.pixels)
        self._squares(low, found)
        return found

    def _squares(self, strength: float, into: NDArray[Any] | None = None) -> int:
        """The sum of all squared differences at a strength; the pixels are written to ``into``, if given."""
        total = 0
        for rows in bands(self.image.pixels, BAND):
            own = self.image.with_pixels(self.image.pixels[rows])
            residual = self.residual[rows] if own.pixels.ndim == 2 else self.residual[rows][..., None]
            pixels = own.nearest(own.pixels + np.float32(strength) * residual)
            difference = (pixels.astype(np.int32) - own.pixels).ravel()
            total += int(np.vdot(difference.astype(np.int64), difference))
            if into is not None:
                into[rows] = pixels
        return total
