"""The command as users start it: a process of its own, judged by its exit code and its two streams."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

MNIST = ("mnist", "--data", "digits", "--theta", "0.05", "--code", "4", "--threads", "1")


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "samplewise.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"},
        # Tests that were started in the background ignore interrupts, and would hand that on.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    assert "Traceback" not in err
    return process.returncode, out, err


def children(pid: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line) for line in found.stdout.split()]


def gone(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return not path.exists() or path.read_text().rpartition(")")[2].split()[0] == "Z"


def wait_for(condition: object, seconds: float = 300) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def test_a_run_goes_on_after_a_kill_and_refuses_a_second_start(tmp_path: Path) -> None:
    rows = ("--row", "penalty:10:1.1", "--row", "classification", "--jobs", "1", "--epochs", "60")
    process = start(*MNIST, *rows, "--out", str(tmp_path))
    history = tmp_path / "rows" / "penalty-10-1.1" / "seed-0" / "fit" / "history.jsonl"
    wait_for(lambda: history.exists() and history.read_text().count("\n") >= 2)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    wait_for(lambda: all(gone(pid) for pid in workers))  # no orphan goes on training
    done = history.read_text().count("\n")
    assert done < 60

    code, out, err = finish(start(*MNIST, *rows, "--out", str(tmp_path)))
    assert (code, out) == (2, "")
    opening, line = err.splitlines()
    assert opening == f"mnist: opening {tmp_path}"
    assert "holds a run already; add --resume" in line

    code, out, err = finish(start(*MNIST, *rows, "--out", str(tmp_path), "--resume", "--json"))
    assert code == 0, err
    table = json.loads(out)
    assert {row["name"].partition(",")[0] for row in table["rows"]} == {"classification", "penalty:10:1.1"}
    assert [json.loads(line)["epoch"] for line in history.read_text().splitlines()] == list(range(1, 61))


def test_an_interrupt_ends_all_processes(tmp_path: Path) -> None:
    process = start(*MNIST, "--row", "fixed:10", "--epochs", "5000", "--jobs", "1", "--out", str(tmp_path))
    history = tmp_path / "rows" / "fixed-10" / "seed-0" / "fit" / "history.jsonl"
    wait_for(lambda: history.exists() and history.read_text().count("\n") >= 2)
    workers = children(process.pid)
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (130, "")
    assert err.splitlines()[-1].startswith("samplewise: interrupted")
    wait_for(lambda: all(gone(pid) for pid in workers))


def test_a_row_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    rows = ("--row", "penalty:10:1.1,rate=1e30", "--row", "fixed:10", "--jobs", "1", "--epochs", "2")
    code, out, err = finish(start(*MNIST, *rows, "--out", str(tmp_path)))
    assert (code, out) == (1, "")
    assert "1 of 2 rows failed: penalty:10:1.1,rate=1e+30 (seed 0):" in err.splitlines()[-1]
    assert "not finite" in err
    assert (tmp_path / "rows" / "fixed-10" / "seed-0" / "result.json").exists()
    assert "Fixed" in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("mnist", "--data", ".", "--rows", "all", "--out", "out"), 2, "(plain or .gz) not found"),
        ((*MNIST, "--rows", "all", "--out", "file/out"), 1, "cannot write file/out: a part of its path is a file"),
    ],
)
def test_exit_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.chdir(tmp_path)
    found, out, err = finish(start(*arguments))
    assert (found, out) == (code, "")
    opening, line = err.splitlines()
    assert opening.startswith("mnist: opening ")
    assert message in line


# A stand-in for a PyTorch that takes forever to load: a command that is about to load it has said what it is doing.
SLOW = """
import importlib.abc, sys
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ImportError("still loading", name="torch")
sys.meta_path.insert(0, Slow())
from samplewise.cli import main
for arguments in sys.stdin.read().splitlines():
    assert main(arguments.split()) == 1
"""
COMMANDS = """demo
env
report runs
mnist --out out
chest prepare --data data --out out
chest classifier --store store --out out
chest impact --classifier c --watermark w --store store --out out
watermark train --data data --out out
watermark evaluate run --data data --out out
watermark embed in.png out.png --text a
watermark extract in.png
watermark verify in.png out.png"""


def test_every_command_says_what_it_does_before_it_loads_anything() -> None:
    told = subprocess.run([sys.executable, "-c", SLOW], input=COMMANDS, capture_output=True, text=True, timeout=60)
    assert told.returncode == 0, told.stderr
    lines = told.stderr.splitlines()
    for command, opening, error in zip(COMMANDS.splitlines(), lines[::2], lines[1::2], strict=True):
        name, _, what = opening.partition(": ")
        assert command.startswith(name)
        assert what
        assert error.startswith("samplewise: error: torch is not installed")
