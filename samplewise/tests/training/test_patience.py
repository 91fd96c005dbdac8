from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import samplewise as sw
from samplewise.errors import ConfigurationError
from small import fit

DATA = TensorDataset(torch.zeros(4))
LOSSES = [5.0, 3.0, 4.0, 2.5, 2.6, 2.7, 2.8, 1.0, 0.5]
"""What audits find after each epoch: 2.5 stays the best for three epochs."""


class Counting(nn.Module):
    """Knows how many epochs it has been trained for."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.register_buffer("epochs", torch.zeros((), dtype=torch.int64))
        self.epochs: Tensor


def evaluate(model: Counting, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    (x,) = batch
    if model.training:
        model.epochs += 1
        return x + 0 * model.weight, {}
    return torch.full_like(x, LOSSES[max(int(model.epochs), 1) - 1]), {}


def run(problem: sw.Problem | None = None, **options: Any) -> sw.Solution:
    own: dict[str, Any] = {
        "batch_size": 4,
        "epochs": len(LOSSES),
        "audit_on": {"validation": DATA},
        "method": sw.Unconstrained([]),
    }
    return fit(problem or sw.Problem(evaluate, []), Counting(), DATA, **own | options)


@pytest.mark.parametrize(("patience", "ended", "selected"), [(1, 3, 2), (2, 6, 4), (3, 7, 4), (4, 9, 9), (None, 9, 9)])
def test_a_run_ends_when_the_best_epoch_lies_too_far_back(patience: int | None, ended: int, selected: int) -> None:
    solution = run(validation=sw.Validation(patience=patience))
    assert len(solution.history.rows) == ended
    assert solution.selected.epoch == selected
    assert isinstance(solution.model, Counting)
    assert int(solution.model.epochs) == selected
    early = ended < len(LOSSES)
    assert solution.status is (sw.Status.NO_LONGER_BETTER if early else sw.Status.FEASIBLE)


def test_an_interrupted_run_ends_where_the_whole_one_does(tmp_path: Path) -> None:
    run(validation=sw.Validation(patience=3), epochs=5, checkpoint=tmp_path)
    solution = run(validation=sw.Validation(patience=3), checkpoint=tmp_path)
    assert len(solution.history.rows) == 7
    assert solution.status is sw.Status.NO_LONGER_BETTER
    again = run(validation=sw.Validation(patience=3), checkpoint=tmp_path)
    assert len(again.history.rows) == 7


def test_more_patience_lets_an_ended_run_go_on(tmp_path: Path) -> None:
    assert len(run(validation=sw.Validation(patience=2), checkpoint=tmp_path).history.rows) == 6
    assert len(run(validation=sw.Validation(patience=3), checkpoint=tmp_path).history.rows) == 7
    whole = run(checkpoint=tmp_path)
    assert len(whole.history.rows) == len(LOSSES)
    assert (whole.selected.epoch, whole.status) == (9, sw.Status.FEASIBLE)


def test_patience_is_not_reported_as_the_target_though_the_best_epoch_meets_it() -> None:
    def only_warm_up_satisfies(model: Counting, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        objective, _ = evaluate(model, batch)
        return objective, {"size": torch.full_like(batch[0], float(model.epochs > 2)) + 0 * model.weight}

    problem = sw.Problem(only_warm_up_satisfies, [sw.AtMost("size", 0.5)])
    method, validation = sw.FixedPenalty(problem.constraints, 1.0), sw.Validation(stop=True, patience=2)
    solution = run(problem, method=method, epochs=6, warmup_epochs=2, validation=validation)
    assert (solution.selected.epoch, solution.selected.feasible) == (2, True)
    assert len(solution.history.rows) == 4
    assert solution.status is sw.Status.NO_LONGER_BETTER


def test_warm_up_does_not_try_patience() -> None:
    assert len(run(validation=sw.Validation(patience=1), warmup_epochs=5, epochs=4).history.rows) == 6


def test_patience_needs_audits() -> None:
    with pytest.raises(ConfigurationError, match="audit_on"):
        run(validation=sw.Validation(patience=3), audit_on=None)
    with pytest.raises(ConfigurationError, match="patience"):
        run(validation=sw.Validation(patience=0))
