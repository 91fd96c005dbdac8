"""Kills at every moment that matters, not at random ones: what is left on the disk, and how the resumed run ends."""

import json
from pathlib import Path

import pytest

from forked import Forked
from run_crash_points import compare_and_report


@pytest.mark.parametrize("every", [19, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", ["lagrangian", "penalty"])
def test_killed_before_any_write_a_run_ends_bit_identical_and_leaves_nothing_behind(
    tmp_path: Path, case: str, every: int
) -> None:
    process = Forked(compare_and_report, tmp_path, case, every, tmp_path / "report.json", told=tmp_path / "told")
    code, _, err = process.finish()
    assert code == 0, err
    found = json.loads((tmp_path / "report.json").read_text())
    assert found["wrong"] == []
    assert found["operations"] > 150, "the writes go past what counts them"
