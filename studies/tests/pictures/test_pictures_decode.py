import io
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from picture_folders import noise, save
from samplewise.errors import DataError, MissingPackageError
from studies.pictures.decode import decode, need_pillow

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
        pixels, mode = decode(tmp_path / name, 16)
        assert mode == "P"
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
    pixels, mode = decode(tmp_path / f"x.{suffix}", 32)
    assert mode.startswith("I;16")
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


def png(width: int, height: int) -> bytes:
    """A PNG file that only claims its size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")


def encoded(kind: str, image: Image.Image | None = None) -> bytes:
    file = io.BytesIO()
    (image or Image.fromarray(noise(1, 64, 64))).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a PNG, JPEG, TIFF or BMP file"),
        (b"<html>404</html>", "not a PNG, JPEG, TIFF or BMP file"),
        (encoded("GIF"), "not a PNG, JPEG, TIFF or BMP file"),
        (encoded("PNG")[:-2000], "truncated|broken|Truncated"),
        (encoded("PNG")[:-6], "truncated|broken|Truncated"),
        (encoded("JPEG")[:-500], "truncated"),
        (encoded("BMP")[:-500], "truncated"),
        (encoded("TIFF")[:-500], "truncated|buffer|decoder"),
        (png(9000, 9000), "9000 x 9000 pixels, more than"),
        (png(10_000, 10_000), "more than 67108864 pixels"),
        (png(60_000, 60_000), "more than 67108864 pixels"),
        (encoded("TIFF", Image.new("F", (4, 4))), r"32 bits \(mode F\), whose white is unknown"),
        (encoded("TIFF", Image.new("I", (4, 4))), r"32 bits \(mode I\), whose white is unknown"),
    ],
)
def test_a_file_that_cannot_be_decoded_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        decode(path, 8)
    assert re.search(reason, str(caught.value)), str(caught.value)
    assert str(tmp_path) not in str(caught.value)


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


def test_without_pillow_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError, match=r"pip install .*'pillow>="):
        need_pillow()
