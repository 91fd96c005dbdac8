"""The options of an embedding: for ``Watermarker.embed``, files, folders and the command.

NumPy is imported where it is needed: the command's ``--help`` does without.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict

from floormark.errors import ConfigurationError, finite_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOWEST_FLOOR, HIGHEST_FLOOR = 25.0, 100.0
"""dB: below, a file is visibly another picture; above, not a pixel of it may change."""
ADVISED_FLOOR = 38.0
"""dB: no lower floor is advised, since the mark may show; it is accepted if asked for."""
REGION_GRAMMAR = "x,y,width,height in pixels, such as 100,80,64,64, or the file of a mask, not zero where to protect"
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
                raise ConfigurationError(f"expected a region of at least one pixel, got {text!r}: {REGION_GRAMMAR}")
            return cls(text)
        try:
            there = Path(text).exists()
        except OSError:  # such as a name that is too long
            there = False
        if not there:
            raise ConfigurationError(f"expected a region as {REGION_GRAMMAR}; got {text!r}")
        from floormark.imageio import read

        pixels = read(text).pixels
        inside = pixels != 0 if pixels.ndim == 2 else (pixels != 0).any(2)
        if not inside.any():
            raise ConfigurationError(f"{text}: expected a mask that protects some pixels, got one of zeros")
        return cls(text, inside)

    @classmethod
    def of(cls, mask: NDArray[np.bool_]) -> Self:
        """The region of a mask in memory."""
        import numpy as np

        drawn = np.asarray(mask)
        if drawn.dtype != np.bool_ or drawn.ndim != 2:
            raise ConfigurationError(f"expected a mask of bool and shape (H, W), got {drawn.dtype} of {drawn.shape}")
        return cls("protect", drawn)

    @property
    def place(self) -> str:
        """Its entry in certificates: ``x,y,w,h``, or the SHA-256 of the mask."""
        if self.drawn is None:
            return ",".join(str(int(number)) for number in self.text.split(","))
        import numpy as np

        return hashlib.sha256(f"{self.drawn.shape}".encode() + np.packbits(self.drawn).tobytes()).hexdigest()

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """True inside, for an image of that height and width."""
        import numpy as np

        height, width = shape[:2]
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


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigurationError(f"expected a number, got {text!r}") from None


def _command(help: str, parse: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """Metadata that make a field an option of the command: ``parse`` reads its text; without ``parse`` it is a flag."""
    return {"help": help, "parse": parse}


class OptionsByName(TypedDict, total=False):
    """The arguments of :class:`EmbedOptions`, for functions that take them by name."""

    psnr: float
    protect: Region | NDArray[np.bool_] | None
    max_difference: float | None
    replace: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class EmbedOptions:
    """How a message is embedded. A new option takes a field here and its type in :class:`OptionsByName`."""

    psnr: float = field(
        default=45.0, metadata=_command("PSNR in dB that every written file keeps; 45 if not given", _number)
    )
    """Floor in dB that the stored integers keep; a smoother patch has a higher one."""
    protect: Region | NDArray[np.bool_] | None = field(
        default=None, metadata=_command("region that stays bit-exact: x,y,w,h, or the file of a mask", Region.parse)
    )
    """Where no pixel may change; a mask is True there, shape ``(H, W)``."""
    max_difference: float | None = field(
        default=None, metadata=_command("the most by which any stored value may change", _number)
    )
    """The most by which a stored value may change."""
    replace: bool = field(default=False, metadata=_command("write in the place of a message that is there already"))
    """Replace the message of an image that is marked already, instead of refusing it."""

    def __post_init__(self) -> None:
        # What is wrong for every image is an error before one is read.
        floor = finite_number(self.psnr, "the PSNR floor")
        if not LOWEST_FLOOR <= floor <= HIGHEST_FLOOR:
            allowed = f"{LOWEST_FLOOR:g} to {HIGHEST_FLOOR:g} dB"
            raise ConfigurationError(f"expected a PSNR floor of {allowed}, got {floor:g}")
        object.__setattr__(self, "psnr", floor)
        if self.max_difference is not None:
            most = finite_number(self.max_difference, "the largest difference")
            if most < 1:
                raise ConfigurationError(f"expected a largest difference of at least 1, got {most:g}")
            object.__setattr__(self, "max_difference", most)

    @classmethod
    def parsed(cls, texts: dict[str, Any]) -> Self:
        """The options from a command's arguments by name: texts, flags, or None where not given."""
        given: dict[str, Any] = {}
        for option in fields(cls):
            value, parse = texts.get(option.name), option.metadata["parse"]
            if value is not None:
                try:
                    given[option.name] = value if parse is None else parse(value)
                except ConfigurationError as error:
                    raise ConfigurationError(f"--{option.name.replace('_', '-')}: {error}") from error
        return cls(**given)

    @property
    def region(self) -> Region | None:
        """:attr:`protect`, be it given as a region or as a mask."""
        return self.protect if self.protect is None or isinstance(self.protect, Region) else Region.of(self.protect)

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """True where nothing may change in an image of that shape; None if everything may."""
        return None if self.region is None else self.region.mask(shape)

    def settings(self) -> dict[str, Any]:
        """The options by name as JSON values, to compare with another run."""
        found = {option.name: getattr(self, option.name) for option in fields(self)}
        return found | {"protect": None if self.region is None else self.region.place}
