"""Compressed pixel data of DICOM files: the size in a stream's header, decoding and encoding.

Uses imagecodecs (libjpeg-turbo, CharLS, OpenJPEG), whose decoders withstand damaged streams; those of GDCM do not. A
stream is decoded only after its size was compared with the one in the file's header.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import imagecodecs
import numpy as np
from pydicom import uid
from pydicom.pixels.decoders.base import Decoder, DecodeRunner

from floormark.errors import DataError
from floormark.imageio.stored import Pixels, check_scans

JPEG = (uid.JPEGExtended12Bit, uid.JPEGLossless, uid.JPEGLosslessSV1)
JPEG_LS = (uid.JPEGLSLossless, uid.JPEGLSNearLossless)
JPEG_2000 = (uid.JPEG2000Lossless, uid.JPEG2000, uid.HTJ2KLossless, uid.HTJ2KLosslessRPCL, uid.HTJ2K)
MAX_TILES = 4096  # of a JPEG 2000 image, each with tables of its own; encoders write one, or some hundred
NO_CONVERSION = "YCBCR"  # given as the colours of both sides, so that none are converted
FRAME_HEADERS = frozenset({*range(0xC0, 0xD0), 0xF7}) - {0xC4, 0xC8, 0xCC}
JPEG_BEGINS, JPEG_ENDS, JPEG_2000_BEGINS = b"\xff\xd8", b"\xff\xd9", b"\xff\x4f\xff\x51"
SIZ = struct.Struct(">H8IH")
"""The sizes of a JPEG 2000 stream: capabilities, image, its offset, tiles, their offset, components."""


class Shape(NamedTuple):
    """The size and depth that a stream's header declares."""

    width: int
    height: int
    samples: int
    bits: int


def stream_shape(stream: bytes) -> Shape:
    """Read the header of a JPEG, JPEG-LS or JPEG 2000 stream, and refuse what makes decoders slow."""
    try:
        if stream.startswith(JPEG_BEGINS):
            return _jpeg_shape(stream)
        if stream.startswith(JPEG_2000_BEGINS):
            return _jpeg_2000_shape(stream)
    except (IndexError, struct.error) as error:
        raise DataError("expected the size of the image in its stream, got none") from error
    raise DataError("expected a JPEG, JPEG-LS or JPEG 2000 stream, got something else")


def _jpeg_shape(stream: bytes) -> Shape:
    check_scans(stream)
    place = len(JPEG_BEGINS)
    while (marker := stream[place + 1]) not in FRAME_HEADERS:
        if stream[place] != 0xFF:
            raise IndexError("no marker")
        place += 1 if marker == 0xFF else 2 + int.from_bytes(stream[place + 2 : place + 4])  # or a filling byte
    bits, height, width, samples = struct.unpack_from(">BHHB", stream, place + 4)
    return Shape(width, height, samples, bits)


def _jpeg_2000_shape(stream: bytes) -> Shape:
    _, right, bottom, left, top, across, down, first, upper, samples = SIZ.unpack_from(stream, 6)
    tiles = -(-(right - first) // max(across, 1)) * -(-(bottom - upper) // max(down, 1))
    if tiles > MAX_TILES:
        raise DataError(f"expected at most {MAX_TILES:,} tiles in a JPEG 2000 image, got {tiles:,}")
    if any(stream[43 + 3 * sample + step] != 1 for sample in range(samples) for step in (0, 1)):
        raise DataError("expected all samples of a JPEG 2000 image in full size: convert it first")
    return Shape(right - left, bottom - top, samples, (stream[42] & 0x7F) + 1)


def decode_stream(stream: bytes, runner: DecodeRunner) -> bytes:
    """Decode one frame, as pydicom asks of its plugins: to values of as many bits as the header allocates."""
    if not stream.startswith(
        JPEG_BEGINS
    ):  # without the boxes of a JP2 file, which DICOM does not have but some files do
        stream = stream[max(stream.find(JPEG_2000_BEGINS), 0) :]
    found = stream_shape(stream)
    expected = Shape(runner.columns, runner.rows, runner.samples_per_pixel, found.bits)
    if found != expected or not found.bits <= runner.bits_allocated:
        raise DataError(f"expected {expected} of at most {runner.bits_allocated} bits in its stream, got {found}")
    syntax = runner.transfer_syntax
    # There may be filling bytes after the end. Without it libjpeg makes up what is missing, and CharLS takes its time.
    if stream.startswith(JPEG_BEGINS) and not stream.rstrip(b"\0\xff").endswith(JPEG_ENDS):
        raise DataError("the end of its stream is missing")
    if syntax in JPEG_LS:
        pixels = imagecodecs.jpegls_decode(stream)
    elif syntax in JPEG:
        same = NO_CONVERSION if found.samples == 3 else None
        pixels = imagecodecs.jpeg8_decode(stream, colorspace=same, outcolorspace=same)
        if syntax == uid.JPEGExtended12Bit and not runner.pixel_representation:
            # Loss may lead above the stored bits, where 1024 would be taken for 0.
            pixels = np.minimum(pixels, pixels.dtype.type((1 << min(runner.bits_stored, 8 * pixels.itemsize)) - 1))
    else:
        pixels = imagecodecs.jpeg2k_decode(stream, numthreads=1)
        if runner.photometric_interpretation in ("YBR_ICT", "YBR_RCT"):
            runner.set_option("photometric_interpretation", "RGB")  # the decoder has converted them
    shape = (runner.rows, runner.columns) + ((3,) if runner.samples_per_pixel == 3 else ())
    if pixels.shape != shape:
        raise DataError(f"expected pixels of shape {shape} in its stream, got {pixels.shape}")
    runner.set_option("planar_configuration", 0)
    return pixels.astype(f"<{pixels.dtype.kind}{runner.bits_allocated // 8}").tobytes()


def is_available(syntax: str) -> bool:
    """Whether pydicom may call :func:`decode_stream`; what is missing is said elsewhere."""
    return True


@cache
def decoder(syntax: uid.UID) -> Decoder | None:
    """Of pixel data in that transfer syntax, if it is one of those that are decoded here."""
    if syntax not in (*JPEG, *JPEG_LS, *JPEG_2000):
        return None
    found = Decoder(syntax)  # our own: those of pydicom stay as they are
    found.add_plugin("imagecodecs", (__name__, decode_stream.__name__))
    return found


def _jpeg_lossless(pixels: Pixels, bits: int) -> bytes:
    # A sign with its copies, as others write it: not all decoders make them anew.
    bits = 16 if pixels.dtype.kind == "i" else max(bits, 9) if pixels.itemsize == 2 else bits
    same = "RGB" if pixels.ndim == 3 else None
    return bytes(
        imagecodecs.jpeg8_encode(
            _words(pixels),
            colorspace=same,
            outcolorspace=same,
            subsampling="444" if same else None,
            lossless=True,
            predictor=1,
            bitspersample=bits,
        )
    )


def _jpeg_ls(pixels: Pixels, bits: int) -> bytes:
    return bytes(imagecodecs.jpegls_encode(_words(pixels)))


def _jpeg_2000(pixels: Pixels, bits: int) -> bytes:
    return bytes(
        imagecodecs.jpeg2k_encode(
            pixels, codecformat="j2k", reversible=True, bitspersample=bits, mct=pixels.ndim == 3, numthreads=1
        )
    )


def _run_lengths(pixels: Pixels, bits: int) -> bytes:
    """Each byte of the values by itself, the highest first (PS3.5, G); pydicom does the same, much slower."""
    samples = np.moveaxis(pixels, 2, 0) if pixels.ndim == 3 else pixels[None]
    parts = []
    for sample in samples:
        planes = np.ascontiguousarray(sample, sample.dtype.newbyteorder(">")).view(np.uint8)
        for first in range(sample.itemsize):
            packed = bytes(imagecodecs.packbits_encode(planes[:, first :: sample.itemsize].copy()))
            parts.append(packed + bytes(len(packed) % 2))
    offsets = 64 + np.cumsum([0, *map(len, parts[:-1])])
    header = [len(parts), *offsets.tolist()]
    return struct.pack("<16I", *header, *[0] * (16 - len(header))) + b"".join(parts)


def _words(pixels: Pixels) -> Pixels:
    """The same bits without a sign, which these streams do not know."""
    return pixels.view(f"u{pixels.itemsize}")


ENCODERS: dict[str, Callable[[Pixels, int], bytes]] = {
    uid.JPEGLossless: _jpeg_lossless,
    uid.JPEGLosslessSV1: _jpeg_lossless,
    uid.JPEGLSLossless: _jpeg_ls,
    uid.JPEG2000Lossless: _jpeg_2000,
    uid.RLELossless: _run_lengths,
}
"""By transfer syntax, of pixels and the bits that they have; every pixel is kept."""
PHOTOMETRIC = {uid.JPEG2000Lossless: "YBR_RCT"}
"""What they make of RGB: its own transform, which ultrasound in JPEG 2000 must have."""
