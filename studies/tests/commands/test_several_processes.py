"""Commands on two real processes that meet over gloo, started by the command itself and by torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forked import Forked, torchrun
from picture_folders import write_pictures
from studies.commands import main
from studies.mnist.results import read_results

MNIST = ("mnist", "--data", "digits", "--theta", "0.05", "--code", "4", "--epochs", "2")
WATERMARK = 'network = "swift"\nsize = 32\nbits = 4\nmessage_rounds = 1\nrounds = 1\nbatch_size = 2\n'


CPU = ("--accelerator", "cpu")


@pytest.mark.usefixtures("forked_workers", "quick_figures")
def test_rows_that_leave_the_decoder_alone_train_on_two_devices(tmp_path: Path) -> None:
    rows = ("--row", "penalty:10:1.1", "--row", "classification")
    started = [sys.executable, "-m", "studies", *MNIST, *rows, "--devices", "2", *CPU]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    two = subprocess.run(
        [*started, "--out", str(tmp_path / "two")],
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=500,
        env=environment,
        check=False,
    )
    assert two.returncode == 0, two.stderr
    assert "Classification only, its untrained decoder" in two.stdout
    assert main([*MNIST, *rows, "--jobs", "1", "--out", str(tmp_path / "one"), *CPU]) == 0
    for one, both in zip(read_results(tmp_path / "one"), read_results(tmp_path / "two"), strict=True):
        assert one.row == both.row
        for split in ("train", "test"):
            assert both.numbers(split, "last") == pytest.approx(one.numbers(split, "last"), rel=1e-3)


def test_processes_that_torchrun_starts_wait_for_the_store(tmp_path: Path) -> None:
    images = write_pictures(tmp_path / "images", [f"{number}.png" for number in range(12)], 40, 32)
    out, recipe = tmp_path / "run", tmp_path / "short.toml"
    recipe.write_text(WATERMARK)
    arguments = ("watermark", "train", "--data", str(images), "--recipe", str(recipe), *CPU)
    both = Forked(torchrun, main, [*arguments, "--devices", "2", "--out", str(out), "--json"], told=tmp_path / "told")
    code, shown, err = both.finish()
    assert code == 0, err
    assert json.loads(shown[shown.index("{") :])["run"] == str(out)
    assert (out / "model.safetensors").exists()
