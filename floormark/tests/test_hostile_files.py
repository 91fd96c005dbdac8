"""No small file makes a command take much memory or time."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hostile_files
import limited
from hostile_files import FILES, TAKEN
from network_files import rewritten

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and numbers are those of Linux")


Run = Callable[[list[list[str]]], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """How each command ended, all that it used in memory and time within the limits."""
    server = subprocess.Popen(
        [sys.executable, limited.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    into, out = server.stdin, server.stdout

    def run_each(commands: list[list[str]]) -> list[dict[str, Any]]:
        found = []
        for command in commands:
            into.write(json.dumps(command) + "\n")
            into.flush()
            one = json.loads(out.readline())
            assert one["code"] in (0, 1, 2), (command, one)
            assert one["bytes"] < limited.MEMORY, (command, one)
            assert "unexpected" not in one["told"], (command, one)
            assert "not enough memory" not in one["told"], (command, one)
            found.append(one)
        return found

    yield run_each
    server.communicate()
    assert server.returncode == 0


def test_small_files_that_ask_for_much_are_refused(run: Run, tmp_path: Path) -> None:
    files = hostile_files.write(tmp_path / "files", FILES)
    out = str(tmp_path / "out.png")
    commands = [["extract", str(path)] for path in files]
    embed = ["embed", str(files[0]), out, "--text", "x"]
    commands += [[*embed[:1], str(path), *embed[2:]] for path in files[::3]]
    commands += [["verify", str(path), str(path)] for path in files[1::6]]
    commands += [[*embed, "--protect", str(path)] for path in files[2::6]]
    for command, ended in zip(commands, run(commands), strict=True):
        assert ended["code"] == 2, (command, ended)
        assert ended["told"].startswith(f"floormark: error: {tmp_path / 'files'}/"), (command, ended)
    assert not (tmp_path / "out.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("names", [("long.png", "wavelets.dcm"), ("deep.png", "grey.png", "less.dcm", "scans.jpg")])
def test_the_largest_files_that_are_taken_stay_within_the_limits(
    run: Run, names: tuple[str, ...], tmp_path: Path
) -> None:
    files = hostile_files.write(tmp_path / "files", {name: TAKEN[name] for name in names})
    commands = [["extract", str(path)] for path in files]
    targets = [tmp_path / path.with_suffix(".dcm" if path.suffix == ".dcm" else ".png").name for path in files]
    # They are flat, and so must keep 15 dB more than is asked for.
    options = ["--text", "x", "--psnr", "30"]
    commands += [["embed", str(a), str(b), *options] for a, b in zip(files, targets, strict=True)]
    commands.append([*commands[-len(files)][:2], str(tmp_path / "no.png"), "--text", "x", "--psnr", "99"])
    # Of 16 bits that are all alike 32 levels count as used, of which 45 dB are less than what rounding takes away.
    marked = [int(path.name == "deep.png") for path in files]
    assert [ended["code"] for ended in run(commands)] == [1] * len(files) + marked + [1]


def test_weights_and_certificates_that_ask_for_much_are_refused(run: Run, tmp_path: Path) -> None:
    image = tmp_path / "a.png"
    image.write_bytes(hostile_files.png(256, 256))
    commands = []
    for name, change in {
        "wide": {"width": 30_000},
        "long": {"bits": 1 << 30, "size": 1 << 20},
        "channels": {"channels": 1 << 30},
    }.items():
        rewritten(tmp_path / name, change)
        commands.append(["extract", str(image), "--model", str(tmp_path / name)])
    for name, text in {"deep": "[" * 4_000_000, "wide": "[" + "0," * 2_000_000 + "0]"}.items():
        (tmp_path / f"{name}.png").write_bytes(image.read_bytes())
        (tmp_path / f"{name}.png.json").write_text(text)
        commands.append(["verify", str(image), str(tmp_path / f"{name}.png")])
    assert [ended["code"] for ended in run(commands)] == [2] * len(commands)
