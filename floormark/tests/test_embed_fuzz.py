"""Damaged files through the whole of embed: whatever comes, a file that holds, or an error of this library."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dicom_files import make
from floormark import Payload, Watermarker
from floormark.certificate import certificate_path
from floormark.errors import FloormarkError
from floormark.verify import verify_files
from marking import marking
from natural_images import natural_image
from test_imageio_fuzz import damaged

# As small as holds a message of one byte, so that thousands take minutes.
GREY, COLOUR = (natural_image(channels, height=160, width=168)[30:, 40:] for channels in (1, 3))
DEEP = GREY.astype(np.uint16) * 16
MARKER = marking(Watermarker.load(), Payload.of(b"x"), 32.0, force=True, lossy=True)


def encoded(values: NDArray[Any], kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(values).save(file, kind, **options)
    return file.getvalue()


def dicom(folder: Path, values: NDArray[Any], **attributes: Any) -> bytes:
    return make(folder / "seed.dcm", values, **attributes).read_bytes()


SEEDS: dict[str, Callable[[Path], bytes]] = {
    "grey.png": lambda _: encoded(GREY, "PNG"),
    "deep.png": lambda _: encoded(DEEP, "PNG"),
    "colour.tif": lambda _: encoded(COLOUR, "TIFF", compression="tiff_lzw"),
    "deep.tif": lambda _: encoded(DEEP, "TIFF"),
    "colour.bmp": lambda _: encoded(COLOUR, "BMP"),
    "grey.jpg": lambda _: encoded(GREY, "JPEG", quality=95),
    "colour.jpg": lambda _: encoded(COLOUR, "JPEG"),
    "deep.dcm": lambda folder: dicom(folder, DEEP, BitsStored=12, HighBit=11),
    "signed.dcm": lambda folder: dicom(folder, DEEP.astype(np.int16) - 2048, PhotometricInterpretation="MONOCHROME1"),
    "colour.dcm": lambda folder: dicom(folder, COLOUR),
}


def survives(name: str, mutants: int, folder: Path) -> int:
    """Mark each mutant; returns how many were written, each of which was verified."""
    content, random, written = SEEDS[name](folder), np.random.default_rng(len(name)), 0
    source, target = folder / name, folder / f"written{Path(name).suffix}"
    for number in range(mutants):
        mutant = damaged(content, random)
        source.write_bytes(mutant)
        target.unlink(missing_ok=True)
        certificate_path(target).unlink(missing_ok=True)
        told = ""
        try:
            MARKER.mark_file(source, target)
        except FloormarkError as error:
            told = str(error)
        except Exception as error:
            pytest.fail(f"mutant {number} of {name} ({mutant[:40].hex()}...): {type(error).__name__}: {error}")
        assert "\n" not in told
        assert " object at " not in told
        assert target.exists() == certificate_path(target).exists() == (not told)
        if not told:
            written += 1
            assert not verify_files(MARKER.marker, source, target).problems, f"mutant {number} of {name}"
        assert not list(folder.glob(".*")), f"mutant {number} of {name}"
    return written


@pytest.mark.parametrize("name", SEEDS)
def test_damaged_files_are_marked_or_refused(name: str, tmp_path: Path) -> None:
    assert survives(name, 12, tmp_path) < 12


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_ten_thousand_damaged_files_are_marked_or_refused(name: str, tmp_path: Path) -> None:
    assert survives(name, -(-10_000 // len(SEEDS)), tmp_path) > 0
