"""Folders marked by real processes: killed, gone on with, out of disk, with names that no terminal can show."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from floormark import cli
from floormark.disk import PARTIAL
from forked import Forked
from natural_images import natural_image

COMMAND = [sys.executable, "-W", "error", "-m", "floormark"]
COUNT = 24


def command(*arguments: str) -> int:
    """As ``python -W error -m floormark``, in a process that was forked."""
    sys.warnoptions.append("error")  # which the processes that it starts are given too
    warnings.simplefilter("error")
    return cli.main(arguments)


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8", **options.pop("env", {})}
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err
    return process.returncode, out, err


def wait_for(condition: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def children(pid: int | None) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # FileNotFoundError, or ProcessLookupError if it ends while it is read
        return True
    return state == "Z"


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    (folder / "sub").mkdir()
    for number in range(COUNT):
        image = natural_image(height=256, width=256, seed=number % 4)
        Image.fromarray(image).save(folder / ("sub" if number % 2 else "") / f"{number:03d}.png", compress_level=1)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def marked(out: Path) -> list[Path]:
    """The images that have their names."""
    return sorted([*out.glob("*.png"), *out.glob("sub/*.png")])


def test_a_killed_run_leaves_whole_files_and_no_process_and_goes_on_to_the_same_end(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    arguments = ("--text", "hello", "--psnr", "40")
    embed = ("embed", str(images), str(out), *arguments, "--workers", "2")
    process = Forked(command, *embed, told=tmp_path / "told")
    wait_for(lambda: len(marked(out)) >= 2 or not process.is_alive())
    workers = children(process.pid)
    process.kill()
    assert len(workers) >= 2
    wait_for(lambda: all(gone(worker) for worker in workers))
    done = marked(out)
    assert 2 <= len(done) < COUNT
    for path in done:
        with Image.open(path) as image:
            image.load()
        assert path.with_name(f"{path.name}.json").exists()

    assert cli.main(["embed", str(images), str(out), *arguments, "--workers", "1", "--resume"]) == 0
    told, progress = capsys.readouterr()
    assert told.startswith(f"{COUNT - len(done)} written, {len(done)} done before; lowest PSNR 40.0")
    assert f"{COUNT} of {COUNT} images" in progress
    assert cli.main(["embed", str(images), str(whole), *arguments, "--workers", "1"]) == 0
    assert contents(out) == contents(whole)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_go_on_and_several_processes_do(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        "embed", images, out, "--text", "hello", "--workers", "2",
        start_new_session=True,
        # Tests that were started in the background ignore interrupts, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    wait_for(lambda: len(marked(out)) >= 1 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does: to all of them
    code, told, err = finish(process)
    assert (code, told) == (130, "")
    assert err.splitlines()[-1] == "floormark: interrupted; a folder goes on with --resume"
    assert not list(out.rglob(f"{PARTIAL}*"))
    code, told, err = finish(start("embed", images, out, "--text", "hello", "--workers", "2", "--resume"))
    assert code == 0
    assert "done before; lowest PSNR 45.0" in told
    assert f"{COUNT} of {COUNT} images" in err


@pytest.fixture
def little_room(tmp_path: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """A folder on a disk of 300 kB; without the right to make one, a process may not write longer files than 30 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "none", disk], capture_output=True, check=False)
    if made.returncode:
        yield disk, {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))}
        return
    yield disk, {}
    subprocess.run(["umount", disk], check=True)


def test_a_full_disk_ends_the_run_in_one_line_and_leaves_no_partial_file(
    images: Path, little_room: tuple[Path, dict[str, Any]]
) -> None:
    disk, options = little_room
    process = start("embed", images, disk / "out", "--text", "hello", "--workers", "1", **options)
    code, told, err = finish(process)
    assert (code, told) == (1, "")
    why = "File too large" if options else "the disk is full. Free some space and resume"
    assert re.search(rf"cannot write .*{why}", err.splitlines()[-1])
    assert all(re.match(r"marking: [\d,]+ (of [\d,]+ )?images", line) for line in err.splitlines()[1:-1])
    left = contents(disk / "out")
    written = [name for name in left if name.endswith(".png")]
    assert len(written) < COUNT
    assert {name for name in left if not name.startswith(".")} == {*written, *(f"{name}.json" for name in written)}
    assert not list(disk.rglob(f"{PARTIAL}*"))


def test_names_and_messages_that_cannot_be_shown_are_escaped(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    name = os.fsdecode(b"\xff\x1b[31m.png")
    (folder / name).write_bytes((images / "000.png").read_bytes())
    assert cli.main(["embed", str(folder), str(tmp_path / "out"), "--text", "ä", "--workers", "1"]) == 0
    code, told, _ = finish(start("extract", tmp_path / "out", "--json", env={"PYTHONIOENCODING": "ascii"}))
    assert code == 0
    assert json.loads(told)[name]["message"] == "ä"
