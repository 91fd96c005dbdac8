import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from picture_folders import chest_names, noise, save, write_chest, write_pictures
from samplewise.data.pictures import Progress, Store, find, prepare
from samplewise.data.pictures.chunks import AHEAD, CHUNK_PICTURES, Decoders
from samplewise.data.pictures.listing import Picture
from samplewise.data.pictures.unfinished import Unfinished
from samplewise.errors import CheckpointError, ConfigurationError, DataError, OutputError

MANY = 3 * CHUNK_PICTURES + 5


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
    assert store.index == other.index
    assert store.split == other.split
    assert sorted(path.name for path in store.folder.iterdir()) == ["images.u8", "index.json", "split.json"]


def test_a_store_holds_the_pixels_in_the_order_of_the_names(many: Path, whole: Store) -> None:
    kept = [number for number in range(MANY) if number != 40]
    assert whole.names == tuple(f"{number:03d}.png" for number in kept)
    assert np.array_equal(whole.images, np.stack([noise(number) for number in kept]))
    assert whole.index.bad == {"040.png": "not a PNG, JPEG, TIFF or BMP file"}
    assert whole.index.converted == {"RGBA": 1}
    assert {"python", "pillow", "samplewise"} <= set(whole.index.versions)
    assert whole.index.fingerprint == find(many).fingerprint()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_number_of_workers_does_not_matter(many: Path, whole: Store, tmp_path: Path, workers: int) -> None:
    same(prepare(many, tmp_path / "store", size=8, workers=workers), whole)


def test_pictures_are_resized(tmp_path: Path) -> None:
    save(tmp_path / "in" / "a.png", noise(0, 30, 50))
    store = prepare(tmp_path / "in", tmp_path / "out", size=10)
    expected = np.asarray(Image.fromarray(noise(0, 30, 50)).resize((10, 10), Image.Resampling.BILINEAR))
    assert np.array_equal(store.images[0], expected)


def test_progress_begins_with_a_projection_and_ends_with_all(many: Path, tmp_path: Path) -> None:
    seen: list[Progress] = []
    prepare(many, tmp_path / "store", size=8, watch=seen.append)
    assert (seen[0].done, seen[0].total, seen[0].bytes_total) == (0, MANY, MANY * 64)
    assert seen[0].seconds_left > 0
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert (seen[-1].done, seen[-1].skipped, seen[-1].seconds_left) == (MANY, 1, 0)
    assert seen[-1].bytes_total == (tmp_path / "store" / "images.u8").stat().st_size


KILLED = """
import os, signal, sys
from samplewise.data.pictures import prepare, unfinished
unfinished.COMMIT_SECONDS = -1.0

def watch(progress):
    if progress.done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)

prepare(sys.argv[1], sys.argv[2], size=8, watch=watch)
"""


def test_a_killed_process_can_be_gone_on_with(many: Path, whole: Store, tmp_path: Path) -> None:
    out, done = tmp_path / "store", 2 * CHUNK_PICTURES
    ran = subprocess.run([sys.executable, "-c", KILLED, str(many), str(out), str(done)], timeout=300, check=False)
    assert ran.returncode == -signal.SIGKILL
    with pytest.raises(CheckpointError, match="the store is unfinished"):
        Store.open(out)
    with pytest.raises(CheckpointError, match="holds an unfinished store; add --resume"):
        prepare(many, out, size=8)
    seen: list[Progress] = []
    same(prepare(many, out, size=8, resume=True, watch=seen.append), whole)
    assert seen[0].done == done  # what was on disk is not done again


class Stopped(Exception):
    pass


def interrupted(many: Path, out: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave an unfinished store with ``after`` chunks in its journal."""

    def stop(progress: Progress) -> None:
        if progress.done >= after * CHUNK_PICTURES:
            raise Stopped

    monkeypatch.setattr("samplewise.data.pictures.unfinished.COMMIT_SECONDS", -1.0)
    with pytest.raises(Stopped):
        prepare(many, out, size=8, watch=stop)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), tail=st.binary(max_size=200))
def test_a_torn_journal_and_pixels_that_do_not_count_do_no_harm(
    many: Path,
    whole: Store,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    cut: float,
    tail: bytes,
) -> None:
    out = tmp_path_factory.mktemp("torn") / "store"
    interrupted(many, out, 2, monkeypatch)
    journal, images = out / "unfinished.jsonl", out / "images.u8"
    written = journal.read_bytes()
    header = written.index(b"\n") + 1
    journal.write_bytes(written[: header + round(cut * (len(written) - header))])
    images.write_bytes(images.read_bytes() + tail)
    same(prepare(many, out, size=8, resume=True), whole)


def test_a_kill_at_the_first_or_the_last_steps_does_no_harm(
    many: Path, whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "store"
    out.mkdir()
    for name in (".probe.x", ".unfinished.jsonl.x.tmp"):  # before the journal
        (out / name).write_text("torn")
    interrupted(many, out, 3, monkeypatch)
    (out / ".index.json.x.tmp").write_text("torn")
    (out / "split.json").write_bytes((whole.folder / "split.json").read_bytes())  # before the index
    journal = (out / "unfinished.jsonl").read_bytes()
    same(prepare(many, out, size=8, resume=True), whole)
    (out / "unfinished.jsonl").write_bytes(journal)  # after it
    assert len(Store.open(out)) == MANY - 1
    same(prepare(many, out, size=8, resume=True), whole)


def test_pixels_that_count_and_are_gone_are_refused(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(many, tmp_path, 2, monkeypatch)
    (tmp_path / "images.u8").write_bytes(b"short")
    with pytest.raises(CheckpointError, match=r"images\.u8: expected at least \d+ bytes, got 5"):
        prepare(many, tmp_path, size=8, resume=True)


def test_a_second_process_is_kept_out(many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted(many, tmp_path, 1, monkeypatch)
    with (
        Unfinished(tmp_path, fingerprint=find(many).fingerprint(), size=8),
        pytest.raises(CheckpointError, match="another process is preparing this store"),
    ):
        prepare(many, tmp_path, size=8, resume=True)


def test_a_finished_store_is_opened_but_not_made_again(many: Path, whole: Store) -> None:
    with pytest.raises(CheckpointError, match="holds this store already; add --resume"):
        prepare(many, whole.folder, size=8)
    before = (whole.folder / "images.u8").stat().st_mtime_ns
    same(prepare(many, whole.folder, size=8, resume=True), whole)
    assert (whole.folder / "images.u8").stat().st_mtime_ns == before


def test_a_store_of_something_else_is_refused(
    many: Path, whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = write_pictures(tmp_path / "others", ["a.png", "b.png", "c.png"])
    with pytest.raises(CheckpointError, match="holds a store of other pictures"):
        prepare(others, whole.folder, size=8, resume=True)
    with pytest.raises(CheckpointError, match="holds a store of size 8, not 9"):
        prepare(many, whole.folder, size=9, resume=True)
    with pytest.raises(CheckpointError, match="by patients with seed 0, not by patients with seed 1"):
        prepare(many, whole.folder, size=8, seed=1, resume=True)
    out = tmp_path / "out"
    interrupted(many, out, 1, monkeypatch)
    with pytest.raises(CheckpointError, match="holds an unfinished store of other pictures"):
        prepare(others, out, size=8, resume=True)
    with pytest.raises(CheckpointError, match="holds an unfinished store of size 8, not 9"):
        prepare(many, out, size=9, resume=True)
    (out / "unfinished.jsonl").write_text('{"format": 2}\n')
    with pytest.raises(CheckpointError, match="holds an unfinished store of another version"):
        prepare(many, out, size=8, resume=True)
    (out / "unfinished.jsonl").write_text("rubbish")
    with pytest.raises(CheckpointError, match="is damaged"):
        prepare(many, out, size=8, resume=True)
    with pytest.raises(CheckpointError, match="exists and is not a store of pictures"):
        prepare(many, others, size=8, resume=True)


def test_more_than_one_in_a_hundred_bad_pictures_stop_it(tmp_path: Path) -> None:
    folder = write_pictures(tmp_path / "in", [f"{number:03d}.png" for number in range(100)])
    (folder / "007.png").write_bytes(b"")
    out = tmp_path / "out"
    assert len(prepare(folder, out, size=4)) == 99  # just one in a hundred
    (folder / "003.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"at least 2 of 100 .* more than 1%: 003\.png \(not a .*\), 007\.png \(not a"):
        prepare(folder, tmp_path / "other", size=4)
    save(folder / "003.png", noise(3))
    assert len(prepare(folder, tmp_path / "other", size=4)) == 99  # nothing in the way of a second try


def test_files_without_rows_count_as_bad(tmp_path: Path) -> None:
    folder = write_chest(tmp_path / "in", chest_names(60))
    save(folder / "images" / "00000099_000.png", noise(0))
    store = prepare(folder, tmp_path / "out", size=4)
    assert store.index.bad == {"00000099_000.png": "no row in Data_Entry_2017_v2020.csv"}
    assert len(store) == 120
    save(folder / "images" / "00000099_001.png", noise(0))
    with pytest.raises(DataError, match="at least 2 of 122 pictures cannot be used"):
        prepare(folder, tmp_path / "other", size=4)
    assert not (tmp_path / "other").exists()


def test_the_official_lists_are_used_when_asked_for(tmp_path: Path) -> None:
    folder = write_chest(tmp_path / "in")
    with pytest.raises(DataError, match=r"train_val_list.txt and test_list.txt not found"):
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
    with pytest.raises(OutputError, match="GB free, but the pictures will need"):
        prepare(many, tmp_path / "out", size=2**22)


class Counted(Sequence[Picture]):
    """Says how far it was read."""

    def __init__(self, pictures: Sequence[Picture]) -> None:
        self.pictures = pictures
        self.read = 0

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, key: Any) -> Any:
        self.read = max(self.read, key.stop)
        return self.pictures[key]


def test_decoding_does_not_run_far_ahead_of_writing(many: Path) -> None:
    pictures = Counted(find(many).pictures * 5)
    with Decoders.start(2, 8) as decoders:
        chunks = decoders.decode(pictures)
        next(chunks)
        assert pictures.read == 2 * AHEAD * CHUNK_PICTURES < len(pictures)
        assert sum(len(chunk.images) + len(chunk.bad) for chunk in chunks) == len(pictures) - CHUNK_PICTURES
