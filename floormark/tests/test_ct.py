"""Real DICOM files with a display window: marked within it, or refused in one line."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_files

from floormark import Payload, Watermarker
from floormark.certificate import ImageCertificate
from floormark.errors import FloormarkError, RefusedError
from floormark.imageio import ImageFile, read
from floormark.verify import verify_files
from marking import marking

MARKER = Watermarker.load()


def windowed(largest: int) -> Iterator[ImageFile]:
    """Those that come with pydicom, of so many pixels at most, each content once."""
    seen = set()
    for path in map(Path, sorted(get_testdata_files())):
        try:
            image = read(path)
        except FloormarkError:  # what is no image of one frame
            continue
        content = image.pixels.tobytes()
        if image.window is not None and image.pixels.size <= largest and content not in seen:
            seen.add(content)
            yield image


def marked(image: ImageFile, target: Path, floor: float) -> ImageCertificate | FloormarkError:
    try:
        return marking(MARKER, Payload.of(b"x"), floor).mark_file(image.path, target)[0]
    except FloormarkError as error:
        return error


def check(image: ImageFile, target: Path, certificate: ImageCertificate) -> None:
    assert image.window is not None
    found, width = certificate.fidelity, image.window.high - image.window.low
    change = pydicom.dcmread(target).pixel_array.astype(np.float64) - image.pixels
    assert found.shown == width
    assert found.shown_psnr == pytest.approx(10 * math.log10(width**2 / np.square(change).mean()))
    assert min(found.floors) >= certificate.floor
    assert (found.largest_change, found.unit) == (np.abs(change).max() * image.window.step, image.window.unit)
    assert not verify_files(MARKER, image.path, target).problems


@pytest.mark.parametrize(("floor", "largest"), [(30.0, 1 << 20), (45.0, 1 << 14)])
def test_every_file_with_a_window_keeps_the_floor_in_it_or_is_refused(
    floor: float, largest: int, tmp_path: Path
) -> None:
    units = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real files have real faults
        for number, image in enumerate(windowed(largest)):
            target = tmp_path / f"{number}.dcm"
            found = marked(image, target, floor)
            if isinstance(found, ImageCertificate):
                check(image, target, found)
                units.append(found.fidelity.unit)
                continue
            assert str(found).startswith(str(image.path))
            assert "\n" not in str(found)
            assert not target.exists()
            assert isinstance(found, RefusedError) or min(image.pixels.shape[:2]) < 64, found
    if floor < 40:
        assert units.count("HU") >= 1
        assert len(units) >= 2
