"""Image files with their native bit depth: read, and written back whole with all that the format can keep.

Which format a file has is told by its first bytes and not by its name.
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from floormark.disk import open_regular
from floormark.errors import ConfigurationError, DataError
from floormark.imageio.dicom import DICOM
from floormark.imageio.raster import RASTERS, RasterFormat
from floormark.imageio.stored import (
    Format,
    ImageFile,
    StoredImage,
    Window,
    bands,
    check_free,
    one_line,
    prefix_path,
    shown_alike,
)

__all__ = ["FORMATS", "SUFFIXES", "Format", "ImageFile", "StoredImage", "Window", "bands", "check_free"]
__all__ += ["looks_like_image", "prefix_path", "read", "shown_alike", "suffix_format", "target_format"]

FORMATS: tuple[Format, ...] = (*RASTERS, DICOM)  # a new one takes its entry in one of these modules and nothing else
SUFFIXES = tuple(suffix for each in FORMATS for suffix in each.suffixes)  # of files that are taken for images
NAMES = ", ".join(each.name.upper() for each in FORMATS[:-1]) + f" or {FORMATS[-1].name.upper()}"  # for messages
MAX_FILE = 1 << 30  # bytes
SIGNATURE_BYTES = 132  # bytes that tell the format


def read(path: Path | str) -> ImageFile:
    """Read one image, of any of :data:`FORMATS`.

    Raises:
        DataError: the file cannot be read, is torn, too large, or holds what cannot be marked: several frames, 16-bit
            colour in PNG or TIFF, floating point, CMYK.
    """
    path = Path(path)
    content = _content(path)
    for each in reversed(FORMATS):  # DICOM first: before its own signature a file may begin as a TIFF file does
        if each.matches(content):
            with prefix_path(path):
                found = each.read(path, content)
            return replace(found, sha256=hashlib.sha256(content).hexdigest())
    got = "something else" if content else "an empty file"
    raise DataError(f"{path}: expected a {NAMES} (with preamble) file, got {got}")


def suffix_format(path: Path) -> Format | None:
    """The format that the name of a file tells of."""
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


def _content(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= MAX_FILE:
                return file.read()
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or one_line(error)}") from error
    raise DataError(f"{path}: expected a file of at most {MAX_FILE >> 20} MB, got {size >> 20} MB")
