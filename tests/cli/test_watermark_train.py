import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from samplewise.checkpoint import load_state
from samplewise.cli import main

SHORT = ("--size", "32", "--bits", "4", "--steps", "100", "--message-steps", "50", "--batch-size", "2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for i in range(12):
        Image.fromarray(rng.integers(0, 256, (40, 32), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["watermark", "train", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def test_a_run_from_a_folder_of_images_and_its_continuation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["watermark", "train", "--data", str(folder), *SHORT, "--out", str(out)]
    assert main([*command, "--json"]) == 0
    ended = json.loads(capsys.readouterr().out)
    assert ended["status"] in ("FEASIBLE", "INFEASIBLE")
    assert 0 <= ended["bit_error"] <= 1
    assert (out / "model.safetensors").exists()
    assert json.loads((out / "recipe.json").read_text())["settings"]["bits"] == 4
    assert "add --resume" in error(capsys, *command[2:])
    assert main([*command, "--resume"]) == 0
    assert "not learned" in capsys.readouterr().err
    # The prepared images of one run serve another.
    assert main([*command[:2], "--data", str(out / "store"), *SHORT, "--out", str(tmp_path / "other")]) == 0
    assert not (tmp_path / "other" / "store").exists()


def test_hidden_in_small_with_a_falling_rate(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ("--network", "hidden", "--size", "16", "--bits", "3", "--width", "4", "--batch-size", "4", "--anneal")
    out = tmp_path / "run"
    assert main(["watermark", "train", "--data", str(folder), *small, "--epochs", "2", "--out", str(out)]) == 0
    state = load_state(out / "model.safetensors")
    assert state["arguments"]["width"] == 4
    rates = [json.loads(line)["lr"] for line in (out / "fit" / "history.jsonl").read_text().splitlines()]
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert rates[0] > 0
    assert "not learned: give more --epochs" in capsys.readouterr().err


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path / "run"))
    data = ("--data", str(folder), *out)
    assert "no such folder" in error(capsys, "--data", str(tmp_path / "nowhere"), *out)
    (tmp_path / "empty").mkdir()
    assert "no pictures" in error(capsys, "--data", str(tmp_path / "empty"), *out)
    assert "hold 1 to 64 bits, got 65" in error(capsys, *data, "--size", "32", "--bits", "65")
    assert "multiple of 8 pixels" in error(capsys, *data, "--size", "33")
    assert "multiple of 8 channels" in error(capsys, *data, "--width", "12")
    assert "one of hidden, swift" in error(capsys, *data, "--network", "unet")
    assert "Did you mean 'jpeg'?" in error(capsys, *data, "--noise", "jpg(50)")
    assert "give --epochs" in error(capsys, *data, "--network", "hidden", "--steps", "100")
    assert "give --steps" in error(capsys, *data, "--epochs", "3")
    assert "leave none for the constraint" in error(capsys, *data, "--steps", "100")
    assert "do not work here" in error(capsys, *data, "--accelerator", "cuda")
    assert not (tmp_path / "run").exists()
