import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from forked import Forked
from picture_folders import chest_names, noise, save, write_chest, write_pictures
from samplewise.errors import CheckpointError, ConfigurationError, DataError, OutputError
from samplewise.storage import lock
from studies.pictures import PARTS, Store, find, is_unfinished, prepare

MANY = 101
BLOCK = 4  # pictures that one worker decodes before they are written, where a block holds next to no bytes


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of several chunks; one picture, under 1 %, cannot be decoded, and one is in colour."""
    folder = write_pictures(tmp_path_factory.mktemp("many"), [f"{number:03d}.png" for number in range(MANY)])
    (folder / "040.png").write_bytes(b"no picture")
    Image.fromarray(noise(50)).convert("RGBA").save(folder / "050.png")
    return folder


@pytest.fixture(scope="module")
def whole(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(many, tmp_path_factory.mktemp("whole") / "store", size=8)


def same(store: Store, other: Store) -> None:
    """Every byte but the versions, which are of this machine."""
    assert (store.folder / "images.u8").read_bytes() == (other.folder / "images.u8").read_bytes()
    assert (store.folder / "index.json").read_bytes() == (other.folder / "index.json").read_bytes()
    assert store.split == other.split
    assert sorted(path.name for path in store.folder.iterdir()) == ["images.u8", "index.json", "split.json"]


def test_a_store_holds_the_pixels_in_the_order_of_the_names(many: Path, whole: Store) -> None:
    kept = [number for number in range(MANY) if number != 40]
    assert whole.names == tuple(f"{number:03d}.png" for number in kept)
    assert np.array_equal(whole.images, np.stack([noise(number) for number in kept]))
    assert list(whole.bad) == ["040.png"]
    assert "DICOM" in whole.bad["040.png"]
    assert whole.converted == {"RGBA": 1}
    assert {"python", "pillow", "samplewise"} <= set(whole.versions)
    assert whole.fingerprint == find(many).fingerprint()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_matter(many: Path, whole: Store, tmp_path: Path, workers: int) -> None:
    same(prepare(many, tmp_path / "store", size=8, workers=workers), whole)


def test_pictures_are_resized(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png", noise(0, 30, 50))
    store = prepare(tmp_path / "in", tmp_path / "out", size=10)
    expected = np.asarray(Image.fromarray(noise(0, 30, 50)).resize((10, 10), Image.Resampling.BILINEAR))
    assert np.array_equal(store.images[0], expected)


def test_progress_begins_at_once_and_ends_with_all(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[prepare.__module__], "BLOCK_BYTES", 1)
    seen: list[tuple[int, int]] = []
    prepare(many, tmp_path / "store", size=8, workers=1, watch=lambda *progress: seen.append(progress))
    assert seen == [(min(done, MANY), MANY) for done in range(0, MANY + BLOCK, BLOCK)]


def killed(many: Path, out: Path, when: str) -> None:
    module: Any = sys.modules[prepare.__module__]  # the function has its name

    def kill(*found: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    module.BLOCK_BYTES = 1
    if when == "decoding":
        prepare(many, out, size=8, workers=1, watch=lambda done, total: kill() if done > 40 else None)
    if when == "index":
        module.Store.write_index = kill
    if when == "split":
        module.Split.write = kill
    prepare(many, out, size=8)


@pytest.mark.parametrize("when", ["decoding", "split", "index"])
def test_what_a_killed_process_leaves_is_no_store_and_goes_when_it_is_made_anew(
    many: Path, whole: Store, tmp_path: Path, when: str
) -> None:
    out = tmp_path / "store"
    code, _, err = Forked(killed, many, out, when, told=tmp_path / "told").finish()
    assert code == -signal.SIGKILL, err
    assert is_unfinished(out)
    with pytest.raises(CheckpointError, match="unfinished"):
        Store.open(out)
    (out / ".partial-x").mkdir(exist_ok=True)
    (out / ".partial-x" / "index.json").write_text("torn")
    assert is_unfinished(out)
    same(prepare(many, out, size=8), whole)
    assert sorted(path.name for path in out.iterdir()) == ["images.u8", "index.json", "split.json"]


def test_an_error_leaves_nothing(many: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(many, tmp_path / "out", size=8, watch=stop)
    assert not list((tmp_path / "out").iterdir())


def test_a_second_process_is_kept_out(many: Path, tmp_path: Path) -> None:
    path = tmp_path / "images.u8"
    with os.fdopen(lock(path, ""), "wb") as file:
        file.write(b"pixels of the first")
        file.flush()
        with pytest.raises(CheckpointError, match="another process"):
            prepare(many, tmp_path, size=8, resume=True)
    assert path.read_bytes() == b"pixels of the first"


def test_a_finished_store_is_opened_but_not_made_again(many: Path, whole: Store) -> None:
    with pytest.raises(CheckpointError, match="--resume"):
        prepare(many, whole.folder, size=8)
    before = (whole.folder / "images.u8").stat().st_mtime_ns
    same(prepare(many, whole.folder, size=8, resume=True), whole)
    assert (whole.folder / "images.u8").stat().st_mtime_ns == before


def test_a_store_of_something_else_is_refused(many: Path, whole: Store, tmp_path: Path) -> None:
    others = write_pictures(tmp_path / "others", ["a.png", "b.png", "c.png"])
    with pytest.raises(CheckpointError, match="other pictures"):
        prepare(others, whole.folder, size=8, resume=True)
    with pytest.raises(CheckpointError, match="size 8, not 9"):
        prepare(many, whole.folder, size=9, resume=True)
    with pytest.raises(CheckpointError, match="seed 0, not"):
        prepare(many, whole.folder, size=8, seed=1, resume=True)
    with pytest.raises(CheckpointError, match="is not a store"):
        prepare(many, others, size=8, resume=True)


def test_more_than_one_in_a_hundred_bad_pictures_stop_it(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "in", [f"{number:03d}.png" for number in range(100)])
    (folder / "007.png").write_bytes(b"")
    out = tmp_path / "out"
    assert len(prepare(folder, out, size=4)) == 99  # just one in a hundred
    (folder / "003.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"at least 2 of 100 .* 003\.png .* 007\.png"):
        prepare(folder, tmp_path / "other", size=4)
    assert not list((tmp_path / "other").iterdir())
    save(folder / "003.png", noise(3))
    assert len(prepare(folder, tmp_path / "other", size=4)) == 99  # nothing in the way of a second try


def test_files_without_rows_count_as_bad(tmp_path: Path) -> None:
    folder = write_chest(tmp_path / "in", chest_names(60))
    save(folder / "images" / "00000099_000.png", noise(0))
    store = prepare(folder, tmp_path / "out", size=4)
    assert store.bad == {"00000099_000.png": "no row in Data_Entry_2017_v2020.csv"}
    assert len(store) == 120
    save(folder / "images" / "00000099_001.png", noise(0))
    with pytest.raises(DataError, match="2 of 122"):
        prepare(folder, tmp_path / "other", size=4)
    assert not (tmp_path / "other").exists()


def test_the_official_lists_are_used_when_asked_for(tmp_path: Path) -> None:
    folder = write_chest(tmp_path / "in")
    with pytest.raises(DataError, match=r"train_val_list.txt and test_list.txt"):
        prepare(folder, tmp_path / "out", size=4, split="official")
    names = list(chest_names())
    (folder / "train_val_list.txt").write_text("\n".join(names[:16]))
    (folder / "test_list.txt").write_text("\n".join(names[16:]) + "\n")
    store = prepare(folder / "images", tmp_path / "out", size=4, split="official")
    assert store.select("test").names == tuple(names[16:])
    assert len(set(store.select("validation").patients)) == 1  # of 8: 15/85
    (folder / "test_list.txt").write_text("")
    with pytest.raises(DataError, match=r"test_list\.txt: is empty"):
        prepare(folder, tmp_path / "none", size=4, split="official")
    assert not (tmp_path / "none").exists()


def test_arguments_and_disks_that_cannot_do_are_refused(many: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="got size 0"):
        prepare(many, tmp_path / "out", size=0)
    with pytest.raises(ConfigurationError, match="workers 0"):
        prepare(many, tmp_path / "out", workers=0)
    with pytest.raises(ConfigurationError, match="'random'"):
        prepare(many, tmp_path / "out", split="random")
    with pytest.raises(OutputError, match="GB free"):
        prepare(many, tmp_path / "out", size=2**22)


def test_a_picture_that_was_edited_in_place_is_noticed(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "in", ["a.png", "b.png", "c.png"])
    path = folder / "b.png"
    prepare(folder, tmp_path / "store", size=8)
    before, content = path.stat(), bytearray(path.read_bytes())
    content[-20] ^= 1  # the same length, and below the same times
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(CheckpointError, match="other pictures"):
        prepare(folder, tmp_path / "store", size=8, resume=True)


def test_copies_under_other_names_stay_on_one_side(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(20)]
    for copies in ("one", "two"):
        write_pictures(tmp_path / "in" / copies, names)
    split = prepare(tmp_path / "in", tmp_path / "store", size=8).split
    for part in PARTS:
        sides = {copies: {name[4:] for name in split.part(part) if name[:3] == copies} for copies in ("one", "two")}
        assert sides["one"] == sides["two"]
