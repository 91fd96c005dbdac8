import math
from typing import Any

import pytest
import torch
from certificate_cases import one_weight
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samplewise import AtMost, Equal, Problem
from samplewise.optimality import feasibility, find_infeasibility


def at_odds(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Every sample asks the weight for a value of its own."""
    weight = model.get_parameter("weight").expand(len(batch[0]))
    return weight.square(), {"error": (weight - batch[0]).abs()}


@pytest.mark.parametrize(
    ("targets", "shown", "left"),
    [
        ([-1.0, 1.0], True, [0, 1]),
        ([-1.0, -1.0, -1.0, 1.0], True, [3, 0, 1, 2]),  # the squared violation is least at a mean
        ([0.9, 1.0], False, []),  # within reach of each other
    ],
)
def test_samples_at_odds_are_found(targets: list[float], shown: bool, left: list[int]) -> None:
    problem, model = Problem(at_odds, [AtMost("error", 0.1)]), one_weight(0.3)
    data = TensorDataset(torch.tensor(targets, dtype=torch.float64))
    conflict = find_infeasibility(problem, model, data)
    assert conflict.is_infeasible is shown
    assert [sample for sample, _ in conflict.violators["error"]] == left
    assert float(model.weight.detach()) == pytest.approx(0.3)
    assert model.weight.grad is None
    if shown:
        # Where sum (|w - t| - 0.1) sign(w - t) = 0.
        low, high = targets.count(-1.0), targets.count(1.0)
        at = (0.9 * high - 0.9 * low) / (low + high)
        assert conflict.violators["error"][0][1] == pytest.approx(1.0 - at - 0.1, rel=1e-3)
        assert conflict.ratio < 1e-3
    assert str(conflict).startswith("infeasible" if shown else "feasible")


def test_a_search_that_ended_too_early_shows_nothing() -> None:
    data = TensorDataset(torch.linspace(3.0, 3.1, 8, dtype=torch.float64))
    conflict = find_infeasibility(Problem(at_odds, [AtMost("error", 0.1)]), one_weight(-50.0), data, evaluations=1)
    assert not conflict.is_infeasible
    assert conflict.ratio == pytest.approx(1.0)
    assert conflict.independent == pytest.approx(1 / math.sqrt(8), rel=0.01)
    assert str(conflict).startswith("undecided")


def test_an_equality_at_odds() -> None:
    def value(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
        weight = model.get_parameter("weight").expand(len(batch[0]))
        return weight.square(), {"error": weight - batch[0]}

    data = TensorDataset(torch.tensor([-1.0, 2.0], dtype=torch.float64))
    conflict = find_infeasibility(Problem(value, [Equal("error", 0.0, tolerance=0.0)]), one_weight(5.0), data)
    assert conflict.is_infeasible
    assert [violation for _, violation in conflict.violators["error"]] == pytest.approx([1.5, 1.5], rel=1e-3)


class Product(nn.Module):
    """a b x, which has a saddle where both are zero."""

    def __init__(self, a: float, b: float) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(a))
        self.b = nn.Parameter(torch.tensor(b))

    def forward(self, x: Tensor) -> Tensor:
        return self.a * self.b * x


def within_reach(model: nn.Module, batch: Any) -> tuple[Tensor, dict[str, Tensor]]:
    error = (model(batch[0]).squeeze(1) - batch[1]).abs()
    return error.square(), {"error": error}


def zero_network() -> nn.Module:
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


CORNERS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])


LINE = torch.linspace(0.5, 1.0, 8)[:, None]


@pytest.mark.parametrize(
    ("model", "inputs", "targets"),
    [
        (Product(0.0, 0.0), LINE, LINE[:, 0]),
        (Product(1.0, -1.0), LINE, LINE[:, 0]),  # the search runs into the saddle
        (zero_network(), CORNERS, torch.tensor([0.0, 1.0, 1.0, 0.0])),
    ],
)
def test_a_saddle_is_left_before_it_is_said_that_no_step_helps(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, inputs: Tensor, targets: Tensor
) -> None:
    problem, data = Problem(within_reach, [AtMost("error", 0.1)]), TensorDataset(inputs, targets)
    before = [weight.detach().clone() for weight in model.parameters()]
    assert not find_infeasibility(problem, model, data).is_infeasible
    for weight, value in zip(model.parameters(), before, strict=True):
        torch.testing.assert_close(weight.detach(), value, rtol=0, atol=0)
    monkeypatch.setattr(feasibility, "RESTARTS", 0)
    assert find_infeasibility(problem, model, data).is_infeasible


def test_that_nothing_helps_many_samples_is_shown_though_their_pulls_never_cancel_quite() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(600, 2), torch.randn(600))  # labels that no such network can follow
    found = find_infeasibility(Problem(within_reach, [AtMost("error", 0.3)]), model, data)
    assert found.is_infeasible
    assert len(found.violators["error"]) > 300
