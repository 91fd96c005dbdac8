"""Kills at every moment that matters, not at random ones: what is left on the disk, and how the resumed run ends."""

import json
from pathlib import Path

import pytest

from forked import Forked
from run_crash_points import compare_all


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_before_any_write_a_run_ends_bit_identical_and_leaves_nothing_behind(tmp_path: Path, every: int) -> None:
    process = Forked(compare_all, tmp_path, every, tmp_path / "report.json", told=tmp_path / "told")
    code, _, err = process.finish()
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text())
    assert {case: found["wrong"] for case, found in report.items()} == {"lagrangian": [], "penalty": []}
    assert all(found["operations"] > 150 for found in report.values()), "the writes go past what counts them"
