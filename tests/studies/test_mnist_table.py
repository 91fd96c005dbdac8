import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from small_study import small_data, small_run, small_settings

from samplewise.studies.mnist.paper import TABLE, Figures
from samplewise.studies.mnist.results import METRICS, Result
from samplewise.studies.mnist.table import Cell, make_table


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Result]:
    out = tmp_path_factory.mktemp("run")
    return small_run(out, "classification", "fixed:10", "penalty:100:1.01", seeds=(0, 1), name="mnist")


def as_in_the_paper(found: list[Result], *, shift: float = 0.0) -> list[Result]:
    """The results with the paper's numbers in the place of their own."""
    return [
        replace(
            result,
            selected={
                split: {**getattr(TABLE[result.row.name], split)._asdict(), "accuracy": half.accuracy + shift}
                for split, half in TABLE[result.row.name]._asdict().items()
            },
        )
        for result in found
    ]


def test_the_papers_table_agrees_with_itself() -> None:
    """Numbers of Table I that follow from each other: mean violation >= mean error - theta, shares in [0, 1]."""
    assert len(TABLE) == 11
    for row in TABLE.values():
        for half in row:
            assert isinstance(half, Figures)
            assert half.violation >= half.mse - 0.01 - 1e-9
            assert 0 <= half.satisfied <= 1
            assert 0.9 < half.accuracy < 1
    assert TABLE["penalty:100:1.01"].test == Figures(0.113742, 0.965600, 0.008412, 0.000917, 0.739400)


def test_seeds_are_put_together(found: list[Result]) -> None:
    table = make_table(small_settings(small_data("mnist")), found)
    line = next(line for line in table.at("selected") if line.name == "fixed:10")
    values = [result.selected["test"]["satisfied"] for result in found if result.row.name == "fixed:10"]
    cell = line.cells["test"]["satisfied"]
    assert line.seeds == [0, 1]
    assert cell.mean == pytest.approx(sum(values) / 2)
    assert cell.spread == pytest.approx(max(values) - min(values))
    assert cell.paper == 0.1796
    assert cell.difference == pytest.approx(cell.mean - 0.1796)


def test_rows_come_in_the_papers_order_and_both_epochs_are_there(found: list[Result]) -> None:
    table = make_table(small_settings(small_data("mnist")), list(reversed(found)))
    names = ["classification, against a black image", "classification", "fixed:10", "penalty:100:1.01"]
    assert [line.name for line in table.at("selected")] == names
    assert [line.name for line in table.at("last")] == names
    assert table.at("last")[2].epochs == [3, 3]


def test_classification_only_says_what_its_error_is(found: list[Result]) -> None:
    black, own = make_table(small_settings(small_data("mnist")), found).at("selected")[:2]
    assert black.cells["train"]["mse"].paper == 0.112003
    assert black.cells["train"]["mse"].mean == pytest.approx(found[0].stored["black_image"]["train"]["mse"])
    assert own.cells["train"]["mse"].mean == pytest.approx(
        (found[0].last["train"]["mse"] + found[1].last["train"]["mse"]) / 2
    )
    assert own.cells["train"]["mse"].paper is None
    assert own.near_paper() is None


def test_near_means_within_the_tolerance(found: list[Result]) -> None:
    settings = small_settings(small_data("mnist"))
    rows = [result for result in found if result.row.kind != "classification"]
    exact = make_table(settings, as_in_the_paper(rows))
    assert all(line.near_paper() for line in exact.at("selected"))
    assert "2 of 2 rows." in exact.text()
    off = make_table(settings, as_in_the_paper(rows, shift=-0.007))
    assert not any(line.near_paper() for line in off.at("selected"))
    assert "0 of 2 rows; not Fixed" in off.text()


def test_other_data_is_not_compared_with_the_paper(found: list[Result]) -> None:
    for settings in (small_settings(small_data()), replace(small_settings(small_data("mnist")), data="fashion-mnist")):
        table = make_table(settings, found)
        assert all(cell.paper is None for line in table.lines for half in line.cells.values() for cell in half.values())
        assert "paper" not in table.text()


def test_the_files_hold_the_same_numbers(tmp_path: Path, found: list[Result]) -> None:
    table = make_table(small_settings(small_data("mnist")), found)
    table.write(tmp_path)
    stored = json.loads((tmp_path / "table.json").read_text())
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(table.lines) * 2 * len(METRICS)
    for row in rows:
        line = next(s for s in stored["rows"] if (s["name"], s["epoch"]) == (row["row"], row["epoch"]))
        cell = line["cells"][row["split"]][row["metric"]]
        assert float(row["ours"]) == cell["mean"]
        assert (float(row["difference"]) if row["difference"] else None) == cell["difference"]
    assert {entry["seed"] for entry in stored["made_by"]} == {0, 1}
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert len(re.findall(r"^\| Fixed", text, re.MULTILINE)) == 4


def test_a_cell_shows_spread_paper_and_difference() -> None:
    assert Cell(0.97, 0.002, 0.9656).text("accuracy") == "0.9700 ±0.0010 (0.9656, +0.0044)"
    assert Cell(0.5, None, None).text("satisfied") == "0.500"


def test_the_brief_table_lines_up(found: list[Result]) -> None:
    lines = make_table(small_settings(small_data("mnist")), found).brief().splitlines()
    assert len(lines) == 2 + 3
    assert len({len(line) for line in lines[1:]}) == 1
    assert "black" not in "".join(lines)
