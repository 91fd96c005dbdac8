import csv
import json
import math
from pathlib import Path

import pytest

from samplewise.history import History


def test_rows_are_in_both_files(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.append({"epoch": 1, "loss": 0.5})
    history.append({"epoch": 2, "loss": math.nan})
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert lines == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": None}]
    with (tmp_path / "history.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"epoch": "1", "loss": "0.5"}, {"epoch": "2", "loss": ""}]


def test_a_new_column_gets_a_new_header(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.append({"epoch": 1})
    history.append({"epoch": 2, "test/loss": 0.5})
    history.append({"epoch": 3})
    with (tmp_path / "history.csv").open() as file:
        assert [row["test/loss"] for row in csv.DictReader(file)] == ["", "0.5", ""]
    assert history.column("test/loss") == [None, 0.5, None]


def test_a_column_that_is_not_there_gets_the_near_name() -> None:
    with pytest.raises(KeyError, match="Did you mean 'train/objective'"):
        History(rows=[{"epoch": 1, "train/objective": 0.5}]).column("train/objectiv")
    assert History().column("train/objective") == []


def test_a_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    History(tmp_path, [{"epoch": 1}, {"epoch": 2}])
    path = tmp_path / "history.jsonl"
    path.write_text(path.read_text()[:-4])
    assert History.read(tmp_path).rows == [{"epoch": 1}]
    assert History.read(tmp_path / "nowhere").rows == []
