"""How strong a residual may be so that the stored integers keep a PSNR floor."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.watermark.certificate import stored_psnr
from samplewise.watermark.formats import StoredImage

__all__ = ["Strongest"]

CLOSE = 0.02
"""dB above the floor that are not worth another look."""
LOOKS = 24


@dataclass(frozen=True)
class Strongest:
    """The strongest marking of one image at any floor.

    Args:
        image: to be marked.
        residual: to be added, same shape, zero where nothing may change.
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
