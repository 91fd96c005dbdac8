"""The loss and its gradient, for every method."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_cases import CONSTRAINTS, METHODS, PENALTIES, SAMPLES, Make, assert_rounds_close, batch
from torch import Tensor

import samplewise as sw

every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
every_penalty = pytest.mark.parametrize("penalty", PENALTIES.values(), ids=PENALTIES.keys())
every_constraint = pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS.keys())

TAU = sw.Constant(3.0)
sizes = st.integers(1, 12)
seeds = st.integers(0, 10**6)


@every_method
@every_constraint
@pytest.mark.parametrize("shape", [(6,), (3, 2)])
def test_gradcheck_away_from_the_kinks(make: Make, constraint: sw.Constraint, shape: tuple[int, ...]) -> None:
    x = torch.tensor([-0.7, 0.3, 1.2, 1.9, 3.1, 0.6], dtype=torch.float64).reshape(shape).requires_grad_()
    objective = torch.linspace(0.1, 0.9, shape[0], dtype=torch.float64).requires_grad_()
    index = torch.arange(shape[0])
    method = make([constraint], TAU)
    method(objective, index=index, x=x)  # gives the augmented Lagrangian multipliers that are not zero
    method.eval()  # and now leaves them alone
    assert torch.autograd.gradcheck(lambda f, m: method(f, index=index, x=m), (objective, x))


@every_penalty
@every_constraint
def test_the_loss_is_the_formula(penalty: sw.Penalty, constraint: sw.Constraint) -> None:
    objective, x, _ = batch(10)
    method = sw.SequentialPenalty([constraint], penalty=penalty, schedule=TAU)
    expected = sum(
        f + 3.0 * float(penalty(constraint.g(m.reshape(1)))) for f, m in zip(objective.tolist(), x, strict=True)
    )
    assert method(objective, x=x).item() == pytest.approx(expected / 10, rel=1e-5)


def test_the_loss_of_the_papers_experiment() -> None:
    objective, x, _ = batch(10)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(100.0))
    torch.testing.assert_close(method(objective, x=x), (objective + 100 * (x - 1).clamp(min=0)).mean())


def test_fixed_penalty_is_the_papers_regulariser_up_to_a_constant() -> None:
    objective, x, _ = batch(10)
    method = sw.FixedPenalty([sw.AtMost("x", 0.01)], weight=10.0)
    torch.testing.assert_close(method(objective, x=x), (objective + 10 * x).mean() - 10 * 0.01)


def test_unconstrained_is_the_objective_alone_but_watches() -> None:
    objective, x, _ = batch(10)
    method = sw.Unconstrained([sw.AtMost("x", 1.0)])
    assert torch.equal(method(objective, x=x), objective.mean())
    assert method.step()["x"].satisfied == int((x <= 1).sum()) / 10
    assert torch.equal(sw.Unconstrained()(objective), objective.mean())


@every_penalty
@every_constraint
@settings(max_examples=30)
@given(size=sizes, seed=seeds)
def test_what_is_satisfied_adds_exactly_nothing(
    penalty: sw.Penalty, constraint: sw.Constraint, size: int, seed: int
) -> None:
    objective = batch(size, seed)[0].requires_grad_()
    lower, upper = max(constraint.interval[0], -5.0), min(constraint.interval[1], 5.0)
    # Not at the very ends, where rounding may put g on either side of zero.
    x = (lower + (upper - lower) * (0.01 + 0.98 * torch.rand(size))).requires_grad_()
    loss = sw.SequentialPenalty([constraint], penalty=penalty, schedule=TAU)(objective, x=x)
    assert torch.equal(loss, objective.mean())
    to_objective, to_x = torch.autograd.grad(loss, (objective, x))
    assert torch.equal(to_x, torch.zeros(size))
    torch.testing.assert_close(to_objective, torch.full((size,), 1 / size))


@every_penalty
def test_exactly_at_the_bound_nothing_pulls(penalty: sw.Penalty) -> None:
    x = torch.full((4,), 0.01, requires_grad=True)
    loss = sw.SequentialPenalty([sw.AtMost("x", 0.01)], penalty=penalty, schedule=TAU)(torch.zeros(4), x=x)
    (gradient,) = torch.autograd.grad(loss, x)
    assert (loss.item(), gradient.tolist()) == (0.0, [0.0] * 4)


@every_method
@settings(max_examples=30)
@given(size=st.integers(2, 12), seed=seeds)
def test_invariant_to_the_order_of_the_batch(make: Make, size: int, seed: int) -> None:
    objective, x, index = batch(size, seed)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    first, second = (make([sw.AtMost("x", 1.0)], TAU) for _ in range(2))
    for _ in range(2):  # the second call meets the multipliers of the first
        one = first(objective, x=x, index=index)
        other = second(objective[order], x=x[order], index=index[order])
        torch.testing.assert_close(one, other)
    if isinstance(first, sw.AugmentedLagrangian) and isinstance(second, sw.AugmentedLagrangian):
        assert torch.equal(first.tables["x"], second.tables["x"])


@every_method
@settings(max_examples=30)
@given(size=st.integers(1, 8), parts=st.integers(2, 4), seed=seeds)
def test_the_mean_over_equal_batches_is_the_loss_of_the_whole(make: Make, size: int, parts: int, seed: int) -> None:
    objective, x, index = (values[: size * parts] for values in batch(32, seed))
    whole, piecewise = (make([sw.AtMost("x", 1.0)], TAU) for _ in range(2))
    for _ in range(2):
        expected = whole(objective, x=x, index=index)
        losses = [
            piecewise(f, x=m, index=i)
            for f, m, i in zip(*(torch.split(v, size) for v in (objective, x, index)), strict=True)
        ]
        torch.testing.assert_close(torch.stack(losses).mean(), expected)
    assert_rounds_close(piecewise.step(), whole.step())


@every_penalty
@settings(max_examples=30)
@given(size=sizes, seed=seeds)
def test_larger_violations_cost_more(penalty: sw.Penalty, size: int, seed: int) -> None:
    objective, x, _ = batch(size, seed)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], penalty=penalty, schedule=TAU)
    assert method(objective, x=x) <= method(objective, x=x + torch.rand(size))


@every_penalty
@every_constraint
@settings(max_examples=30)
@given(seed=seeds)
def test_multipliers_are_the_derivative_of_the_loss_of_a_sample(
    penalty: sw.Penalty, constraint: sw.Constraint, seed: int
) -> None:
    objective, x, _ = batch(8, seed)
    method = sw.SequentialPenalty([constraint], penalty=penalty, schedule=TAU)
    g = constraint.g(x.double()).requires_grad_()
    shifted = sw.AtMost("x", 0.0)  # a constraint whose g is the measure itself
    loss = sw.SequentialPenalty([shifted], penalty=penalty, schedule=TAU)(objective.double(), x=g)
    (gradient,) = torch.autograd.grad(loss * 8, g)
    torch.testing.assert_close(method.multipliers("x", g.detach()), gradient)


def test_multipliers_of_the_baselines() -> None:
    g = torch.tensor([-1.0, 0.0, 2.0])
    bounded = [sw.AtMost("x", 1.0)]
    assert sw.FixedPenalty(bounded, 5.0).multipliers("x", g).tolist() == [5.0, 5.0, 5.0]
    assert sw.Unconstrained(bounded).multipliers("x", g).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("name", [name for name in METHODS if "lagrangian" not in name])
def test_several_values_count_as_that_many_constraints(name: str) -> None:
    objective, x, _ = batch(6, width=3)
    together = METHODS[name]([sw.AtMost("x", 1.0)], TAU)
    apart = METHODS[name]([sw.AtMost(f"x{i}", 1.0) for i in range(3)], TAU)
    torch.testing.assert_close(
        together(objective, x=x), apart(objective, **{f"x{i}": column for i, column in enumerate(x.unbind(1))})
    )


def test_several_constraints_add_up_each_with_its_own_tau() -> None:
    objective, x, _ = batch(10)
    y = batch(10, seed=1)[1]
    constraints = [sw.AtMost("x", 1.0), sw.AtLeast("y", 0.8), sw.AtLeast("x", 0.2, name="floor")]
    schedule = {"x": sw.Constant(2.0), "y": sw.Geometric(5.0, growth=2.0), "floor": sw.Constant(7.0)}
    method = sw.SequentialPenalty(constraints, schedule=schedule)
    expected = objective + 2 * (x - 1).relu() + 5 * (0.8 - y).relu() + 7 * (0.2 - x).relu()
    torch.testing.assert_close(method(objective, x=x, y=y), expected.mean())
    method.step()
    assert method.taus == {"x": 2.0, "y": 10.0, "floor": 7.0}
    expected = expected + 5 * (0.8 - y).relu()
    torch.testing.assert_close(method(objective, x=x, y=y), expected.mean())


def test_measures_no_constraint_bounds_are_ignored() -> None:
    objective, x, _ = batch(4)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=TAU)
    assert torch.equal(method(objective, x=x, other=x), method(objective, x=x))


@every_method
def test_padding_counts_as_absent_whatever_it_holds(make: Make) -> None:
    objective, x, index = batch(6)
    plain, padded = (make([sw.AtMost("x", 1.0)], TAU) for _ in range(2))
    weight = torch.tensor([1.0] * 6 + [0.0] * 3)
    junk = torch.tensor([torch.nan, torch.inf, 9.0])
    repeated = torch.cat([index, index[:2], torch.tensor([-1])])
    for _ in range(2):
        inputs = [torch.cat([values, junk]).requires_grad_() for values in (objective, x)]
        loss = padded(inputs[0], x=inputs[1], index=repeated, sample_weight=weight)
        torch.testing.assert_close(loss, plain(objective, x=x, index=index))
    assert_rounds_close(padded.step(), plain.step())
    if isinstance(plain, sw.AugmentedLagrangian) and isinstance(padded, sw.AugmentedLagrangian):
        assert torch.equal(plain.tables["x"], padded.tables["x"])


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float64])
def test_sample_weight_may_be_of_any_type(dtype: torch.dtype) -> None:
    objective, x, _ = batch(4)
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=TAU)
    weight = torch.tensor([1, 0, 1, 1]).to(dtype)
    kept = [0, 2, 3]
    torch.testing.assert_close(method(objective, x=x, sample_weight=weight), method(objective[kept], x=x[kept]))


def test_sample_weight_weighs_the_mean() -> None:
    objective, x, _ = batch(4)
    weight = torch.tensor([1.0, 2.0, 0.5, 0.0])
    loss = sw.FixedPenalty([sw.AtMost("x", 1.0)], 2.0)(objective, x=x, sample_weight=weight)
    torch.testing.assert_close(loss, (weight * (objective + 2 * (x - 1))).sum() / 3.5)


def test_a_batch_of_padding_alone_has_loss_and_gradient_zero() -> None:
    objective, x, index = batch(4)
    x.requires_grad_()
    method = METHODS["lagrangian"]([sw.AtMost("x", 1.0)], TAU)
    loss = method(objective, x=x, index=index, sample_weight=torch.zeros(4))
    (gradient,) = torch.autograd.grad(loss, x)
    assert (loss.item(), gradient.tolist()) == (0.0, [0.0] * 4)
    with pytest.warns(UserWarning, match="without a sample"):
        assert method.step().samples == 0


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_inputs_give_a_float32_loss(make: Make, dtype: torch.dtype) -> None:
    objective, x, index = batch(8)
    narrow: list[Tensor] = [objective.to(dtype), x.to(dtype)]
    method, reference = (make([sw.AtMost("x", 1.0)], TAU) for _ in range(2))
    loss = method(narrow[0], x=narrow[1], index=index)
    assert loss.dtype == torch.float32
    assert torch.equal(loss, reference(narrow[0].float(), x=narrow[1].float(), index=index))
    assert method.step() == reference.step()


def test_under_autocast() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 2)
    data = torch.randn(SAMPLES, 5)
    method = METHODS["lagrangian"]([sw.AtMost("x", 0.1)], TAU)
    losses = []
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            output = model(data)
            assert output.dtype == (torch.bfloat16 if enabled else torch.float32)
            loss = method.eval()(output[:, 0].square(), x=output[:, 1].abs(), index=torch.arange(SAMPLES))
        assert loss.dtype == torch.float32
        model.zero_grad()
        torch.autograd.backward(loss)
        losses.append((loss, model.weight.grad))
    torch.testing.assert_close(losses[1], losses[0], rtol=0.02, atol=0.02)


@every_method
def test_hooks_run_as_those_of_any_module(make: Make) -> None:
    constraints: list[sw.Constraint] = [sw.AtMost("x", 1.0)]
    method, (objective, x, index) = make(constraints, sw.Constant(2.0)), batch(6)
    seen = []

    def double(module: object, args: tuple[Tensor], kwargs: dict[str, Any]) -> tuple[tuple[Tensor], dict[str, Any]]:
        seen.append("before")
        return (2 * args[0],), kwargs

    def treble(module: object, args: object, loss: Tensor) -> Tensor:
        seen.append("after")
        return 3 * loss

    before = method.register_forward_pre_hook(double, with_kwargs=True)
    after = method.register_forward_hook(treble)
    found = method(objective, x=x, index=index)
    torch.testing.assert_close(found, 3 * make(constraints, sw.Constant(2.0))(2 * objective, x=x, index=index))
    before.remove()
    after.remove()
    method(objective, x=x, index=index)
    assert seen == ["before", "after"]


def test_a_method_compiles_in_place_as_any_module() -> None:
    torch.compiler.reset()
    method, (objective, x, _) = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(2.0)), batch(6)
    expected = method.forward(objective, x=x)
    graphs: list[object] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        graphs.append(module)
        return module.forward

    method.compile(backend=backend, fullgraph=True)
    torch.testing.assert_close(method(objective, x=x), expected)
    assert len(graphs) == 1
    torch.compiler.reset()
