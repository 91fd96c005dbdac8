"""One picture file as a square of 8-bit grey."""

import math
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import DataError, needed_for

if TYPE_CHECKING:
    from PIL import Image

FORMATS = ("PNG", "JPEG", "TIFF", "BMP")
"""No others are tried, whatever Pillow knows: each decoder is one more way in for a hostile file."""
MAX_PIXELS = 8192 * 8192
"""A larger picture is taken for a decompression bomb."""
MAX_SIDE = 1 << 15
"""Of a picture's height and width: resizing a longer one takes memory by its length, however thin it is."""
MAX_SCANS = 64
"""Of a JPEG file: each is a pass over all pixels, and programs write about ten."""
MAX_PIXELS_SLOW = 1 << 25
"""Of kinds that take far more time or memory for a pixel: colour JPEG in scans, BMP in runs."""
LARGE = 1 << 24
"""Pixels from which on pictures are decoded one at a time, so that their memory does not add up."""
_large = threading.Lock()
GREY_STEPS_16 = 65535 / 255
SCAN = b"\xff\xda"
TILE_SIDES = (322, 323)
BMP_RUNS = (1, 2)


def need_pillow() -> None:
    """Say what to install if Pillow is missing."""
    with needed_for("decoding pictures", "watermark"):
        import PIL  # noqa: F401 - only whether it is there


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
        if not path.is_file() and path.exists():
            raise DataError("not a regular file")  # a pipe would be waited for
        with path.open("rb") as file, Image.open(file, formats=FORMATS) as image:
            _check(image, file)
            if image.format == "PNG":  # else pixels are read without their checksums, some wrongly in silence
                with Image.open(path, formats=["PNG"]) as other:
                    other.verify()
            with _large if image.width * image.height > LARGE else nullcontext():
                return _square(image, size), image.mode
    except (DataError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever comes on a damaged file
        raise DataError(_reason(error)) from error


def _check(image: "Image.Image", file: BinaryIO) -> None:
    """Refuse what would take more memory or time than a picture should, before it is unpacked."""
    pixels, shape = image.width * image.height, f"{image.width} x {image.height} pixels"
    if pixels > MAX_PIXELS:
        raise DataError(f"{shape}, more than {MAX_PIXELS}")
    if max(image.size) > MAX_SIDE:
        raise DataError(f"{shape}, more than {MAX_SIDE} in a row or column")
    slow = image.info.get("progressive") and len(image.getbands()) > 1
    if pixels > MAX_PIXELS_SLOW and (slow or image.info.get("compression") in BMP_RUNS):
        raise DataError(f"{shape}, packed in a way that is read up to {MAX_PIXELS_SLOW}")
    if image.format == "JPEG" and (scans := _count_scans(file)) > MAX_SCANS:
        raise DataError(f"a JPEG file of {scans} scans; expected at most {MAX_SCANS}")
    if image.format == "TIFF":
        tile = [int(image.tag_v2.get(tag, 0)) for tag in TILE_SIDES]  # type: ignore[attr-defined]
        if math.prod(tile) > MAX_PIXELS_SLOW:
            raise DataError(f"a TIFF file in tiles of {tile[0]} x {tile[1]} pixels; expected at most {MAX_PIXELS_SLOW}")


def _count_scans(file: BinaryIO) -> int:
    """How often the marker that begins a scan stands in a file; a little too often if an embedded picture has it."""
    position = file.tell()
    file.seek(0)
    scans, last = 0, b""
    while block := file.read(1 << 20):
        scans += (last + block).count(SCAN)
        last = block[-1:]
    file.seek(position)
    return scans


def _square(image: "Image.Image", size: int) -> NDArray[np.uint8]:
    from PIL import Image

    bilinear = Image.Resampling.BILINEAR  # in Pillow with antialiasing, as the paper's transform
    if image.mode.startswith("I;16"):
        deep = image.convert("F")  # rounds once, at the end
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
