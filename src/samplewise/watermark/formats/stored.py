"""What every format gives: the stored integers of one image, and a way to write others in their place."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from samplewise.disk import atomic
from samplewise.errors import ConfigurationError, DataError, RefusedError

__all__ = [
    "Format",
    "ImageFile",
    "Pixels",
    "StoredImage",
    "check_free",
    "check_scans",
    "check_size",
    "naming",
    "one_line",
]

MAX_PIXELS = 1 << 26
"""Four times the largest mammogram."""
ALWAYS = 1 << 25
"""Bytes of pixels that a file may hold however small it is: 4096 x 4096 with 16 bits."""
MAX_RATIO = 10
"""Bytes of pixels for each byte of the file of a larger image; photographs have about 8, X-rays less."""
MAX_SCANS = 64
"""Of a JPEG image, each as slow as decoding all of it; encoders write ten."""
OBJECT = re.compile(r" ?<\S+ object at \w+>")  # says nothing to a user, and is never the same twice
Pixels = NDArray[Any]  # uint8, uint16 or int16


def one_line(error: Exception) -> str:
    """What a library says of a file, short enough for one line."""
    text = OBJECT.sub("", " ".join(str(error).partition("Traceback")[0].split()))
    return text[:200] or type(error).__name__


def check_size(width: int, height: int, each: int, content: bytes) -> None:
    """Refuse, before anything is decoded, an image that is too large, by itself or for its file.

    Args:
        width: in pixels.
        height: in pixels.
        each: bytes of a pixel.
        content: of the file.
    """
    if not 0 < width * height <= MAX_PIXELS:
        raise DataError(f"expected 1 to {MAX_PIXELS:,} pixels, got {width} x {height}")
    if width * height * each > max(ALWAYS, MAX_RATIO * len(content)):
        raise DataError(
            f"expected a file of at least {width * height * each // MAX_RATIO:,} bytes for {width} x {height} "
            f"pixels, got {len(content):,}: so small a file may be a trap; if not, convert it to TIFF"
        )


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say in an error which file it is about."""
    try:
        yield
    except (RefusedError, DataError, ConfigurationError) as error:
        raise type(error)(f"{path}: {error}") from error


def check_scans(jpeg: bytes) -> None:
    """Refuse a JPEG image that is drawn over and over."""
    if (scans := jpeg.count(b"\xff\xda")) > MAX_SCANS:
        raise DataError(f"expected at most {MAX_SCANS} scans in a JPEG image, got {scans}: convert it first")


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


@dataclass(frozen=True)
class Format(ABC):
    """One kind of image file: all that reading, writing and finding such files takes."""

    name: str
    suffixes: tuple[str, ...]
    """The first is the usual one."""
    begins: bytes
    """Expression that the first bytes of every such file match."""
    exact: bool = field(default=True, kw_only=True)
    """Whether what is written holds every pixel as it is."""
    any_name: bool = field(default=False, kw_only=True)
    """Whether such files go by any name, so that only their first bytes tell."""

    def matches(self, content: bytes) -> bool:
        """Whether a file that begins with ``content`` is of this kind."""
        return re.match(self.begins, content, re.DOTALL) is not None

    @abstractmethod
    def read(self, path: Path, content: bytes) -> ImageFile:
        """Decode a file; whatever is wrong with it is a :class:`DataError`, without the file's name."""


@dataclass(frozen=True, eq=False)
class ImageFile(StoredImage, ABC):
    """One image file, without its alpha channel, which stays as it is."""

    path: Path
    format: Format
    lossy: bool
    """Whether the file, or one it was made from, was compressed with loss."""
    notes: tuple[str, ...]
    """What a user should know: conversions, and what will not be kept."""
    sha256: str = field(default="", kw_only=True)
    """Of the file as it was read."""

    @property
    def kind(self) -> str:
        """The name of its format."""
        return self.format.name

    def write(
        self,
        path: Path | str,
        pixels: Pixels,
        *,
        force: bool = False,
        lossy: bool = False,
        check: Callable[[Self], None] | None = None,
    ) -> None:
        """Write ``pixels`` with everything else of this file; whole, checked by reading it back, or not at all.

        Args:
            path: the file. Its suffix chooses the format, among those that can hold the image.
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
        target = self.target_format(path, lossy=lossy)
        check_free(path, force=force)
        try:
            content = self._encoded(pixels, target)
        except Exception as error:  # what was kept of a strange file may be more than the libraries can write
            raise DataError(f"{self.path}: cannot be written again: {one_line(error)}") from error
        with atomic(path) as temporary:
            temporary.write_bytes(content)
            found = self._read_back(temporary)
            if found is None or (target.exact and not self._same(found, pixels)):
                raise DataError(f"{self.path}: does not read back as it is written to {path}; nothing was kept")
            check_free(path, force=force)  # somebody may have taken the name meanwhile
            if check is not None:
                check(found)

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
        from samplewise.watermark.formats.registry import read  # it imports this module

        try:
            found = read(path)
        except DataError:
            return None
        return found if isinstance(found, type(self)) else None

    def _same(self, other: Self, pixels: Pixels) -> bool:
        """Whether ``other``, just read, holds ``pixels`` and what else must not change."""
        return other.pixels.dtype == pixels.dtype and np.array_equal(other.pixels, pixels)

    @abstractmethod
    def target_format(self, path: Path, *, lossy: bool) -> Format:
        """The format that a file of that name gets; names whose format cannot hold the image are refused."""

    @abstractmethod
    def _encoded(self, pixels: Pixels, target: Format) -> bytes:
        """The whole file with ``pixels``."""


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a name that is taken, or with ``force`` one that no file can take."""
    if os.path.lexists(path) and (not force or path.is_dir()):
        raise ConfigurationError(f"{path}: is there already; choose another name" + ("" if force else " or force"))
