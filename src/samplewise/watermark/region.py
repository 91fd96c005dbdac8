"""The part of an image that must stay as it is: a rectangle, or a mask from a file."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError
from samplewise.watermark.formats import read

__all__ = ["Region"]

GRAMMAR = "x,y,width,height in pixels, such as 100,80,64,64, or the file of a mask that is not zero where to protect"
RECTANGLE = re.compile(r"\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*")


@dataclass(frozen=True, eq=False)
class Region:
    """Where no pixel may change.

    Args:
        text: as it was given.
        rectangle: left, top, width and height in pixels; or
        drawn: True inside, shape ``(H, W)``.
    """

    text: str
    rectangle: tuple[int, int, int, int] | None = None
    drawn: NDArray[np.bool_] | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``x,y,w,h``, or the mask in the file of that name."""
        found = RECTANGLE.fullmatch(text)
        if found:
            left, top, width, height = (int(number) for number in found.groups())
            if not width or not height:
                raise ConfigurationError(f"expected a region of at least one pixel, got {text!r}: {GRAMMAR}")
            return cls(text, rectangle=(left, top, width, height))
        try:
            there = Path(text).exists()
        except OSError:  # such as a name that is too long
            there = False
        if not there:
            raise ConfigurationError(f"expected a region as {GRAMMAR}; got {text!r}")
        pixels = read(text).pixels
        inside = pixels != 0 if pixels.ndim == 2 else (pixels != 0).any(2)
        if not inside.any():
            raise ConfigurationError(f"{text}: expected a mask that protects some pixels, got one of zeros")
        return cls(text, drawn=inside)

    @property
    def identity(self) -> str:
        """What tells this region from others: a file may have changed under its name."""
        if self.drawn is None:
            return self.text
        return hashlib.sha256(f"{self.drawn.shape}".encode() + np.packbits(self.drawn).tobytes()).hexdigest()[:16]

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """True inside, for an image of ``shape`` ``(H, W)``."""
        height, width = shape
        if self.drawn is not None:
            if self.drawn.shape != (height, width):
                raise ConfigurationError(
                    f"{self.text}: expected a mask of {width} x {height} pixels, as the image, got "
                    f"{self.drawn.shape[1]} x {self.drawn.shape[0]}"
                )
            return self.drawn
        assert self.rectangle is not None
        left, top, across, down = self.rectangle
        if left + across > width or top + down > height:
            raise ConfigurationError(f"expected a region inside of {width} x {height} pixels, got {self.text}")
        mask = np.zeros((height, width), np.bool_)
        mask[top : top + down, left : left + across] = True
        return mask
