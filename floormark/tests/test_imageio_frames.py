"""DICOM files of several frames, with palettes and in YBR: read frame by frame, and written whole."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.pixels.decoders.base import get_decoder
from pydicom.pixels.processing import apply_color_lut, convert_color_space
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
    JPEGBaseline8Bit,
)

from dicom_files import make, opened, real
from floormark.errors import DataError
from floormark.imageio import frames_sha256, read
from floormark.imageio.streams import ENCODERS

RNG = np.random.default_rng(3)
FRAMES = RNG.integers(0, 4096, (5, 34, 33), np.uint16)  # an odd number of pixels
COLOURS = RNG.integers(0, 256, (3, 17, 19, 3), np.uint8)


def several(path: Path, pixels: NDArray[Any], syntax: str = ExplicitVRLittleEndian, **more: Any) -> Path:
    """A file of several frames, ``(N, H, W)`` or ``(N, H, W, 3)``."""
    if pixels.itemsize == 2:
        more = {"BitsStored": 12, "HighBit": 11, **more}
    if syntax not in ENCODERS:
        data = pixels.tobytes() + bytes(pixels.nbytes % 2)
        return make(path, pixels[0], syntax, NumberOfFrames=len(pixels), PixelData=data, **more)
    dataset = opened(make(path, pixels[0], NumberOfFrames=len(pixels), **more))
    dataset.PixelData = encapsulate([ENCODERS[syntax](frame, 12 if pixels.itemsize == 2 else 8) for frame in pixels])
    dataset["PixelData"].VR, dataset["PixelData"].is_undefined_length = "OB", True
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path)
    return path


SYNTAXES = [ExplicitVRLittleEndian, ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian, *ENCODERS]


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("pixels", [FRAMES, FRAMES.astype(np.uint8), COLOURS], ids=["12 bits", "8 bits", "colour"])
def test_every_frame_is_read_and_written(syntax: str, pixels: NDArray[Any], tmp_path: Path) -> None:
    image = read(several(tmp_path / "a.dcm", pixels, syntax))
    assert image.frame_count == len(pixels)
    np.testing.assert_array_equal(image.pixels, pixels[0])
    np.testing.assert_array_equal([frame.pixels for frame in image.frames()], pixels)
    changed = pixels ^ 1
    image.write(tmp_path / "b.dcm", *changed)
    np.testing.assert_array_equal([frame.pixels for frame in read(tmp_path / "b.dcm").frames()], changed)
    after = opened(tmp_path / "b.dcm")
    assert (int(after.NumberOfFrames), after.file_meta.TransferSyntaxUID) == (len(pixels), syntax)
    if get_decoder(syntax).is_available:
        np.testing.assert_array_equal(after.pixel_array, changed)  # as pydicom reads it


def test_files_of_pydicom_have_the_frames_that_it_reads() -> None:
    for name in ("SC_rgb_rle_2frame.dcm", "SC_rgb_rle_16bit_2frame.dcm", "examples_ybr_color.dcm"):
        found = np.stack([frame.pixels for frame in read(real(name)).frames()])
        dataset = opened(real(name))
        assert len(found) == dataset.NumberOfFrames
        np.testing.assert_array_equal(found, dataset.pixel_array, name)


def test_one_frame_at_a_time_is_in_memory(tmp_path: Path) -> None:
    pixels = np.zeros((64, 256, 256), np.uint16)
    image = read(several(tmp_path / "a.dcm", pixels))
    tracemalloc.start()
    shapes = {frame.pixels.shape for frame in image.frames()}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert shapes == {(256, 256)}
    assert peak < pixels.nbytes / 4


def test_too_few_and_too_many_frames_are_refused(tmp_path: Path) -> None:
    path = several(tmp_path / "a.dcm", FRAMES)
    for said, message in ((7, "expected 7 frames, got 5"), (4, "expected NumberOfFrames"), (1 << 20, "MB of pixels")):
        dataset = opened(path)
        dataset.NumberOfFrames = said
        dataset.save_as(tmp_path / "b.dcm")
        with pytest.raises(DataError, match=message):
            list(read(tmp_path / "b.dcm").frames())
    with pytest.raises(DataError, match="does not read back"):
        read(path).write(tmp_path / "c.dcm", *FRAMES[:3])
    assert not (tmp_path / "c.dcm").exists()


def voi(centre: float) -> Dataset:
    window, group = Dataset(), Dataset()
    window.WindowCenter, window.WindowWidth, window.VOILUTFunction = centre, 100.0, "LINEAR_EXACT"
    group.FrameVOILUTSequence = [window]
    return group


def test_each_frame_has_its_own_window(tmp_path: Path) -> None:
    groups = [voi(100.0 * number) for number in range(1, 6)]
    image = read(several(tmp_path / "a.dcm", FRAMES, PerFrameFunctionalGroupsSequence=groups))
    windows = [frame.window for frame in image.frames()]
    assert [(window.low, window.high) for window in windows if window] == [
        (100.0 * number - 50, 100.0 * number + 50) for number in range(1, 6)
    ]


def test_frames_of_enhanced_images_say_how_they_were_derived(tmp_path: Path) -> None:
    kind = Dataset()
    kind.FrameType = ["ORIGINAL", "PRIMARY", "VOLUME", "NONE"]
    shared = voi(500.0)
    shared.MRImageFrameTypeSequence = [kind]
    extra = {"SOPClassUID": "1.2.840.10008.5.1.4.1.1.4.1", "SeriesInstanceUID": "1.2.3", "StudyInstanceUID": "1.2"}
    path = several(tmp_path / "a.dcm", FRAMES, SharedFunctionalGroupsSequence=[shared], **extra)
    read(path).write(tmp_path / "b.dcm", *FRAMES)
    before, after = opened(path), opened(tmp_path / "b.dcm")
    (group,) = after.SharedFunctionalGroupsSequence
    assert group.MRImageFrameTypeSequence[0].FrameType == ["DERIVED", "PRIMARY", "VOLUME", "NONE"]
    (derived,) = group.DerivationImageSequence
    assert derived.DerivationCodeSequence[0].CodeValue == "113042"
    assert derived.SourceImageSequence[0].ReferencedSOPInstanceUID == before.SOPInstanceUID
    series = after.SourceImageEvidenceSequence[0].ReferencedSeriesSequence[0]
    assert series.SeriesInstanceUID == "1.2.3"
    assert series.ReferencedSOPSequence[0].ReferencedSOPInstanceUID == before.SOPInstanceUID
    assert "SourceImageSequence" not in after  # of which an enhanced image has none


def test_a_palette_is_turned_into_what_it_shows(tmp_path: Path) -> None:
    image, before = read(real("examples_palette.dcm")), opened(real("examples_palette.dcm"))
    assert image.had_palette
    assert image.notes == ("palette turned into RGB, 8 bits",)
    shown = apply_color_lut(before.pixel_array, before) >> 8  # its entries have 16 bits
    np.testing.assert_array_equal(image.pixels, shown)
    image.write(tmp_path / "b.dcm", image.pixels ^ 1)
    after = opened(tmp_path / "b.dcm")
    np.testing.assert_array_equal(after.pixel_array, image.pixels ^ 1)
    assert (after.PhotometricInterpretation, after.SamplesPerPixel, after.BitsStored) == ("RGB", 3, 8)
    assert not after.dir("PaletteColor")
    assert not read(tmp_path / "b.dcm").had_palette


def test_full_ybr_is_read_as_others_turn_it_into_rgb(tmp_path: Path) -> None:
    path = make(tmp_path / "a.dcm", COLOURS[0], PhotometricInterpretation="YBR_FULL")
    image = read(path)
    assert image.notes == ("YBR_FULL turned into RGB",)
    np.testing.assert_array_equal(image.pixels, convert_color_space(COLOURS[0], "YBR_FULL", "RGB"))
    image.write(tmp_path / "b.dcm", image.pixels ^ 1)
    np.testing.assert_array_equal(read(tmp_path / "b.dcm").pixels, image.pixels ^ 1)
    assert opened(tmp_path / "b.dcm").PhotometricInterpretation == "RGB"


def test_four_colours_are_refused_with_a_way_out(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), np.uint8)
    extra: dict[str, Any] = {"PhotometricInterpretation": "CMYK", "SamplesPerPixel": 4, "PixelData": bytes(256)}
    with pytest.raises(DataError, match="CMYK with 4 samples: convert it to RGB"):
        read(make(tmp_path / "a.dcm", pixels, **extra))


def test_a_torn_frame_is_told(tmp_path: Path) -> None:
    path = several(tmp_path / "a.dcm", COLOURS)
    dataset = opened(path)
    dataset.PixelData = encapsulate([b"\xff\xd8 no image"] * 3)
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = JPEGBaseline8Bit
    dataset.save_as(path)
    with pytest.raises(DataError, match="stream"):
        read(path)


def test_the_hash_of_one_frame_is_its_own() -> None:
    assert frames_sha256(["ab"]) == "ab"
    assert len({frames_sha256(each) for each in (["a", "b"], ["b", "a"], ["a", "b", "b"])}) == 3
