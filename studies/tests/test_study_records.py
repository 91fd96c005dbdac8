"""Settings written as TOML, and folders that are of one run."""

import json
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samplewise.errors import CheckpointError, ConfigurationError, DataError, RecordError
from studies.records import SettingsFile, toml_of, toml_values


@dataclass(frozen=True)
class Kind:
    size: int
    rate: float = 0.5
    widths: tuple[int, ...] = ()


FILE = SettingsFile("run.json", "test-1", Kind, "testing")


def test_what_was_added_later_has_its_default_in_older_runs(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"format": "test-1", "settings": {"size": 3}}')
    assert FILE.read(tmp_path) == Kind(3)
    FILE.open(tmp_path, Kind(3), resume=True)
    with pytest.raises(CheckpointError, match=r"rate 0\.5 there, 0\.1 here"):
        FILE.open(tmp_path, Kind(3, 0.1), resume=True)


@pytest.mark.parametrize("settings", [{"rate": 0.1}, {"size": 3, "rat": 0.1}, [3], None])
def test_what_is_missing_or_unknown_is_refused(settings: object, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "test-1", "settings": settings}))
    with pytest.raises(CheckpointError, match="not a run of this version of testing"):
        FILE.read(tmp_path)


@pytest.mark.parametrize("settings", [{"size": "3"}, {"size": 3, "rate": None}, {"size": 3, "widths": 4}])
def test_settings_of_another_type_are_refused(settings: object, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"format": "test-1", "settings": settings}))
    with pytest.raises(RecordError, match=r"run\.json: cannot be read as a run of testing: expected"):
        FILE.read(tmp_path)


def test_a_folder_is_that_of_one_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no run of testing"):
        FILE.read(tmp_path)
    run = Kind(3, widths=(4, 5))
    FILE.open(tmp_path / "new", run, resume=False)
    assert FILE.read(tmp_path / "new") == run
    FILE.open(tmp_path / "new", run, resume=True)
    with pytest.raises(CheckpointError, match="add --resume"):
        FILE.open(tmp_path / "new", run, resume=False)


@dataclass(frozen=True)
class Recipe:
    """Of all types that there are."""

    name: str
    rate: float = 1e-3
    rounds: int = 17
    steps: int | None = 50
    anneal: bool = True
    latent: Literal["linear", "relu"] = "linear"
    widths: tuple[int, ...] = (8, 16)
    data: str = ""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_what_a_file_names_is_set_and_the_rest_is_the_default(tmp_path: Path) -> None:
    path = written(tmp_path, '# ours\nname = "a"\nrate = 1\nsteps = "none"\nlatent = "relu"\nwidths = [4]\n')
    recipe = Recipe(**toml_values(path, Recipe))
    assert recipe == Recipe("a", rate=1.0, steps=None, latent="relu", widths=(4,))
    assert type(recipe.rate) is float
    assert toml_values(written(tmp_path, "rounds = 3"), Recipe) == {"rounds": 3}


@given(
    st.builds(
        Recipe,
        name=st.text(),
        rate=st.floats(allow_nan=False, allow_infinity=False),
        rounds=st.integers(1, 2**62),
        steps=st.none() | st.integers(-(2**62), 2**62),
        anneal=st.booleans(),
        latent=st.sampled_from(["linear", "relu"]),
        widths=st.lists(st.integers(0, 9)).map(tuple),
    )
)
def test_what_is_written_is_read_back(tmp_path_factory: pytest.TempPathFactory, recipe: Recipe) -> None:
    text = toml_of(recipe)
    assert tomllib.loads(text) == asdict(recipe) | {
        "steps": "none" if recipe.steps is None else recipe.steps,
        "widths": list(recipe.widths),
    }
    path = tmp_path_factory.mktemp("written") / "recipe.toml"
    path.write_text(text, encoding="utf-8", newline="")
    assert Recipe(**toml_values(path, Recipe)) == recipe


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('name = "a"\nrounts = 3', r"unknown key 'rounts'\. Did you mean 'rounds'\? The keys are name, rate, "),
        ('name = "a"\ndata = "x"', "unknown key 'data'"),
        ("name = 3", "expected a text in quotes as name, got 3"),
        ('name = "a"\nrounds = 3.0', "expected a whole number as rounds, got 3.0"),
        ('name = "a"\nrounds = true', "expected a whole number as rounds, got True"),
        ('name = "a"\nrate = nan', "expected a finite number as rate, got nan"),
        ('name = "a"\nrate = true', "expected a finite number as rate, got True"),
        ('name = "a"\nanneal = 1', "expected true or false as anneal, got 1"),
        ('name = "a"\nsteps = "no"', "expected a whole number as steps, or \"none\", got 'no'"),
        ('name = "a"\nlatent = "tanh"', "expected one of linear, relu as latent, got 'tanh'"),
        ('name = "a"\nwidths = 3', "expected a list as widths, got 3"),
        ('name = "a"\nwidths = [3, "a"]', "expected a whole number as widths, got 'a'"),
        ('name = "a"\n[rounds]\nx = 1', "expected a whole number as rounds, got {'x': 1}"),
    ],
)
def test_what_is_wrong_is_said_with_the_file(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"recipe\.toml: {complaint}"):
        toml_values(written(tmp_path, text), Recipe, exclude=("data",))


@pytest.mark.parametrize("text", ["name = ", "\0", "x = 1\nx = 2", "a = " + "[" * 5000, "#" * (1 << 21)])
def test_what_is_not_toml_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"recipe\.toml: cannot be read as TOML"):
        toml_values(written(tmp_path, text), Recipe)


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read as TOML: No such file"):
        toml_values(tmp_path / "none.toml", Recipe)
    path = tmp_path / "latin.toml"
    path.write_bytes(b'name = "\xe4"')
    with pytest.raises(DataError, match="cannot be read as TOML"):
        toml_values(path, Recipe)


def test_fields_apart_are_not_written() -> None:
    assert "data" not in toml_of(Recipe("a", data="fingerprint"), exclude=("data",))
