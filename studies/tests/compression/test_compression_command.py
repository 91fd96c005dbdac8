import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from studies.commands import main

ARGUMENTS = ["compression", "--arm", "penalty:300", "--steps", "30"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small pictures, and a run on them."""
    folder = tmp_path_factory.mktemp("compression")
    (folder / "data").mkdir()
    for number in range(6):
        rows, columns = np.mgrid[:64, :96]
        pixels = 128 + 100 * np.sin(rows / (5 + number) + columns / 9)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "data" / f"{number}.png")
    return folder


def call(folder: Path, *more: str) -> int:
    return main([*ARGUMENTS, "--data", str(folder / "data"), "--out", str(folder / "run"), *more])


def test_the_study_prints_a_list_for_machines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(folder, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["arm"] == "penalty:300"
    assert row["seed"] == 0
    assert 0 <= row["share"] <= 1
    assert row["bits"] > 0
    assert row["blocks"] == 24
    assert "linear penalty" in (folder / "run" / "table.md").read_text()


def test_a_file_has_a_floor_in_every_block_and_gives_its_picture_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(folder) == 0
    image, file, back = folder / "data" / "3.png", folder / "3.swb", folder / "back.png"
    capsys.readouterr()
    assert call(folder, "--compress", str(image), str(file), "--json") == 0
    certificate = json.loads(capsys.readouterr().out)
    assert certificate == json.loads((folder / "3.swb.json").read_text())
    assert certificate["file_bytes"] == file.stat().st_size
    assert call(folder, "--decompress", str(file), str(back)) == 0
    before, after = (np.asarray(Image.open(path)).astype(float) for path in (image, back))
    errors = ((before - after) ** 2).reshape(4, 16, 6, 16).mean((1, 3))
    assert 10 * np.log10(255**2 / errors.max()) == pytest.approx(certificate["lowest"])
    assert certificate["lowest"] >= 30


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--arm", "nothing:3"], "nothing"),
        (["--compress", "absent.png", "x"], "absent.png"),
        (["--compress", "colour.png", "x"], "grey"),
        (["--compress", "data/3.png", "x", "--arm", "penalty:301"], "one --arm"),
        (["--compress", "data/3.png", "x", "--seed", "9"], "penalty:300"),
        (["--compress", "data/3.png", "x", "--floor", "40"], "floor"),
        (["--decompress", "absent", "x.png"], "absent"),
        (["--decompress", "absent", "x.png", "--compress", "a", "b"], "both"),
        (["--floor", "200"], "--floor"),
        (["--data", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    call(folder)
    monkeypatch.chdir(folder)
    Image.new("RGB", (32, 32)).save("colour.png")
    capsys.readouterr()
    extra = ["--out", "elsewhere"] if "--data" in words else []
    assert call(folder, *words, *extra) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
