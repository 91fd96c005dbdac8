"""Which files of a folder are marked, where they go, and what becomes of them."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydicom.data import get_testdata_file

from floormark import Key, Payload, Watermarker
from floormark.disk import PARTIAL, locked
from floormark.errors import ConfigurationError, DataError
from floormark.files.folder import FOLDER_FILE, FileResult, Status, extract_file, image_files, mark_folder, tasks
from floormark.files.marking import FileMarker
from floormark.options import Region
from marking import marking
from natural_images import natural_image

MARKER = Watermarker.load()
GREY = natural_image(height=256, width=256)


def file_marker(text: str = "hello", floor: float = 40.0, **options: Any) -> FileMarker:
    marker = Watermarker(MARKER.network, key=options.pop("key", None))
    return marking(marker, Payload.from_text(text), floor, **options)


def folder(base: Path, *names: str) -> Path:
    """A folder of images under these names."""
    for name in names:
        path = base / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(GREY).save(path)
    return base


def mark(source: Path, out: Path, marker: FileMarker, *, resume: bool = False) -> dict[str, FileResult]:
    found = tasks(source, image_files(source)[0], out, lossy=marker.lossy)
    return {outcome.name: outcome for outcome in mark_folder(marker, found, out, workers=1, resume=resume)}


def test_images_are_found_below_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", "b.png", "a/c.TIF", "a/.hidden.png", ".cache/d.png")
    shutil.copy(str(get_testdata_file("CT_small.dcm", download=False)), source / "1.2.840.113619")
    shutil.copy(str(get_testdata_file("CT_small.dcm", download=False)), source / "DICOMDIR")
    (source / "README").write_text("not an image")
    (source / "out of here").symlink_to(tmp_path)
    (source / "link.png").symlink_to(source / "b.png")
    os.mkfifo(source / "pipe")
    found, left = image_files(source)
    assert [str(path.relative_to(source)) for path in found] == ["1.2.840.113619", "b.png", "a/c.TIF"]
    assert {str(path.relative_to(source)) for path in left} == {
        "a/.hidden.png", ".cache", "DICOMDIR", "README", "out of here", "link.png", "pipe"
    }  # fmt: skip
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        image_files(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected image files \(\.png, \.tif, .* got none"):
        image_files(tmp_path / "empty")


def test_files_keep_their_names_but_jpeg_becomes_png(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", "a.jpg", "sub/b.jpeg", "c.png")
    found, _ = image_files(source)
    out = tmp_path / "out"
    goals = {task.name: str(task.target.relative_to(out)) for task in tasks(source, found, out)}
    assert goals == {"a.jpg": "a.png", "sub/b.jpeg": "sub/b.png", "c.png": "c.png"}
    assert {str(task.target.relative_to(out)) for task in tasks(source, found, out, lossy=True)} == set(goals)
    folder(source, "a.png")
    with pytest.raises(ConfigurationError, match=r"a\.jpg and a\.png would both become a\.png: rename one"):
        tasks(source, image_files(source)[0], out)


@pytest.mark.parametrize("out", ["in", "in/out", ".", "in/../in/x", "link"])
def test_folders_that_lie_in_each_other_are_refused(out: str, tmp_path: Path) -> None:
    source = folder(tmp_path / "in", "a.png")
    (tmp_path / "link").symlink_to(source)
    with pytest.raises(ConfigurationError, match="expected two folders apart"):
        tasks(source, [source / "a.png"], tmp_path / out)


def test_each_file_is_told_apart(tmp_path: Path) -> None:
    source = folder(tmp_path / "in", "good.png", "photo.jpg", "sub/done.png")
    (source / "torn.png").write_bytes((source / "good.png").read_bytes()[:500])
    (source / "empty.dcm").touch()
    Image.new("L", (1, 1)).save(source / "tiny.png")
    Image.fromarray(GREY[:96, :96]).save(source / "small.png")
    Image.fromarray(GREY).save(source / "frames.tif", save_all=True, append_images=[Image.fromarray(GREY)])
    found = mark(source, tmp_path / "out", file_marker("x" * 16, floor=48.0))
    assert {name: outcome.status for name, outcome in found.items()} == {
        "good.png": Status.WRITTEN,
        "photo.jpg": Status.WRITTEN,
        "sub/done.png": Status.WRITTEN,
        "torn.png": Status.BAD,
        "empty.dcm": Status.BAD,
        "tiny.png": Status.BAD,
        "frames.tif": Status.BAD,
        "small.png": Status.REFUSED,
    }
    for name, outcome in found.items():
        assert bool(outcome.reason) == (outcome.certificate is None)
        assert outcome.certificate is not None or str(source / name) in outcome.reason
        assert "\n" not in outcome.reason
        assert " object at " not in outcome.reason
    written = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.*")}
    images = {"good.png", "photo.png", "sub/done.png"}
    assert written == images | {f"{name}.json" for name in images} | {FOLDER_FILE, ".lock"}


def test_going_on_leaves_what_is_done_and_clears_what_is_torn(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png", "sub/b.png"), tmp_path / "out"
    mark(source, out, file_marker())
    before = {path: path.read_bytes() for path in out.rglob("*.png*")}
    (out / "a.png").unlink()  # as if killed after the certificate took its name
    torn = out / "sub" / f"{PARTIAL}xyz"
    torn.mkdir()
    (torn / "b.png").write_bytes(b"half")
    with pytest.raises(ConfigurationError, match="add --resume"):
        mark(source, out, file_marker())
    found = mark(source, out, file_marker(), resume=True)
    assert [outcome.status for outcome in found.values()] == [Status.WRITTEN, Status.DONE]
    assert not torn.exists()
    assert {path: path.read_bytes() for path in out.rglob("*.png*")} == before


def test_what_was_made_of_another_image_is_not_done(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png", "b.png"), tmp_path / "out"
    mark(source, out, file_marker())
    before = (out / "a.png").read_bytes()
    Image.fromarray(255 - GREY).save(source / "a.png")
    found = mark(source, out, file_marker(), resume=True)
    assert (found["a.png"].status, found["b.png"].status) == (Status.BAD, Status.DONE)
    assert "made of another image: choose another folder" in found["a.png"].reason
    assert (out / "a.png").read_bytes() == before
    (out / "b.png.json").unlink()
    assert "b.png.json: cannot be read" in mark(source, out, file_marker(), resume=True)["b.png"].reason


def test_what_was_cut_off_is_not_done(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png", "b.png"), tmp_path / "out"
    mark(source, out, file_marker())
    (out / "a.png").write_bytes((out / "a.png").read_bytes()[:-100])
    found = mark(source, out, file_marker(), resume=True)
    assert (found["a.png"].status, found["b.png"].status) == (Status.BAD, Status.DONE)
    assert "not as its certificate says, perhaps cut off: remove it" in found["a.png"].reason
    (out / "a.png").unlink()
    assert mark(source, out, file_marker(), resume=True)["a.png"].status is Status.WRITTEN


def test_going_on_with_something_else_is_refused(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png"), tmp_path / "out"
    mask = tmp_path / "mask.png"
    Image.fromarray(np.eye(256, dtype=np.uint8)).save(mask)
    protect = Region.parse(str(mask))
    mark(source, out, file_marker(protect=protect))
    Image.fromarray(np.ones((256, 256), np.uint8)).save(mask)
    others = {
        "message_and_key": [
            file_marker("other", protect=protect),
            file_marker(protect=protect, key=Key(b"0123456789abcdef")),
        ],
        "psnr 40.0 there, 41.0 here": [file_marker(floor=41.0, protect=protect)],
        "protect": [file_marker(), file_marker(protect=Region.parse(str(mask)))],
        "lossy": [file_marker(protect=protect, lossy=True)],
    }
    for message, markers in others.items():
        for marker in markers:
            with pytest.raises(ConfigurationError, match=f"marked otherwise .*{message}"):
                mark(source, out, marker, resume=True)
    assert "hello" not in (out / FOLDER_FILE).read_text()


def test_a_region_is_the_same_however_it_is_written(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png"), tmp_path / "out"
    mark(source, out, file_marker(protect=Region.parse("1,2,3,4")))
    for same in ("1, 2,3,4", " 01,2 ,3,004 "):
        found = mark(source, out, file_marker(protect=Region.parse(same)), resume=True)
        assert found["a.png"].status is Status.DONE
    with pytest.raises(ConfigurationError, match="protect"):
        mark(source, out, file_marker(protect=Region.parse("1,2,3,5")), resume=True)


@pytest.mark.parametrize("linked", ["sub", "sub/deeper"])
def test_nothing_is_written_behind_a_link(linked: str, tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png", "sub/deeper/b.png"), tmp_path / "out"
    mark(source, out, file_marker())
    theirs = tmp_path / "theirs"
    shutil.move(out / linked, theirs)
    for path in [path for path in theirs.rglob("*") if path.is_file()]:
        path.unlink()
    (theirs / f"{PARTIAL}x").mkdir()
    before = sorted(theirs.rglob("*"))
    (out / linked).symlink_to(theirs)
    with pytest.raises(ConfigurationError, match="is a link"):
        mark(source, out, file_marker(), resume=True)
    assert sorted(theirs.rglob("*")) == before
    (tmp_path / "elsewhere").symlink_to(out)  # the folder itself may be named by a link
    (out / linked).unlink()
    found = mark(source, tmp_path / "elsewhere", file_marker(), resume=True)
    assert [one.status for one in found.values()] == [Status.DONE, Status.WRITTEN]


def test_links_in_the_place_of_files_are_neither_written_through_nor_waited_for(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png", "b.png", "c.png", "d.png"), tmp_path / "out"
    mark(source, out, file_marker())
    theirs = tmp_path / "theirs"
    theirs.write_text("mine")
    (out / "a.png").unlink()
    (out / "a.png").symlink_to(theirs)
    for name in ("b.png", "b.png.json"):
        (out / name).unlink()
    (out / "b.png.json").symlink_to(theirs)
    (out / "c.png").unlink()
    os.mkfifo(out / "c.png")
    (out / "d.png").rename(tmp_path / "copy")
    (out / "d.png").symlink_to(tmp_path / "copy")
    found = mark(source, out, file_marker(), resume=True)
    assert [one.status for one in found.values()] == [Status.BAD, Status.BAD, Status.BAD, Status.DONE]
    assert "a pipe" in found["c.png"].reason
    assert theirs.read_text() == "mine"
    assert not (out / "b.png").exists()


def test_what_may_change_and_what_is_replaced_is_the_same_when_a_folder_is_gone_on_with(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png"), tmp_path / "out"
    found = mark(source, out, file_marker(max_difference=4))
    assert found["a.png"].certificate is not None
    assert found["a.png"].certificate.fidelity.max_difference <= 4
    assert mark(source, out, file_marker(max_difference=4), resume=True)["a.png"].status is Status.DONE
    for other, told in (
        (file_marker(), "max_difference 4.0 there, None here"),
        (file_marker(replace=True), "replace False there, True here"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            mark(source, out, other, resume=True)


def test_marked_images_are_refused_one_by_one_or_replaced(tmp_path: Path) -> None:
    mark(folder(tmp_path / "in", "a.png"), tmp_path / "once", file_marker("first"))
    (refused,) = mark(tmp_path / "once", tmp_path / "twice", file_marker("second")).values()
    assert refused.status is Status.REFUSED
    assert "a.png: the image is marked already, with 'first'" in refused.reason
    (found,) = mark(tmp_path / "once", tmp_path / "again", file_marker("second", replace=True)).values()
    assert found.status is Status.WRITTEN
    assert extract_file(MARKER, tmp_path / "again" / "a.png")[0].message == "second"


def test_a_folder_with_other_things_or_another_process_in_it_is_refused(tmp_path: Path) -> None:
    source, out = folder(tmp_path / "in", "a.png"), folder(tmp_path / "out", "mine.png")
    with pytest.raises(ConfigurationError, match="exists and holds other files"):
        mark(source, out, file_marker())
    assert {path.name for path in out.iterdir()} == {"mine.png"}
    mark(source, tmp_path / "new", file_marker())
    with locked(tmp_path / "new"), pytest.raises(ConfigurationError, match="another process is working"):
        mark(source, tmp_path / "new", file_marker(), resume=True)
