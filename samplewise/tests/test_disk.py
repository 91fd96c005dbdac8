"""Files that are written whole or not at all, folders for one process, and errors that say what to do."""

import errno
import json
import math
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from samplewise.errors import CheckpointError, OutputError
from samplewise.history import History
from samplewise.storage.disk import (
    PARTIAL,
    alone,
    atomic,
    cannot_write,
    clear_partial,
    ensure_writable,
    lock,
    open_regular,
    strict_json,
    write_json,
    write_tensors,
)


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="this system has no folder in which none can be made")
def test_a_folder_that_cannot_be_made_is_not_said_to_be_gone() -> None:
    nowhere = Path("/proc/samplewise")
    with pytest.raises(OutputError, match="cannot make"), alone(nowhere, "run"):
        pass
    with pytest.raises(OutputError, match="cannot make"):
        ensure_writable(nowhere)
    with pytest.raises(OutputError, match="cannot make"):
        write_json(nowhere / "a.json", {})


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ZeroDivisionError), atomic(path) as temporary:
        temporary.write_text(f"half {1 / 0}")
    assert json.loads(path.read_text()) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from samplewise.storage.disk import atomic
with atomic(Path(sys.argv[1])) as first, atomic(Path(sys.argv[2])) as second:
    first.write_bytes(b"half")
    second.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path) -> None:
    (tmp_path / "whole").touch()
    places = [tmp_path / "half", tmp_path / "folder" / "half"]
    process = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, *map(str, places)], check=False)
    assert process.returncode == -signal.SIGKILL
    assert not any(place.exists() for place in places)
    assert len(list(tmp_path.rglob("*"))) == 6, "a folder for each half, and the half in it"
    clear_partial(tmp_path)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["folder", "whole"]


def test_what_lies_behind_a_link_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "theirs" / f"{PARTIAL}x").mkdir(parents=True)
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "link").symlink_to(tmp_path / "theirs")
    (tmp_path / "ours" / f"{PARTIAL}link").symlink_to(tmp_path / "theirs")
    clear_partial(tmp_path / "ours")
    assert (tmp_path / "theirs" / f"{PARTIAL}x").is_dir()


def test_only_regular_files_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the kernel takes short names of sockets only
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    for name in ("file", "link"):
        with open_regular(tmp_path / name) as file:
            assert file.read() == b"content"
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        for path, kind in (("pipe", "a pipe"), ("socket", "a socket"), (".", "a folder"), ("/dev/zero", "a device")):
            with pytest.raises(OSError, match=kind):
                open_regular(tmp_path / path)


def test_a_folder_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="is a file"):
        ensure_writable(tmp_path / "file" / "run")
    with pytest.raises(OutputError, match="MB free"):
        ensure_writable(tmp_path, needed=10**18)
    assert ensure_writable(tmp_path / "new" / "run").is_dir()
    assert [path.name for path in (tmp_path / "new" / "run").iterdir()] == [], "trying it leaves nothing"


def test_strict_json_has_no_nan(tmp_path: Path) -> None:
    assert strict_json({"a": [math.nan, 1.0], "b": (math.inf,)}) == {"a": [None, 1.0], "b": [None]}
    write_json(tmp_path / "a.json", {"a": math.nan})
    assert json.loads((tmp_path / "a.json").read_text(), parse_constant=pytest.fail) == {"a": None}


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "the disk is full. Free some space and resume"),
        (errno.EDQUOT, "the quota is used up. Free some space and resume"),
        (errno.ENOENT, "its folder is gone. Was it moved or removed?"),
        (errno.ENOTDIR, "a part of its path is a file. Choose another folder"),
        (errno.EACCES, "Permission denied. Choose another folder"),
    ],
)
def test_the_advice_fits_the_cause(number: int, message: str) -> None:
    error = cannot_write(Path("run"), OSError(number, os.strerror(number)))
    assert str(error) == f"cannot write run: {message}"


def test_a_full_disk_is_said_where_json_or_tensors_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "a.json", {"a": 1})

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"a\.json: the disk is full"):
        write_json(tmp_path / "a.json", {"a": 2})
    with pytest.raises(OutputError, match=r"a\.safetensors: the disk is full"):
        write_tensors(tmp_path / "a.safetensors", {"a": torch.zeros(2)})
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_json_that_may_not_grow_any_further_is_one_clear_error(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OutputError, match="File too large"):
            write_json(tmp_path / "a.json", {"a": "long" * 10_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_said_where_the_history_grows(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.append({"epoch": 1})
    (tmp_path / "history.jsonl").unlink()
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    with pytest.raises(OutputError, match="the disk is full"):
        history.append({"epoch": 2})


def test_a_folder_that_vanished_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(OutputError, match="its folder is gone"), atomic(folder / "a.json"):
        shutil.rmtree(folder)
    history = History(folder)
    history.append({"epoch": 1})
    shutil.rmtree(folder)
    with pytest.raises(OutputError, match="its folder is gone"):
        history.append({"epoch": 2})


def test_only_one_process_works_in_a_folder(tmp_path: Path) -> None:
    with alone(tmp_path / "run", "run"):
        with pytest.raises(CheckpointError, match="busy"):
            lock(tmp_path / "run" / ".lock", "busy")
        with pytest.raises(CheckpointError, match="another process"):
            alone(tmp_path / "run", "run").__enter__()
    with alone(tmp_path / "run", "run"):
        """The first has ended."""


def test_a_folder_is_free_at_the_end_though_a_worker_forked_meanwhile_goes_on(tmp_path: Path) -> None:
    with alone(tmp_path, "run"):
        worker = multiprocessing.get_context("fork").Process(target=signal.pause)
        worker.start()
    try:
        with alone(tmp_path, "run"):
            assert worker.is_alive()
    finally:
        worker.kill()
        worker.join()


def test_the_lock_touches_neither_what_a_link_leads_to_nor_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("someone's work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(OutputError, match=r"cannot write .*\.lock: .*link"), alone(tmp_path / "run", "run"):
        pass
    assert (tmp_path / "precious").read_text() == "someone's work"
    (tmp_path / "run" / ".lock").unlink()
    (tmp_path / "run" / ".lock").write_text("not ours")
    with alone(tmp_path / "run", "run"):
        assert (tmp_path / "run" / ".lock").read_text() == "not ours"
