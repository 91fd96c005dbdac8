"""tau0="auto": near where objective and constraint pull alike, in closed form, and how its state travels."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import samplewise as sw
from forked import two_processes
from samplewise.errors import ConfigurationError
from samplewise.methods import coefficients
from samplewise.stopping import tau_ratio

BOUND: list[sw.Constraint] = [sw.AtMost("x", 1.0)]


def make(penalty: sw.Penalty | None = None, schedule: sw.Schedule | None = None) -> sw.Method:
    return sw.SequentialPenalty(BOUND, penalty=penalty, schedule=schedule or sw.Geometric("auto", growth=2.0))


def call(
    method: sw.Method, slope: float = 6.0 / coefficients.START, x: float = 3.0, index: Tensor | None = None
) -> Tensor:
    """A batch with the objective ``slope * w + v`` and the measure ``2 w + u`` of x each, so that only w is shared."""
    w, u, v = (torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(3))
    ones = torch.ones(4, dtype=torch.float64)
    return method(ones * (slope * w + v), x=ones * (2 * w + u + x), index=index)


def test_before_the_first_batch_tau_is_not_known_and_nothing_was_trained_under_it() -> None:
    method = make()
    assert math.isnan(method.tau)
    assert "x <= 1 (tau=auto)" in repr(method)
    assert (method.trained_taus, tau_ratio(method)) == ({"x": 0.0}, 1.0)
    with pytest.warns(UserWarning, match="without a sample"):
        assert math.isnan(method.step().taus["x"])  # an empty round finds nothing
    two = sw.SequentialPenalty([*BOUND, sw.AtLeast("y", 0.0)], schedule=sw.Constant("auto"))
    assert math.isnan(two.tau)


@pytest.mark.parametrize(
    ("penalty", "x", "expected"),
    [
        (sw.Linear(), 3.0, 3.0),  # 6 / 2, whatever u and v weigh
        (sw.Quadratic(), 3.0, 1.5),  # 6 / (2 * 2)
        (sw.Huber(4.0), 3.0, 6.0),
        (sw.Linear(), -5.0, 3.0),  # nobody violates: by the distance from the bound
    ],
)
def test_tau0_balances_the_gradients_of_what_both_depend_on(penalty: sw.Penalty, x: float, expected: float) -> None:
    method = make(penalty)
    call(method, x=x)
    assert method.tau == pytest.approx(expected)
    assert method.trained_taus == method.tau0s == {"x": pytest.approx(expected)}


def test_the_lagrangian_balances_its_quadratic_part() -> None:
    method = sw.AugmentedLagrangian(BOUND, samples=4, schedule=sw.Constant("auto"))
    call(method, index=torch.arange(4))
    assert method.tau == pytest.approx(1.5)


def test_the_geometric_mean_of_the_first_batches_and_of_no_later_one() -> None:
    method = make()
    slopes = [2.0 * math.exp(k / 8) for k in range(coefficients.BATCHES)]
    for slope in slopes:
        call(method, slope)
    expected = coefficients.START * math.exp(sum(math.log(slope / 2) for slope in slopes) / len(slopes))
    assert method.tau == pytest.approx(expected)
    call(method, 1e6)
    assert method.tau == pytest.approx(expected)
    method.step()
    assert method.tau == pytest.approx(2 * expected)
    assert tau_ratio(method) == pytest.approx(2.0)


def test_a_round_that_ends_earlier_ends_the_search() -> None:
    method = make()
    call(method)
    method.step()
    call(method, 1e6)
    assert method.tau == pytest.approx(6.0)


def test_a_batch_without_a_gradient_says_nothing() -> None:
    method = make()
    call(method, 0.0)
    assert method.tau == 1.0
    call(method)
    assert method.tau == pytest.approx(3.0)


def test_a_maximum_bounds_what_is_found() -> None:
    method = make(schedule=sw.Geometric("auto", growth=2.0, maximum=2.0))
    call(method)
    assert method.tau == 2.0


def test_a_validation_loss_looks_at_nothing() -> None:
    method, expected = make(), call(make(schedule=sw.Constant(1.0)))
    with torch.no_grad(), pytest.warns(UserWarning, match="tau = 1"):
        assert call(method) == expected
    with pytest.warns(UserWarning, match="tau = 1"):
        assert call(method.eval()) == expected
    assert math.isnan(method.tau)
    call(method.train())
    with torch.no_grad():
        assert call(method) == call(make(schedule=sw.Constant(method.tau)))  # in silence, since it is found


def test_a_compiled_validation_loss_takes_tau_one_too() -> None:
    torch.compiler.reset()
    method, values = make().eval(), torch.full((4,), 3.0)
    compiled = torch.compile(method, backend="eager", fullgraph=True)
    assert compiled(values, x=values) == 5.0
    torch.compiler.reset()


@pytest.mark.parametrize("stop", [1, 5, coefficients.BATCHES, coefficients.BATCHES + 2])
def test_stopped_and_resumed_finds_the_same(stop: int) -> None:
    whole, first, second = make(), make(), make()
    slopes = [1.0 + k for k in range(coefficients.BATCHES + 4)]
    expected = [call(whole, slope).item() for slope in slopes]
    found = [call(first, slope).item() for slope in slopes[:stop]]
    second.load_state_dict(first.state_dict())
    found += [call(second, slope).item() for slope in slopes[stop:]]
    assert (found, second.taus) == (expected, whole.taus)


def estimates(rank: int, world: int) -> list[dict[str, float]]:
    """The first taus after each of several batches of nine, of which the processes have parts; few are violated."""
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    method, found = make(), []
    for i in range(6):
        x = torch.randn(9, 3, generator=torch.Generator().manual_seed(i))
        part = torch.arange(rank, 9, world)
        output = model(x[part])
        method(output[:, 0].square(), x=output.sum(1) + (0.0 if i % 2 else -9.0))
        found.append(method.taus)
    return found


def in_one_of_two() -> dict[str, Any]:
    return {"taus": estimates(dist.get_rank(), 2)}


def test_two_processes_find_what_one_does() -> None:
    alone = [each["x"] for each in estimates(0, 1)]
    assert len({round(each, 6) for each in alone}) > 3
    for found in two_processes(in_one_of_two):
        assert [each["x"] for each in found["taus"]] == pytest.approx(alone, rel=1e-5)


def test_gradients_that_cannot_be_had_are_said_with_what_to_do() -> None:
    w = torch.zeros(1, requires_grad=True)
    value = w.exp().expand(2)
    value.register_hook(lambda gradient: (_ for _ in ()).throw(RuntimeError("no gradient here")))
    with pytest.raises(ConfigurationError, match="no gradient here"):
        make()(value, x=value)


def test_a_compiled_method_says_what_to_do() -> None:
    torch.compiler.reset()
    compiled = torch.compile(make(), backend="eager", fullgraph=True)
    values = torch.zeros(4, requires_grad=True)
    with pytest.raises(Exception, match=r"torch\.compile"):
        compiled(values, x=values)
    torch.compiler.reset()
