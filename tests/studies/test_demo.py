import json
from pathlib import Path

import pytest
import torch

from samplewise.errors import CheckpointError
from samplewise.studies.demo import ROWS, run_demo
from samplewise.studies.mnist.rows import parse_row


def test_the_demo_compares_the_methods_on_equal_terms() -> None:
    rows = [parse_row(text) for text in ROWS]
    assert [row.kind for row in rows[:4]] == ["classification", "fixed", "fixed", "fixed"]
    assert [row.numbers for row in rows[1:4]] == [(10.0,), (100.0,), (1000.0,)]
    assert {row.kind for row in rows[4:]} == {"penalty"}
    assert len({(row.options.lr, row.options.rate, row.options.decay) for row in rows}) == 1


def test_a_short_demo_writes_everything_and_can_be_run_again(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    notes: list[str] = []
    table, text = run_demo(tmp_path / "demo", epochs=2, rows=(ROWS[1], ROWS[2], ROWS[4]), note=notes.append)
    assert len(notes) == 3
    assert torch.get_num_threads() == threads
    assert "Fixed (λ = 10)" in text
    assert "Training samples within the bound, at most:" in text
    assert text.count("(at 95% confidence at least ") == 2
    assert text.count("of all such samples, corrected: the best of 2 rows)") == 1, "of the fixed weights, not of one"
    assert json.loads(json.dumps(table))["seconds"] > 0
    files = {path.name for path in (tmp_path / "demo").rglob("*") if path.is_file()}
    assert {"table.md", "table.csv", "table.json", "errors.png", "epochs.png", "errors.csv", "history.csv"} <= files
    page = tmp_path / "demo" / "report.html"
    assert text.endswith(f"open {page} in a browser.")
    assert "Fixed (λ = 10)" in page.read_text(encoding="utf-8")
    again, _ = run_demo(tmp_path / "demo", epochs=2, rows=(ROWS[1],))
    assert [row["epoch"] for row in again["rows"]] == ["selected", "last"]  # the rows of the first are gone


def test_a_folder_that_is_no_demo_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError, match="is not an earlier demo"):
        run_demo(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
