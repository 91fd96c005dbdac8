import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import dicom_files
from hostile_files import png
from picture_folders import noise, save
from samplewise.errors import DataError
from studies.pictures.decode import decode

RAMP = (np.arange(256, dtype=np.uint8).reshape(16, 16)).copy()


def interpolated(pixels: NDArray[np.generic], size: int) -> NDArray[np.float64]:
    """PyTorch's antialiased bilinear resize: written apart from Pillow's."""
    image = torch.from_numpy(pixels.astype(np.float64))[None, None]
    small = torch.nn.functional.interpolate(image, (size, size), mode="bilinear", antialias=True, align_corners=False)
    result: NDArray[np.float64] = small[0, 0].numpy()
    return result


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_grey_in_any_mode_stays_the_same_grey(tmp_path: Path, mode: str, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(RAMP).convert(mode).save(path)
    pixels, found = decode(path, 16)
    assert found == mode
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, RAMP)


def test_palettes_and_single_bits_become_grey(tmp_path: Path) -> None:
    palette = Image.fromarray(RAMP % 4)
    palette.putpalette([0, 0, 0, 50, 50, 50, 100, 100, 100, 250, 250, 250])
    palette.save(tmp_path / "plain.png")
    palette.save(tmp_path / "clear.png", transparency=bytes([0, 128, 255, 255]))
    for name in ("plain.png", "clear.png"):
        pixels, kind = decode(tmp_path / name, 16)
        assert kind.startswith("RGB")
        assert np.array_equal(pixels, np.array([0, 50, 100, 250], np.uint8)[RAMP % 4])
    Image.fromarray(RAMP > 100).save(tmp_path / "bits.png")
    assert np.array_equal(decode(tmp_path / "bits.png", 16)[0], np.where(RAMP > 100, 255, 0))


def test_colours_are_weighed_as_the_eye_does(tmp_path: Path) -> None:
    Image.fromarray(np.full((4, 4, 3), (200, 100, 50), np.uint8)).save(tmp_path / "x.bmp")
    expected = round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)
    assert (decode(tmp_path / "x.bmp", 2)[0] == expected).all()


@pytest.mark.parametrize(("suffix", "kind"), [("png", "<u2"), ("tiff", "<u2"), ("tiff", ">u2")])
def test_sixteen_bits_keep_black_and_white(tmp_path: Path, suffix: str, kind: str) -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (32, 32)).astype(kind)
    deep[:8], deep[8:16] = 0, 65535
    Image.fromarray(deep).save(tmp_path / f"x.{suffix}")
    pixels, kind = decode(tmp_path / f"x.{suffix}", 32)
    assert kind == "16 bits"
    assert np.array_equal(pixels, np.rint(deep.astype(np.float64) * 255 / 65535))
    small, _ = decode(tmp_path / f"x.{suffix}", 8)
    assert np.abs(small - interpolated(deep, 8) * 255 / 65535).max() < 0.51  # rounded once


@pytest.mark.parametrize(("height", "width"), [(64, 64), (40, 90), (8, 8)])
def test_resizing_is_antialiased_bilinear_of_the_whole_picture(tmp_path: Path, height: int, width: int) -> None:
    pixels = noise(0, height, width)
    small, _ = decode(save(tmp_path / "x.png", pixels), 20)
    assert np.abs(small - interpolated(pixels, 20)).max() <= 1.01


def test_fine_stripes_become_grey_and_nothing_is_cropped(tmp_path: Path) -> None:
    stripes = np.zeros((64, 64), np.uint8)
    stripes[:, ::2] = 255
    assert np.abs(decode(save(tmp_path / "x.png", stripes), 8)[0].astype(int) - 128).max() <= 8
    edge = np.zeros((10, 100), np.uint8)
    edge[:, :10] = 255
    assert (decode(save(tmp_path / "y.png", edge), 10)[0][:, 0] > 200).all()


def encoded(kind: str, image: Image.Image | None = None) -> bytes:
    file = io.BytesIO()
    (image or Image.fromarray(noise(1, 64, 64))).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"<html>404</html>", "PNG"),
        (encoded("GIF"), "PNG"),
        (encoded("PNG")[:-2000], "torn"),
        (encoded("PNG")[:-6], "torn"),
        (encoded("JPEG")[:-500], "torn"),
        (encoded("BMP")[:-500], "torn"),
        (encoded("TIFF")[:-500], "torn"),
        (png(9000, 9000, rows=1), "9000 x 9000"),
        (png(10_000, 10_000, rows=1), "10000 x 10000"),
        (png(60_000, 60_000, rows=1), "3600000000"),
        (encoded("PNG", Image.new("L", (40_000, 8))), "40000 x 8"),
        (encoded("TIFF", Image.new("F", (4, 4))), "16"),
        (encoded("TIFF", Image.new("I", (4, 4))), "16"),
    ],
)
def test_a_file_that_cannot_be_decoded_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        decode(path, 8)
    assert reason in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_webp_is_read(tmp_path: Path) -> None:
    Image.fromarray(RAMP).save(tmp_path / "x.webp", lossless=True)
    pixels, kind = decode(tmp_path / "x.webp", 16)
    assert kind == "RGB"
    assert np.array_equal(pixels, RAMP)


def test_dicom_is_read_as_a_viewer_shows_it(tmp_path: Path) -> None:
    stored = (8 * RAMP.astype(np.uint16)) + 1000  # 1000 to 3040 of 0 to 4095
    bits: dict[str, Any] = {"BitsStored": 12, "HighBit": 11}
    window = {**bits, "WindowCenter": 2020.5, "WindowWidth": 2041.0}  # from 1000 to 3040
    pixels, kind = decode(dicom_files.make(tmp_path / "x.dcm", stored, **window), 16)
    assert kind == "12 bits"
    assert np.abs(pixels.astype(int) - RAMP).max() <= 1
    negative = dicom_files.make(tmp_path / "y.dcm", stored, **window, PhotometricInterpretation="MONOCHROME1")
    assert np.array_equal(decode(negative, 16)[0], 255 - pixels)
    plain = dicom_files.make(tmp_path / "z.dcm", stored, **bits)  # without a window the range in use
    assert np.abs(decode(plain, 16)[0].astype(int) - RAMP).max() <= 2


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file or directory"):
        decode(tmp_path / "x.png", 8)


WHOLE = noise(2, 24, 24)
INTACT = encoded("PNG", Image.fromarray(WHOLE))


@given(st.integers(0, len(INTACT) - 1), st.integers(0, 7))
def test_no_flipped_bit_of_a_png_changes_a_pixel_in_silence(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    damaged = bytearray(INTACT)
    damaged[place] ^= 1 << bit
    path = tmp_path_factory.getbasetemp() / "flipped.png"
    path.write_bytes(damaged)
    try:
        pixels, _ = decode(path, 24)
    except DataError:
        return
    assert np.array_equal(pixels, WHOLE)
