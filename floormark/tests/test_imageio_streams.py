"""Compressed DICOM files: decoded as others decode them, written back as they came."""

import io
import struct
from pathlib import Path
from typing import Any

import imagecodecs
import numpy as np
import pydicom
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import Image
from pydicom import uid
from pydicom.encaps import encapsulate, generate_frames
from pydicom.pixels.encoders.base import get_encoder

from dicom_files import make, opened, real
from floormark.errors import DataError
from floormark.imageio import read
from floormark.imageio.streams import ENCODERS, Shape, stream_shape

WAVES = np.add.outer(np.sin(np.arange(40) / 5), np.cos(np.arange(32) / 7)) / 4 + 0.5  # values in [0, 1]


def transcoded(path: Path, stream: bytes, syntax: str) -> Path:
    """The same file with its pixels as ``stream``."""
    dataset = pydicom.dcmread(path)
    dataset.PixelData = encapsulate([stream])
    dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True
    dataset.file_meta.TransferSyntaxUID = uid.UID(syntax)
    dataset.save_as(path)
    return path


def frame(path: Path) -> bytes:
    return next(generate_frames(opened(path).PixelData, number_of_frames=1))


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("MR_small_RLE.dcm", "MR_small.dcm"),
        ("MR_small_jp2klossless.dcm", "MR_small.dcm"),
        ("MR_small_jpeg_ls_lossless.dcm", "MR_small.dcm"),
        ("SC_rgb_jpeg_gdcm.dcm", "SC_rgb_rle.dcm"),
        ("SC_rgb_gdcm_KY.dcm", "SC_rgb_rle.dcm"),
    ],
)
def test_files_that_others_made_are_read_as_their_originals(name: str, original: str) -> None:
    np.testing.assert_array_equal(read(real(name)).pixels, read(real(original)).pixels)


def test_a_jpeg_of_twelve_bits_has_the_values_that_others_read() -> None:
    pixels = read(real("JPEG-lossy.dcm")).pixels
    assert (pixels[420, 140], pixels[230, 120]) == (244, 95)  # as in the tests of pydicom, by another decoder


@pytest.mark.parametrize("syntax", ENCODERS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_every_pixel_comes_back_in_the_syntax_it_came_in(syntax: str, tmp_path: Path, data: st.DataObject) -> None:
    dtype, least = data.draw(st.sampled_from([(np.uint8, 2), (np.uint16, 2), (np.int16, 2)]))
    bits = data.draw(st.integers(least, 8 * np.dtype(dtype).itemsize))
    colours = (3,) if dtype is not np.int16 and data.draw(st.booleans()) else ()
    shape = (data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9)), *colours)
    low = -(2 ** (bits - 1)) if dtype is np.int16 else 0
    values = arrays(dtype, shape, elements=st.integers(low, low + 2**bits - 1))
    before, after = data.draw(values), data.draw(values)
    path = make(tmp_path / "a.dcm", before, BitsStored=bits, HighBit=bits - 1)
    picture = read(transcoded(path, ENCODERS[syntax](before, bits), syntax))
    np.testing.assert_array_equal(picture.pixels, before)
    assert (picture.bits, picture.lossy, picture.notes) == (bits, False, ())
    picture.write(tmp_path / "b.dcm", after, force=True)
    np.testing.assert_array_equal(read(tmp_path / "b.dcm").pixels, after)
    assert opened(tmp_path / "b.dcm").file_meta.TransferSyntaxUID == syntax


@pytest.mark.parametrize("syntax", [uid.RLELossless, uid.JPEG2000Lossless, uid.JPEGLossless, uid.JPEGLosslessSV1])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_what_is_written_is_read_by_other_decoders(syntax: str, dtype: Any, tmp_path: Path) -> None:
    pixels = np.rint(WAVES * (200 if dtype is np.uint8 else 4000)).astype(dtype)
    bits = 8 if dtype is np.uint8 else 12
    path = make(tmp_path / "a.dcm", pixels, BitsStored=bits, HighBit=bits - 1)
    read(transcoded(path, ENCODERS[syntax](pixels, bits), syntax)).write(tmp_path / "b.dcm", pixels)
    if syntax in (uid.JPEGLossless, uid.JPEGLosslessSV1):
        found = imagecodecs.ljpeg_decode(frame(tmp_path / "b.dcm"))  # liblj92
    else:
        found = opened(tmp_path / "b.dcm").pixel_array  # by pydicom and by Pillow
    np.testing.assert_array_equal(found, pixels)


def test_what_other_encoders_write_is_read(tmp_path: Path) -> None:
    deep, path = np.rint(WAVES * 65535).astype(np.uint16), tmp_path / "a.dcm"
    file = io.BytesIO()
    Image.fromarray(deep).save(file, "JPEG2000", irreversible=False)
    assert file.getvalue()[4:8] == b"jP  "  # in boxes, as some write it
    np.testing.assert_array_equal(read(transcoded(make(path, deep), file.getvalue(), uid.JPEG2000)).pixels, deep)
    make(path, deep)
    dataset = opened(path)
    transcoded(path, get_encoder(uid.RLELossless).encode(dataset), uid.RLELossless)
    np.testing.assert_array_equal(read(path).pixels, deep)
    signed = (deep.astype(np.int64) - 32768).astype(np.int16)
    plain = imagecodecs.jpeg8_encode(signed.view(np.uint16), lossless=True, predictor=6, bitspersample=16)
    np.testing.assert_array_equal(read(transcoded(make(path, signed), bytes(plain), uid.JPEGLossless)).pixels, signed)


def test_white_stays_white_where_loss_leads_above_the_stored_bits(tmp_path: Path) -> None:
    pixels = np.where(WAVES > 0.5, 1023, 0).astype(np.uint16)
    stream = bytes(imagecodecs.jpeg8_encode(pixels, 90, bitspersample=12))
    assert imagecodecs.jpeg8_decode(stream).max() > 1023
    path = make(tmp_path / "a.dcm", pixels, BitsStored=10, HighBit=9)
    found = read(transcoded(path, stream, uid.JPEGExtended12Bit)).pixels
    assert np.abs(found.astype(int) - pixels).max() < 100


@pytest.mark.parametrize(
    "syntax",
    [
        uid.JPEGBaseline8Bit,
        uid.JPEGExtended12Bit,
        uid.JPEGLSNearLossless,
        uid.JPEG2000,
        uid.HTJ2KLossless,
        uid.HTJ2KLosslessRPCL,
        uid.HTJ2K,
    ],
)
def test_with_loss_or_without_an_encoder_it_is_written_uncompressed(syntax: uid.UID, tmp_path: Path) -> None:
    pixels = np.rint(WAVES * 250).astype(np.uint8)
    stream = {
        uid.JPEGBaseline8Bit: lambda: imagecodecs.jpeg8_encode(pixels, 95),
        uid.JPEGExtended12Bit: lambda: imagecodecs.jpeg8_encode(pixels, 95),
        uid.JPEGLSNearLossless: lambda: imagecodecs.jpegls_encode(pixels, 2),
        uid.JPEG2000: lambda: imagecodecs.jpeg2k_encode(pixels, 50, codecformat="j2k"),
    }.get(syntax, lambda: imagecodecs.htj2k_encode(pixels))()
    picture = read(transcoded(make(tmp_path / "a.dcm", pixels), bytes(stream), syntax))
    assert picture.lossy == (syntax not in (uid.HTJ2KLossless, uid.HTJ2KLosslessRPCL))
    assert np.abs(picture.pixels.astype(int) - pixels).max() <= 4
    assert picture.notes == (f"{syntax.name} will be written uncompressed",)
    picture.write(tmp_path / "b.dcm", pixels)
    assert opened(tmp_path / "b.dcm").file_meta.TransferSyntaxUID == uid.ExplicitVRLittleEndian
    assert ("LossyImageCompression" in opened(tmp_path / "b.dcm")) == picture.lossy


@pytest.mark.parametrize("syntax", [each for each in ENCODERS if each != uid.RLELossless])
def test_a_stream_that_is_not_as_the_header_says_is_not_decoded(
    syntax: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.rint(WAVES * 4000).astype(np.uint16)
    stream = ENCODERS[syntax](pixels, 12)
    assert stream_shape(stream) == Shape(32, 40, 1, 16 if syntax == uid.JPEGLSLossless else 12)
    path = tmp_path / "a.dcm"
    refused: list[tuple[NDArray[Any], bytes]] = [
        (pixels[:39].copy(), stream),
        (pixels[:, :31].copy(), stream),
        (pixels.astype(np.uint8), stream),
        (np.stack([pixels] * 3, 2), stream),
        (pixels, stream[:20]),
        (pixels, stream[2:]),
    ]
    for name in ("jpeg8_decode", "jpegls_decode", "jpeg2k_decode"):
        monkeypatch.setattr(imagecodecs, name, None)  # any call would be another error
    for wrong, content in refused:
        with pytest.raises(DataError, match=r"cannot be decoded.*expected") as caught:
            read(transcoded(make(path, wrong, BitsStored=8 * wrong.itemsize), content, syntax))
        assert "NoneType" not in str(caught.value)


def test_torn_streams_are_refused(tmp_path: Path) -> None:
    pixels = np.rint(WAVES * 4000).astype(np.uint16)
    for syntax in (uid.JPEGLosslessSV1, uid.JPEGLSLossless, uid.JPEG2000Lossless):
        stream = ENCODERS[syntax](pixels, 12)
        for length in (len(stream) // 2, len(stream) - 8):
            with pytest.raises(DataError, match="cannot be decoded"):
                read(transcoded(make(tmp_path / "a.dcm", pixels), stream[:length], syntax))


def test_several_frames_and_tiles_are_refused(tmp_path: Path) -> None:
    pixels = np.rint(WAVES * 250).astype(np.uint8)
    path = transcoded(make(tmp_path / "a.dcm", pixels), bytes(2), uid.JPEGLSLossless)
    dataset = opened(path)
    dataset.PixelData = encapsulate([ENCODERS[uid.JPEGLSLossless](pixels, 8)] * 2)
    dataset.save_as(path)
    with pytest.raises(DataError, match="expected NumberOfFrames to be how many there are"):
        read(path)
    stream = bytearray(ENCODERS[uid.JPEG2000Lossless](np.zeros((100, 100), np.uint8), 8))
    stream[24:32] = struct.pack(">II", 1, 1)
    with pytest.raises(DataError, match="at most 4,096 tiles in a JPEG 2000 image, got 10,000"):
        stream_shape(bytes(stream))


@pytest.mark.parametrize("syntax", [*ENCODERS, uid.ExplicitVRLittleEndian])
def test_monochrome1_stays_what_it_is(syntax: str, tmp_path: Path) -> None:
    pixels = np.rint(WAVES * 4000).astype(np.uint16)
    extra: dict[str, Any] = {"PhotometricInterpretation": "MONOCHROME1", "BitsStored": 12, "HighBit": 11}
    path = make(tmp_path / "a.dcm", pixels, **extra)
    if syntax in ENCODERS:
        transcoded(path, ENCODERS[syntax](pixels, 12), syntax)
    picture = read(path)
    picture.write(tmp_path / "b.dcm", picture.nearest(pixels + 1.0))
    np.testing.assert_array_equal(read(tmp_path / "b.dcm").pixels, pixels + 1)
    assert opened(tmp_path / "b.dcm").PhotometricInterpretation == "MONOCHROME1"
