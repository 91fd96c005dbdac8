"""One picture file as a square of 8-bit grey."""

import io
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import DataError, MissingPackageError

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["FORMATS", "MAX_PIXELS", "decode", "need_pillow"]

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
"""No others are tried, whatever Pillow knows: each decoder is one more way in for a hostile file."""
MAX_PIXELS = 8192 * 8192
"""A larger picture is taken for a decompression bomb."""
GREY_STEPS_16 = 65535 / 255
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def need_pillow() -> None:
    """Say what to install if Pillow is missing."""
    try:
        import PIL  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingPackageError(
            "pictures are decoded by Pillow, which is not installed: pip install 'samplewise[watermark]'"
        ) from error


def decode(path: Path, size: int) -> tuple[NDArray[np.uint8], str]:
    """Read, turn grey and resize; the whole picture is kept, so another aspect ratio is squeezed.

    Args:
        path: a PNG, JPEG, TIFF or BMP file.
        size: height and width of the result.

    Returns:
        Pixels of shape ``(size, size)`` and the file's own mode in Pillow's words: L, RGBA, I;16 ...

    Raises:
        DataError: the file cannot be decoded, whole and as what it says it is; the message is the reason alone.
    """
    from PIL import Image

    try:
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:  # before it is unpacked
                raise DataError(f"{image.width} x {image.height} pixels, more than {MAX_PIXELS}")
            if image.format == "PNG":
                _check_png(file)
            image.load()
            return _square(image, size), image.mode
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever comes on a damaged file
        raise DataError(_reason(error)) from error


def _check_png(file: BinaryIO) -> None:
    """Refuse a damaged PNG file: Pillow reads pixels without their checksums, and some decode wrongly in silence.

    Pillow's own ``verify`` does the same, but the file would have to be opened twice for it.
    """
    position, end = file.tell(), file.seek(0, io.SEEK_END)
    file.seek(len(PNG_SIGNATURE))
    kind = b""
    while kind != b"IEND":
        head = file.read(8)
        length, kind = int.from_bytes(head[:4]), head[4:]
        if file.tell() + length + 4 > end:
            raise DataError("truncated PNG file")
        if zlib.crc32(file.read(length), zlib.crc32(kind)) != int.from_bytes(file.read(4)):
            raise DataError(f"broken PNG file: wrong checksum of its {kind.decode('latin-1')} chunk")
    file.seek(position)


def _square(image: "Image.Image", size: int) -> NDArray[np.uint8]:
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR  # in Pillow with antialiasing, as the paper's transform
    if image.mode.startswith("I;16"):
        deep = Image.fromarray(np.asarray(image).astype(np.float32))  # rounds once, at the end
        return np.rint(np.asarray(deep.resize((size, size), bilinear)) / GREY_STEPS_16).astype(np.uint8)
    if image.mode in ("I", "F"):
        raise DataError(f"pixels of 32 bits (mode {image.mode}), whose white is unknown; save it with 8 or 16 bits")
    if image.mode == "P":
        image = image.convert("RGBA")  # what Pillow asks for where a palette has transparent colours
    grey = image if image.mode == "L" else image.convert("L")
    return np.asarray(grey.resize((size, size), bilinear))


def _reason(error: Exception) -> str:
    from PIL import Image, UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        return f"not a {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {MAX_PIXELS} pixels"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
