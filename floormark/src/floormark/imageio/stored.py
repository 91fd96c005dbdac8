"""The interface of all formats: the stored integers of one image, and a way to replace them in its file."""

from __future__ import annotations

import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from floormark.disk import atomic, disk_error
from floormark.errors import ConfigurationError, DataError, FloormarkError

MAX_PIXELS, MAX_BYTES = 1 << 26, 72 << 20
"""More than the largest mammogram or a photograph of 24 megapixels; marking one takes less than 1 GB of memory."""
ALLOWED_BYTES = 1 << 25  # bytes of pixels that a file may hold however small it is: 4096 x 4096 with 16 bits
MAX_RATIO = 10  # bytes of pixels for each byte of the file of a larger image; photographs have about 8, X-rays less
BAND_VALUES = 1 << 20  # values of a large image that are processed at once
MAX_SCANS = 64  # of a JPEG image, each as slow as decoding all of it; encoders write ten
OBJECT_TEXT = re.compile(r" ?<\S+ object at \w+>")  # says nothing to a user, and is never the same twice
Pixels = NDArray[Any]  # uint8, uint16 or int16


def one_line(error: Exception) -> str:
    """A library's error message about a file, shortened to one line."""
    text = OBJECT_TEXT.sub("", " ".join(str(error).partition("Traceback")[0].split()))
    return text[:200] or type(error).__name__


def check_size(width: int, height: int, each: int, content: bytes) -> None:
    """Refuse, before anything is decoded, pixels of ``each`` bytes that are too many, by themselves or for the file."""
    if not 0 < width * height <= MAX_PIXELS:
        raise DataError(f"expected 1 to {MAX_PIXELS:,} pixels, got {width} x {height}")
    if width * height * each > MAX_BYTES:
        got = f"{width * height * each >> 20} MB: {width} x {height}, {each} bytes each"
        raise DataError(f"expected at most {MAX_BYTES >> 20} MB of pixels, got {got}; cut the image into pieces")
    if width * height * each > max(ALLOWED_BYTES, MAX_RATIO * len(content)):
        raise DataError(
            f"expected a file of at least {width * height * each // MAX_RATIO:,} bytes for {width} x {height} "
            f"pixels, got {len(content):,}: so small a file may be a trap; if not, convert it to TIFF"
        )


def bands(image: Pixels, values: int = BAND_VALUES, *, unit: int = 1, overlap: int = 0) -> list[slice]:
    """Split an image into bands of rows, so that intermediate results of a large one do not fill the memory.

    A band has about ``values`` values and a multiple of ``unit`` rows; each but the first begins with the last
    ``overlap`` rows of the one before.
    """
    step = max(1, values // (unit * image[0].size)) * unit
    return [slice(top, min(top + step + overlap, len(image))) for top in range(0, len(image) - overlap, step)]


def check_scans(jpeg: bytes) -> None:
    """Refuse a JPEG image of too many scans."""
    if (scans := jpeg.count(b"\xff\xda")) > MAX_SCANS:
        raise DataError(f"expected at most {MAX_SCANS} scans in a JPEG image, got {scans}: convert it first")


@dataclass(frozen=True)
class Window:
    """The range that a viewer shows from black to white by default."""

    low: float  # the first stored value that is not black; of MONOCHROME1, not white
    high: float  # the last one that is not white, at least one more; both within what the bits can hold
    unit: str = ""  # of what the values stand for, such as HU; empty if that is not known
    step: float = 1.0  # how many units one stored value is from the next


@dataclass(frozen=True, eq=False)
class StoredImage:
    """The integers of one image as they are stored: neither scaled nor windowed."""

    pixels: Pixels
    """Shape ``(H, W)`` or ``(H, W, 3)``; uint8, uint16, or int16 for signed DICOM. Not to be written to."""
    bits: int
    """Bits that are stored for each value."""
    padding_range: tuple[int, int] | None = field(default=None, kw_only=True)
    """The first and the last value that stand for "no image here", if there are such values."""
    window: Window | None = field(default=None, kw_only=True)
    """The default display window, if the file or its kind has one."""

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

    @property
    def pixels_sha256(self) -> str:
        """The SHA-256 of the stored values with their shape, bits and sign: the same in every lossless encoding.

        Values are hashed in the order of rows, low byte first.
        """
        stored = np.ascontiguousarray(self.pixels, self.pixels.dtype.newbyteorder("<"))
        found = hashlib.sha256(f"{stored.shape} {self.bits} {'signed' if self.lowest else 'unsigned'};".encode())
        found.update(stored.data)
        return found.hexdigest()

    def padding(self, pixels: Pixels) -> NDArray[np.bool_]:
        """Where ``pixels`` hold no image but padding, same shape."""
        if self.padding_range is None:
            return np.zeros(pixels.shape, np.bool_)
        first, last = self.padding_range
        return (pixels >= first) & (pixels <= last)

    def nearest(self, values: NDArray[np.floating[Any]]) -> Pixels:
        """The pixels nearest to ``values``, same shape, that this image can hold.

        Rounded and clipped; padding stays, and a pixel that would become padding keeps its value.
        """
        whole = np.rint(values)
        np.clip(whole, self.lowest, self.lowest + self.peak, out=whole)
        rounded: Pixels = whole.astype(self.pixels.dtype)
        if self.padding_range is None:
            return rounded
        return np.where(self.padding(self.pixels) | self.padding(rounded), self.pixels, rounded)


@dataclass(frozen=True)
class Format(ABC):
    """One kind of image file: all that reading, writing and finding such files takes."""

    name: str
    suffixes: tuple[str, ...]
    """The first is the usual one."""
    begins: bytes
    """Regular expression that the first bytes of every such file match."""
    exact: bool = field(default=True, kw_only=True)
    """Whether what is written holds every pixel as it is."""
    any_name: bool = field(default=False, kw_only=True)
    """Whether such files have arbitrary names, so that only their first bytes identify them."""

    def matches(self, content: bytes) -> bool:
        """Whether a file that begins with ``content`` is of this kind."""
        return re.match(self.begins, content, re.DOTALL) is not None

    @abstractmethod
    def read(self, path: Path, content: bytes) -> ImageFile:
        """Decode a file; whatever is wrong with it is a :class:`DataError`, without the file's name."""

    @abstractmethod
    def encode(self, image: ImageFile, frames: Iterable[Pixels], file: BinaryIO) -> None:
        """Write a whole file of this format with the pixels of each frame and all else that it can keep of ``image``.

        Formats of one frame take one.
        """

    def frames(self, image: ImageFile) -> Iterator[ImageFile]:
        """Decode the frames of a file one by one."""
        yield image


@dataclass(frozen=True, eq=False)
class ImageFile(StoredImage):
    """One image file, without its alpha channel, which stays as it is; of several frames, the first."""

    path: Path
    format: Format
    lossy: bool
    """Whether the file, or one it was made from, was compressed with loss."""
    notes: tuple[str, ...]
    """What a user should know: conversions, and what will not be kept."""
    kept: Any
    """Everything else that the format needs to write the file again."""
    alpha: Pixels | None = None
    inverted: bool = field(default=False, kw_only=True)
    """Whether low values are shown bright, as in MONOCHROME1."""
    sha256: str = field(default="", kw_only=True)
    """Of the file as it was read."""
    keep_series: bool = field(default=False, kw_only=True)
    """Whether a DICOM file that is written from this one stays in its series."""
    frame_count: int = field(default=1, kw_only=True)
    had_palette: bool = field(default=False, kw_only=True)
    """Whether a DICOM file has colours by a palette, which no marked image can keep."""

    def frames(self) -> Iterator[ImageFile]:
        """The frames of the file, of which one at a time is decoded."""
        return iter((self,)) if self.frame_count == 1 else self.format.frames(self)

    @contextmanager
    def writing(
        self, path: Path | str, frames: Iterable[Pixels], *, force: bool = False, lossy: bool = False
    ) -> Iterator[ImageFile]:
        """Write other pixels with everything else of this file; whole, checked by reading it back, or not at all.

        Yields the file as read back from the disk, before it gets its name: if the block fails, nothing is kept.

        Args:
            path: the file. Its suffix chooses the format, among those that can hold the image.
            frames: the pixels of each frame, of the same shape and type as :attr:`pixels`, as :meth:`nearest` rounds
                them. What a generator of them raises of this package's errors ends the writing.
            force: replace a file that is there.
            lossy: allow a format that changes the pixels (JPEG).

        Raises:
            ConfigurationError: the file is there already, or the format does not fit.
            DataError: what is kept of a strange file cannot be written such that it reads back.
            OutputError: the disk does not take it.
        """
        from floormark.imageio import read, target_format  # it imports this module

        path = Path(path)
        target = target_format(self, path, lossy=lossy)
        check_free(path, force=force)
        expected: list[str] = []  # of each frame: all frames themselves may be more than the memory holds

        def hashed() -> Iterator[Pixels]:
            for pixels in frames:
                expected.append(self.with_pixels(pixels).pixels_sha256)
                yield pixels

        with atomic(path) as temporary:
            try:
                with temporary.open("wb") as file:
                    target.encode(self, hashed(), file)
            except Exception as error:  # libraries may fail to write what was kept of a strange file
                if isinstance(error, FloormarkError):
                    raise  # of a frame
                if (failed := disk_error(error)) is not None:
                    raise failed from error
                raise DataError(f"{self.path}: cannot be written again: {one_line(error)}") from error
            try:
                found = read(temporary)
                whole = found.format is target and (not target.exact or _same(self, found, expected))
            except DataError:
                whole = False
            if not whole:
                raise DataError(f"{self.path}: does not read back as it is written to {path}; nothing was kept")
            check_free(path, force=force)  # somebody may have taken the name meanwhile
            yield found

    def write(self, path: Path | str, *frames: Pixels, force: bool = False, lossy: bool = False) -> None:
        """:meth:`writing`, with nothing to check before the file takes its name."""
        with self.writing(path, frames, force=force, lossy=lossy):
            pass


def shown_alike(one: ImageFile, other: ImageFile) -> bool:
    """Whether two files would show the same pixels alike: window, polarity, padding and transparency."""
    transparent = one.alpha is other.alpha  # both have none
    if one.alpha is not None and other.alpha is not None:
        transparent = np.array_equal(one.alpha, other.alpha)
    first, second = ((each.window, each.inverted, each.padding_range) for each in (one, other))
    return transparent and first == second


def _same(image: ImageFile, written: ImageFile, expected: list[str]) -> bool:
    """Whether a file that was written holds the expected pixels in each frame, which are seen as those of ``image``."""
    if not len(expected) == written.frame_count == image.frame_count:
        return False
    pairs = zip(image.frames(), written.frames(), expected, strict=True)
    return all(found.pixels_sha256 == pixels and shown_alike(before, found) for before, found, pixels in pairs)


def frames_sha256(digests: Sequence[str]) -> str:
    """The SHA-256 of all frames of a file, from that of each; of one frame its own."""
    return digests[0] if len(digests) == 1 else hashlib.sha256(" ".join(digests).encode()).hexdigest()


def check_free(path: Path, *, force: bool) -> None:
    """Refuse a name that is taken, or with ``force`` one that no file can take."""
    if path.is_dir():
        raise ConfigurationError(f"{path}: is a folder: give the name of a file, such as one in it")
    if os.path.lexists(path) and not force:
        raise ConfigurationError(f"{path}: is there already; choose another name or force")
