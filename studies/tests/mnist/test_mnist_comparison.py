import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from small_study import small_data, small_run, small_settings, with_numbers

from studies.mnist.comparison import Cell, make_comparison
from studies.mnist.results import Result, read_results
from studies.mnist.rows import parse_row
from studies.mnist.settings import StudySettings
from studies.mnist.table_one import COLUMNS, TABLE_ONE

PAPER = StudySettings("mnist", "of the data")
"""All as in the paper."""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    out = tmp_path_factory.mktemp("run")
    return small_run(out, "classification", "fixed:10", "penalty:100:1.01", seeds=(0, 1), name="mnist")


def as_in_the_paper(found: list[Result], *, shift: float = 0.0) -> list[Result]:
    """The results with the paper's numbers in the place of their own."""
    changed = []
    for result in found:
        paper = TABLE_ONE[result.row.name]
        numbers = {split: {**half, "accuracy": half["accuracy"] + shift} for split, half in paper.items()}
        changed.append(with_numbers(result, numbers))
    return changed


def test_the_papers_table_agrees_with_itself() -> None:
    """Numbers of Table I that follow from each other: mean violation >= mean error - theta, shares in [0, 1]."""
    assert len(TABLE_ONE) == 11
    for row in TABLE_ONE.values():
        assert list(row) == ["train", "test"]
        for half in row.values():
            assert half["violation"] >= half["mse"] - 0.01 - 1e-9
            assert 0 <= half["satisfied"] <= 1
            assert 0.9 < half["accuracy"] < 1
    names = ["objective", "accuracy", "mse", "violation", "satisfied"]
    numbers = [0.113742, 0.965600, 0.008412, 0.000917, 0.739400]
    assert TABLE_ONE["penalty:100:1.01"]["test"] == dict(zip(names, numbers, strict=True))


def test_seeds_are_put_together(found: list[Result]) -> None:
    table = make_comparison(PAPER, found)
    line = next(line for line in table.at("selected") if line.name == "fixed:10")
    values = [result.numbers("test")["satisfied"] for result in found if result.row.name == "fixed:10"]
    cell = line.cells["test"]["satisfied"]
    assert line.seeds == [0, 1]
    assert cell.mean == pytest.approx(sum(values) / 2)
    assert cell.spread == pytest.approx(max(values) - min(values))
    assert cell.paper == 0.1796
    assert cell.difference == pytest.approx(cell.mean - 0.1796)


def test_rows_come_in_the_papers_order_and_both_epochs_are_there(found: list[Result]) -> None:
    table = make_comparison(PAPER, found)
    names = ["classification, against a black image", "classification", "fixed:10", "penalty:100:1.01"]
    assert [line.name for line in table.at("selected")] == names
    assert [line.name for line in table.at("last")] == names
    assert table.at("last")[2].epochs == [3, 3]


def test_classification_only_says_what_its_error_is(found: list[Result]) -> None:
    black, own = make_comparison(PAPER, found).at("selected")[:2]
    assert black.cells["train"]["mse"].paper == 0.112003
    assert black.cells["train"]["mse"].mean == pytest.approx(found[0].black["train"]["mse"])
    assert own.cells["train"]["mse"].mean == pytest.approx(
        (found[0].numbers("train", "last")["mse"] + found[1].numbers("train", "last")["mse"]) / 2
    )
    assert own.cells["train"]["mse"].paper is None
    assert own.near_paper is None


def test_near_means_within_the_tolerance(found: list[Result]) -> None:
    rows = [result for result in found if result.row.kind != "classification"]
    exact = make_comparison(PAPER, as_in_the_paper(rows))
    assert all(line.near_paper for line in exact.at("selected"))
    assert "2 of 2 rows." in exact.text()
    off = make_comparison(PAPER, as_in_the_paper(rows, shift=-0.007))
    assert not any(line.near_paper for line in off.at("selected"))
    assert "0 of 2 rows; not Fixed" in off.text()


@pytest.mark.parametrize(
    "changed",
    [
        {"data": "fashion-mnist"},
        {"held_out": "test", "theta": 0.1},
        {"code": 40},
        {"epochs": 500},
        {"warm_epochs": 50},
        {"hidden": 512},
        {"batch_size": 64},
    ],
)
def test_only_what_the_paper_ran_is_compared_with_it(found: list[Result], changed: dict[str, Any]) -> None:
    """With a bound ten times as loose, say, there is nothing to compare."""
    assert "the paper's number" in make_comparison(PAPER, found).text()
    table = make_comparison(replace(PAPER, **changed), found)
    assert all(cell.paper is None for line in table.rows for half in line.cells.values() for cell in half.values())
    assert "paper" not in table.text()


def test_rows_by_another_recipe_are_shown_but_not_set_against_the_papers(found: list[Result]) -> None:
    ours = [with_numbers(replace(found[-1], row=parse_row("ours")), {"test": {"accuracy": 1.0, "satisfied": 1.0}})]
    table = make_comparison(PAPER, ours)
    assert table.at("selected")[0].near_paper is None
    assert "paper" not in table.text()


def test_the_units_of_the_code_are_left_open_by_the_paper(found: list[Result]) -> None:
    assert "paper" in make_comparison(replace(PAPER, latent="relu"), found).text()
    assert not small_settings(small_data()).comparable


def test_results_come_in_the_papers_order(found: list[Result]) -> None:
    names = [(result.row.name, result.seed) for result in read_results(found[0].folder.parents[2])]
    assert names == [(name, seed) for name in ("classification", "fixed:10", "penalty:100:1.01") for seed in (0, 1)]


def test_rows_of_the_paper_come_before_others_and_not_by_the_alphabet(tmp_path: Path) -> None:
    small_run(tmp_path, "auglag:5:1:1", "penalty:10:1.01", "penalty:100:1.02", "fixed:1000", "fixed:10")
    names = [result.row.name for result in read_results(tmp_path)]
    assert names == ["fixed:10", "fixed:1000", "penalty:100:1.02", "penalty:10:1.01", "auglag:5:1:1"]


def test_the_files_hold_the_same_numbers(tmp_path: Path, found: list[Result]) -> None:
    table = make_comparison(PAPER, found)
    table.write(tmp_path)
    stored = json.loads((tmp_path / "table.json").read_text())
    assert len(stored["rows"]) == len(table.rows)
    for line, entry in zip(stored["rows"], table.rows, strict=True):
        for split, cells in entry.cells.items():
            assert line["cells"][split] == {name: asdict(cell) for name, cell in cells.items()}
    assert {entry["seed"] for entry in stored["made_by"]} == {0, 1}
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| Fixed", text, re.MULTILINE)) == 4


def test_a_cell_shows_spread_paper_and_difference() -> None:
    assert Cell(0.97, 0.002, 0.9656, 0.0044).text(COLUMNS[1]) == "0.9700 ±0.0010 (0.9656, +0.0044)"
    assert Cell(0.5).text(COLUMNS[4]) == "0.500"
