"""Statistics of a round, and tau from round to round."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_cases import METHODS, Make, batch

import samplewise as sw
from samplewise.errors import ConfigurationError

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())


@every_method
@pytest.mark.filterwarnings("ignore:expected the measure")  # as many values as samples, here by chance
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5), seed=st.integers(0, 1000))
def test_a_round_agrees_with_numpy(make: Make, sizes: list[int], seed: int) -> None:
    constraints = [sw.AtMost("x", 1.0, margin=0.2, scale=0.1), sw.AtLeast("y", 0.7)]
    method = make(constraints, sw.Constant(2.0))
    seen = []
    for i, size in enumerate(sizes):
        objective, x, index = batch(size, seed + i)
        y = batch(size, seed + i + 100, width=3)[1]
        method(objective, x=x, y=y, index=index)
        seen.append((objective.numpy(), x.numpy() - 1.0, (0.7 - y.numpy()).max(1)))
    objectives, over, under = (np.concatenate(column).astype(np.float64) for column in zip(*seen, strict=True))
    found = method.step()
    assert (found.number, found.samples) == (0, sum(sizes))
    assert found.objective == pytest.approx(objectives.mean(), rel=1e-6)
    for name, excess in (("x", over), ("y", under)):
        assert found[name].satisfied == (excess <= 0).mean()
        assert found[name].mean_violation == pytest.approx(np.maximum(excess, 0).mean(), rel=1e-5)
        assert found[name].worst == pytest.approx(max(excess.max(), 0), rel=1e-6)
        assert found.taus[name] == method.taus[name]


def test_a_step_starts_new_statistics_and_a_summary_does_not() -> None:
    objective, x, _ = batch(6)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0))
    method(objective, x=x)
    first = method.summary()
    assert method.summary() == first
    assert method.step() == first
    method(objective[:2], x=x[:2])
    assert (method.step().samples, method.rounds) == (2, 2)


def test_statistics_are_kept_in_training_mode_alone() -> None:
    objective, x, _ = batch(6)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0)).eval()
    method(objective, x=x)
    with pytest.warns(UserWarning, match="without a sample"):
        assert method.step().samples == 0


def test_a_round_keeps_what_it_was_given() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0))
    objective, x, base = torch.full((4,), 2.0), torch.full((4,), 3.0), torch.full((4, 100), 4.0)
    method(objective, x=x)
    method(base[:, 0], x=x)
    for each in (objective, x, base):
        each.zero_()
    found = method.step()
    assert (found.objective, found["x"].worst, found["x"].mean_violation) == (3.0, 2.0, 2.0)


def test_a_round_can_be_a_key() -> None:
    objective, x, _ = batch(6)
    rounds = []
    for bound in (1.0, 1.0, 1.5):
        method = sw.SequentialPenalty([sw.AtMost("x", bound)], schedule=sw.Constant(1.0))
        method(objective, x=x)
        rounds.append(method.step())
    assert len(set(rounds)) == 2
    assert rounds[0] == rounds[1] != rounds[2]


@every_method
def test_a_validation_loss_without_gradients_is_not_counted(make: Make) -> None:
    objective, x, index = batch(6)
    method = make([sw.AtMost("x", 1.0)], sw.Constant(2.0))
    expected = make([sw.AtMost("x", 1.0)], sw.Constant(2.0)).eval()(objective, x=x, index=index)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            torch.testing.assert_close(method(objective, x=x, index=index), expected)
    assert method.summary().samples == 0
    method(objective, x=x, index=index)
    assert method.step().samples == 6


def test_an_empty_round_has_no_means_and_leaves_feasibility_alone() -> None:
    objective, x, _ = batch(6)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.FeasibilityDriven(1.0, growth=2.0))
    method(objective, x=x)
    method.step()
    with pytest.warns(UserWarning, match="without a sample"):
        empty = method.step()
    assert empty.samples == 0
    assert math.isnan(empty.objective)
    assert math.isnan(empty["x"].satisfied)
    assert method.tau == 1.0
    method(objective, x=x)  # as bad as before the empty round
    method.step()
    assert method.tau == 2.0


def test_many_samples_are_counted_exactly() -> None:
    method = sw.Unconstrained([sw.AtMost("x", 0.5)])
    size = 2**20 + 1
    x = torch.zeros(size)
    x[0] = 1.0
    for _ in range(20):  # more than float32 can count
        method(x, x=x)
    found = method.step()
    assert found.samples == 20 * size
    assert found["x"].satisfied == (size - 1) / size


@pytest.mark.filterwarnings("ignore:tau of 'x' has reached its maximum")
def test_tau_follows_the_schedule_and_reaches_the_loss() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 0.0)], schedule=sw.Geometric(1.0, growth=3.0, every=2, maximum=20.0))
    taus, losses = [], []
    for _ in range(8):
        taus.append(method.tau)
        losses.append(method(torch.zeros(2), x=torch.ones(2)).item())
        method.step()
    assert taus == [1.0, 1.0, 3.0, 3.0, 9.0, 9.0, 20.0, 20.0]
    assert losses == taus


def test_feasibility_driven_looks_at_the_true_bound() -> None:
    schedule = sw.FeasibilityDriven(1.0, growth=10.0)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0, margin=0.5)], schedule=schedule)
    for _ in range(3):  # breaks the tightened bound, meets the true one
        method(torch.zeros(2), x=torch.full((2,), 0.9))
        assert method.step()["x"].satisfied == 1.0
    assert method.tau == 1.0


@dataclasses.dataclass(frozen=True)
class Recorded(sw.Schedule):
    """Keeps what it is told."""

    told: list[tuple[sw.ViolationStats, sw.ViolationStats | None]] = dataclasses.field(default_factory=list)

    def following(self, tau: float, completed: int, now: sw.ViolationStats, before: sw.ViolationStats | None) -> float:
        self.told.append((now, before))
        return tau


def test_a_schedule_is_told_exactly_how_the_round_before_fared() -> None:
    schedule = Recorded(1.0)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=schedule)
    for seed in range(3):
        objective, x, _ = batch(7, seed=seed)
        method(objective.double(), x=x.double() / 0.9)  # not a number of float32
        method.step()
    (first, nothing), (second, before), (_, last) = schedule.told
    assert (nothing, before, last) == (None, first, second)


def test_one_tau_for_all_or_one_for_each() -> None:
    constraints = [sw.AtMost("x", 1.0), sw.AtMost("y", 1.0)]
    same = sw.SequentialPenalty(constraints, schedule=sw.Constant(4.0))
    assert (same.tau, same.taus) == (4.0, {"x": 4.0, "y": 4.0})
    apart = sw.FixedPenalty(constraints, {"x": 1.0, "y": 2.0})
    assert apart.taus == {"x": 1.0, "y": 2.0}
    with pytest.raises(ConfigurationError, match=r"method\.taus"):
        _ = apart.tau
    assert sw.Unconstrained().tau == 0.0


def test_rounds_are_frozen_values_in_plain_numbers() -> None:
    objective, x, _ = batch(6)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0))
    method(objective, x=x)
    found = dataclasses.asdict(method.step())
    constraints, taus = found.pop("constraints"), found.pop("taus")
    plain = [*found.values(), *constraints["x"].values(), *taus.values()]
    assert {type(value) for value in plain} == {int, float}


def test_an_unknown_constraint_of_a_round_gets_the_near_name() -> None:
    found = sw.SequentialPenalty([sw.AtMost("error", 0.01)], schedule=sw.Constant(1.0)).summary()
    with pytest.raises(KeyError, match="Did you mean 'error'"):
        found["eror"]


def test_prints_its_constraints_and_weights() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 0.01)], schedule=sw.Constant(100.0))
    assert "SequentialPenalty" in repr(method)
    assert "x <= 0.01 (tau=100)" in repr(method)
