"""Kills at every moment that matters, not at random ones: what is left on the disk, and how the resumed run ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "run_crash_points.py"


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_before_any_write_a_run_ends_bit_identical_and_leaves_nothing_behind(tmp_path: Path, every: int) -> None:
    process = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), "--every", str(every)],
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert {case: found["wrong"] for case, found in report.items()} == {"lagrangian": [], "penalty": []}
    assert all(found["operations"] > 150 for found in report.values()), "the writes go past what counts them"
