"""Real DICOM files with a display window: marked within it, or refused in one line."""

import math
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest
from pydicom.data import get_testdata_files

from samplewise.errors import RefusedError, SamplewiseError
from samplewise.watermark import Payload, Watermarker
from samplewise.watermark.formats import ImageFile, read
from samplewise.watermark.marking import FileMarker
from samplewise.watermark.verification import verify_files

MARKER = Watermarker.load()


def windowed(largest: int) -> Iterator[ImageFile]:
    """Those that come with pydicom, of so many pixels at most, each content once; the others are refused in one line."""
    seen = set()
    for name in sorted(get_testdata_files()):
        try:
            image = read(Path(name))
        except SamplewiseError as error:
            assert "\n" not in str(error)
            continue
        content = image.pixels.tobytes()
        if image.window is not None and image.pixels.size <= largest and content not in seen:
            seen.add(content)
            yield image


@pytest.mark.parametrize(("floor", "largest"), [(30.0, 1 << 20), (45.0, 1 << 14)])
def test_every_file_with_a_window_keeps_the_floor_in_it_or_is_refused(
    floor: float, largest: int, tmp_path: Path
) -> None:
    units, marked = set(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the real files have real faults
        images = list(windowed(largest))
        for number, image in enumerate(images):
            assert image.window is not None
            target = tmp_path / f"{number}.dcm"
            try:
                certificate, _ = FileMarker(MARKER, Payload.of(b"x"), floor).mark_file(image.path, target)
            except SamplewiseError as error:
                assert "\n" not in str(error)
                assert str(error).startswith(str(image.path))
                assert not target.exists()
                small = min(image.pixels.shape[:2]) < 64
                assert small or isinstance(error, RefusedError), error
                continue
            marked += 1
            units.add(certificate.fidelity.unit)
            found = certificate.fidelity
            change = pydicom.dcmread(target).pixel_array.astype(np.float64) - image.pixels
            width = image.window.high - image.window.low
            assert found.shown == width
            assert found.shown_psnr == pytest.approx(10 * math.log10(width**2 / np.square(change).mean()))
            assert min(found.floors) >= floor
            assert found.largest_change == np.abs(change).max() * image.window.step
            assert not verify_files(MARKER, image.path, target).problems
    assert len(images) >= 3
    if floor < 40:
        assert marked >= 2
        assert "HU" in units
