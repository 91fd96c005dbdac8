"""How many models a data set compares in a run: the bounds of its audits are corrected for so many."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Subset

import samplewise as sw
from samplewise.audits.audit import violation_rate_upper
from samplewise.cli.report import read_reports
from small import fit, make_data


def run(folder: Path | None = None, epochs: int = 4, share: float = 1.0, **options: Any) -> sw.Solution:
    data = make_data()
    splits = {"validation": make_data(60, seed=1), "train": data, "own": data, "test": make_data(50, seed=2)}
    return fit(data=data, share=share, epochs=epochs, checkpoint=folder, **{"audit_on": splits, **options})


def compared(solution: sw.Solution) -> dict[str, float]:
    return {name: found.n_comparisons for name, found in solution.audits.items()}


def test_the_data_that_select_are_corrected_for_every_epoch_and_the_others_not() -> None:
    solution = run(warmup_epochs=2)
    assert compared(solution) == {"validation": 6, "train": math.inf, "own": math.inf, "test": 1}
    row = solution.history.rows[solution.selected.epoch - 1]
    for split, samples, models in (("validation", 60, 6), ("test", 50, 1)):
        violated = round((1 - row[f"{split}/satisfied"]) * samples)
        expected = violation_rate_upper(violated, samples, 0.95, n_comparisons=models)
        assert row[f"{split}/violation_rate_upper"] == row[f"{split}/reconstruction/violation_rate_upper"] == expected
    assert not {"train/violation_rate_upper", "own/reconstruction/violation_rate_upper"} & set(solution.history.columns)


def test_data_that_hold_training_samples_bound_nothing_however_they_are_wrapped(tmp_path: Path) -> None:
    data = make_data()
    own = {"all": DataLoader(data, batch_size=50), "some": Subset(data, range(3)), "other": make_data(60, seed=1)}
    solution = run(tmp_path, audit_on={"validation": make_data(60, seed=3), **own})
    assert compared(solution) == {"validation": 4, "all": math.inf, "some": math.inf, "other": 1}
    assert "not used in training" not in str(solution.audits["all"])
    (report,) = read_reports([tmp_path])
    assert [split.n_comparisons for split in report.splits] == [4, math.inf, math.inf, 1]


def test_epochs_count_that_are_audited() -> None:
    assert compared(run(epochs=7, validation=sw.Validation(every=3)))["validation"] == 3
    assert compared(run(epochs=6, validation=sw.Validation(every=3)))["validation"] == 2
    assert compared(run(validation=sw.Validation(every=9)))["validation"] == 1, "one audit selects nothing"
    assert compared(run(audit_on=None)) == {"train": math.inf}


def test_a_run_that_stops_early_is_corrected_for_the_epochs_it_could_have_had() -> None:
    solution = run(epochs=30, share=0.01, validation=sw.Validation(stop=True))
    assert solution.status is sw.Status.TARGET_REACHED
    assert len(solution.history.rows) == 1
    assert compared(solution)["validation"] == 30


def test_a_run_that_goes_on_or_was_complete_counts_all_its_audits(tmp_path: Path) -> None:
    assert compared(run(tmp_path, 4, validation=sw.Validation(every=3)))["validation"] == 2
    kept = json.loads((tmp_path / "audit.json").read_text())["splits"]
    assert [part["n_comparisons"] for part in kept.values()] == [2, None, None, 1]
    assert compared(run(tmp_path, 6, validation=sw.Validation(every=3)))["validation"] == 3, "epochs 3, 4 and 6"
    assert compared(run(tmp_path, 6, validation=sw.Validation(every=3)))["validation"] == 3
    with pytest.warns(UserWarning, match="6 epochs, more than the 2"):
        assert compared(run(tmp_path, 2, validation=sw.Validation(every=3)))["validation"] == 4, (
            "and 2, as it is asked for now"
        )
    (report,) = read_reports([tmp_path])
    assert [split.n_comparisons for split in report.splits] == [3, math.inf, math.inf, 1]
    assert report.unseen is not None
    assert report.unseen.name == "test"
