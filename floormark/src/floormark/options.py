"""What may be asked of an embedding: the options of ``Watermarker.embed``, of files, of folders and of the command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Self

from floormark.errors import ConfigurationError, finite_number

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from floormark.region import Region

LOWEST_FLOOR, HIGHEST_FLOOR = 25.0, 100.0
"""dB; a file below is no longer the same picture to anybody, and above not a pixel of it may change."""


def checked_floor(psnr: float) -> float:
    """``psnr``, or say which floors there are."""
    floor = finite_number(psnr, "the PSNR floor")
    if not LOWEST_FLOOR <= floor <= HIGHEST_FLOOR:
        raise ConfigurationError(f"expected a PSNR floor of {LOWEST_FLOOR:g} to {HIGHEST_FLOOR:g} dB, got {floor:g}")
    return floor


def _number(name: str) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            return float(text)
        except ValueError:
            raise ConfigurationError(f"expected a number for --{name}, got {text!r}") from None

    return parse


def _region(text: str) -> Region:
    from floormark.region import Region  # here, since --help does without NumPy

    return Region.parse(text)


def _command(help: str, parse: Callable[[str], Any] | None = None) -> dict[str, Any]:
    """What makes a field an option of the command too: ``parse`` reads its text, and one without it is a flag."""
    return {"help": help, "parse": parse}


@dataclass(frozen=True, eq=False)
class EmbedOptions:
    """How a message is embedded. A new option takes a field here, and its place in the signature of ``embed``."""

    psnr: float = field(
        default=45.0, metadata=_command("PSNR in dB that every written file keeps; 45 if not given", _number("psnr"))
    )
    """Floor in dB that the stored integers keep; that of a patch is the higher the calmer it is."""
    protect: Region | NDArray[np.bool_] | None = field(
        default=None, metadata=_command("region that stays bit-exact: x,y,w,h, or the file of a mask", _region)
    )
    """Where no pixel may change; a mask is True there, shape ``(H, W)``."""
    max_difference: float | None = field(
        default=None,
        metadata=_command("the most by which any stored value may change", _number("max-difference")),
    )
    replace: bool = field(default=False, metadata=_command("write in the place of a message that is there already"))
    """Instead of refusing an image that is marked."""

    def __post_init__(self) -> None:
        # What is wrong for every image is said before one is read.
        object.__setattr__(self, "psnr", checked_floor(self.psnr))
        if self.max_difference is not None:
            most = finite_number(self.max_difference, "the largest difference")
            if most < 1:
                raise ConfigurationError(f"expected a largest difference of at least 1, got {most:g}")
            object.__setattr__(self, "max_difference", most)

    @classmethod
    def parsed(cls, **texts: Any) -> Self:
        """From the options of a command, by name: texts, flags, or None for those that were not given."""
        parse = {option.name: option.metadata["parse"] for option in fields(cls)}
        given = {name: value for name, value in texts.items() if value is not None}
        return cls(**{name: value if parse[name] is None else parse[name](value) for name, value in given.items()})

    @property
    def region(self) -> Region | None:
        """:attr:`protect`, be it given as a region or as a mask."""
        if self.protect is None:
            return None
        from floormark.region import Region

        return self.protect if isinstance(self.protect, Region) else Region.of(self.protect)

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_] | None:
        """True where nothing may change in an image of that shape; None if everything may."""
        return None if self.region is None else self.region.mask(shape[:2])

    def settings(self) -> dict[str, Any]:
        """What tells these options from others, as JSON has it."""
        found = {option.name: getattr(self, option.name) for option in fields(self)}
        return found | {"protect": None if self.region is None else self.region.identity}
