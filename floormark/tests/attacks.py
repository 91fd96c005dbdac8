"""What may happen to an image on its way, small and by Pillow: grey ``(H, W)`` of 8 bits to the same."""

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[Any]


def resize(image: Pixels, factor: float) -> Pixels:
    """At ``factor`` times its size."""
    height, width = (round(factor * length) for length in image.shape)
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))


def rotate(image: Pixels, degrees: float) -> Pixels:
    """Around its middle; the corners are lost, and what comes in is black."""
    return np.asarray(Image.fromarray(image).rotate(degrees, Image.Resampling.BICUBIC))


def crop(image: Pixels, area: float) -> Pixels:
    """A part of its area, from somewhere inside."""
    height, width = (int(math.sqrt(area) * length) for length in image.shape)
    top, left = (image.shape[0] - height) // 3, (image.shape[1] - width) // 2
    return image[top : top + height, left : left + width]


def border(image: Pixels, share: float) -> Pixels:
    """A black border of that share of its sides."""
    return np.pad(image, [(round(share * length),) * 2 for length in image.shape])


def jpeg(image: Pixels, quality: int) -> Pixels:
    """Compressed with loss."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "jpeg", quality=quality)
    return np.asarray(Image.open(file))
