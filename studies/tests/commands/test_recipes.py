"""Settings from a file, and the whole of them in the run's folder."""

import json
import tomllib
from pathlib import Path

import pytest

from bad_commands import refused
from small_chest import make_store
from studies.commands import main

COMMON = ("mnist", "--data", "digits", "--row", "fixed:10", "--jobs", "1", "--threads", "1")


@pytest.mark.usefixtures("forked_workers", "quick_figures")
def test_a_recipe_sets_what_options_do_not(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text('theta = 0.03\ncode = 4\nwarm_epochs = 1\nlatent = "relu"\nepochs = 9\n')
    out = tmp_path / "run"
    assert main([*COMMON, "--recipe", str(recipe), "--epochs", "1", "--out", str(out)]) == 0
    settings = json.loads((out / "run.json").read_text())["settings"]
    found = [settings[name] for name in ("theta", "code", "warm_epochs", "latent", "epochs")]
    assert found == [0.03, 4, 1, "relu", 1]
    whole = tomllib.loads((out / "recipe.toml").read_text())
    assert whole == {name: settings[name] for name in whole}
    assert {"hidden", "batch_size", "epochs"} <= whole.keys()
    assert "fingerprint" not in whole
    # What a run leaves gives the same run.
    assert main([*COMMON, "--recipe", str(out / "recipe.toml"), "--out", str(out), "--resume"]) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [("warm_epoch = 1", "'warm_epochs'"), ('fingerprint = "x"', "'fingerprint'"), ("theta = -1", "theta")],
)
def test_a_recipe_that_cannot_be_right_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, message: str
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(content)
    assert message in refused(capsys, *COMMON, "--recipe", recipe, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_classifiers_recipe_is_read_alike(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = make_store(tmp_path).folder
    recipe = tmp_path / "mine.toml"
    recipe.write_text("pacience = 3")
    command = ["chest", "classifier", "--store", str(store), "--recipe", str(recipe), "--out", str(tmp_path / "run")]
    assert "'patience'" in refused(capsys, *command)
    recipe.write_text("rate = 0.0")
    assert "learning rate" in refused(capsys, *command)
