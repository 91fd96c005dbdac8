import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from certificate_cases import FIVE, one_weight, pull
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import AtMost, FixedPenalty, Problem
from samplewise.optimality import certify


def shifted(offset: float = 0.0, unit: float = 1.0, objective: float = 1.0) -> Any:
    def evaluated(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        f, measures = pull(model, batch)
        return f * objective + offset, {"size": (measures["size"] + offset) * unit}

    return evaluated


@pytest.mark.parametrize(
    ("at", "bound", "near"),
    [
        (0.5, 1.0, False),  # where a fixed weight of 1.5 ends: stationary, but its price is on a bound that is not met
        (1.0, 1.0, True),
        (1.0 + 1e-6, 1.0, True),
        (1.1, 1.0, False),  # violated
        (2.0 + 1e-9, 10.0, True),  # the interior minimum, as near as rounding lets it
        (2.0 + 1e-3, 10.0, True),
        (1.9, 10.0, False),
        (0.0, 0.0, True),  # a bound of zero
        (1e-3, 0.0, False),
    ],
)
def test_verdicts_on_known_points(at: float, bound: float, near: bool) -> None:
    for method in (None, FixedPenalty([AtMost("size", bound)], weight=1.5)):
        certificate = certify(Problem(pull, [AtMost("size", bound)]), one_weight(at), FIVE, method)
        assert certificate.is_kkt() is near, certificate.sentence
        three = certificate.stationarity, certificate.feasibility, certificate.complementarity
        assert certificate.residual == max(three)
        assert certificate.sentence.startswith("A KKT point" if near else "Not a KKT point")


@given(
    at=st.sampled_from([0.5, 0.99, 1.0, 1.01, 1.5]),
    offset=st.sampled_from([-1000.0, 0.0, 1000.0]),
    unit=st.sampled_from([1e-6, 1.0, 1e6]),
    objective=st.sampled_from([1e-6, 1.0, 1e6]),
    scale=st.sampled_from([0.01, 1.0, 100.0]),
)
@settings(max_examples=25, deadline=None)
def test_shifts_and_units_change_no_verdict(
    at: float, offset: float, unit: float, objective: float, scale: float
) -> None:
    plain = certify(Problem(pull, [AtMost("size", 1.0)]), one_weight(at), FIVE)
    constraint = AtMost("size", (1.0 + offset) * unit, scale=scale)
    other = certify(Problem(shifted(offset, unit, objective), [constraint]), one_weight(at), FIVE)
    assert other.stationarity == pytest.approx(plain.stationarity, rel=1e-5, abs=1e-9)
    assert other.feasibility == pytest.approx(plain.feasibility, rel=1e-5, abs=1e-9)
    assert other.complementarity == pytest.approx(plain.complementarity, rel=1e-5, abs=1e-9)
    price, its = (sum(cost.price for cost in each.top(5)) for each in (plain, other))
    assert its == pytest.approx(price * objective / unit, rel=1e-4, abs=1e-9 * objective / unit)


def test_noise_at_an_interior_optimum_reads_small_and_an_unfinished_run_large() -> None:
    targets = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 2

    def to_targets(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return (weight - batch[0]).square() / 2, {"size": weight}

    problem = Problem(to_targets, [AtMost("size", 10.0)])
    best = float(targets.mean())
    near = certify(problem, one_weight(best + 1e-3), TensorDataset(targets))
    assert near.stationarity == pytest.approx(1e-3 / float((best + 1e-3 - targets).abs().mean()), rel=0.2)
    assert near.is_kkt()
    assert certify(problem, one_weight(best - 1.0), TensorDataset(targets)).stationarity > 0.5


class Weights(nn.Module):
    def __init__(self, values: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(np.asarray(values, dtype=float)))


def projection(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """f_j = |w - a_j|^2 / 2 + c_j and g_j = b_j . w - d_j <= 0."""
    targets, rows, bounds, constants = batch
    weight = model.get_parameter("weight")
    return (weight - targets).square().sum(1) / 2 + constants, {"g": rows @ weight - bounds}


@dataclasses.dataclass
class Known:
    """A convex problem with its solution: the point of the half-spaces that is nearest to the mean of the targets."""

    targets: Any
    rows: Any
    bounds: Any
    solution: Any

    @classmethod
    def draw(cls, seed: int, samples: int = 12, noise: float = 0.0) -> "Known":
        # By construction: at the solution the first two bounds are met and priced, the others are not.
        rng = np.random.default_rng(seed)
        rows, solution, slack = rng.normal(size=(samples, 3)), rng.normal(size=3), rng.uniform(0.5, 2.0, samples)
        slack[:2] = 0.0
        targets = rng.normal(size=(samples, 3)) * (1 + noise)
        targets += solution + rng.uniform(1.0, 2.0, 2) @ rows[:2] - targets.mean(0)
        return cls(targets, rows, rows @ solution + slack, solution)

    def points(self) -> dict[str, tuple[Any, bool]]:
        """The solution, points of the inside, one close by, and one beyond a bound; and whether each is optimal."""
        inward = np.linalg.lstsq(self.rows[:2], np.array([-1.0, -1.0]), rcond=None)[0]
        reach = min(1.0, 0.9 / max(1e-9, *((self.rows @ inward)[2:] / (self.bounds - self.rows @ self.solution)[2:])))
        inside, beyond = self.solution + reach * inward, self.solution - inward
        assert (self.rows @ inside <= self.bounds).all()
        assert (self.rows @ beyond - self.bounds).max() >= 0.69
        close = self.solution + min(0.1, reach) * inward
        others = {"inside": inside, "close": close, "beyond": beyond}
        return {"solution": (self.solution, True)} | {name: (point, False) for name, point in others.items()}

    def certify(self, point: Any, constants: Any = 0.0, unit: float = 1.0, scale: float = 1.0) -> Any:
        count = len(self.targets)
        columns = (self.targets, self.rows, self.bounds, np.zeros(count) + constants)
        data = TensorDataset(*(torch.tensor(np.asarray(each, dtype=float)) for each in columns))

        def evaluated(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
            f, measures = projection(model, batch)
            return f * unit, {"g": measures["g"] * scale}

        return certify(Problem(evaluated, [AtMost("g", 0.0, scale=scale)]), Weights(point), data)


@given(
    seed=st.integers(0, 10**6),
    name=st.sampled_from(["solution", "inside", "close", "beyond"]),
    constants=st.sampled_from([0.0, 1e4, "one"]),
    unit=st.sampled_from([1e-5, 1.0, 1e5]),
    scale=st.sampled_from([1e-5, 1.0, 1e5]),
    times=st.integers(1, 3),
    far=st.booleans(),
)
@settings(max_examples=30, deadline=None)
def test_what_changes_nothing_in_the_problem_changes_no_verdict(
    seed: int, name: str, constants: Any, unit: float, scale: float, times: int, far: bool
) -> None:
    known = Known.draw(seed)
    point, optimal = known.points()[name]
    plain = known.certify(point)
    assert plain.is_kkt() is optimal, plain.sentence
    count = times * len(known.targets)
    added = np.where(np.arange(count) == 5, 1e4, 0.0) if constants == "one" else constants
    rows, targets = (np.tile(each, (times, 1)) for each in (known.rows, known.targets))
    other = Known(targets, rows, np.tile(known.bounds, times), known.solution)
    least = int(np.argmin(other.rows @ point - other.bounds))
    if far:
        other.bounds[least] = 1e4  # one sample far within its bound
    found = other.certify(point, added, unit, scale)
    assert found.is_kkt() is optimal, found.sentence
    if not far:
        assert found.stationarity == pytest.approx(plain.stationarity, rel=1e-3, abs=1e-5)
        assert found.feasibility == pytest.approx(plain.feasibility, rel=1e-3, abs=1e-5)
        assert found.complementarity == pytest.approx(plain.complementarity, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("far", [False, True])
def test_one_sample_dilutes_nothing(far: bool) -> None:
    # Feasible points that are not optimal and, with one bound that is far away, points that violate others.
    for seed in range(8):
        known = Known.draw(seed, samples=10)
        constants = np.where(np.arange(10) == 5, 1e4, 0.0)
        if far:
            known.bounds[9] = 1e4
        for name, (point, optimal) in known.points().items():
            found = known.certify(point, constants)
            assert found.is_kkt() is optimal, (seed, name, found.sentence)


def test_a_model_that_overflows_a_tenth_of_its_weights_away_is_judged_by_what_is_here() -> None:
    def steep(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        within = torch.where(weight == 1, weight, math.inf)
        return (weight - 2).square() / 2 * within, {"size": weight * within}

    found = certify(Problem(steep, [AtMost("size", 1.0)]), one_weight(1.0), FIVE)
    assert found.is_kkt(), found.sentence
    json.dumps(found.to_dict(), allow_nan=False)
    assert not certify(Problem(steep, [AtMost("size", 2.0)]), one_weight(1.0), FIVE).is_kkt()


@pytest.mark.parametrize("samples", [64, 1000])
@pytest.mark.parametrize("centred", [True, False])
def test_noise_that_hides_the_optimum_leaves_no_verdict_but_how_many_samples_would_tell(
    samples: int, centred: bool
) -> None:
    targets = 500 * torch.randn(samples, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(samples))
    targets += 2 - targets.mean() if centred else 2
    best = float(targets.mean())
    zeros = torch.zeros(samples, dtype=torch.float64)
    data = TensorDataset(targets, torch.ones(samples, 1, dtype=torch.float64), zeros + 1e6, zeros)
    problem = Problem(projection, [AtMost("g", 0.0)])
    for beside in (-0.5, 0.5):
        found = certify(problem, Weights([best + beside]), data)
        assert not found.is_kkt()
        # The gradient is 0.5, its standard error 500 / sqrt(N): two of those are 0.5 at (2 * 500 / 0.5)^2 samples.
        if centred:  # otherwise the optimum of these samples is far away, and half a unit little beside it
            assert found.samples_needed() == pytest.approx(4e6, rel=0.5)
            assert "cannot be told" in found.sentence
            assert json.loads(json.dumps(found.to_dict()))["samples_needed"] == found.samples_needed()
    exact = certify(problem, Weights([best]), data)  # of these samples this is the optimum, however noisy they are
    assert exact.is_kkt()
    assert exact.samples_needed() is None
    assert exact.noise * exact.gradient_size == pytest.approx(500 / math.sqrt(samples), rel=0.3)


def test_an_optimum_with_many_duplicated_bounds_is_settled() -> None:
    rng = np.random.default_rng(0)
    once, solution = rng.normal(size=(10, 20)), rng.normal(size=20)
    rows = np.repeat(once, 100, axis=0)
    target = solution + rng.uniform(0.1, 2.0, 10) @ once
    for targets, optimal in ((target, True), (2 * solution - target, False)):
        known = Known(np.tile(targets, (1000, 1)), rows, rows @ solution, solution)
        found = known.certify(solution)
        assert found.settled
        assert found.is_kkt() is optimal, found.sentence
        assert found.free == 1000
