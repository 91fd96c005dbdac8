"""Image files with their native bit depth: read, and written back with everything that the format can keep.

The format of a file is detected by its first bytes, not by its name.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from floormark.disk import decoding, open_regular, read_bytes
from floormark.errors import ConfigurationError, DataError, prefix_path
from floormark.imageio.raster import RASTERS, RasterFormat
from floormark.imageio.stored import (
    Format,
    ImageFile,
    Pixels,
    StoredImage,
    Window,
    bands,
    check_free,
    frames_sha256,
    shown_alike,
)

__all__ = ["FORMATS", "SUFFIXES", "Format", "ImageFile", "Pixels", "StoredImage", "Window", "bands", "check_free"]
__all__ += ["frames_sha256", "looks_like_image", "read", "shown_alike", "suffix_format", "target_format"]


class DicomFormat(Format):
    """DICOM with its preamble; pixels are the stored values, before any rescale or window.

    Names of such files are often UIDs. pydicom takes long to import, so it is imported only for such a file.
    """

    def read(self, path: Path, content: bytes) -> ImageFile:
        from floormark.imageio import dicom

        return dicom.read(self, path, content)

    def frames(self, image: ImageFile) -> Iterator[ImageFile]:
        from floormark.imageio import dicom

        return dicom.frames(self, image.path, image.kept)

    def encode(self, image: ImageFile, frames: Iterable[Pixels], file: BinaryIO) -> None:
        from floormark.imageio import dicom

        dicom.encode(image, frames, file)


DICOM = DicomFormat("dicom", (".dcm", ".dicom"), rb".{128}DICM", any_name=True)
FORMATS: tuple[Format, ...] = (*RASTERS, DICOM)
SUFFIXES = tuple(suffix for each in FORMATS for suffix in each.suffixes)  # of files that are taken for images
NAMES = ", ".join(each.name.upper() for each in FORMATS[:-1]) + f" or {FORMATS[-1].name.upper()}"  # for messages
MAX_FILE = 1 << 30  # bytes
SIGNATURE_BYTES = 132  # bytes that tell the format


def read(path: Path | str) -> ImageFile:
    """Read one image, of any of :data:`FORMATS`.

    Raises:
        DataError: the file cannot be read, is torn, too large, or holds what cannot be marked: several frames but in
            DICOM, 16-bit colour in PNG or TIFF, floating point, CMYK.
    """
    path = Path(path)
    with decoding(path, "an image"):
        content = read_bytes(path, largest=MAX_FILE)
    for each in reversed(FORMATS):  # DICOM first: before its own signature a file may begin as a TIFF file does
        if each.matches(content):
            with prefix_path(path):
                found = each.read(path, content)
            return replace(found, sha256=hashlib.sha256(content).hexdigest())
    got = "something else" if content else "an empty file"
    raise DataError(f"{path}: expected a {NAMES} (with preamble) file, got {got}")


def suffix_format(path: Path) -> Format | None:
    """The format of a file by its suffix."""
    return next((each for each in FORMATS if path.suffix.lower() in each.suffixes), None)


def target_format(image: ImageFile, path: Path, *, lossy: bool) -> Format:
    """The format that an image gets under that name; one that cannot hold it is refused."""
    named = suffix_format(path)
    if image.format is DICOM:
        if named not in (None, DICOM):
            raise ConfigurationError(
                f"{path}: a DICOM image is written as DICOM only, as {path.suffix} loses what it says: write .dcm"
            )
        return DICOM
    if not isinstance(named, RasterFormat):
        suffixes = ", ".join(suffix for each in RASTERS for suffix in each.suffixes)
        raise ConfigurationError(f"{path}: expected a name that ends in {suffixes}, got {path.suffix!r}")
    kind = named.name.upper()
    if not named.exact and not lossy:
        raise ConfigurationError(f"{path}: {kind} changes the pixels; write .png, or allow it with lossy")
    mode = "I;16" if image.bits > 8 else "L" if image.pixels.ndim == 2 else "RGB"
    if mode + ("" if image.alpha is None else "A") not in named.modes:
        what = "16 bits" if image.bits > 8 else "grey" if mode not in named.modes else "an alpha channel"
        raise ConfigurationError(f"{path}: {kind} cannot hold {what}: write .png or .tif")
    return named


def looks_like_image(path: Path) -> bool:
    """Whether a file has the name of an image, or the first bytes of a kind that goes by any name."""
    if suffix_format(path):
        return True
    try:
        with open_regular(path) as file:
            head = file.read(SIGNATURE_BYTES)
    except OSError:
        return False
    return any(each.any_name and each.matches(head) for each in FORMATS)
