import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import samplewise as sw
from samplewise.errors import ConfigurationError
from samplewise.penalties import Huber, Linear, Logarithmic, Penalty, Quadratic

PENALTIES: list[Penalty] = [Linear(), Quadratic(), Huber(0.5), Huber(3.0), Logarithmic(0.5), Logarithmic(3.0)]
numbers = st.floats(-100, 100, allow_subnormal=False)
every_penalty = pytest.mark.parametrize("penalty", PENALTIES, ids=str)


def formula(penalty: Penalty, g: float) -> float:
    """The definition, branch by branch."""
    if g <= 0:
        return 0.0
    if isinstance(penalty, Linear):
        return g
    if isinstance(penalty, Quadratic):
        return g * g / 2
    if isinstance(penalty, Logarithmic):
        return penalty.width * (math.log(penalty.width + g) - math.log(penalty.width))
    assert isinstance(penalty, Huber)
    return g * g / (2 * penalty.delta) if g <= penalty.delta else g - penalty.delta / 2


@every_penalty
@given(gs=st.lists(numbers, min_size=1, max_size=20))
def test_value_is_the_definition(penalty: Penalty, gs: list[float]) -> None:
    found = penalty(torch.tensor(gs, dtype=torch.float64))
    assert found.tolist() == pytest.approx([formula(penalty, g) for g in gs], rel=1e-12)


@every_penalty
@given(first=numbers, second=numbers)
def test_monotone_in_g(penalty: Penalty, first: float, second: float) -> None:
    low, high = penalty(torch.tensor(sorted([first, second]), dtype=torch.float64)).tolist()
    assert low <= high


@every_penalty
@given(gs=st.lists(st.floats(-100, 0), min_size=1, max_size=20))
def test_a_satisfied_constraint_costs_exactly_nothing(penalty: Penalty, gs: list[float]) -> None:
    g = torch.tensor(gs, requires_grad=True)
    cost = penalty(g)
    assert torch.equal(cost, torch.zeros_like(cost))
    (gradient,) = torch.autograd.grad(cost.sum(), g)
    assert torch.equal(gradient, torch.zeros_like(gradient))
    assert torch.equal(penalty.multiplier(g, 7.0), torch.zeros_like(g))


@every_penalty
@given(gs=st.lists(numbers, min_size=1, max_size=20), tau=st.floats(0.01, 1e4))
def test_multiplier_is_tau_times_the_derivative(penalty: Penalty, gs: list[float], tau: float) -> None:
    g = torch.tensor(gs, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(tau * penalty(g).sum(), g)
    torch.testing.assert_close(penalty.multiplier(g.detach(), tau), gradient)
    torch.testing.assert_close(penalty.multiplier(g.detach(), torch.tensor(tau, dtype=torch.float64)), gradient)


def test_the_multiplier_of_the_linear_penalty_is_between_zero_and_tau() -> None:
    found = Linear().multiplier(torch.linspace(-2, 2, 41), 5.0)
    assert set(found.tolist()) == {0.0, 5.0}


@every_penalty
def test_gradient_at_exactly_zero_is_zero(penalty: Penalty) -> None:
    g = torch.zeros(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(penalty(g).sum(), g)
    assert gradient.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("penalty", [Quadratic(), Huber(0.5)], ids=str)
def test_smooth_penalties_have_a_continuous_gradient_at_zero(penalty: Penalty) -> None:
    g = torch.tensor([1e-3, 1e-6, 1e-9], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(penalty(g).sum(), g)
    assert (gradient <= 2 * g).all()


def test_the_linear_penalty_has_a_kink_at_zero() -> None:
    g = torch.tensor([1e-9], requires_grad=True)
    (gradient,) = torch.autograd.grad(Linear()(g).sum(), g)
    assert gradient.item() == 1.0


def test_huber_meets_itself_where_its_parts_join() -> None:
    penalty = Huber(0.5)
    g = torch.tensor([0.5 - 1e-9, 0.5, 0.5 + 1e-9], dtype=torch.float64, requires_grad=True)
    value = penalty(g)
    (gradient,) = torch.autograd.grad(value.sum(), g)
    assert value.tolist() == pytest.approx([0.25] * 3, abs=1e-8)
    assert gradient.tolist() == pytest.approx([1.0] * 3, abs=1e-8)


@every_penalty
def test_gradcheck_away_from_the_kinks(penalty: Penalty) -> None:
    g = torch.tensor([[-2.0, -0.1, 0.1], [0.4, 1.0, 5.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(penalty, (g,))
    assert torch.autograd.gradgradcheck(penalty, (g,))


@every_penalty
def test_several_values_of_a_sample_are_added_up(penalty: Penalty) -> None:
    g = torch.linspace(-1, 2, 12).reshape(4, 3)
    torch.testing.assert_close(penalty(g), sum(penalty(column) for column in g.unbind(1)))
    assert penalty.multiplier(g, 2.0).shape == (4, 3)


@pytest.mark.parametrize("delta", [0, -1, float("nan"), float("inf"), "1"])
def test_huber_refuses_a_delta_that_is_not_positive(delta: float) -> None:
    with pytest.raises(ConfigurationError, match="delta"):
        Huber(delta)


@given(first=numbers, second=numbers, width=st.floats(0.01, 100))
def test_the_logarithmic_penalty_is_concave_beyond_the_bound_and_below_the_linear_one(
    first: float, second: float, width: float
) -> None:
    penalty, gs = Logarithmic(width), torch.tensor([first, second], dtype=torch.float64).abs()
    values, middle = penalty(gs), penalty(gs.mean().unsqueeze(0))
    assert middle >= values.mean() - 1e-9 * (1 + values.mean())
    assert bool((values <= Linear()(gs) + 1e-12).all())
    assert bool((penalty.slope(gs) <= 1).all())
    torch.testing.assert_close(penalty.slope(gs[:1] * 0 + width), torch.tensor([0.5], dtype=torch.float64))


def test_the_linear_penalty_is_the_limit_of_the_logarithmic_one() -> None:
    g = torch.linspace(-2, 5, 50, dtype=torch.float64)
    torch.testing.assert_close(Logarithmic(1e8)(g), Linear()(g), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("width", [0, -1, float("nan"), float("inf"), "1"])
def test_the_logarithmic_penalty_refuses_a_width_that_is_not_positive(width: float) -> None:
    with pytest.raises(ConfigurationError, match="width"):
        Logarithmic(width)


def test_a_certificate_finds_the_prices_of_the_logarithmic_penalty() -> None:
    """min (w - 2)^2 under w <= 1: at the bound the multiplier is 2, between 0 and tau; there the penalty has a kink."""

    class Point(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.tensor(1.0))

    def evaluate(model: Point, batch: tuple[torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        w = model.w + 0 * batch[0]
        return (w - 2).square(), {"w": w}

    problem = sw.Problem(evaluate, [sw.AtMost("w", 1.0)])
    method = sw.SequentialPenalty(problem.constraints, penalty=Logarithmic(0.5), schedule=sw.Constant(5.0))
    found = sw.certify(problem, Point(), torch.utils.data.TensorDataset(torch.arange(4.0)), method)
    assert found.is_kkt(1e-4), str(found)
    torch.testing.assert_close(found.multipliers["w"], torch.full((4,), 2.0), rtol=1e-3, atol=1e-3)
