import csv
import json
import shutil
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bad_commands import refused
from floormark import Watermarker
from natural_images import natural_image
from samplewise.audits.binomial import violation_rate_upper
from studies import commands
from studies.pictures import Store, prepare
from studies.watermark.evaluation import Measured
from studies.watermark.recipe import LATTICE, RECIPE_FILE, Recipe
from studies.watermark.training import read_trained, train

RECIPE = Recipe(
    network="swift",
    bits=8,
    size=16,
    floor=20.0,
    steps_per_round=2,
    message_rounds=1,
    rounds=2,
    batch_size=4,
    audit_images=4,
)
EVALUATE = ("watermark", "evaluate")
ATTACKS = ("--attacks", "identity, gaussian(0.1)")


def main(*arguments: str | Path | int) -> int:
    return commands.main([*EVALUATE, *map(str, arguments)])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures, a store of them, and two runs."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "pictures").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = np.kron(rng.integers(60, 200, (4, 4)), np.ones((6, 6))).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "pictures" / f"{number:08d}_000.png")
    store = prepare(folder / "pictures", folder / "store", size=16, workers=1)
    for name in ("one", "two"):
        RECIPE_FILE.open(folder / name, RECIPE, resume=False)
        train(store, RECIPE, folder / name, progress=False)
    return folder


def test_runs_are_judged_from_a_store(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--data", place / "store", "--out", out, *ATTACKS, "--paper", "--threads", 1, "--accelerator", "cpu")
    assert main(place / "one", place / "two", *options, "--json") == 0
    shown = capsys.readouterr()
    report = json.loads(shown.out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert report == json.loads((out / "report.json").read_text())
    assert [made["name"] for made in report["runs"]] == ["one", "two"]
    assert [made["label"] for made in report["runs"]] == ["swift, C = 20 dB (one)", "swift, C = 20 dB (two)"]
    first = report["runs"][0]
    assert first["recipe"]["bits"] == 8
    assert first["images"] == len(Store.open(place / "store").split.test)
    assert {attack["attack"] for attack in first["attacks"]} == {"identity", "gaussian(0.1)"}
    assert {"command", "commit", "versions", "seed"} <= set(report["provenance"])
    with (out / first["per_image"]).open(newline="") as file:
        rows = list(csv.DictReader(file))
    mean = np.mean([float(row["grey/psnr"]) for row in rows])
    assert first["quality"]["grey"]["psnr_mean"] == pytest.approx(mean)
    assert all((out / path).stat().st_size > 0 for path in report["figures"])
    head, _, *table = (line.split("|") for line in (out / "table.md").read_text().splitlines()[:4])
    column = [cell.strip() for cell in head].index("PSNR mean")
    assert [float(row[column]) for row in table] == pytest.approx([mean, mean], abs=0.005)  # the same recipe twice


def test_runs_of_one_name_are_told_apart(place: Path, tmp_path: Path) -> None:
    folders = [tmp_path / "x" / "a", tmp_path / "y" / "a", tmp_path / "z" / "a-2"]
    for folder in folders:
        shutil.copytree(place / "one", folder)
    names = [run.name for run in read_trained(folders)]
    assert names == ["a", "a-3", "a-2"]
    assert len({run.label for run in read_trained(folders)}) == 3


@pytest.mark.usefixtures("quick_figures")
def test_a_baseline_keeps_the_columns_of_a_floor_that_is_asked_for(place: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline"
    shutil.copytree(place / "one", baseline)
    recipe = json.loads((baseline / "recipe.json").read_text())
    recipe["settings"]["image_loss"] = 0.7
    (baseline / "recipe.json").write_text(json.dumps(recipe))
    options = (baseline, "--data", place / "store", "--attacks", "none", "--out", tmp_path / "out")
    for psnr, expected in (((), None), (("--psnr", 20), 20.0), (("--psnr", 12), 12.0)):  # 20 is the recipe's
        assert main(*options, *psnr) == 0
        head = (tmp_path / "out/table.md").read_text().splitlines()[0]
        assert ("floor (dB)" in head) == ("meet the floor" in head) == ("at least" in head) == (expected is not None)
        assert json.loads((tmp_path / "out/report.json").read_text())["runs"][0]["floor"] == expected


@pytest.mark.usefixtures("quick_figures")
def test_images_that_were_trained_on_or_selected_the_network_are_told_apart(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (place / "one", "--data", place / "store", "--attacks", "none", "--out", tmp_path / "out", "--psnr", 12)
    said = {"train": (1, "Trained on some"), "validation": (2, "corrected for"), "test": (1, "")}
    for part, (compared, note) in said.items():
        assert main(*options, "--part", part) == 0
        shown = capsys.readouterr().out
        assert note in shown
        assert ("corrected for" in shown, "Trained on" in shown) == (compared == 2, part == "train")
        report = json.loads((tmp_path / "out/report.json").read_text())["runs"][0]
        assert report["compared"] == compared
        met = report["quality"]["grey"]["satisfied"]
        missed = met["samples"] - met["held"]
        bound = None if part == "train" else 1 - violation_rate_upper(missed, met["samples"], 0.95, compared)
        assert met["at_least"] == (None if bound is None else pytest.approx(bound, abs=1e-9))


def test_images_that_were_trained_on_are_known_wherever_they_lie(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split, pictures = Store.open(place / "store").split, place / "pictures"
    folder = tmp_path / "pictures" / "sub"
    folder.mkdir(parents=True)
    for name in split.train:
        shutil.copy(pictures / name, folder / name)
    options = ("--data", tmp_path / "pictures", "--attacks", "none", "--part", "all", "--psnr", 12)

    def judge(*more: str | Path) -> tuple[dict[str, Any], str]:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        assert main(place / "one", *options, "--out", out, *more) == 0
        (run,) = json.loads((out / "report.json").read_text())["runs"]
        return run, capsys.readouterr().err

    run, said = judge()
    assert run["data"]["trained_on"] == run["images"] == len(split.train)
    assert run["quality"]["grey"]["satisfied"]["at_least"] is None
    assert run["reading"]["grey"]["error_free"]["at_least"] is None
    assert f"was trained on {len(split.train)} of" in said
    # Under other names and in another format, beside images that were not trained on.
    for number, name in enumerate(split.train):
        Image.open(folder / name).save(folder / f"copy{number}.bmp")
        (folder / name).unlink()
    for name in split.test:
        shutil.copy(pictures / name, folder / name)
    run, _ = judge()
    met = run["quality"]["grey"]["satisfied"]
    assert (run["trained_on"], met["unseen"]) == (len(split.train), len(split.test))
    assert 0 < met["at_least"] < 1


def test_a_run_that_does_not_say_what_it_was_trained_on_promises_nothing(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = tmp_path / "older"
    shutil.copytree(place / "one", older)
    (older / "seen.json").unlink()
    options = ("--data", place / "store", "--attacks", "none", "--psnr", 12)
    assert main(older, *options, "--out", tmp_path / "out") == 0
    assert "older: does not say" in capsys.readouterr().err
    (run,) = json.loads((tmp_path / "out/report.json").read_text())["runs"]
    assert run["quality"]["grey"]["satisfied"]["at_least"] is None


def test_a_lattice_is_judged_by_the_files_of_the_tool(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pictures, shipped = tmp_path / "run", tmp_path / "pictures", resources.files("floormark")
    pictures.mkdir()
    Image.fromarray(natural_image(height=256, width=256, seed=0)).save(pictures / "0.png")
    RECIPE_FILE.open(run, replace(LATTICE, floor=42.0), resume=False)
    (run / "model.safetensors").write_bytes((shipped / "lattice.safetensors").read_bytes())
    options = (run, "--data", pictures, "--part", "all", "--attacks", "flip", "--out", tmp_path / "out")
    assert main(*options, "--keep-images") == 0
    assert "As the tool ships it" in capsys.readouterr().out
    (found,) = json.loads((tmp_path / "out/report.json").read_text())["runs"]
    assert (found["evaluated_by"], found["written"]["held"], found["refused"]) == ("tool", 1, {})
    assert found["quality"]["grey"]["psnr_min"] >= 42.0
    assert found["attacks"][0]["reading"]["error_free"]["held"] == 1  # after a flip, which only the search finds
    marked = tmp_path / "out/runs/run/marked/grey/0.png"
    assert Watermarker.load(run).extract(np.asarray(Image.open(marked)))
    # Where the tool marks no image at all.
    none = Measured(255, (), (), np.zeros(0, np.int64), {})
    monkeypatch.setattr("studies.watermark.evaluation.measure_shipped", lambda *_, **__: (none, {"0.png": "too flat"}))
    assert main(*options) == 2
    assert "too flat" in capsys.readouterr().err


@pytest.mark.usefixtures("quick_figures")
def test_names_cannot_move_the_cursor(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = tmp_path / "\x1b[31mred\u202eder"
    shutil.copytree(place / "one", strange)
    assert main(strange, "--data", place / "store", "--attacks", "none", "--out", tmp_path / "\x1b[2Jout") == 0
    shown = capsys.readouterr()
    assert "\\x1b[31mred\\u202eder" in shown.out
    assert "\\x1b[2Jout" in shown.err
    assert not {"\x1b", "\u202e"} & set(shown.out + shown.err)


@pytest.mark.usefixtures("quick_figures")
def test_kept_images_of_an_earlier_evaluation_are_gone(place: Path, tmp_path: Path) -> None:
    options = (place / "one", "--data", place / "store", "--out", tmp_path / "out", "--attacks", "none")
    assert main(*options, "--keep-images") == 0
    marked = tmp_path / "out/runs/one/marked"
    assert any(marked.iterdir())
    assert main(*options, "--part", "validation") == 0
    assert not marked.exists()
    assert json.loads((tmp_path / "out/report.json").read_text())["runs"][0]["marked_images"] is None


@pytest.mark.usefixtures("quick_figures")
def test_a_folder_is_split_as_in_training(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--data", place / "pictures", "--out", out, "--attacks", "none", "--psnr", 10, "--keep-images")
    assert main(place / "one", *options, "--part", "test") == 0
    assert "| one | swift" in capsys.readouterr().out
    kept = sorted(path.name for path in (out / "runs/one/marked/grey").iterdir())
    assert kept == sorted(Store.open(place / "store").split.test)
    report = json.loads((out / "report.json").read_text())
    assert report["runs"][0]["floor"] == 10
    assert report["runs"][0]["data"]["trained_on"] == 0


def test_runs_that_cannot_be_judged(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    options = ("--data", place / "store", "--out", out)
    assert "nowhere" in refused(capsys, *EVALUATE, tmp_path / "nowhere", *options)
    assert "watermark training" in refused(capsys, *EVALUATE, place / "store", *options)
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(place / "one" / "recipe.json", unfinished)
    assert "unfinished" in refused(capsys, *EVALUATE, unfinished, *options)
    model = (place / "one" / "model.safetensors").read_bytes()
    (unfinished / "model.safetensors").write_bytes(model[: len(model) // 2])
    assert "model.safetensors" in refused(capsys, *EVALUATE, place / "one", unfinished, *options)
    (unfinished / "recipe.json").write_text((unfinished / "recipe.json").read_text().replace('"bits": 8', '"bits": 9'))
    (unfinished / "model.safetensors").write_bytes(model)
    assert "8 bits" in refused(capsys, *EVALUATE, unfinished, *options)
    (unfinished / "recipe.json").write_text((unfinished / "recipe.json").read_text().replace('": 9', '": "x"'))
    assert "recipe.json" in refused(capsys, *EVALUATE, unfinished, *options)
    assert not out.exists()


def test_data_that_cannot_be_used(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    judged = (place / "one", "--out", out, "--data")
    assert "no such folder" in refused(capsys, *EVALUATE, *judged, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no pictures" in refused(capsys, *EVALUATE, *judged, tmp_path / "empty")
    prepare(place / "pictures", tmp_path / "large", size=24, workers=1)
    assert "size 24" in refused(capsys, *EVALUATE, *judged, tmp_path / "large")
    assert not out.exists()
    (tmp_path / "few").mkdir()
    shutil.copy(place / "pictures" / "00000001_000.png", tmp_path / "few")
    assert main(*judged, tmp_path / "few") == 2
    assert "--part all" in capsys.readouterr().err


def test_options_that_cannot_be_right(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    judged = (place / "one", "--data", place / "store", "--out", out)
    assert "--part" in refused(capsys, *EVALUATE, *judged, "--part", "tests")
    assert "The grammar" in refused(capsys, *EVALUATE, *judged, "--attacks", "jpg(75)")
    assert "Missing option '--data'" in refused(capsys, *EVALUATE, place / "one", "--out", out)
    assert "device flags" in refused(capsys, *EVALUATE, *judged, "--accelerator", "toaster")
    assert not out.exists()
    assert "holds fit" in refused(capsys, *EVALUATE, *judged[:-1], place / "two")
