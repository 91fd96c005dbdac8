from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from plain_networks import SIZE, Plain, make_store
from torch import Tensor

from studies.pictures import PictureData
from studies.watermark.evaluation import measure, summarise
from studies.watermark.evaluation.output import RunEvaluation, report_entry, table_text
from studies.watermark.figures import published_median, write_figures
from studies.watermark.noise import parse_attacks
from studies.watermark.pipeline import fixed_messages
from studies.watermark.recipe import Recipe
from studies.watermark.training import Run

HISTORY = """{"epoch": 1, "warmup": true, "tau/psnr": 0.0}
{"epoch": 2, "tau/psnr": 0.1, "train/psnr": 30.5, "train/message_loss": 0.4, "train/psnr/satisfied": 0.5,
 "validation/psnr": 30.1}
{"epoch": 3, "tau/psnr": 0.2, "train/psnr": 33.5, "train/message_loss": 0.3, "train/psnr/satisfied": 0.9}
""".replace(",\n", ",")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PictureData:
    return make_store(tmp_path_factory.mktemp("pictures"), 6).select()


def judge(data: PictureData, name: str, network: Plain, folder: Path, *, attacks: str = "") -> RunEvaluation:
    measured = measure(network, data, attacks=parse_attacks(attacks) if attacks else ())
    recipe = Recipe(network="swift", bits=network.bits, size=SIZE, floor=20.0)
    run = Run(folder, name, f"{name}, C = 20 dB", recipe, network, {})
    return RunEvaluation(run, data, measured, summarise(measured, 20.0))


def names(paths: list[Path]) -> set[str]:
    return {path.name for path in paths}


def test_several_runs_have_all_figures(data: PictureData, tmp_path: Path) -> None:
    (tmp_path / "run" / "fit").mkdir(parents=True)
    (tmp_path / "run" / "fit" / "history.jsonl").write_text(HISTORY)
    attacks = "identity, jpeg(90), jpeg(50), crop_zero_fill(0.9) + jpeg(90)"
    judged = [
        judge(data, "one", Plain(), tmp_path / "run", attacks=attacks),
        judge(data, "two", Plain(channels=3), tmp_path / "nowhere", attacks=attacks),
    ]
    paths = write_figures(tmp_path / "figures", judged, paper=True)
    kinds = ("psnr", "bit-errors", "curves", "attacks", "comparison")
    assert names(paths) == {f"{kind}.{suffix}" for kind in kinds for suffix in ("png", "svg")}
    for path in paths:
        if path.suffix == ".svg":
            assert path.read_text().rstrip().endswith("</svg>")
            continue
        with Image.open(path) as picture:
            assert np.unique(np.asarray(picture.convert("L"))).size > 20  # not blank


def test_runs_of_several_lengths_are_compared(data: PictureData, tmp_path: Path) -> None:
    judged = [judge(data, name, Plain(bits=bits), tmp_path) for name, bits in (("short", 4), ("long", 8))]
    assert {"lengths.png", "lengths.svg"} <= names(write_figures(tmp_path / "figures", judged))


def test_one_run_of_one_perfect_image_can_be_drawn(data: PictureData, tmp_path: Path) -> None:
    # No spread, no errors, no difference, no history, no attacks: nothing to scale an axis by.
    class Nothing(Plain):
        def embed(self, images: Tensor, messages: Tensor) -> Tensor:
            return images

        def extract(self, images: Tensor) -> Tensor:
            return fixed_messages(torch.zeros(1, dtype=torch.int64), self.bits) - 0.5

    one = judge(PictureData(data.store, [0]), "same", Nothing(), tmp_path)
    assert one.summary["quality"]["grey"]["psnr_min"] == 120
    paths = write_figures(tmp_path / "figures", [one])
    assert names(paths) == {f"{kind}.{s}" for kind in ("psnr", "bit-errors") for s in ("png", "svg")}


def test_the_paper_has_a_median_for_its_own_configurations() -> None:
    assert published_median(Recipe(network="hidden", floor=50.0)) == 0.33
    assert published_median(Recipe(network="hidden", floor=50.0, image_loss=0.7)) == 0.23
    assert published_median(Recipe(network="hidden", floor=45.0)) is None


def test_a_baseline_is_judged_by_a_floor_only_if_one_is_asked_for(data: PictureData, tmp_path: Path) -> None:
    one = judge(data, "one", Plain(), tmp_path)
    baseline = replace(one, run=replace(one.run, recipe=replace(one.run.recipe, image_loss=0.7)))
    assert (one.run.recipe.own_floor, baseline.run.recipe.own_floor) == (20.0, None)
    baseline = replace(baseline, summary=summarise(one.measured, baseline.run.recipe.own_floor))
    text = table_text([report_entry(tmp_path, baseline)])
    head = text.splitlines()[0]
    assert not any(column in head for column in ("floor (dB)", "meet the floor", "at least"))
    assert "image loss: one" in text
    for floor in (20.0, 25.0):  # the first is the one that its recipe names and does not use
        asked_for = replace(baseline, summary=summarise(one.measured, floor))
        lines = table_text([report_entry(tmp_path, asked_for)]).splitlines()
        named = {
            name.strip(): cell.strip() for name, cell in zip(lines[0].split("|"), lines[2].split("|"), strict=True)
        }
        assert named["floor (dB)"] == f"{floor:g}"
        assert named["meet the floor"]
    paths = write_figures(tmp_path / "figures", [baseline, replace(baseline, run=replace(baseline.run, name="two"))])
    drawn = next(path for path in paths if path.name == "psnr.svg").read_text()
    assert "no floor was asked for" in drawn
    assert "<!-- floor 20 dB -->" not in drawn
    asked = write_figures(tmp_path / "figures", [one])
    assert "<!-- floor 20 dB -->" in next(path for path in asked if path.name == "psnr.svg").read_text()
