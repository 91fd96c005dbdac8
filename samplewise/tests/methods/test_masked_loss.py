"""Measures with a mask: the loss is that of each sample alone with the values it has, whatever stands in the others."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from method_cases import CONSTRAINTS, METHODS, SAMPLES, Make, batch
from torch import Tensor

import samplewise as sw
from samplewise.errors import MeasureError, NotFiniteError

WRONG = (math.nan, math.inf, -math.inf, 1e30, -100.0)
CASES = {**CONSTRAINTS, "signed": sw.Equal("x", 1.0, tolerance=0.0)}
every_method = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS.keys())
every_constraint = pytest.mark.parametrize("constraint", CASES.values(), ids=CASES.keys())


def ragged(seed: int, size: int = 6, width: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Objective, values with rubbish in them, the mask of the others, indices; the first sample has no value."""
    objective, values, index = batch(size, seed, width)
    mask = torch.rand(size, width, generator=torch.Generator().manual_seed(seed + 1)) < 0.6
    mask[0], mask[1] = False, True
    rubbish = torch.tensor(WRONG).repeat(size)[: size * width].view(size, width)
    return objective, torch.where(mask, values, rubbish), mask, index


def alone(methods: dict[int, sw.Method], objective: Tensor, values: Tensor, mask: Tensor, index: Tensor) -> Tensor:
    """The mean of what each sample costs in a batch of its own, of the values that it has."""
    losses = []
    for j, number in enumerate(index.tolist()):
        own = values[j][mask[j]].unsqueeze(0)
        if own.numel():
            losses.append(methods[number](objective[j : j + 1], x=own, index=index[j : j + 1]))
        else:
            losses.append(objective[j])
    return torch.stack(losses).mean()


@every_method
@every_constraint
def test_the_loss_is_that_of_each_sample_alone(make: Make, constraint: sw.Constraint) -> None:
    schedule = sw.Constant(3.0)
    method, methods = make([constraint], schedule), {j: make([constraint], schedule) for j in range(SAMPLES)}
    objective, values, mask, index = ragged(3)
    for step in range(3):  # so that multipliers have moved
        x, y = ((values + 0.1 * step).requires_grad_() for _ in range(2))
        loss, expected = method(objective, x=(x, mask), index=index), alone(methods, objective, y, mask, index)
        torch.testing.assert_close(loss, expected)
        if expected.requires_grad:
            with torch.autograd.set_detect_anomaly(True):  # nothing is NaN on the way either
                (found,) = torch.autograd.grad(loss, x)
            (wanted,) = torch.autograd.grad(expected, y)
            torch.testing.assert_close(found, wanted)
            assert not found[~mask].any()
    if isinstance(method, sw.AugmentedLagrangian):
        table = method.tables["x"][index]
        assert not table[~mask].any()
        for j, number in enumerate(index.tolist()):
            if mask[j].any():
                own: Any = methods[number]
                torch.testing.assert_close(table[j][mask[j]], own.tables["x"][number])


@every_constraint
def test_a_round_counts_the_values_that_there_are(constraint: sw.Constraint) -> None:
    method = sw.SequentialPenalty([constraint], schedule=sw.Constant(1.0))
    worst = []
    for seed in (3, 5):
        objective, values, mask, _ = ragged(seed)
        method(objective, x=(values, mask))
        for own, kept in zip(values, mask, strict=True):
            if kept.any():
                worst.append(max([0.0, *constraint.excess(own[kept]).tolist()]))
    assert len(worst) < 12
    fared = method.step()["x"]
    assert (fared.samples, fared.violated) == (len(worst), sum(each > 0 for each in worst))
    assert (fared.total, fared.worst) == pytest.approx((sum(worst), max(worst)))


@given(st.lists(st.sampled_from(WRONG), min_size=24, max_size=24), st.sampled_from(list(METHODS)))
def test_what_is_left_out_never_matters(rubbish: list[float], name: str) -> None:
    method = METHODS[name]([sw.AtMost("x", 0.5, margin=0.2)], sw.Constant(2.0)).eval()
    objective, values, mask, index = ragged(7)
    found = []
    for filled in (values, torch.where(mask, values, torch.tensor(rubbish).view(6, 4))):
        x = filled.clone().requires_grad_()
        loss = method(objective, x=(x, mask), index=index)
        loss = loss + 0 * torch.where(mask, x, 0.0).sum()  # so that there is a gradient of any method
        found.append((loss.detach(), *torch.autograd.grad(loss, x)))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@every_method
def test_a_bound_for_some_samples_only(make: Make) -> None:
    bound = [sw.AtMost("x", 0.5)]
    objective, x, index = batch(8)
    some = x > 1
    found = make(bound, sw.Constant(2.0))(objective, x=(torch.where(some, x, torch.nan), some), index=index)
    others = objective[~some].sum()
    expected = make(bound, sw.Constant(2.0))(objective[some], x=x[some], index=index[some])
    torch.testing.assert_close(found, (expected * int(some.sum()) + others) / 8)


def test_the_bound_of_a_sample_may_be_its_own_where_values_are_left_out() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", "limit")], schedule=sw.Constant(2.0))
    objective, values, mask, _ = ragged(3)
    limit = torch.rand(6, requires_grad=True)
    loss = method(objective.requires_grad_(), x=(values.requires_grad_(), mask), limit=limit)
    rows = zip(objective, values, mask, limit, strict=True)
    expected = torch.stack([f + 2 * (own[kept] - most).relu().sum() for f, own, kept, most in rows]).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, limit), torch.autograd.grad(expected, limit))


def test_a_value_that_is_there_must_be_finite() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0))
    objective, values, mask, index = ragged(3)
    values[1, 2] = torch.nan
    with pytest.raises(NotFiniteError, match=f"'x' .*index: {int(index[1])}"):
        method(objective, x=(values, mask), index=index)


@pytest.mark.parametrize("name", ["linear", "lagrangian"])
def test_where_nothing_can_be_read_at_once(name: str) -> None:
    torch.compiler.reset()
    eager, method = (METHODS[name]([sw.AtMost("x", 1.0, margin=0.1)], sw.Constant(2.0)) for _ in range(2))
    objective, values, mask, index = ragged(3)
    for each in (eager, method):  # the first batch makes room
        each(objective, x=(values, mask), index=index)
    compiled = torch.compile(method, backend="eager", fullgraph=True)
    found = compiled(objective, x=(values, mask), index=index)
    torch.testing.assert_close(found, eager(objective, x=(values, mask), index=index))
    values[1, 2] = torch.inf
    compiled(objective, x=(values, mask), index=index)
    with pytest.raises(NotFiniteError, match=f"sample index: {int(index[1])}"):
        method.check()
    torch.compiler.reset()


def test_the_first_tau_is_found_from_the_values_that_there_are() -> None:
    weight = torch.tensor(1.5, requires_grad=True)
    objective, values, _ = batch(6, width=2)
    taus = []
    for x in (weight * values, (weight * torch.cat([values, values], 1), torch.tensor([[True] * 2 + [False] * 2] * 6))):
        method = sw.SequentialPenalty([sw.AtMost("x", 1.0, margin=0.3)], schedule=sw.Geometric("auto", growth=1.1))
        method(weight * objective, x=x)
        taus.append(method.tau)
    assert taus[0] == pytest.approx(taus[1])


def test_a_measure_with_a_mask_is_never_taken_for_a_slip() -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0))
    for size in (3, 4, 5, 5):
        method(torch.zeros(size), x=(torch.zeros(size, size), torch.ones(size, size, dtype=torch.bool)))


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ((torch.zeros(2, 3), torch.ones(2, 3)), r"the mask of the measure 'x' as bool of shape \(2, 3\) on cpu, got"),
        ((torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)), r"got \(2,\) of torch.bool on cpu; it is True where"),
        (
            (torch.zeros(2, 3), None),
            r"the measure 'x' as a tensor, got tuple; .* or a pair of tensors \(values, mask\)",
        ),
        ((torch.zeros(3), torch.ones(3, dtype=torch.bool)), r"of shape \(2,\) or \(2, m\)"),
    ],
)
def test_a_wrong_mask_is_refused(given: Any, complaint: str) -> None:
    method = sw.SequentialPenalty([sw.AtMost("x", 1.0)], schedule=sw.Constant(1.0))
    with pytest.raises(MeasureError, match=complaint):
        method(torch.zeros(2), x=given)


def test_multipliers_of_samples_that_differ_in_width_need_one() -> None:
    method = sw.AugmentedLagrangian([sw.AtMost("x", 0.0)], samples=4, schedule=sw.Constant(1.0))
    method(torch.zeros(2), x=torch.ones(2, 3), index=torch.arange(2))
    with pytest.raises(MeasureError, match="give a mask"):
        method(torch.zeros(2), x=torch.ones(2, 4), index=torch.arange(2))
