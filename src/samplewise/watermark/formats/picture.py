"""What every format gives: the stored integers of one image, and a way to write others in their place."""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from samplewise.checkpoint import atomic
from samplewise.errors import ConfigurationError, DataError, OutputError, SamplewiseError

__all__ = ["MAX_PIXELS", "Picture", "Pixels", "StoredImage", "one_line"]

MAX_PIXELS = 1 << 26  # four times the largest mammogram; beyond it a small file may fill the memory
OBJECT = re.compile(r" ?<\S+ object at \w+>")  # says nothing to a user, and is never the same twice
Pixels = NDArray[Any]  # uint8, uint16 or int16


def one_line(error: Exception) -> str:
    """What a library says of a file, short enough for one line."""
    text = OBJECT.sub("", " ".join(str(error).partition("Traceback")[0].split()))
    return text[:200] or type(error).__name__


@dataclass(frozen=True, eq=False)
class StoredImage:
    """The integers of one image as they are stored: neither scaled nor windowed."""

    pixels: Pixels
    """Shape ``(H, W)`` or ``(H, W, 3)``; uint8, uint16, or int16 for signed DICOM. Not to be written to."""
    bits: int
    """Bits that are stored for each value."""

    def __post_init__(self) -> None:
        pixels = self.pixels.view()
        pixels.flags.writeable = False
        object.__setattr__(self, "pixels", pixels)

    def with_pixels(self, pixels: Pixels) -> Self:
        """The same image with other pixels."""
        return replace(self, pixels=pixels)

    @property
    def peak(self) -> int:
        """The width of the range of values, for the PSNR."""
        return (1 << self.bits) - 1

    @property
    def lowest(self) -> int:
        """The smallest value a pixel can take; the largest is ``lowest + peak``."""
        return -(1 << (self.bits - 1)) if self.pixels.dtype.kind == "i" else 0

    def padding(self, pixels: Pixels) -> NDArray[np.bool_]:
        """Where ``pixels`` hold no image but padding, same shape; nowhere, unless the format knows such values."""
        return np.zeros(pixels.shape, np.bool_)

    def nearest(self, values: NDArray[np.floating[Any]]) -> Pixels:
        """The pixels nearest to ``values``, same shape, that this image can hold.

        Rounded and clipped; padding stays, and a pixel that would become padding keeps its value.
        """
        rounded = np.clip(np.rint(values), self.lowest, self.lowest + self.peak).astype(self.pixels.dtype)
        return np.where(self.padding(self.pixels) | self.padding(rounded), self.pixels, rounded)


@dataclass(frozen=True, eq=False)
class Picture(StoredImage, ABC):
    """One image file, without its alpha channel, which stays as it is."""

    path: Path
    kind: str
    """``png``, ``tiff``, ``bmp``, ``jpeg`` or ``dicom``."""
    lossy: bool
    """Whether the file, or one it was made from, was compressed with loss."""
    notes: tuple[str, ...]
    """What a user should know: conversions, and what will not be kept."""
    sha256: str = field(default="", kw_only=True)
    """Of the file as it was read."""

    def write(
        self,
        path: Path | str,
        pixels: Pixels,
        *,
        force: bool = False,
        lossy: bool = False,
        check: Callable[[Self], None] | None = None,
    ) -> None:
        """Write ``pixels`` with everything else of this picture; whole, checked by reading it back, or not at all.

        Args:
            path: the file. Its suffix chooses the format, among those that can hold the picture.
            pixels: of the same shape and type as :attr:`pixels`.
            force: replace a file that is there.
            lossy: allow a format that changes the pixels (JPEG).
            check: called with what was read back, under a temporary name; whatever it raises, nothing is kept.

        Raises:
            ConfigurationError: the pixels do not fit, the file is there already, or the format does not fit.
            DataError: what is kept of a strange file cannot be written such that it reads back.
            OutputError: the disk does not take it.
        """
        path = Path(path)
        self._check(pixels)
        exact = self.check_target(path, force=force, lossy=lossy)
        try:
            content = self._encoded(pixels, path.suffix.lower())
        except Exception as error:  # what was kept of a strange file may be more than the libraries can write
            raise DataError(f"{self.path}: cannot be written again: {one_line(error)}") from error
        try:
            with atomic(path) as temporary:
                temporary.write_bytes(content)
                found = self._read_back(temporary)
                if found is None or (exact and not self._same(found, pixels)):
                    raise DataError(f"{self.path}: does not read back as it is written to {path}; nothing was kept")
                self.check_target(path, force=force, lossy=lossy)  # somebody may have taken the name meanwhile
                if check is not None:
                    check(found)
        except SamplewiseError:
            raise
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or one_line(error)}") from error

    def check_target(self, path: Path, *, force: bool = False, lossy: bool = False) -> bool:
        """Refuse a name that :meth:`write` would refuse; returns whether its format holds every pixel exactly."""
        exact = self._check_format(path, lossy=lossy)
        if os.path.lexists(path) and (not force or path.is_dir()):
            raise ConfigurationError(f"{path}: is there already; choose another name" + ("" if force else " or force"))
        return exact

    def _check(self, pixels: Pixels) -> None:
        own = self.pixels
        if pixels.shape != own.shape or pixels.dtype != own.dtype:
            raise ConfigurationError(
                f"expected pixels of shape {own.shape} and type {own.dtype} for {self.path.name}, "
                f"got {pixels.shape} and {pixels.dtype}"
            )
        outside = ((pixels < self.lowest) | (pixels > self.lowest + self.peak)) & (pixels != own)
        if outside.any():
            raise ConfigurationError(
                f"expected pixels from {self.lowest} to {self.lowest + self.peak} for {self.path.name}, "
                f"got {pixels[outside][0]}"
            )
        padding = self.padding(own)
        if (padding != self.padding(pixels)).any() or (pixels[padding] != own[padding]).any():
            raise ConfigurationError(f"expected the padding of {self.path.name} unchanged: use nearest() to round")

    def _read_back(self, path: Path) -> Self | None:
        from samplewise.watermark.formats.files import read  # it imports this module

        try:
            found = read(path)
        except DataError:
            return None
        return found if isinstance(found, type(self)) else None

    def _same(self, other: Self, pixels: Pixels) -> bool:
        """Whether ``other``, just read, holds ``pixels`` and what else must not change."""
        return other.pixels.dtype == pixels.dtype and np.array_equal(other.pixels, pixels)

    @abstractmethod
    def _check_format(self, path: Path, *, lossy: bool) -> bool:
        """Refuse names whose format cannot hold the picture; returns whether it holds every pixel exactly."""

    @abstractmethod
    def _encoded(self, pixels: Pixels, suffix: str) -> bytes:
        """The whole file with ``pixels``."""
