"""Damaged files of every format: whatever comes, only errors of this library, in one line."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.data import get_testdata_file

from floormark.errors import FloormarkError
from floormark.imageio import read

IMAGE = (np.arange(24 * 20 * 3) % 251).astype(np.uint8).reshape(24, 20, 3)


def encoded(values: Any, kind: str, **options: Any) -> Callable[[], bytes]:
    def content() -> bytes:
        file = io.BytesIO()
        Image.fromarray(values).save(file, kind, **options)
        return file.getvalue()

    return content


def dicom(name: str) -> Callable[[], bytes]:
    return lambda: Path(str(get_testdata_file(name, download=False))).read_bytes()


def small_dicom() -> bytes:
    dataset, file = pydicom.dcmread(io.BytesIO(dicom("MR_small.dcm")())), io.BytesIO()
    dataset.Rows = dataset.Columns = 8  # a smaller file, so that mutations hit its head more often
    dataset.PixelData = dataset.PixelData[:128]
    dataset.save_as(file)
    return file.getvalue()


SEEDS: dict[str, Callable[[], bytes]] = {
    "grey.png": encoded(IMAGE[..., 0], "PNG"),
    "deep.png": encoded(IMAGE[..., 0].astype(np.uint16) * 257, "PNG", dpi=(300, 300)),
    "colour.png": encoded(IMAGE, "PNG", icc_profile=b"profile"),
    "grey.tif": encoded(IMAGE[..., 0], "TIFF", description="text", dpi=(300, 300)),
    "deep.tif": encoded(IMAGE[..., 0].astype(np.uint16) * 257, "TIFF", compression="tiff_lzw"),
    "colour.tif": encoded(IMAGE, "TIFF", compression="tiff_adobe_deflate"),
    "grey.bmp": encoded(IMAGE[..., 0], "BMP"),
    "colour.bmp": encoded(IMAGE, "BMP"),
    "colour.jpg": encoded(IMAGE, "JPEG"),
    "plain.dcm": small_dicom,
    "run length.dcm": dicom("MR_small_RLE.dcm"),
    "jpeg.dcm": dicom("SC_rgb_small_odd_jpeg.dcm"),
    "jpeg 2000.dcm": dicom("MR_small_jp2klossless.dcm"),
    "jpeg ls.dcm": dicom("MR_small_jpeg_ls_lossless.dcm"),
    "jpeg lossless.dcm": dicom("SC_rgb_jpeg_gdcm.dcm"),
    "jpeg of 12 bits.dcm": dicom("JPEG-lossy.dcm"),
}


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """One to eight wounds: bytes changed, cut out, repeated, filled with extremes, or the end torn off."""
    data = bytearray(content)
    for _ in range(int(random.integers(1, 9))):
        # Half of the wounds near the head, where the structure is.
        place = int(random.integers(len(data) if random.random() < 0.5 else min(len(data), 400)))
        size = int(random.integers(1, 9))
        wound = random.integers(6)
        if wound <= 1:
            data[place] = int(random.integers(256))
        elif wound == 2:
            data[place : place + size] = bytes([int(random.choice([0, 0x7F, 0x80, 0xFF]))]) * size
        elif wound == 3:
            del data[place : place + size]
        elif wound == 4:
            data[place:place] = data[place : place + size]
        elif len(data) > 8:
            del data[-int(random.integers(1, len(data) // 4 + 2)) :]
        if not data:
            break
    return bytes(data)


def grown(content: bytes, random: np.random.Generator) -> bytes:
    """Changed where no image is: bytes after the end, and in a PNG also a chunk that nobody knows."""
    more = random.bytes(int(random.integers(1, 100)))
    if (at := content.find(b"IDAT") - 4) > 0:
        chunk = b"prVt" + more
        chunk = struct.pack(">I", len(more)) + chunk + struct.pack(">I", zlib.crc32(chunk))
        content = content[:at] + chunk + content[at:]
    return content + more


def survives(name: str, mutants: int, folder: Path) -> int:
    """Read each mutant and, if that works, write it; returns how many were read.

    One of ten is not hurt: any reader that is worth its name reads it, and finds the same pixels.
    """
    content, random, good = SEEDS[name](), np.random.default_rng(len(name)), 0
    path, target = folder / name, folder / f"written{Path(name).suffix}"
    path.write_bytes(content)
    whole = read(path).pixels
    for number in range(mutants):
        unhurt = number % 10 == 9
        mutant = (grown if unhurt else damaged)(content, random)
        path.write_bytes(mutant)
        try:
            picture = read(path)
            good += 1
            assert not unhurt or np.array_equal(picture.pixels, whole)
            picture.write(target, picture.nearest(picture.pixels + 1.0), force=True, lossy=target.suffix == ".jpg")
        except FloormarkError as error:
            if unhurt:
                pytest.fail(f"mutant {number} of {name} is not hurt: {error}")
            if "\n" in str(error):
                pytest.fail(f"more than one line: {error}")
        except Exception as error:
            pytest.fail(f"mutant {number} of {name} ({mutant[:40].hex()}...): {type(error).__name__}: {error}")
    return good


@pytest.mark.parametrize("name", SEEDS)
def test_damaged_files_are_refused_or_read(name: str, tmp_path: Path) -> None:
    assert 4 <= survives(name, 40, tmp_path) < 40


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_ten_thousand_damaged_files_are_refused_or_read(name: str, tmp_path: Path) -> None:
    assert 62 <= survives(name, -(-10_000 // len(SEEDS)), tmp_path) < 625
