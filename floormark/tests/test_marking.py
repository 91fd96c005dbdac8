"""Files marked and verified: what is certified is what lies on the disk."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pydicom
import pytest
from numpy.typing import NDArray
from PIL import Image
from pydicom.data import get_testdata_file

from dicom_files import make, opened
from floormark import Key, Payload, Watermarker
from floormark.certificate import ImageCertificate, certificate_path, sha256
from floormark.errors import ConfigurationError, DataError, OutputError, RefusedError
from floormark.files.marking import FileMarker
from floormark.imageio import read
from floormark.options import EmbedOptions, Region
from floormark.prepared import PreparedImage
from floormark.verify import verify_files
from marking import marking
from natural_images import natural_image

MARKER = Watermarker.load()
TEXT = Payload.from_text("patient 4711")
GREY, COLOUR = natural_image(height=256, width=264), natural_image(3, height=264, width=256)
DEEP = (GREY.astype(np.uint16) * 12 + np.random.default_rng(0).integers(0, 12, GREY.shape)).astype(np.uint16)


def file_marker(floor: float = 40.0, **options: Any) -> FileMarker:
    return marking(MARKER, TEXT, floor, **options)


def saved(path: Path, values: NDArray[Any], **options: Any) -> Path:
    Image.fromarray(values).save(path, **options)
    return path


def psnr(before: NDArray[Any], after: NDArray[Any], peak: int) -> float:
    return float(10 * np.log10(peak**2 / np.mean((before.astype(np.float64) - after.astype(np.float64)) ** 2)))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    ("values", "source", "target"),
    [
        (GREY, "a.png", "b.png"),
        (COLOUR, "a.png", "b.tif"),
        (DEEP, "a.png", "b.png"),
        (DEEP, "a.tif", "b.tiff"),
        (COLOUR, "a.bmp", "b.bmp"),
        (COLOUR, "a.webp", "b.webp"),
        (COLOUR, "a.jpg", "b.png"),
    ],
)
def test_files_keep_the_floor_and_carry_a_certificate(
    values: NDArray[Any], source: str, target: str, tmp_path: Path
) -> None:
    before, after = saved(tmp_path / source, values), tmp_path / target
    told, _ = file_marker().mark_file(before, after)
    with Image.open(before) as first, Image.open(after) as second:
        original, marked = np.array(first), np.array(second)
    assert psnr(original, marked, 65535 if values.dtype == np.uint16 else 255) >= 40
    assert MARKER.extract(read(after)).message == "patient 4711"
    certificate = ImageCertificate.read(certificate_path(after))
    assert certificate == told
    assert certificate.satisfied
    assert (certificate.original_sha256, certificate.result_sha256) == (sha256(before), sha256(after))
    assert names(tmp_path) == {source, target, f"{target}.json"}
    assert not verify_files(MARKER, before, after).problems


def test_jpeg_is_written_only_if_asked_and_keeps_the_floor_too(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.png", GREY), tmp_path / "b.jpg"
    with pytest.raises(ConfigurationError, match=r"JPEG changes the pixels.*write \.png, or allow it with lossy"):
        file_marker().mark_file(source, target)
    assert names(tmp_path) == {"a.png"}
    file_marker(36.0, lossy=True).mark_file(source, target)
    with Image.open(target) as image:
        assert 36 <= psnr(GREY, np.array(image), 255) < 37
    assert MARKER.extract(read(target)).message == "patient 4711"
    assert not verify_files(MARKER, source, target, floor=36).problems


def test_jpeg_that_cannot_keep_the_floor_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.png", GREY)  # compression alone takes it below 45 dB
    with pytest.raises(RefusedError, match=r"a\.png: compressed with loss it has .* dB, below the floor of 45"):
        file_marker(45.0, lossy=True).mark_file(source, tmp_path / "b.jpg")
    region = Region.parse("0,0,8,8")
    with pytest.raises(ConfigurationError, match="JPEG changes protected pixels too"):
        file_marker(30.0, lossy=True, protect=region).mark_file(source, tmp_path / "b.jpg")
    assert names(tmp_path) == {"a.png"}


def test_nothing_is_replaced_unless_forced_and_the_original_never(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.png", GREY), saved(tmp_path / "b.png", COLOUR)
    with pytest.raises(ConfigurationError, match=r"b\.png: is there already"):
        file_marker().mark_file(source, target)
    (tmp_path / "c.png.json").write_text("{}")
    with pytest.raises(ConfigurationError, match=r"c\.png\.json: is there already"):
        file_marker().mark_file(source, tmp_path / "c.png")
    before = source.read_bytes()
    with pytest.raises(ConfigurationError, match="is the image that is read"):
        file_marker(force=True).mark_file(source, source)
    assert source.read_bytes() == before
    for _ in range(2):  # the second time there is a certificate to be replaced as well
        file_marker(force=True).mark_file(source, target)
        assert not verify_files(MARKER, source, target).problems
    with pytest.raises(ConfigurationError, match="no certificate that could be replaced"):
        file_marker(force=True).mark_file(source, tmp_path / "c.png")
    assert (tmp_path / "c.png.json").read_text() == "{}"  # whatever it is, it is not ours
    assert not (tmp_path / "c.png").exists()


def test_a_certificate_that_a_killed_run_left_is_no_hindrance(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.png", GREY), tmp_path / "b.png"
    file_marker().mark_file(source, target)
    target.unlink()
    file_marker(42.0).mark_file(source, target)
    assert ImageCertificate.read(certificate_path(target)).floor == 42


def test_a_refused_image_leaves_nothing(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.png", GREY)
    with pytest.raises(RefusedError, match=r"a\.png: .* the highest floor that works is"):
        file_marker(90.0).mark_file(source, tmp_path / "deeper" / "b.png")
    assert names(tmp_path) == {"a.png"}


def test_a_file_that_would_not_be_believed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, extract = saved(tmp_path / "a.png", GREY), Watermarker.extract
    # As if writing the file, and nothing before it, took away what tells the image from others.
    monkeypatch.setattr(Watermarker, "extract", lambda self, image: replace(extract(self, image), belongs=False))
    with pytest.raises(RefusedError, match="another image"):
        file_marker(36.0, lossy=True).mark_file(source, tmp_path / "b.jpg")
    assert names(tmp_path) == {"a.png"}


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.png", GREY)
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        file_marker().mark_file(source, tmp_path / "file" / "b.png")
    with pytest.raises(DataError, match="cannot be read"):
        file_marker().mark_file(tmp_path / "nothing.png", tmp_path / "b.png")
    for length in (240, 300):
        with pytest.raises(ConfigurationError, match="expected a name of at most 230 bytes"):
            file_marker().mark_file(source, tmp_path / f"{'b' * length}.png")
    assert names(tmp_path) == {"a.png", "file"}


def test_floor_and_message_are_judged_before_any_file() -> None:
    with pytest.raises(ConfigurationError, match="expected a PSNR floor"):
        file_marker(10.0)
    with pytest.raises(ConfigurationError, match="expected a payload of 1 to 16 bytes"):
        marking(MARKER, Payload.from_text("x" * 17), 40.0)


def test_regions_stay_bit_exact_in_the_file(tmp_path: Path) -> None:
    source, mask = saved(tmp_path / "a.png", COLOUR), np.zeros(COLOUR.shape[:2], np.uint8)
    mask[30:90, 40:140] = 1
    saved(tmp_path / "mask.png", mask)
    for text in ("40,30,100,60", str(tmp_path / "mask.png")):
        region = Region.parse(text)
        target = tmp_path / "b.png"
        certificate, _ = file_marker(protect=region, force=True).mark_file(source, target)
        np.testing.assert_array_equal(read(target).pixels[30:90, 40:140], COLOUR[30:90, 40:140])
        assert (read(target).pixels != COLOUR).any()
        assert certificate.fidelity.protected_pixels == 6000
        assert not verify_files(MARKER, source, target, protect=region).problems
        elsewhere = verify_files(MARKER, source, target, protect=Region.parse("150,150,20,20"))
        assert "pixels changed in the protected region" in elsewhere.problems
        assert "the certificate says protected_pixels 6000, found 400" in elsewhere.problems
        assert any("about another protected region" in problem for problem in elsewhere.problems)
        for same in (" 40,30, 100,060", str(tmp_path / "mask.png")):  # by what it covers, not by how it was given
            assert not verify_files(MARKER, source, target, protect=Region.parse(same)).problems
        moved = verify_files(MARKER, source, target, protect=Region.parse("41,30,99,60"))  # unchanged, but less
        assert len(moved.problems) == 2


def test_a_rectangle_is_checked_by_the_certificate_alone(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.png", GREY), tmp_path / "b.png"
    file_marker(protect=Region.parse("40, 30,100,60")).mark_file(source, target)
    found = verify_files(MARKER, source, target)
    assert (found.problems, found.fidelity.protected_pixels) == ((), 6000)
    pixels = read(target).pixels.copy()
    pixels[30, 40] ^= 1
    saved(target, pixels)
    assert "pixels changed in the protected region" in verify_files(MARKER, source, target).problems
    beside = certificate_path(target)
    for place, message in (("40,30,1000,60", "region inside of 264 x 256"), ("0,0,0,5", "at least one pixel")):
        beside.write_text(beside.read_text().replace("40,30,100,60", place))
        with pytest.raises(ConfigurationError, match=rf"b\.png\.json: .*{message}"):
            verify_files(MARKER, source, target)
        beside.write_text(beside.read_text().replace(place, "40,30,100,60"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0,0,0,5", "at least one pixel"),
        ("1,2,3", "expected a region as x,y,width,height"),
        ("-1,0,5,5", "expected a region as x,y,width,height"),
        ("nowhere.png", "expected a region as x,y,width,height"),
        ("x" * 5000, "expected a region as x,y,width,height"),
        (f"{'9' * 5000},0,1,1", "expected a region as x,y,width,height"),
    ],
)
def test_what_is_no_region_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Region.parse(text)


def test_regions_that_do_not_fit_name_the_image(tmp_path: Path) -> None:
    source = saved(tmp_path / "a.png", GREY)
    saved(tmp_path / "mask.png", np.ones((9, 8), np.uint8))
    saved(tmp_path / "empty.png", np.zeros((9, 8), np.uint8))
    with pytest.raises(
        ConfigurationError, match=r"a\.png: expected a region inside of 264 x 256 pixels, got 260,0,5,5"
    ):
        file_marker(protect=Region.parse("260,0,5,5")).mark_file(source, tmp_path / "b.png")
    with pytest.raises(ConfigurationError, match=r"a\.png: .* expected a mask of 264 x 256 pixels.* got 8 x 9"):
        file_marker(protect=Region.parse(str(tmp_path / "mask.png"))).mark_file(source, tmp_path / "b.png")
    with pytest.raises(ConfigurationError, match="expected a mask that protects some pixels"):
        Region.parse(str(tmp_path / "empty.png"))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("once")
    file_marker().mark_file(saved(folder / "a.png", GREY), folder / "b.png")
    return folder


@pytest.fixture
def pair(once: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Copies to tamper with."""
    for name in ("a.png", "b.png", "b.png.json"):
        shutil.copy(once / name, tmp_path)
    return tmp_path / "a.png", tmp_path / "b.png"


def test_a_changed_pixel_is_found(pair: tuple[Path, Path]) -> None:
    source, target = pair
    pixels = read(target).pixels.copy()
    pixels[100, 100] ^= 1
    saved(target, pixels)
    problems = verify_files(MARKER, source, target).problems
    assert any("the certificate says result_sha256" in problem for problem in problems)
    assert any("the certificate says psnr" in problem for problem in problems)
    pixels[:] = np.where(pixels < 200, pixels + 40, pixels)
    saved(target, pixels)
    assert any("below the floor of 40" in problem for problem in verify_files(MARKER, source, target).problems)


@pytest.mark.parametrize(
    "change",
    [
        {"original_sha256": "0" * 64},
        {"result_sha256": "0" * 64},
        {"model": "another"},
        {"bits": 199},
        {"bit_errors": 150},
        {"psnr": 61.0},
        {"ssim": 1.0},
        {"peak": 1023},
        {"max_difference": 1},
        {"changed_share": 0.001},
    ],
)
def test_a_tampered_certificate_is_found(change: dict[str, Any], pair: tuple[Path, Path]) -> None:
    beside = certificate_path(pair[1])
    values = json.loads(beside.read_text())
    for name, value in change.items():
        (values if name in values else values["fidelity"])[name] = value
    beside.write_text(json.dumps(values))
    problems = verify_files(MARKER, *pair).problems
    assert [problem for problem in problems if f"the certificate says {next(iter(change))} " in problem], problems


def test_a_certificate_that_contradicts_itself_is_refused(pair: tuple[Path, Path]) -> None:
    beside = certificate_path(pair[1])
    beside.write_text(beside.read_text().replace('"floor": 40.0', '"floor": 99.0'))
    with pytest.raises(DataError, match="expected satisfied to be False"):
        verify_files(MARKER, *pair)


def forged(source: Path, target: Path, floor: float = 25.0, **changes: Any) -> Path:
    """An unsigned certificate of true numbers, but for ``changes``, as anybody could write it for any two files."""
    before, after = read(source), read(target)
    found = MARKER.extract(after)
    options, errors = EmbedOptions(psnr=floor), found.corrected_errors
    told = MARKER.certify(PreparedImage(before), after.pixels, options, bit_errors=errors)
    told = replace(told, original_sha256=before.sha256, result_sha256=after.sha256)
    inner = {name: value for name, value in changes.items() if hasattr(told.fidelity, name)}
    outer = {name: value for name, value in changes.items() if name not in inner}
    replace(told, fidelity=replace(told.fidelity, **inner), **outer).write(certificate_path(target))
    return certificate_path(target)


def test_the_floor_of_the_verifier_is_measured_whatever_the_certificate_says(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.png", GREY), tmp_path / "b.png"
    file_marker(44.0).mark_file(source, target)
    pixels = read(target).pixels.copy()
    pixels[100:116, 100:116] += 12  # a nodule painted in
    saved(target, pixels)
    beside = forged(source, target, floor=30.0)
    found = verify_files(MARKER, source, target, floor=42)
    assert found.fidelity.psnr is not None
    assert found.fidelity.min_adjusted_patch_psnr is not None
    assert found.fidelity.psnr > 42 > found.fidelity.min_adjusted_patch_psnr
    assert [problem for problem in found.problems if "below the floor of 42" in problem]
    entries = json.loads(beside.read_text())
    for name in ("shown_psnr", "min_adjusted_patch_psnr", "worst_patch"):
        del entries["fidelity"][name]
    beside.write_text(json.dumps(entries))
    with pytest.raises(DataError, match="shown_psnr, min_adjusted_patch_psnr, worst_patch"):
        verify_files(MARKER, source, target, floor=42)


def test_ten_bits_in_sixteen_are_measured_in_what_is_shown(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.tif", GREY.astype(np.uint16) * 4), tmp_path / "b.tif"
    file_marker(40.0).mark_file(source, target)
    found = verify_files(MARKER, source, target, floor=60)
    assert found.fidelity.psnr is not None
    assert found.fidelity.psnr > 60
    assert [problem for problem in found.problems if "below the floor of 60" in problem]
    forged(source, target, shown_psnr=70.0, min_adjusted_patch_psnr=70.0)
    assert [problem for problem in verify_files(MARKER, source, target).problems if "says shown_psnr 70" in problem]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"protected": "a" * 64, "protected_pixels": 1_000_000}, "protected_pixels 1000000"),
        ({"protected": "a" * 64, "protected_pixels": 66_000}, "protected_pixels 66000"),  # of 67,584, most changed
        ({"protected": "a" * 64, "protected_pixels": 0}, "protected_pixels 0"),
        ({"protected": "a" * 64, "protected_pixels": 9, "protected_unchanged": False}, "of itself"),
        ({"protected_pixels": 9}, "protected_pixels 9, found 0"),
        ({"protected": "0,0,3,3"}, "protected_pixels 0, found 9"),
        ({"protected": "0,0,3,3", "protected_pixels": 10}, "protected_pixels 10, found 9"),
        ({"unit": "HU"}, "unit HU"),
        ({"shown": 99.0}, "shown 99"),
        ({"largest_change": 0.5}, "largest_change 0.5"),
        ({"worst_patch": "0,0,32,31"}, "worst_patch 0,0,32,31"),
        ({"min_adjusted_patch_psnr": 99.0}, "min_adjusted_patch_psnr 99"),
    ],
)
def test_what_a_forged_certificate_claims_is_found(
    changes: dict[str, Any], problem: str, pair: tuple[Path, Path]
) -> None:
    forged(*pair, **changes)
    assert [each for each in verify_files(MARKER, *pair).problems if problem in each]


def test_what_only_the_certificate_says_is_named_as_such(pair: tuple[Path, Path]) -> None:
    forged(*pair, protected="a" * 64, protected_pixels=9)
    found = verify_files(MARKER, *pair)
    assert (found.problems, found.fidelity.protected_pixels) == ((), 0)
    assert found.to_dict()["unmeasured"] == ("9 protected pixels of a mask are unchanged",)


def test_a_file_that_is_shown_otherwise_is_not_well(tmp_path: Path) -> None:
    source, target = saved(tmp_path / "a.png", np.dstack([COLOUR, np.full(COLOUR.shape[:2], 255, np.uint8)])), "b.png"
    file_marker().mark_file(source, tmp_path / target)
    pixels = np.dstack([read(tmp_path / target).pixels, np.full(COLOUR.shape[:2], 255, np.uint8)])
    pixels[100:140, 100:140, 3] = 0
    saved(tmp_path / target, pixels)
    forged(source, tmp_path / target)
    (problem,) = verify_files(MARKER, source, tmp_path / target).problems
    assert "shown otherwise" in problem
    source = make(tmp_path / "a.dcm", DEEP, BitsStored=12, HighBit=11, WindowCenter="1500", WindowWidth="2000")
    file_marker().mark_file(source, tmp_path / "b.dcm")
    for name, value in (("WindowWidth", "1900"), ("PhotometricInterpretation", "MONOCHROME1")):
        dataset = pydicom.dcmread(tmp_path / "b.dcm")
        dataset[name].value, before = value, dataset[name].value
        dataset.save_as(tmp_path / "b.dcm")
        forged(source, tmp_path / "b.dcm")
        (problem,) = verify_files(MARKER, source, tmp_path / "b.dcm").problems
        assert "shown otherwise" in problem
        dataset[name].value = before
        dataset.save_as(tmp_path / "b.dcm")


def test_another_key_another_floor_and_another_image_are_not_well(pair: tuple[Path, Path], tmp_path: Path) -> None:
    keyed = Watermarker(MARKER.network, key=Key(b"0123456789abcdef"))
    assert verify_files(keyed, *pair).problems == ("no readable watermark with this network and key",)
    assert verify_files(MARKER, *pair, floor=41).problems[0].endswith("below the floor of 41")
    lower = verify_files(MARKER, *pair, floor=30)
    assert (lower.floor, lower.problems) == (40, ())  # that of the certificate is not lowered
    certificate_path(pair[1]).unlink()
    for floor in (None, 30.0):
        alone = verify_files(MARKER, *pair, floor=floor)
        assert (alone.floor, alone.certificate) == (floor, None)
        assert alone.problems == ("no certificate beside the image, so nothing says what should hold for it",)
    with pytest.raises(ConfigurationError, match="expected a finite number"):
        verify_files(MARKER, *pair, floor=float("nan"))
    for values, kind in ((COLOUR, "256 x 264, colour, 8 bits"), (DEEP, "264 x 256, grey, 16 bits")):
        other = saved(tmp_path / "other.png", values)
        with pytest.raises(DataError, match=f"got {kind}"):
            verify_files(MARKER, pair[0], other)


@pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
@pytest.mark.parametrize("signed", [False, True])
def test_dicom_end_to_end(photometric: str, signed: bool, tmp_path: Path) -> None:
    values = DEEP.astype(np.int16) - 2048 if signed else DEEP
    assert int(DEEP.max()) < 4096  # 12 of 16 bits
    padding = -2048 if signed else 0
    values = values.copy()
    values[:40, :40] = padding
    source = make(
        tmp_path / "a.dcm",
        values,
        BitsStored=12,
        HighBit=11,
        PhotometricInterpretation=photometric,
        RescaleSlope="2",
        RescaleIntercept="-1024",
    )
    dataset = pydicom.dcmread(source)
    dataset.add_new("PixelPaddingValue", "SS" if signed else "US", padding)
    dataset.save_as(source)
    target = tmp_path / "b.dcm"
    certificate, _ = file_marker(45.0).mark_file(source, target)
    before, after = opened(source), opened(target)
    marked = after.pixel_array
    assert psnr(values, marked, 4095) >= 45
    np.testing.assert_array_equal(marked == padding, values == padding)
    assert certificate.fidelity.peak == 4095
    assert MARKER.extract(read(target)).message == "patient 4711"
    assert not verify_files(MARKER, source, target).problems
    for name in ("PatientName", "RescaleSlope", "RescaleIntercept", "PhotometricInterpretation", "BitsStored"):
        assert after[name].value == before[name].value, name
    assert after.SOPInstanceUID != before.SOPInstanceUID
    assert after.file_meta.MediaStorageSOPInstanceUID == after.SOPInstanceUID
    assert after.ImageType[0] == "DERIVED"
    assert "floormark" in after.DerivationDescription
    assert after.SourceImageSequence[0].ReferencedSOPInstanceUID == before.SOPInstanceUID


def test_real_dicom_is_marked_and_never_written_as_something_else(tmp_path: Path) -> None:
    source = Path(str(get_testdata_file("CT_small.dcm", download=False)))  # 128 x 128, 16 bits signed
    with pytest.raises(RefusedError, match=r"CT_small.dcm: .* no floor from 38 dB on would work"):
        marking(MARKER, Payload.of(b"x"), 50.0).mark_file(source, tmp_path / "1.2.840")  # of its window, of 400 HU
    marking(MARKER, Payload.of(b"x"), 30.0).mark_file(source, tmp_path / "1.2.840")
    found = verify_files(MARKER, source, tmp_path / "1.2.840")
    assert (found.problems, found.extracted.message) == ((), b"x")
    with pytest.raises(ConfigurationError, match="a DICOM image is written as DICOM only"):
        file_marker().mark_file(source, tmp_path / "b.png")


def test_what_is_converted_is_told(tmp_path: Path) -> None:
    Image.fromarray(COLOUR).quantize(200).save(tmp_path / "a.png")
    _, notes = file_marker(36.0).mark_file(tmp_path / "a.png", tmp_path / "b.png")
    assert notes == ("palette turned into RGB, 8 bits",)
