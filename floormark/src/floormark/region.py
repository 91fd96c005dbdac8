"""Where no pixel of an image may change: a rectangle, or a mask."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from floormark.errors import ConfigurationError
from floormark.imageio import read

GRAMMAR = "x,y,width,height in pixels, such as 100,80,64,64, or the file of a mask that is not zero where to protect"
RECTANGLE = re.compile(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*")


@dataclass(frozen=True, eq=False)
class Region:
    """Where no pixel may change."""

    text: str
    """As it was given: a rectangle ``x,y,w,h``, or the file of a mask."""
    drawn: NDArray[np.bool_] | None = None
    """The mask, True inside, shape ``(H, W)``."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``x,y,w,h``, or the mask in the file of that name."""
        if found := RECTANGLE.fullmatch(text):
            if not int(found[3]) or not int(found[4]):
                raise ConfigurationError(f"expected a region of at least one pixel, got {text!r}: {GRAMMAR}")
            return cls(text)
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
        return cls(text, inside)

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> Self:
        """The region of a mask that lies in memory."""
        drawn = np.asarray(mask)
        if drawn.dtype != np.bool_ or drawn.ndim != 2:
            raise ConfigurationError(f"expected a mask of bool and shape (H, W), got {drawn.dtype} of {drawn.shape}")
        return cls("protect", drawn)

    @property
    def identity(self) -> str:
        """What tells this region from others: a file may have changed under its name."""
        return self.place if self.drawn is None else self.place[:16]

    @property
    def place(self) -> str:
        """How certificates name it: ``x,y,w,h``, or the SHA-256 of the mask."""
        if self.drawn is None:
            return ",".join(str(int(number)) for number in self.text.split(","))
        return hashlib.sha256(f"{self.drawn.shape}".encode() + np.packbits(self.drawn).tobytes()).hexdigest()

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """True inside, for an image of that height and width."""
        height, width = shape
        if self.drawn is not None:
            if self.drawn.shape != (height, width):
                raise ConfigurationError(
                    f"{self.text}: expected a mask of {width} x {height} pixels, as the image, got "
                    f"{self.drawn.shape[1]} x {self.drawn.shape[0]}"
                )
            return self.drawn
        left, top, across, down = map(int, self.text.split(","))
        if left + across > width or top + down > height:
            raise ConfigurationError(f"expected a region inside of {width} x {height} pixels, got {self.text}")
        mask = np.zeros((height, width), np.bool_)
        mask[top : top + down, left : left + across] = True
        return mask
