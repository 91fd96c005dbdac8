import csv
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plain_networks import SIZE, Plain, make_store

from samplewise.audits.binomial import violation_rate_upper
from samplewise.errors import DataError
from samplewise.report.page import make_page
from small_fit import small_fit
from studies.watermark.evaluation import measure, summarise
from studies.watermark.evaluation.output import RunEvaluation, write_evaluation, write_report
from studies.watermark.noise import parse_attacks
from studies.watermark.recipe import RECIPE_FILE, Recipe
from studies.watermark.run_reports import read_evaluation, read_training
from studies.watermark.training import Run

FLOOR = 25.0


class OneBitWrong(Plain):
    """Reads the last bit of every message inverted."""

    def extract(self, images):  # type: ignore[no-untyped-def]
        read = super().extract(images)
        read[:, -1] = -read[:, -1]
        return read


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunEvaluation]:
    """The folder of an evaluation in which some images miss the floor and one bit is always wrong."""
    place = tmp_path_factory.mktemp("place")
    data = make_store(place).select()
    network = OneBitWrong()
    measured = measure(network, data, attacks=parse_attacks("identity, gaussian(0.1)"), attack_images=4, workers=1)
    recipe = Recipe(network="swift", bits=8, size=SIZE, floor=FLOOR)
    run = Run(place / "nowhere", "one", "swift, C = 25 dB", recipe, network, {})
    one = RunEvaluation(run, data, measured, summarise(measured, FLOOR))
    out = place / "judged"
    write_evaluation(out, one)
    write_report(out, [one], part="all", seed=0, device="cpu", figures=[])
    return out, one


def test_an_evaluation_is_read_whole(judged: tuple[Path, RunEvaluation]) -> None:
    folder, one = judged
    (run,) = read_evaluation(folder) or ()
    psnr = one.measured.columns["grey/psnr"]
    below = int((psnr < FLOOR).sum())
    assert 0 < below < 9, psnr
    (split,) = run.splits
    assert (split.name, split.samples, split.violated, split.trained_on) == ("all", 9, below, False)
    assert split.objective == pytest.approx(1 / 8)
    assert split.at_least == pytest.approx(1 - violation_rate_upper(below, 9, 0.95))
    found = split.constraints["psnr"]
    assert found.worst == pytest.approx(FLOOR - psnr.min())
    assert [number for number, _ in found.violators] == np.argsort(psnr, kind="stable")[:below].tolist()
    assert run.requirements[0].lower == FLOOR
    spread = run.distributions[0]
    assert FLOOR in spread.edges
    short = sum(counts for counts, edge in zip(spread.counts["all"], spread.edges, strict=False) if edge < FLOOR)
    assert short + spread.beyond["all"][0] == below
    (bars,) = run.bars
    assert bars.names == ("identity", "gaussian(0.1)")
    assert bars.series["grey file"][0] == pytest.approx(1 / 8)
    assert "Mean over 4 images" in bars.caption
    assert [row[0] for row in run.tables[0].rows][:2] == [
        "as written, grey file",
        "as written, floats, as in the paper",
    ]
    assert run.tables[0].rows[0][1:5] == ("9", "12.5%", "12.5%", "0%")


def test_the_worst_images_are_shown_as_they_were_judged(judged: tuple[Path, RunEvaluation]) -> None:
    folder, one = judged
    (run,) = read_evaluation(folder) or ()
    lowest, wrong = run.galleries
    place = int(one.measured.columns["grey/psnr"].argmin())
    shown = lowest.pictures[0]
    assert shown.caption.startswith(f"{one.measured.names[place]}: {one.measured.columns['grey/psnr'][place]:.2f}")
    original, marked, change = shown.images.values()
    assert np.array_equal(original, one.data.store.images[one.measured.numbers[place]])
    difference = marked.astype(float) - original
    assert 10 * np.log10(255**2 / np.square(difference).mean()) == pytest.approx(
        one.measured.columns["grey/psnr"][place]
    )
    assert (np.sign(change.astype(float) - 128) == np.sign(difference)).all()
    assert (len(lowest.pictures), len(wrong.pictures)) == (6, 6)
    page = make_page([run])
    assert "Lowest PSNR on all" in page
    assert "How it went" not in page  # there are no curves


@pytest.mark.parametrize("compared", [1, 10, math.inf])
def test_bounds_are_corrected_for_what_was_compared_and_trained_on(
    judged: tuple[Path, RunEvaluation], tmp_path: Path, compared: float
) -> None:
    def change(stored: dict[str, Any]) -> None:
        stored["runs"][0]["compared"] = 1 if compared == math.inf else compared

    folder = copied(judged[0], tmp_path / "judged", change)
    (folder / "runs/one/worst.safetensors").unlink()
    table = folder / "runs/one/images.csv"
    if compared == math.inf:  # all images were trained on
        head, *rows = csv.reader(table.read_text().splitlines())
        place = head.index("trained_on")
        lines = [head, *([*row[:place], "1", *row[place + 1 :]] for row in rows)]
        table.write_text("".join(",".join(line) + "\n" for line in lines))
    (run,) = read_evaluation(folder) or ()
    assert run.splits[0].n_comparisons == compared
    (bound,) = {row[5] for row in run.tables[0].rows if row[1] == "9"}  # no message of 9 is right
    assert bound == ("\N{EN DASH}" if compared == math.inf else "0%")
    assert ("confidence" in run.notes[-1]) == (compared < math.inf)
    assert run.galleries == ()  # the worst images need not be there


def test_images_that_were_trained_on_are_apart_from_the_others(
    judged: tuple[Path, RunEvaluation], tmp_path: Path
) -> None:
    one = judged[1]
    out = tmp_path / "out"
    measured = replace(one.measured, trained_on=np.arange(9) < 6)
    some = replace(one, measured=measured, summary=summarise(measured, FLOOR))
    write_evaluation(out, some)
    write_report(out, [some], part="all", seed=0, device="cpu", figures=[])
    (run,) = read_evaluation(out) or ()
    fresh, trained = run.splits
    assert (fresh.name, fresh.samples, fresh.trained_on) == ("all", 3, False)
    assert (trained.name, trained.samples, trained.trained_on) == ("all, trained on", 6, True)
    below = int((one.measured.columns["grey/psnr"][6:] < FLOOR).sum())
    assert fresh.at_least == pytest.approx(1 - violation_rate_upper(below, 3, 0.95))
    assert "all, trained on" in make_page([run])


def test_the_folder_of_a_training_run_is_its_fit_with_the_recipe(tmp_path: Path) -> None:
    recipe = Recipe(network="swift", bits=8, size=SIZE)
    RECIPE_FILE.write(tmp_path, recipe)
    with pytest.raises(DataError, match="has not begun"):
        read_training(tmp_path)
    small_fit(tmp_path / "fit")
    (run,) = read_training(tmp_path) or ()
    assert run.name == tmp_path.name
    assert run.problem.startswith("Hide 8 bits in each image")
    assert run.settings["recipe"]["floor"] == 40.0
    assert [split.trained_on for split in run.splits] == [True, False]
    assert read_training(tmp_path / "fit") is None
    assert read_evaluation(tmp_path) is None


def copied(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """The same evaluation with another report."""
    shutil.copytree(source, target)
    stored = json.loads((target / "report.json").read_text())
    change(stored)
    (target / "report.json").write_text(json.dumps(stored))
    return target


def test_a_baseline_without_a_floor_has_none_in_a_report(judged: tuple[Path, RunEvaluation], tmp_path: Path) -> None:
    def without(stored: dict[str, Any]) -> None:
        run = stored["runs"][0]
        run["recipe"]["image_loss"], run["floor"] = 0.7, None
        for found in run["quality"].values():
            found["satisfied"] = found["patients_satisfied"] = None

    def asked(stored: dict[str, Any]) -> None:
        stored["runs"][0]["recipe"]["image_loss"] = 0.7

    (run,) = read_evaluation(copied(judged[0], tmp_path / "without", without)) or ()
    assert (run.requirements, run.splits[0].constraints) == ((), {})
    assert FLOOR not in run.distributions[0].edges
    assert not any("floor" in note for note in run.notes)
    page = make_page([run])
    assert "Nothing was required of the samples." in page
    assert "&gt;= 25 dB" not in page
    (run,) = read_evaluation(copied(judged[0], tmp_path / "asked", asked)) or ()
    assert run.requirements[0].lower == FLOOR


@pytest.mark.parametrize("name", ["../outside.csv", "/etc/passwd", "runs/one/link.csv"])
def test_a_report_names_only_files_of_its_folder(judged: tuple[Path, RunEvaluation], tmp_path: Path, name: str) -> None:
    def leave(stored: dict[str, Any]) -> None:
        stored["runs"][0]["per_image"] = name

    folder = copied(judged[0], tmp_path / "judged", leave)
    shutil.copy(judged[0] / "runs/one/images.csv", tmp_path / "outside.csv")
    (folder / "runs/one/link.csv").symlink_to(tmp_path / "outside.csv")
    with pytest.raises(DataError, match="not a file"):
        read_evaluation(folder)

    def climb(stored: dict[str, Any]) -> None:
        stored["runs"][0]["name"] = "../../../elsewhere"

    with pytest.raises(DataError, match="not a file"):
        read_evaluation(copied(judged[0], tmp_path / "climbing", climb))


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_columns(path: Path) -> None:
    path.write_text("name,patient,number\na,b,1\n")


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("report.json", torn),
        ("report.json", lambda path: path.write_text(path.read_text().replace('"confidence"', '"certainty"'))),
        ("runs/one/images.csv", without_columns),
        ("runs/one/images.csv", Path.unlink),
        ("runs/one/worst.safetensors", torn),
    ],
)
def test_a_file_that_cannot_be_read_is_said(
    judged: tuple[Path, RunEvaluation], tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    for path in judged[0].rglob("*"):
        if path.is_file():
            copy = tmp_path / path.relative_to(judged[0])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    harm(tmp_path / name)
    with pytest.raises(DataError, match=r"cannot be read|report\.json"):
        read_evaluation(tmp_path)
