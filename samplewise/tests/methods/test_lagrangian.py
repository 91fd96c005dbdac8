"""The augmented Lagrangian: its multipliers against references, its table, its several values."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_cases import SAMPLES, batch
from scipy.optimize import LinearConstraint, minimize
from torch import Tensor

import samplewise as sw
from samplewise.errors import ConfigurationError, MeasureError

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
BOUNDED: list[sw.Constraint] = [sw.AtMost("x", 1.0)]


def method(**options: float) -> sw.AugmentedLagrangian:
    step, maximum = options.get("multiplier_step"), options.get("maximum", float("inf"))
    schedule = sw.Geometric(2.0, growth=1.5)
    return sw.AugmentedLagrangian(BOUNDED, samples=SAMPLES, schedule=schedule, multiplier_step=step, maximum=maximum)


@pytest.mark.parametrize(
    "options", [{}, {"multiplier_step": 0.7}, {"maximum": 1.5}, {"multiplier_step": 9, "maximum": 3}]
)
@given(seed=st.integers(0, 1000))
def test_agrees_with_a_reference_sample_by_sample(options: dict[str, float], seed: int) -> None:
    found = method(**options)
    multipliers = dict.fromkeys(range(SAMPLES), 0.0)
    tau = 2.0
    for call in range(9):
        objective, x, index = batch(10, seed=seed + call)
        expected = 0.0
        for f, value, j in zip(objective.tolist(), x.tolist(), index.tolist(), strict=True):
            g, known = value - 1.0, multipliers[j]
            expected += f + (max(0.0, known + tau * g) ** 2 - known**2) / (2 * tau)
            multipliers[j] = min(
                max(0.0, known + options.get("multiplier_step", tau / 20) * g), options.get("maximum", 1e9)
            )
        assert found(objective, x=x, index=index).item() == pytest.approx(expected / 10, rel=1e-4, abs=1e-5)
        if call % 3 == 2:
            found.step()
            tau *= 1.5
    assert found.tables["x"].tolist() == pytest.approx(list(multipliers.values()), rel=1e-4, abs=1e-5)


def solve(augmented: sw.AugmentedLagrangian, w: Tensor, evaluate: Evaluate, rounds: int) -> None:
    """The textbook loop: minimise with the multipliers fixed, move them once, again."""
    index = torch.arange(augmented.samples)

    def closure() -> float:
        w.grad = None
        f, x = evaluate(w)
        loss = augmented.eval()(f, x=x, index=index)
        torch.autograd.backward(loss)
        return float(loss.detach())

    for _ in range(rounds):
        optimizer = torch.optim.LBFGS(
            [w], max_iter=100, line_search_fn="strong_wolfe", tolerance_grad=1e-12, tolerance_change=1e-16
        )
        optimizer.step(closure)
        f, x = evaluate(w.detach())
        augmented.train()(f, x=x, index=index)
        augmented.step()


def test_finds_multipliers_that_are_known_in_closed_form() -> None:
    # min sum_j (w_j - a_j)^2 / 2 with w_j <= 1 has w_j = min(a_j, 1) and the multipliers max(0, a_j - 1).
    a = torch.linspace(-1, 3, 9, dtype=torch.float64)
    w = torch.zeros(9, dtype=torch.float64, requires_grad=True)
    augmented = sw.AugmentedLagrangian(BOUNDED, samples=9, schedule=sw.Constant(5.0), multiplier_step=5.0)
    solve(augmented, w, lambda w: ((w - a).square() / 2, w), rounds=20)
    torch.testing.assert_close(w.detach(), a.clamp_max(1.0), atol=1e-5, rtol=0)
    expected = (a - 1).clamp_min(0)
    torch.testing.assert_close(augmented.tables["x"].double(), expected, atol=1e-4, rtol=0)
    estimate = augmented.multipliers("x", w.detach() - 1.0, torch.arange(9))
    torch.testing.assert_close(estimate, expected, atol=1e-4, rtol=0)


def test_agrees_with_scipy_where_constraints_are_coupled() -> None:
    generator = np.random.default_rng(3)
    targets, normals = generator.normal(size=(6, 2)) + 2.0, generator.normal(size=(6, 2))

    solver: Any = minimize  # its stubs do not know that a Hessian may be given as a function
    reference = solver(
        lambda w: 0.5 * ((w - targets) ** 2).sum(),
        np.zeros(2),
        jac=lambda w: (w - targets).sum(0),
        hess=lambda w: 6 * np.eye(2),
        constraints=LinearConstraint(normals, -np.inf, 1.0),
        method="trust-constr",
        options={"gtol": 1e-10, "xtol": 1e-12, "barrier_tol": 1e-10},
    )
    assert 0 < (reference.v[0] > 1e-3).sum() <= 2  # some constraints hold the solution back, not all

    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    augmented = sw.AugmentedLagrangian(BOUNDED, samples=6, schedule=sw.Constant(10.0), multiplier_step=10.0)
    a, c = torch.from_numpy(normals), torch.from_numpy(targets)
    solve(augmented, w, lambda w: ((w - c).square().sum(1) / 2, a @ w), rounds=60)
    np.testing.assert_allclose(w.detach().numpy(), reference.x, atol=1e-4)
    np.testing.assert_allclose(augmented.tables["x"].numpy(), reference.v[0], atol=1e-3)


def test_with_multipliers_of_zero_it_is_the_quadratic_penalty() -> None:
    objective, x, index = batch(10)
    quadratic = sw.SequentialPenalty(BOUNDED, penalty=sw.Quadratic(), schedule=sw.Constant(2.0))
    torch.testing.assert_close(method()(objective, x=x, index=index), quadratic(objective, x=x))


@given(size=st.integers(1, 20), seed=st.integers(0, 1000))
def test_only_the_rows_of_the_batch_change(size: int, seed: int) -> None:
    found = method()
    for call in range(2):
        before = found.tables["x"].clone()
        objective, x, index = batch(size, seed + call)
        found(objective, x=x + 1.0, index=index)  # all break the bound, so all multipliers rise
        rest = torch.ones(SAMPLES, dtype=torch.bool)
        rest[index] = False
        assert torch.equal(found.tables["x"][rest], before[rest])
        assert (found.tables["x"][index] > before[index]).all()


def test_a_satisfied_constraint_lets_its_multiplier_fall_to_zero() -> None:
    found = method(multiplier_step=1.0)
    index = torch.tensor([3])
    seen = []
    for x in (2.5, 0.5, 0.5, 0.0, 0.0):
        found(torch.zeros(1), x=torch.tensor([x]), index=index)
        seen.append(found.tables["x"][3].item())
    assert seen == [1.5, 1.0, 0.5, 0.0, 0.0]


def test_in_eval_mode_multipliers_stay() -> None:
    objective, x, index = batch(10)
    found = method().eval()
    found(objective, x=x + 5.0, index=index)
    assert not found.tables["x"].any()


def test_without_gradients_multipliers_stay_and_indices_may_repeat() -> None:
    objective, x, _ = batch(10)
    found = method()
    with torch.no_grad():
        found(objective, x=x + 5.0, index=torch.zeros(10, dtype=torch.int64))
    assert not found.tables["x"].any()
    assert found.summary().samples == 0


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_indices_may_be_of_any_whole_type(dtype: torch.dtype) -> None:
    objective, x, index = batch(10)
    first, second = method(), method()
    first(objective, x=x, index=index)
    second(objective, x=x, index=index.to(dtype))
    assert torch.equal(first.tables["x"], second.tables["x"])


def test_each_of_several_values_has_its_own_multiplier() -> None:
    objective, x, index = batch(10, width=3)
    together = method()
    apart = sw.AugmentedLagrangian(
        [sw.AtMost(f"x{i}", 1.0) for i in range(3)], samples=SAMPLES, schedule=sw.Geometric(2.0, growth=1.5)
    )
    columns = {f"x{i}": column for i, column in enumerate(x.unbind(1))}
    assert together.multipliers("x", x - 1.0, index).tolist() == (2.0 * (x - 1.0)).relu().tolist()  # before any batch
    for _ in range(3):
        torch.testing.assert_close(together(objective, x=x, index=index), apart(objective, index=index, **columns))
    assert together.tables["x"].shape == (SAMPLES, 3)
    assert torch.equal(together.tables["x"], torch.stack(list(apart.tables.values()), dim=1))
    estimate = together.multipliers("x", x - 1.0, index)
    expected = [apart.multipliers(name, column - 1.0, index) for name, column in columns.items()]
    torch.testing.assert_close(estimate, torch.stack(expected, dim=1))


def test_the_number_of_values_may_not_change() -> None:
    objective, x, index = batch(10, width=3)
    found = method()
    found(objective, x=x, index=index)
    with pytest.raises(MeasureError, match=r"\(3,\) .* \(2,\) now"):
        found(objective, x=x[:, :2], index=index)


@pytest.mark.parametrize("width", [None, 3])
def test_a_call_that_does_not_count_never_makes_room(width: int | None) -> None:
    objective, x, index = batch(10, width=width)
    other = batch(10, width=2)[1]
    found = method()
    quadratic = sw.SequentialPenalty(BOUNDED, penalty=sw.Quadratic(), schedule=sw.Constant(2.0))
    torch.testing.assert_close(found.eval()(objective, x=other, index=index), quadratic(objective, x=other))
    with torch.no_grad():
        found.train()(objective, x=other, index=index)
    assert found.tables["x"].shape == (SAMPLES,)
    found(objective, x=x + 1.0, index=index)
    before = found.tables["x"].clone()
    message = r"has \(2,\) now: expected the same in every batch\. Give this method"
    with pytest.raises(MeasureError, match=message):
        found.eval()(objective, x=other, index=index)
    with pytest.raises(MeasureError, match=message):
        found.multipliers("x", other, index)
    assert torch.equal(found.tables["x"], before)
    found.train()(objective, x=x, index=index)  # and goes on


def test_multipliers_set_by_hand_are_not_wiped() -> None:
    objective, x, index = batch(10, width=3)
    found = method()
    found.tables["x"].fill_(1.0)
    with pytest.raises(MeasureError, match=r"\(\) .* \(3,\) now"):
        found(objective, x=x, index=index)
    assert bool((found.tables["x"] == 1.0).all())


def test_multipliers_after_a_restart_are_not_wiped() -> None:
    objective, x, index = batch(10)
    found, resumed = method(), method()
    found(objective, x=x, index=index)
    resumed.load_state_dict(found.state_dict())
    with pytest.raises(MeasureError, match="every batch"):
        resumed(objective, x=batch(10, width=3)[1], index=index)
    assert torch.equal(resumed.tables["x"], found.tables["x"])


def test_samples_must_be_the_length_of_the_data() -> None:
    method().check_samples(SAMPLES)
    with pytest.raises(ConfigurationError, match="samples=7"):
        method().check_samples(7)
    sw.SequentialPenalty(BOUNDED, schedule=sw.Constant(1.0)).check_samples(7)


def test_ten_million_samples_take_four_bytes_each() -> None:
    count = 10_000_000
    large = sw.AugmentedLagrangian(BOUNDED, samples=count, schedule=sw.Constant(1.0))
    held = sum(buffer.numel() * buffer.element_size() for buffer in large.buffers())
    assert 4 * count <= held <= 4 * count + 1000
    index = torch.tensor([0, 7, count - 1])
    large(torch.zeros(3), x=torch.full((3,), 3.0), index=index)
    assert large.tables["x"][index].tolist() == pytest.approx([0.1, 0.1, 0.1])
    assert int(large.tables["x"].count_nonzero()) == 3
