"""One picture file as a square of 8-bit grey. Which files can be read, and how large they may be, the tool decides."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from floormark import errors as floormark
from floormark.display_range import shown_range
from floormark.imageio import ImageFile, read
from samplewise.errors import DataError

MAX_SIDE = 1 << 15
"""Largest height and width: resizing a longer picture takes memory by its length, however thin it is."""
BILINEAR = Image.Resampling.BILINEAR  # in Pillow with antialiasing, as the paper's transform


def decode(path: Path, size: int) -> tuple[NDArray[np.uint8], str]:
    """Read, turn grey and resize to ``(size, size)``; the whole picture is kept, so another aspect ratio is squeezed.

    DICOM is shown as a viewer shows it: by its display window or, without one, the range of values in use. Other files
    of 16 bits keep their whole range. Beside the pixels stands what the file holds: L, LA, RGB, RGBA, or its bits if
    more than 8. The message of a ``DataError`` is the reason alone, without the path.
    """
    try:
        image = read(path)
    except floormark.DataError as error:
        raise DataError(str(error).removeprefix(f"{path}: ")) from error
    height, width = image.pixels.shape[:2]
    if max(height, width) > MAX_SIDE:
        raise DataError(f"expected at most {MAX_SIDE} pixels in a row or column, got {width} x {height}")
    return _square(image, size), _kind(image)


def _square(image: ImageFile, size: int) -> NDArray[np.uint8]:
    dicom = image.format.name == "dicom"
    if image.pixels.ndim == 3 or (image.bits == 8 and not dicom):
        grey = Image.fromarray(np.ascontiguousarray(image.pixels)).convert("L")
        return np.asarray(grey.resize((size, size), BILINEAR))
    lowest, span = shown_range(image) if dicom else (image.lowest, image.peak)
    values = Image.fromarray(image.pixels.astype(np.float32)).resize((size, size), BILINEAR)
    levels = np.clip((np.asarray(values, np.float64) - lowest) * (255.0 / span), 0.0, 255.0)  # rounds once, at the end
    return np.rint(255.0 - levels if image.inverted and dicom else levels).astype(np.uint8)


def _kind(image: ImageFile) -> str:
    if image.bits > 8:
        return f"{image.bits} bits"
    return ("L" if image.pixels.ndim == 2 else "RGB") + ("" if image.alpha is None else "A")
