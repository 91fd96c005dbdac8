"""The command as users start it: a process of its own, seen by its exit code and its two streams."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked import Forked, command
from studies.commands import main

MNIST = ("mnist", "--data", "digits", "--theta", "0.05", "--code", "4", "--threads", "1")


def in_folder(folder: Path, *arguments: str) -> int:
    os.chdir(folder)
    return command("studies", *arguments)


def children(pid: int | None) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # FileNotFoundError, or ProcessLookupError if it ends while it is read
        return True
    return state == "Z"


def wait_for(condition: object, seconds: float = 300) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@pytest.mark.usefixtures("forked_workers", "quick_figures")
def test_a_run_goes_on_after_a_kill_and_refuses_a_second_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ("--row", "penalty:10:1.1", "--row", "classification", "--jobs", "2", "--epochs", "30")
    process = Forked(command, "studies", *MNIST, *rows, "--out", str(tmp_path / "out"), told=tmp_path / "told")
    history = tmp_path / "out" / "rows" / "penalty-10-1.1" / "seed-0" / "fit" / "history.jsonl"
    wait_for(lambda: history.exists() and history.read_text().count("\n") >= 2)
    workers = children(process.pid)
    assert workers
    process.kill()
    wait_for(lambda: all(gone(pid) for pid in workers))  # no orphan goes on training
    done = history.read_text().count("\n")
    assert done < 30

    assert main([*MNIST, *rows, "--out", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert "--resume" in line

    assert main([*MNIST, *rows, "--out", str(tmp_path / "out"), "--resume", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)
    assert {row["name"].partition(",")[0] for row in table["rows"]} == {"classification", "penalty:10:1.1"}
    assert [json.loads(line)["epoch"] for line in history.read_text().splitlines()] == list(range(1, 31))


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    run = ("--row", "fixed:10", "--epochs", "5000", "--jobs", "1", "--out", str(tmp_path / "out"))
    process = Forked(command, "studies", *MNIST, *run, told=tmp_path / "told")
    history = tmp_path / "out" / "rows" / "fixed-10" / "seed-0" / "fit" / "history.jsonl"
    wait_for(lambda: history.exists() and history.read_text().count("\n") >= 2)
    workers = children(process.pid)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    code, out, err = process.finish()
    assert (code, out) == (130, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("studies: interrupted")
    wait_for(lambda: all(gone(pid) for pid in workers))


@pytest.mark.usefixtures("forked_workers", "quick_figures")
def test_a_row_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = ("--row", "penalty:10:1.1,rate=1e30", "--row", "fixed:10", "--jobs", "1", "--epochs", "2")
    assert main([*MNIST, *rows, "--out", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    assert "1 of 2 rows failed: penalty:10:1.1,rate=1e+30" in err.splitlines()[-1]
    assert "not finite" in err
    assert (tmp_path / "rows" / "fixed-10" / "seed-0" / "result.json").exists()
    assert "Fixed" in (tmp_path / "table.md").read_text(encoding="utf-8")


def test_exit_codes(tmp_path: Path) -> None:
    started = [sys.executable, "-W", "error", "-m", "studies", "mnist"]
    started += ["--data", ".", "--rows", "all", "--out", "out"]
    ran = subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    opening, line = ran.stderr.splitlines()
    assert opening.startswith("mnist: opening ")
    assert "(plain or .gz) not found" in line

    (tmp_path / "file").write_text("in the way")
    code, out, err = Forked(
        in_folder, tmp_path, *MNIST, "--rows", "all", "--out", "file/out", told=tmp_path / "told"
    ).finish()
    assert (code, out) == (1, "")
    (line,) = err.splitlines()  # what is loaded already is not waited for
    assert "file/out" in line


# A stand-in for a PyTorch that takes forever to load: a command that is about to load it has said what it is doing.
SLOW = """
import importlib.abc, sys
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ImportError("still loading", name="torch")
sys.meta_path.insert(0, Slow())
from studies.commands import main
for arguments in sys.stdin.read().splitlines():
    assert main(arguments.split()) == 1
"""
COMMANDS = """demo
compression --out out
mnist --out out
chest prepare --data data --out out
chest classifier --store store --out out
chest impact --classifier c --watermark w --store store --out out
watermark train --data data --out out
watermark evaluate run --data data --out out"""


def test_every_command_says_what_it_does_before_it_loads_anything() -> None:
    told = subprocess.run([sys.executable, "-c", SLOW], input=COMMANDS, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr
    lines = told.stderr.splitlines()
    for call, opening, error in zip(COMMANDS.splitlines(), lines[::2], lines[1::2], strict=True):
        name, _, what = opening.partition(": ")
        assert call.startswith(name)
        assert what
        assert error.startswith("studies: error: torch is not installed")
