import ast
import io
import shutil
import subprocess
import zlib
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pydicom.data import get_testdata_files
from pydicom.dataset import Dataset
from pydicom.uid import DeflatedExplicitVRLittleEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

from dicom_files import make, opened, real
from floormark.errors import ConfigurationError, DataError, OutputError
from floormark.imageio import dicom, read
from floormark.imageio.streams import ENCODERS
from small_disk import fill, small_disk

# What a derived instance changes, and what may change with the way pixels are stored.
CHANGED = {
    "SOPInstanceUID",
    "ImageType",
    "DerivationDescription",
    "DerivationCodeSequence",
    "ContributingEquipmentSequence",
    "SourceImageSequence",
    "SeriesInstanceUID",
    "SeriesDescription",
    "InstanceCreationDate",
    "InstanceCreationTime",
    "PixelData",
    "SmallestImagePixelValue",
    "LargestImagePixelValue",
    "LossyImageCompression",
    "PhotometricInterpretation",
    "PlanarConfiguration",
}
GOOD = [
    "CT_small.dcm",
    "MR_small.dcm",
    "MR_small_RLE.dcm",
    "MR_small_implicit.dcm",
    "MR_small_jp2klossless.dcm",
    "MR_small_jpeg_ls_lossless.dcm",
    "MR_small_padded.dcm",
    "JPEG-lossy.dcm",  # of 12 bits
    "JPEG2000.dcm",
    "JPEGLSNearLossless_16.dcm",
    "SC_rgb_jpeg_gdcm.dcm",  # without loss
    "SC_rgb_jls_lossy_sample.dcm",
    "SC_rgb_dcmtk_+eb+cy+s2.dcm",
    "SC_rgb_jpeg.dcm",  # claims explicit VR, but is implicit
    "SC_rgb_rle.dcm",
    "SC_rgb_rle_16bit.dcm",
    "SC_rgb_small_odd.dcm",
    "SC_ybr_full_422_uncompressed.dcm",
    "examples_overlay.dcm",
    "image_dfl.dcm",
]


def test_every_kind_of_real_file_is_read_and_written(tmp_path: Path) -> None:
    for name in GOOD:
        picture = read(real(name))
        marked = picture.nearest(picture.pixels + np.where(picture.pixels % 2, 1.0, -1.0))
        assert (marked != picture.pixels).any(), name
        picture.write(tmp_path / name, marked)
        np.testing.assert_array_equal(read(tmp_path / name).pixels, marked, err_msg=name)
        after = opened(tmp_path / name)
        if after.file_meta.TransferSyntaxUID not in ENCODERS:
            np.testing.assert_array_equal(after.pixel_array, marked, err_msg=name)


@pytest.mark.parametrize("name", GOOD)
def test_everything_else_is_kept(name: str, tmp_path: Path) -> None:
    before, picture = opened(real(name)), read(real(name))
    picture.write(tmp_path / name, picture.pixels)
    after = opened(tmp_path / name)
    assert {element.keyword for element in after} - {element.keyword for element in before} <= CHANGED
    for element in before:
        if element.keyword not in CHANGED:
            assert after[element.tag].value == element.value, element.keyword
    syntax = before.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated and syntax not in ENCODERS:  # with loss
        assert after.file_meta.TransferSyntaxUID == ExplicitVRLittleEndian
        assert picture.notes[0] == f"{syntax.name} will be written uncompressed"
    else:
        assert after.file_meta.TransferSyntaxUID == syntax
        assert not any("uncompressed" in note for note in picture.notes)
    assert len(after.PixelData) % 2 == 0


def test_the_result_is_a_derived_instance_that_names_its_source(tmp_path: Path) -> None:
    before = opened(real("CT_small.dcm"))
    read(real("CT_small.dcm")).write(tmp_path / "a.dcm", read(real("CT_small.dcm")).pixels)
    after = opened(tmp_path / "a.dcm")
    assert after.SOPInstanceUID != before.SOPInstanceUID
    assert after.SOPInstanceUID.is_valid
    assert after.file_meta.MediaStorageSOPInstanceUID == after.SOPInstanceUID
    assert list(after.ImageType) == ["DERIVED", *before.ImageType[1:]]
    assert "watermark" in after.DerivationDescription
    (source,) = after.SourceImageSequence
    assert source.ReferencedSOPInstanceUID == before.SOPInstanceUID
    assert source.ReferencedSOPClassUID == before.SOPClassUID
    # Marked again: the chain of sources and descriptions grows.
    read(tmp_path / "a.dcm").write(tmp_path / "b.dcm", read(tmp_path / "a.dcm").pixels)
    again = opened(tmp_path / "b.dcm")
    assert [item.ReferencedSOPInstanceUID for item in again.SourceImageSequence] == [
        before.SOPInstanceUID,
        after.SOPInstanceUID,
    ]
    assert again.DerivationDescription.count("watermark") == 2
    assert len(again.ContributingEquipmentSequence) == len(again.DerivationCodeSequence) == 2
    (tool,) = after.ContributingEquipmentSequence
    assert tool.PurposeOfReferenceCodeSequence[0].CodeValue == "109103"
    assert (tool.Manufacturer, tool.SoftwareVersions) == ("floormark", version("floormark"))


def test_a_series_becomes_one_new_series_unless_it_is_kept(tmp_path: Path) -> None:
    before = opened(real("CT_small.dcm"))
    picture = read(real("CT_small.dcm"))
    for name in ("a.dcm", "b.dcm"):
        picture.write(tmp_path / name, picture.pixels)
    first, second = opened(tmp_path / "a.dcm"), opened(tmp_path / "b.dcm")
    assert first.SeriesInstanceUID == second.SeriesInstanceUID != before.SeriesInstanceUID
    assert first.SeriesInstanceUID.is_valid
    assert first.StudyInstanceUID == before.StudyInstanceUID
    assert first.SeriesDescription.endswith("watermarked")
    replace(picture, keep_series=True).write(tmp_path / "kept.dcm", picture.pixels)
    kept = opened(tmp_path / "kept.dcm")
    assert kept.SeriesInstanceUID == before.SeriesInstanceUID
    assert "SeriesDescription" not in kept or kept.SeriesDescription == before.SeriesDescription


def test_a_long_description_of_a_series_still_fits(tmp_path: Path) -> None:
    dataset = opened(real("CT_small.dcm"))
    dataset.SeriesDescription = "x" * 64
    dataset.save_as(tmp_path / "long.dcm")
    picture = read(tmp_path / "long.dcm")
    picture.write(tmp_path / "marked.dcm", picture.pixels)
    described = opened(tmp_path / "marked.dcm").SeriesDescription
    assert len(described) == 64
    assert described.endswith(" watermarked")


def complaints(path: Path) -> set[str]:
    """What the validator of dicom3tools says of a file."""
    told = subprocess.run(["dciodvfy", "-new", str(path)], capture_output=True, check=False).stderr
    lines = told.decode(errors="replace").splitlines()
    return {line for line in lines if line.startswith(("Error", "Warning"))}


@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="install dicom3tools to have derived files validated")
@pytest.mark.parametrize("name", ["CT_small.dcm", "MR_small.dcm", "SC_rgb_small_odd.dcm", "examples_jpeg2k.dcm"])
def test_the_validator_finds_nothing_new(name: str, tmp_path: Path) -> None:
    picture = read(real(name))
    picture.write(tmp_path / name, picture.pixels)
    assert complaints(tmp_path / name) <= complaints(real(name))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("dciodvfy") is None, reason="install dicom3tools to have derived files validated")
def test_the_validator_finds_nothing_new_in_any_file(tmp_path: Path) -> None:
    checked = 0
    for path in map(Path, sorted(get_testdata_files())):
        try:
            picture = read(path)
        except DataError:
            continue
        before = opened(path)
        if before.file_meta.TransferSyntaxUID == DeflatedExplicitVRLittleEndian:
            continue  # the validator takes the deflated bytes for attributes
        picture.write(tmp_path / "after.dcm", *(frame.pixels for frame in picture.frames()), force=True)
        told = complaints(tmp_path / "after.dcm") - complaints(path)
        # A reference repeats the UID of the source, which may be invalid there as well.
        assert not {line for line in told if str(before.SOPInstanceUID) not in line}, path.name
        checked += 1
    assert checked >= 50


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_every_pixel_comes_back(tmp_path: Path, data: st.DataObject) -> None:
    dtype, least = data.draw(st.sampled_from([(np.uint8, 2), (np.uint16, 9), (np.int16, 9)]))
    bits = data.draw(st.integers(least, 8 * np.dtype(dtype).itemsize))
    colours = (3,) if dtype is not np.int16 and data.draw(st.booleans()) else ()
    shape = (data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5)), *colours)
    low = -(2 ** (bits - 1)) if dtype is np.int16 else 0
    values = arrays(dtype, shape, elements=st.integers(low, low + 2**bits - 1))
    before, after = data.draw(values), data.draw(values)
    syntax = data.draw(
        st.sampled_from([ExplicitVRLittleEndian, ImplicitVRLittleEndian, DeflatedExplicitVRLittleEndian])
    )
    picture = read(make(tmp_path / "a.dcm", before, syntax, BitsStored=bits, HighBit=bits - 1))
    np.testing.assert_array_equal(picture.pixels, before)
    assert (picture.peak, picture.lowest) == (2**bits - 1, low)
    picture.write(tmp_path / "b.dcm", after, force=True)
    np.testing.assert_array_equal(opened(tmp_path / "b.dcm").pixel_array, after)


def test_monochrome1_and_rescale_stay_as_they_are(tmp_path: Path) -> None:
    pixels = np.arange(16, dtype=np.uint16).reshape(4, 4)
    extra = {"PhotometricInterpretation": "MONOCHROME1", "RescaleSlope": "2.5", "RescaleIntercept": "-1024"}
    picture = read(make(tmp_path / "a.dcm", pixels, BitsStored=12, HighBit=11, **extra))
    np.testing.assert_array_equal(picture.pixels, pixels)  # as stored: neither inverted nor rescaled
    assert picture.peak == 4095
    picture.write(tmp_path / "b.dcm", pixels[::-1].copy())
    after = opened(tmp_path / "b.dcm")
    assert (after.PhotometricInterpretation, after.RescaleSlope, after.RescaleIntercept) == ("MONOCHROME1", 2.5, -1024)


@pytest.mark.parametrize(
    ("value", "limit", "expected"),
    [(0, None, [0]), (2, 4, [2, 3, 4]), (4, 2, [2, 3, 4]), (9, None, [])],
)
def test_padding_is_not_touched(value: int, limit: int | None, expected: list[int], tmp_path: Path) -> None:
    pixels = np.arange(9, dtype=np.uint16).reshape(3, 3)
    extra: dict[str, Any] = {"PixelPaddingValue": value} | ({} if limit is None else {"PixelPaddingRangeLimit": limit})
    picture = read(make(tmp_path / "a.dcm", pixels, **extra))
    assert pixels[picture.padding(pixels)].tolist() == expected
    for change in (1.0, -1.0):
        marked = picture.nearest(pixels + change)
        assert marked[picture.padding(pixels)].tolist() == expected
        np.testing.assert_array_equal(picture.padding(marked), picture.padding(pixels))
        picture.write(tmp_path / "b.dcm", marked, force=True)


def test_padding_of_the_other_sign_is_understood(tmp_path: Path) -> None:
    pixels = np.array([[-2000, 5]], np.int16)
    path = make(tmp_path / "a.dcm", pixels)
    dataset = opened(path)
    dataset.add_new("PixelPaddingValue", "US", 65536 - 2000)
    dataset.save_as(path)
    picture = read(path)
    assert picture.padding_range == (-2000, -2000)


def test_padding_may_lie_outside_the_stored_bits_but_nothing_else(tmp_path: Path) -> None:
    pixels = np.array([[-2000, 5]], np.int16)
    limits: dict[str, Any] = {"BitsStored": 10, "HighBit": 9}
    with pytest.raises(DataError, match="expected 10 bits a pixel"):
        read(make(tmp_path / "a.dcm", pixels, **limits))
    picture = read(make(tmp_path / "b.dcm", pixels, PixelPaddingValue=-2000, **limits))
    picture.write(tmp_path / "c.dcm", picture.nearest(pixels + 1.0))
    assert read(tmp_path / "c.dcm").pixels.tolist() == [[-2000, 6]]


def test_overlays_in_unused_bits_are_refused(tmp_path: Path) -> None:
    pixels = np.array([[1 << 15 | 7, 5]], np.uint16)
    with pytest.raises(DataError, match="expected 12 bits a pixel"):
        read(make(tmp_path / "a.dcm", pixels, BitsStored=12, HighBit=11))


def test_extreme_values_are_brought_up_to_date_and_signatures_dropped(tmp_path: Path) -> None:
    pixels = np.array([[3, 5]], np.uint16)
    extra: dict[str, Any] = {
        "SmallestImagePixelValue": 3,
        "LargestImagePixelValue": 5,
        "DigitalSignaturesSequence": [Dataset()],
    }
    picture = read(make(tmp_path / "a.dcm", pixels, **extra))
    assert picture.notes == ("digital signatures will not be kept, as they are of the original pixels",)
    picture.write(tmp_path / "b.dcm", np.array([[2, 7]], np.uint16))
    after = opened(tmp_path / "b.dcm")
    assert (after.SmallestImagePixelValue, after.LargestImagePixelValue) == (2, 7)
    assert "DigitalSignaturesSequence" not in after


def test_loss_is_told_and_never_forgotten(tmp_path: Path) -> None:
    assert read(real("SC_rgb_jpeg_dcmtk.dcm")).lossy
    assert not read(real("MR_small_RLE.dcm")).lossy
    picture = read(real("SC_rgb_jpeg_dcmtk.dcm"))
    picture.write(tmp_path / "a.dcm", picture.pixels)
    assert read(tmp_path / "a.dcm").lossy
    assert opened(tmp_path / "a.dcm").LossyImageCompression == "01"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ExplVR_BigEnd.dcm", "retired big endian"),
        ("ExplVR_LitEndNoMeta.dcm", "expected a PNG, TIFF, BMP, JPEG, WEBP or DICOM"),
        ("MR_truncated.dcm", "less than expected"),
        ("JPEG2000-embedded-sequence-delimiter.dcm", "cannot be decoded"),
        ("SC_rgb_rle_32bit.dcm", "expected 8 or 16 bits, got 32"),
        ("rtplan.dcm", "without pixel data"),
        ("badVR.dcm", "not a valid DICOM file"),
        ("meta_missing_tsyntax.dcm", "SOPClassUID, got none"),
    ],
)
def test_real_files_that_cannot_be_marked_are_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        read(real(name))
    assert str(caught.value).startswith(str(real(name)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"Rows": 0}, "pixels, got 2 x 0"),
        ({"Rows": 65535, "Columns": 65535}, "pixels, got 65535 x 65535"),
        ({"Rows": 3000, "Columns": 3000}, "less than expected"),
        ({"Rows": 5000, "Columns": 5000}, "expected a file of at least 5,000,000 bytes for 5000 x 5000 pixels"),
        ({"Rows": 8000, "Columns": 8000}, "expected at most 72 MB of pixels, got 122 MB: 8000 x 8000, 2 bytes each"),
        ({"Rows": None}, "Rows, got none"),
        ({"SOPInstanceUID": None}, "SOPInstanceUID, got none"),
        ({"BitsStored": 0}, "bits stored"),
        ({"BitsStored": 12}, "up to bit 15"),
        ({"BitsAllocated": 12}, "expected 8 or 16 bits, got 12"),
        ({"SamplesPerPixel": 2}, "with 2 samples"),
        ({"PhotometricInterpretation": "HSV"}, "HSV"),
        ({"NumberOfFrames": "0", "PixelData": b""}, "cannot be decoded"),
        ({"PixelData": b""}, "cannot be decoded"),
    ],
)
def test_attributes_that_cannot_be_right_are_refused(attributes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = make(tmp_path / "a.dcm", np.ones((2, 2), np.uint16), **attributes)
    with pytest.raises(DataError, match=message):
        read(path)


def test_only_public_names_of_other_packages_are_imported() -> None:
    for path in Path(dicom.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert not [name.name for name in node.names if name.name.startswith("_")], path


@pytest.mark.parametrize("vr", [b"UL", b"\0\0", b"ZZ"])
def test_a_deflated_bomb_is_refused_however_its_header_is_written(
    vr: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pydicom reads a header of types that make no sense once more, without types."""
    monkeypatch.setattr(dicom, "MAX_INFLATED", 1000)
    path = make(tmp_path / "a.dcm", np.zeros((400, 400), np.uint8), DeflatedExplicitVRLittleEndian)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\2\0\0\0UL", b"\2\0\0\0" + vr, 1))
    monkeypatch.setattr(zlib, "decompress", lambda *_: pytest.fail("inflated at once"))
    with pytest.raises(DataError):
        read(path)


def test_a_deflated_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floormark.imageio.dicom.MAX_INFLATED", 100_000)
    path = make(tmp_path / "a.dcm", np.zeros((400, 400), np.uint8), DeflatedExplicitVRLittleEndian)
    assert path.stat().st_size < 10_000
    with pytest.raises(DataError, match="deflated file of at most"):
        read(path)


def test_the_bomb_test_sees_what_pydicom_would_inflate(tmp_path: Path) -> None:
    path = make(tmp_path / "a.dcm", np.zeros((4, 4), np.uint8), DeflatedExplicitVRLittleEndian)
    content = path.read_bytes()
    start = 132 + 12 + int.from_bytes(content[140:144], "little")
    assert pydicom.dcmread(io.BytesIO(content)).PixelData in zlib.decompress(content[start:], -zlib.MAX_WBITS)


def test_a_dicom_image_is_not_written_as_another_format(tmp_path: Path) -> None:
    picture = read(real("CT_small.dcm"))
    with pytest.raises(ConfigurationError, match="written as DICOM only"):
        picture.write(tmp_path / "a.png", picture.pixels)
    picture.write(tmp_path / "IM0001", picture.pixels)  # as on discs, without a suffix
    assert read(tmp_path / "IM0001").format.name == "dicom"


def test_messages_do_not_name_the_patient(tmp_path: Path) -> None:
    path = make(tmp_path / "a.dcm", np.ones((2, 2), np.uint16))
    content = bytearray(path.read_bytes())
    place = content.index(b"PN")
    for value in (b"ZZ", b"DS", b"SQ"):
        content[place : place + 2] = value
        path.write_bytes(content)
        try:
            told = " ".join(read(path).notes)
        except DataError as error:
            told = str(error)
        assert "ller" not in told


def test_a_full_disk_is_not_said_to_be_the_files_fault(tmp_path: Path) -> None:
    """pydicom makes an error of its own of the disk's."""
    image = read(make(tmp_path / "image.dcm", np.zeros((300, 300), np.uint16)))
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, leave=50_000)
        with pytest.raises(OutputError, match="disk is full"):
            image.write(disk / "copy.dcm", image.pixels)
        assert [each.name for each in disk.glob("copy*")] == []
