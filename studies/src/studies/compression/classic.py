"""JPEG, JPEG 2000, WebP and JPEG XL at the same floor: the smallest file of each sample that keeps it."""

import io
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import imagecodecs
import numpy as np
from PIL import Image

from studies.compression.blocks import Blocks, Grey
from studies.compression.codec import PIXELS

NEIGHBOURS = 3
"""Settings tried on either side of the coarsest that keeps the floor: a finer one can give a smaller file."""


class Format(NamedTuple):
    """An image format as its encoder and decoder."""

    encode: Callable[[Grey, float], bytes]
    decode: Callable[[bytes], Grey]
    settings: Sequence[float]
    """Of the encoder, from coarse to fine."""


def _pillow(name: str, **options: int) -> Callable[[Grey, float], bytes]:
    def encode(pixels: Grey, quality: float) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, name, quality=int(quality), **options)
        return file.getvalue()

    return encode


def _opened(data: bytes) -> Grey:
    return np.asarray(Image.open(io.BytesIO(data)).convert("L"))


def _jpeg2000(pixels: Grey, aim: float) -> bytes:
    level: Any = aim  # in dB; the encoder takes fractions, its types do not say so
    return bytes(imagecodecs.jpeg2k_encode(pixels, level=level, codecformat="j2k", reversible=False))


def _jpegxl(pixels: Grey, closeness: float) -> bytes:
    return bytes(imagecodecs.jpegxl_encode(pixels, distance=1 / closeness, effort=7, numthreads=1))


FORMATS = {
    "JPEG": Format(_pillow("JPEG", optimize=1), _opened, range(1, 101)),
    "JPEG 2000": Format(_jpeg2000, imagecodecs.jpeg2k_decode, [psnr / 10 for psnr in range(100, 700)]),
    "WebP": Format(_pillow("WEBP", method=6), _opened, range(101)),
    "JPEG XL": Format(_jpegxl, imagecodecs.jpegxl_decode, np.geomspace(1 / 25, 100, 200).tolist()),
}


@dataclass(frozen=True)
class ClassicRow:
    """Bits and PSNR of a format on unseen samples."""

    format: str
    bits: float
    """Of 256 pixels on average, without the header."""
    bits_with_header: float
    header_bytes: int
    """Of the smallest file of a flat image of the same size."""
    worst_psnr: float
    samples: int
    raw_samples: int
    """Samples that no setting brings above the floor; they are counted as stored raw."""


def psnr(pixels: Grey, decoded: Grey) -> float:
    """In dB, of 8-bit pixels."""
    error = float(np.square(pixels.astype(float) - decoded).mean())
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def smallest_file(form: Format, pixels: Grey, floor: float) -> bytes | None:
    """The smallest file found for an image that decodes to at least ``floor`` dB; None if no setting does.

    Bisection for the coarsest setting that keeps the floor, then its neighbours.
    """

    @cache
    def file(number: int) -> bytes | None:
        data = form.encode(pixels, form.settings[number])
        return data if psnr(pixels, form.decode(data)) >= floor else None

    numbers = range(len(form.settings))
    first = bisect_left(numbers, True, key=lambda number: file(number) is not None)
    near = numbers[max(0, first - NEIGHBOURS) : first + NEIGHBOURS + 1]
    return min((data for each in near if (data := file(each)) is not None), key=len, default=None)


def evaluate_format(name: str, samples: Blocks, floor: float) -> ClassicRow:
    """Bits and PSNR of a format on samples that are square images."""
    form, side = FORMATS[name], math.isqrt(samples.pixels.shape[2])
    flat, some = np.full((side, side), 128, np.uint8), form.settings[:: len(form.settings) // 50]
    header = min(len(form.encode(flat, setting)) for setting in some)
    raw, sizes, worst = 0, list[int](), math.inf
    for pixels in samples.pixels.view(-1, side, side).numpy():
        data = smallest_file(form, pixels, floor)
        raw += data is None
        sizes.append(header + side**2 if data is None else len(data))
        worst = worst if data is None else min(worst, psnr(pixels, form.decode(data)))
    bits = 8 * float(np.mean(sizes)) * PIXELS / side**2
    return ClassicRow(
        format=name,
        bits=bits - 8 * header * PIXELS / side**2,
        bits_with_header=bits,
        header_bytes=header,
        worst_psnr=worst,
        samples=len(sizes),
        raw_samples=raw,
    )
