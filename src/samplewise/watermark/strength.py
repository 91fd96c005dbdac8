"""How strong a residual may be so that the stored integers keep a PSNR floor, and which floors there are."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, finite_number
from samplewise.watermark.certificate import stored_psnr
from samplewise.watermark.formats import StoredImage

__all__ = ["Strongest", "checked_floor", "highest_floor"]

LOWEST_FLOOR, HIGHEST_FLOOR = 25.0, 100.0
"""dB; a file below is no longer the same picture to anybody, and above not a pixel of it may change."""
FLOOR_STEP = 0.5
"""dB between the floors that are tried where one is too high."""
STRIDE = 4
"""Steps that are taken at once where none works yet."""
CLOSE = 0.02
"""dB above the floor that are not worth another look."""
LOOKS = 24


def checked_floor(psnr: float) -> float:
    """``psnr``, or say which floors there are."""
    floor = finite_number(psnr, "the PSNR floor")
    if not LOWEST_FLOOR <= floor <= HIGHEST_FLOOR:
        raise ConfigurationError(f"expected a PSNR floor of {LOWEST_FLOOR:g} to {HIGHEST_FLOOR:g} dB, got {floor:g}")
    return floor


def highest_floor(works: Callable[[float], bool], below: float) -> float | None:
    """The highest floor below ``below`` that works, to the step; None if none does.

    From above, as the lowest floors may not work: so strong a mark can be clipped, or move the range of the values.
    """
    fails = math.ceil((below - LOWEST_FLOOR) / FLOOR_STEP)  # in steps above the lowest
    found = max(0, fails - STRIDE)
    while not works(LOWEST_FLOOR + FLOOR_STEP * found):
        if found == 0:
            return None
        found, fails = max(0, found - STRIDE), found
    while fails - found > 1:
        middle = (found + fails) // 2
        found, fails = (middle, fails) if works(LOWEST_FLOOR + FLOOR_STEP * middle) else (found, middle)
    return LOWEST_FLOOR + FLOOR_STEP * found


@dataclass(frozen=True)
class Strongest:
    """The strongest marking of one image at any floor.

    Args:
        image: to be marked.
        residual: to be added, zero where nothing may change; shape ``(H, W)``, or ``(H, W, 1)`` for colour.
        peak: what the floor is measured against.
        limit: how many times the residual is taken at most.
    """

    image: StoredImage
    residual: NDArray[np.float32]
    peak: float
    limit: float

    def pixels(self, floor: float) -> NDArray[Any]:
        """The image with as much of the residual as keeps the PSNR of the stored integers at ``floor`` dB or above.

        Rounding makes the PSNR a ragged function of the strength, so what is returned was itself measured.
        """
        energy = float(np.mean(np.square(self.residual, dtype=np.float64)))
        if energy == 0.0:
            return self.image.pixels
        allowed = (self.peak / 10.0 ** (floor / 20.0)) ** 2
        low, high = 0.0, 2.0 * self.limit
        best, strength = self.image.pixels, min(math.sqrt(allowed / energy), self.limit)
        for _ in range(LOOKS):
            pixels = self.image.nearest(self.image.pixels + np.float32(strength) * self.residual)
            reached = stored_psnr(self.image.pixels, pixels, self.peak)
            if reached is None or reached >= floor:
                low, best = strength, pixels
                if strength == self.limit or (reached is not None and reached - floor < CLOSE):
                    break
            else:
                high = strength
            if high - low < 1e-4 * high:
                break
            # Were there no rounding, this would be it; if it leads outside of what is known, the middle.
            guess = strength * 10.0 ** ((reached - floor) / 20.0) * 0.9995 if reached is not None else 2.0 * strength
            strength = min(guess if low < guess < high else 0.5 * (low + high), self.limit)
        return best
