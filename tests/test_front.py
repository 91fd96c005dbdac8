"""The front: what is selected by validation alone, the floor of its regression, and the parts of its data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def candidate(share: float, score: float, test_fraction: float, test_score: float) -> dict[str, Any]:
    return {
        "validation": {"share": share, "score": score},
        "test": {"share": test_fraction, "score": test_score},
    }


def record(arm: str, *candidates: dict[str, Any]) -> dict[str, Any]:
    return {"task": "regression", "arm": arm, "setting": 1.0, "seed": 0, "candidates": list(candidates)}


def test_validation_alone_selects() -> None:
    from front_parts.arms import NAMES
    from front_parts.page import Runs
    from front_parts.tasks import regression

    few, enough = candidate(0.79, 0.1, 0.95, 0.01), candidate(0.9, 0.2, 0.5, 0.9)
    worse = candidate(0.95, 0.3, 0.99, 0.001)  # the best of all on test
    runs = Runs(regression(), [record("sequential", few, worse), record("sequential", enough)], tuple(NAMES))
    assert runs.pick("sequential", 0, 0.8) is enough  # a small error is a good score
    assert runs.pick("sequential", 0, 0.92) is worse
    assert runs.pick("sequential", 0, 0.96) is None
    turned = Runs(replace(regression(), higher_is_better=True), runs.records, tuple(NAMES))
    assert turned.pick("sequential", 0, 0.8) is worse


def test_the_fixed_front_joins_what_validation_would_ship() -> None:
    from front_parts.arms import NAMES
    from front_parts.page import Runs
    from front_parts.tasks import regression

    low, high = candidate(0.8, 0.1, 0.8, 0.1), candidate(0.9, 0.3, 0.9, 0.3)
    beaten = candidate(0.85, 0.4, 0.85, 0.0)  # by `high` on validation, though not on test
    runs = Runs(
        regression(),
        [record("fixed", low, beaten, high), record("feasible", candidate(0.9, 0.25, 0.85, 0.15))],
        tuple(NAMES),
    )
    assert runs.fixed_front(0, 0.85) == pytest.approx(0.2)
    assert runs.fixed_front(0, 0.79) is None
    assert runs.fixed_front(0, 0.91) is None
    row = next(row for row in runs.rows() if (row["wanted"], row["arm"]) == (0.9, "feasible"))
    assert row["against_fixed"] == pytest.approx([0.15])  # 0.3 is the fixed weight's error for this share
    assert row["at_own_share"] == pytest.approx([0.05])


def test_the_floor_of_the_regression_is_met_by_who_knows_the_distribution() -> None:
    from front_parts.tasks import JITTER, LATE_BOUND, draw_late, late_chance, regression_floor

    shares, costs = regression_floor()
    inputs, times = draw_late(400_000, 0)
    on_time = torch.sin(3 * inputs[:, 0]) + inputs[:, 1] * inputs[:, 2]
    chance = late_chance(inputs)
    for forecast, end in ((chance, 0), (chance.clamp(min=1 + JITTER - LATE_BOUND), -1)):
        error = (on_time + forecast - times).double()
        assert float((error.abs() <= LATE_BOUND).double().mean()) == pytest.approx(shares[end], abs=0.003)
        assert float(error.square().mean()) == pytest.approx(costs[end], abs=0.002)
    assert shares[-1] == pytest.approx(1.0)
    assert (costs[1:] >= costs[:-1]).all()


def test_no_sample_is_in_two_parts_and_the_test_part_is_the_same_for_every_seed() -> None:
    from front_parts.tasks import PARTS, with_fixed_test

    numbers = torch.arange(100)
    first, second = (with_fixed_test((numbers,), (40, 20, 20, 10), seed) for seed in (0, 1))
    for parts in (first, second):
        assert [len(parts[name]) for name in PARTS] == [40, 20, 20, 10]
        together = torch.cat([parts[name].tensors[0] for name in PARTS])
        assert len(together.unique()) == 90
    assert torch.equal(first["test"].tensors[0], second["test"].tensors[0])
    assert not torch.equal(first["train"].tensors[0], second["train"].tensors[0])


def test_the_multiplier_of_feasible_learning_settles_at_alpha_times_the_violation() -> None:
    """Where the network stands still, ``lambda = alpha g``: the slack of least norm that makes the sample feasible."""
    from front_parts.arms import Run, feasible
    from front_parts.tasks import regression

    task = regression()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    learner = feasible(Run(task, (7.0, 0.1), model, optimizer, 3))
    inputs = torch.zeros(3, 4)
    with torch.no_grad():
        model.bias.zero_()
    beyond = torch.tensor([0.5, 0.1, -0.2])
    times = task.constraint.bound + beyond
    for _ in range(300):
        learner.step((inputs, times), torch.arange(3))
    # The loss is the mean of (0 - t)^2 + lambda (t - bound), so the bias' gradient gives the sum of the multipliers.
    assert model.bias.grad is not None
    summed = -3 * float(model.bias.grad) - 2 * float(times.sum())
    assert summed == pytest.approx(7.0 * 0.6, rel=1e-4)
