"""A learning rate that falls where audits find no better model for a while."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

import samplewise as sw
from samplewise.audits import INFEASIBLE
from samplewise.errors import ConfigurationError
from small import OnAudit, fit, make_data, make_model, same_weights

RULE: dict[str, Any] = {"factor": 0.5, "patience": 0, "cooldown": 1, "threshold": 0.02, "eps": 0.0}


def run(folder: Path, epochs: int = 12, *, by: str = "epoch", mode: Any = "min", **options: Any) -> sw.Solution:
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-2)
    given: dict[str, Any] = {"audit_on": {"test": make_data(51, seed=1)}, **options}
    given |= {"optimizer": optimizer, "scheduler": (ReduceLROnPlateau(optimizer, mode, **RULE), by)}
    return fit(None, model, share=0.5, epochs=epochs, batch_size=40, checkpoint=folder, **given)


@pytest.mark.parametrize(("warmup", "every"), [(0, 1), (3, 1), (1, 2)])
def test_the_rate_follows_the_audits_that_select(warmup: int, every: int, tmp_path: Path) -> None:
    rows = run(tmp_path, warmup_epochs=warmup, validation=sw.Validation(every=every)).history.rows
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=5e-2)
    scheduler, expected = ReduceLROnPlateau(optimizer, "min", **RULE), []
    for row in rows:
        expected.append(optimizer.param_groups[0]["lr"])
        if "test/satisfied" in row and not row["warmup"]:
            feasible = row["test/satisfied"] >= 0.5
            assert (row["test/selection_loss"] < INFEASIBLE) == feasible
            scheduler.step(row["test/objective"] if feasible else row["test/selection_loss"])
    assert [row["lr"] for row in rows] == expected
    assert expected[-1] < expected[0]


def test_a_resumed_run_ends_as_one_that_went_through(tmp_path: Path) -> None:
    class Stop(Exception):
        """What ends a run in the middle."""

    def stop(last: int, model: object, epoch: int, audits: object) -> None:
        if epoch == last:
            raise Stop

    whole = run(tmp_path / "whole")
    rates = whole.history.column("lr")
    for last in (3, 6, 9):
        with pytest.raises(Stop):
            run(tmp_path / "resumed", checkpoint_steps=2, callbacks=[OnAudit(partial(stop, last))])
    resumed = run(tmp_path / "resumed", checkpoint_steps=2)
    assert len(set(rates)) > 2, "there was something to carry over"
    assert resumed.history.column("lr") == rates
    assert same_weights(resumed.model, whole.model)
    assert resumed.selected == whole.selected


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"audit_on": None}, "audit_on"),
        ({"by": "step"}, "no 'step'"),
        ({"mode": "max"}, "mode='min'"),
    ],
)
def test_what_it_cannot_follow_is_said_at_once(options: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        run(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()
