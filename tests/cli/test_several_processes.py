"""Commands on two real processes that meet over gloo, started by the command itself and by torchrun."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samplewise.studies.mnist.results import read_results

MNIST = ("mnist", "--data", "digits", "--theta", "0.05", "--code", "4", "--epochs", "2")
WATERMARK = "size = 32\nbits = 4\nmessage_rounds = 1\nrounds = 1\nbatch_size = 2\n"


def run(*arguments: str, by: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *by, "-m", "samplewise.cli", *arguments, "--accelerator", "cpu"]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", timeout=500, env=environment)


def test_rows_that_leave_the_decoder_alone_train_on_two_devices(tmp_path: Path) -> None:
    rows = ("--row", "penalty:10:1.1", "--row", "classification")
    two = run(*MNIST, *rows, "--devices", "2", "--out", str(tmp_path / "two"))
    assert two.returncode == 0, two.stderr
    assert "Classification only, its untrained decoder" in two.stdout
    assert run(*MNIST, *rows, "--jobs", "1", "--out", str(tmp_path / "one")).returncode == 0
    for one, both in zip(read_results(tmp_path / "one"), read_results(tmp_path / "two"), strict=True):
        assert one.row == both.row
        for split in ("train", "test"):
            assert both.numbers(split, "last") == pytest.approx(one.numbers(split, "last"), rel=1e-3)


def test_processes_that_torchrun_starts_wait_for_the_store(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        Image.fromarray(rng.integers(0, 256, (40, 32), dtype=np.uint8)).save(tmp_path / "images" / f"{i}.png")
    out, recipe = tmp_path / "run", tmp_path / "short.toml"
    recipe.write_text(WATERMARK)
    ran = run(
        *("watermark", "train", "--data", str(tmp_path / "images"), "--recipe", str(recipe)),
        *("--devices", "2", "--out", str(out), "--json"),
        by=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout[ran.stdout.index("{") :])["run"] == str(out)
    assert (out / "model.safetensors").exists()
