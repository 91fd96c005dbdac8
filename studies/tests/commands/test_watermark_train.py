import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from bad_commands import refused
from floormark import Watermarker
from picture_folders import write_pictures
from studies.commands import main
from studies.pictures import Store
from studies.records import SettingsFile
from studies.watermark.networks import load_network
from studies.watermark.recipe import make_recipe
from studies.watermark.training import read_seen

TRAIN = ("watermark", "train")
SHORT = 'network = "swift"\nmessage_rounds = 1\nrounds = 1\nbatch_size = 2\nbits = 3\nsize = 32\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_pictures(tmp_path / "images", [f"{number}.png" for number in range(12)], 40, 32)


def test_a_run_from_a_folder_of_images_and_its_continuation(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    recipe = tmp_path / "short.toml"
    recipe.write_text(SHORT)
    short = ("--recipe", str(recipe), "--bits", "4")  # what the command line says goes before the file
    command = ["watermark", "train", "--data", str(folder), *short, "--out", str(out)]
    with patch.object(SettingsFile, "open", autospec=True, side_effect=SettingsFile.open) as opened:
        assert main([*command, "--json"]) == 0
    shown = capsys.readouterr()
    ended = json.loads(shown.out)
    assert opened.call_count == 1
    assert "lattice" in shown.err  # which alone the tool uses
    assert ended["status"] in ("FEASIBLE", "UNFINISHED")
    assert 0 <= ended["bit_error"] <= 1
    assert (out / "model.safetensors").exists()
    assert json.loads((out / "recipe.json").read_text())["settings"]["bits"] == 4
    assert "add --resume" in refused(capsys, *command)
    assert main([*command, "--resume"]) == 0
    assert "not learned" in capsys.readouterr().err
    # The prepared images of one run serve another.
    assert main([*command[:2], "--data", str(out / "store"), *short, "--out", str(tmp_path / "other")]) == 0
    assert not (tmp_path / "other" / "store").exists()
    # So does its recipe.
    text = (out / "recipe.toml").read_text()
    assert "bits = 4\n" in text
    assert "data = " not in text
    again = ("--data", str(out / "store"), "--recipe", str(out / "recipe.toml"), "--out", str(tmp_path / "again"))
    assert main(["watermark", "train", *again]) == 0
    recipes = [json.loads((tmp_path / name / "recipe.json").read_text()) for name in ("other", "again")]
    assert recipes[0] == recipes[1]
    assert (tmp_path / "again" / "recipe.toml").read_text() == text


def test_hidden_in_small_with_a_falling_rate(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small.toml").write_text('network = "hidden"\nwidth = 4\nbatch_size = 4\nanneal = true\n')
    small = ("--recipe", str(tmp_path / "small.toml"), "--size", "16", "--bits", "3", "--epochs", "2")
    out = tmp_path / "run"
    assert main(["watermark", "train", "--data", str(folder), *small, "--tensorboard", "--out", str(out)]) == 0
    assert list((out / "fit" / "tensorboard").glob("events.*"))
    assert load_network(out / "model.safetensors").width == 4
    rates = [json.loads(line)["lr"] for line in (out / "fit" / "history.jsonl").read_text().splitlines()]
    assert rates[-1] == pytest.approx(0.0, abs=1e-12)
    assert rates[0] > 0
    assert "--epochs" in capsys.readouterr().err


def test_a_run_begins_with_the_network_of_another(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, first = tmp_path / "short.toml", tmp_path / "first"
    recipe.write_text(SHORT)
    train = ["watermark", "train", "--recipe", str(recipe)]
    assert main([*train, "--data", str(folder), "--out", str(first)]) == 0
    data = ["--data", str(first / "store")]
    # At so small a rate a network stays what it was, and another begins elsewhere.
    recipe.write_text(f"{SHORT}rate = 1e-12\n")
    on = [*train, *data, "--begin-with", str(first), "--out", str(tmp_path / "on")]
    assert main(on) == 0
    assert main([*train, *data, "--seed", "1", "--out", str(tmp_path / "anew")]) == 0
    weights = {
        name: load_network(tmp_path / name / "model.safetensors").state_dict()["encoder.fine.0.weight"]
        for name in ("first", "on", "anew")
    }
    np.testing.assert_allclose(weights["on"], weights["first"], atol=1e-6)
    assert not np.allclose(weights["anew"], weights["first"], atol=1e-3)
    # Noise is in training too: nothing can be read from black images.
    recipe.write_text(f'{SHORT}rate = 1e-12\nnoise = "brightness(0)"\n')
    assert main([*on[:-1], str(tmp_path / "black")]) == 0
    said = {name: (tmp_path / name / "fit" / "history.jsonl").read_text().splitlines() for name in ("on", "black")}
    lost = [json.loads(said[name][0])["running/objective"] for name in ("on", "black")]
    assert lost[0] != pytest.approx(lost[1], rel=1e-3)
    began = json.loads((tmp_path / "on" / "recipe.json").read_text())["settings"]["begin"]
    assert began.startswith("swift-")
    assert "begin" not in (tmp_path / "on" / "recipe.toml").read_text()
    # What the first run was trained on, and what selected it, this one was trained on too.
    seen, before = read_seen(tmp_path / "on"), read_seen(first)
    assert seen is not None
    assert before is not None
    store = Store.open(first / "store")
    assert {*before["validation"].contents} < {*seen["train"].contents} > {*before["train"].contents}
    assert not seen["train"].among(store.select("test")).any()
    (first / "seen.json").unlink()  # as a run of an earlier version: nobody knows
    assert main([*on[:-1], str(tmp_path / "unknown")]) == 0
    assert read_seen(tmp_path / "unknown") is None
    capsys.readouterr()
    # A run that began otherwise is another run.
    assert "begin" in refused(capsys, *train, *data, "--out", str(tmp_path / "on"), "--resume")
    other = (*train[2:], *data, "--begin-with", str(first), "--out", str(tmp_path / "other"))
    assert "another network" in refused(capsys, *TRAIN, *other, "--bits", "4")
    (tmp_path / "nothing").mkdir()
    assert "nothing" in refused(capsys, *train, *data, "--begin-with", str(tmp_path / "nothing"), *other[-2:])
    assert not (tmp_path / "other").exists()


def test_bad_input_is_one_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ("--out", str(tmp_path / "run"))
    data = ("--data", str(folder), *out)
    assert "no such folder" in refused(capsys, *TRAIN, "--data", str(tmp_path / "nowhere"), *out)
    (tmp_path / "empty").mkdir()
    assert "no pictures" in refused(capsys, *TRAIN, "--data", str(tmp_path / "empty"), *out)
    assert "1 to 64 bits" in refused(capsys, *TRAIN, *data, "--network", "swift", "--size", "32", "--bits", "65")
    assert "64 pixels" in refused(capsys, *TRAIN, *data, "--size", "96")
    assert "98 to" in refused(capsys, *TRAIN, *data, "--bits", "97")  # the tool could not use it
    assert "'unet'" in refused(capsys, *TRAIN, *data, "--network", "unet")
    assert "'jpeg'" in refused(capsys, *TRAIN, *data, "--noise", "jpg(50)")
    assert "give --epochs" in refused(capsys, *TRAIN, *data, "--network", "hidden", "--steps", "100")
    assert "give --steps" in refused(capsys, *TRAIN, *data, "--epochs", "3")
    assert "constraint" in refused(capsys, *TRAIN, *data, "--steps", "100")
    assert "--tau" in refused(capsys, *TRAIN, *data, "--tau", "3")
    recipe = tmp_path / "recipe.toml"
    for text, complaint in (
        ("width = 12", "8 channels"),
        ("grwoth = 2.0", "'growth'"),
        ('data = "x"', "'data'"),
        ("growth = 0.5", "recipe.toml: expected growth"),
        ('network = "swft"', "'swft'"),
        ("diagnosis = 0.02", "--classifier and --diagnosis"),
        ("rounds = ", "recipe.toml: cannot be read"),
    ):
        recipe.write_text(text)
        assert complaint in refused(capsys, *TRAIN, *data, "--recipe", str(recipe))
    assert "device flags" in refused(capsys, *TRAIN, *data, "--accelerator", "cuda")
    assert not (tmp_path / "run").exists()


def test_the_shipped_kind_of_network_is_trained_unless_another_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert make_recipe({}).network == Watermarker.load().model.partition("-")[0]
    assert main(["watermark", "train", "--help"]) == 0
    assert "lattice" in capsys.readouterr().out
