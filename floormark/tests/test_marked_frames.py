"""Files of several frames and with palettes, marked: a mark in every frame, one certificate of the worst of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dicom_files import make, opened
from floormark import Payload, Watermarker
from floormark.certificate import Fidelity, certificate_path, read_entries
from floormark.errors import DataError, RefusedError
from floormark.fidelity import fidelity
from floormark.files.folder import extract_file
from floormark.files.marking import FileMarker
from floormark.imageio import read
from floormark.options import EmbedOptions
from floormark.verify import verify_files
from test_imageio_frames import several

MARKER = Watermarker.load()
MESSAGE = Payload.of("patient 4711")


def waves(number: int, side: int = 256) -> NDArray[Any]:
    """A lively image of 12 bits, another for each number."""
    rng = np.random.default_rng(number)
    coarse = rng.normal(size=(side // 8, side // 8))
    smooth = np.kron(coarse, np.ones((8, 8)))
    for axis in (0, 1):
        smooth = np.mean([np.roll(smooth, shift, axis) for shift in range(-4, 5)], axis=0)
    values = 2000 + 600 * smooth / smooth.std() + rng.normal(0, 30, smooth.shape)
    pixels: NDArray[Any] = np.clip(np.rint(values), 0, 4095).astype(np.uint16)
    return pixels


FRAMES = np.stack([waves(number) for number in range(3)])


def marker(floor: float = 42.0, **more: Any) -> FileMarker:
    return FileMarker(MARKER, MESSAGE, EmbedOptions(psnr=floor), **more)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A file of three frames, and what it becomes."""
    folder = tmp_path_factory.mktemp("frames")
    source = several(folder / "a.dcm", FRAMES)
    marker().mark_file(source, folder / "b.dcm")
    return source, folder / "b.dcm"


def test_every_frame_carries_the_message_and_keeps_the_floor(pair: tuple[Path, Path]) -> None:
    before, after = (opened(path).pixel_array for path in pair)
    told, _ = read_entries(certificate_path(pair[1]))
    each = []
    for original, first, second in zip(read(pair[0]).frames(), before, after, strict=True):
        found = MARKER.extract(second)
        assert (found.message, found.belongs) == ("patient 4711", True)
        each.append(fidelity(original, second))
        assert each[-1].reaches(42.0)
        assert (first != second).any()
    assert told.frames == 3
    assert told.fidelity.shown_psnr == min(one.shown_psnr for one in each if one.shown_psnr)
    assert told.fidelity.max_difference == max(one.max_difference for one in each)
    assert told.fidelity == Fidelity.worst(each)


def test_the_message_is_read_from_the_file_and_the_certificate_holds(pair: tuple[Path, Path]) -> None:
    assert extract_file(MARKER, pair[1])[0].message == "patient 4711"
    found = verify_files(MARKER, *pair)
    assert (found.problems, found.frames) == ((), 3)


def test_the_message_is_read_though_the_first_frame_lost_it(pair: tuple[Path, Path], tmp_path: Path) -> None:
    pixels = opened(pair[1]).pixel_array.copy()
    pixels[0] = FRAMES[0]
    path = several(tmp_path / "c.dcm", pixels)
    assert extract_file(MARKER, path)[0].message == "patient 4711"
    certificate_path(path).write_bytes(certificate_path(pair[1]).read_bytes())
    problems = verify_files(MARKER, pair[0], path).problems
    assert "the frames do not all say the same" in problems
    assert any(problem.startswith("no readable watermark") for problem in problems)


def test_a_change_in_one_frame_is_found(pair: tuple[Path, Path], tmp_path: Path) -> None:
    pixels = opened(pair[1]).pixel_array.copy()
    pixels[2, 100:140, 100:140] -= 200
    path = several(tmp_path / "c.dcm", pixels)
    certificate_path(path).write_bytes(certificate_path(pair[1]).read_bytes())
    problems = verify_files(MARKER, pair[0], path).problems
    assert any("below the floor" in problem for problem in problems)
    assert any("result_pixels_sha256" in problem for problem in problems)


def test_files_of_another_number_of_frames_are_not_compared(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 frames of 256 x 256"):
        verify_files(MARKER, pair[0], several(tmp_path / "c.dcm", FRAMES[:2]))


def test_a_frame_that_cannot_be_marked_is_named_and_nothing_is_kept(tmp_path: Path) -> None:
    flat = np.stack([FRAMES[0], np.full((256, 256), 7, np.uint16)])
    source = several(tmp_path / "a.dcm", flat)
    with pytest.raises(RefusedError, match=r"a\.dcm: frame 2: "):
        marker().mark_file(source, tmp_path / "b.dcm")
    assert [path.name for path in tmp_path.iterdir()] == ["a.dcm"]


def test_a_palette_is_given_up_only_if_told(tmp_path: Path) -> None:
    ramp = np.arange(256, dtype=np.uint16)
    extra: dict[str, Any] = {"PhotometricInterpretation": "PALETTE COLOR"}
    for colour, table in (("Red", ramp), ("Green", ramp), ("Blue", ramp // 2)):
        extra[f"{colour}PaletteColorLookupTableDescriptor"] = [256, 0, 16]
        extra[f"{colour}PaletteColorLookupTableData"] = (table << 8).astype("<u2").tobytes()
    indices = (FRAMES[0] >> 4).astype(np.uint8)
    source = make(tmp_path / "a.dcm", indices, **extra)
    with pytest.raises(DataError, match="--to-rgb"):
        marker().mark_file(source, tmp_path / "b.dcm")
    assert not (tmp_path / "b.dcm").exists()
    certificate, notes = marker(to_rgb=True).mark_file(source, tmp_path / "b.dcm")
    assert notes == ("palette turned into RGB, 8 bits",)
    assert certificate.satisfied
    assert verify_files(MARKER, source, tmp_path / "b.dcm").problems == ()
    assert opened(tmp_path / "b.dcm").PhotometricInterpretation == "RGB"
