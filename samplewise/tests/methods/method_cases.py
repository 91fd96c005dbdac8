"""The methods and constraints that the tests of this folder go through."""

from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch
from torch import Tensor

import samplewise as sw

SAMPLES = 40

Make = Callable[[list[sw.Constraint], sw.Schedule], sw.Method]


def _lagrangian(constraints: list[sw.Constraint], schedule: sw.Schedule) -> sw.Method:
    return sw.AugmentedLagrangian(constraints, samples=SAMPLES, schedule=schedule)


def _slow_lagrangian(constraints: list[sw.Constraint], schedule: sw.Schedule) -> sw.Method:
    return sw.AugmentedLagrangian(constraints, samples=SAMPLES, schedule=schedule, multiplier_step=0.3, maximum=2.0)


PENALTIES: dict[str, sw.Penalty] = {"linear": sw.Linear(), "quadratic": sw.Quadratic(), "huber": sw.Huber(0.25)}


def _with(penalty: sw.Penalty) -> Make:
    return lambda constraints, schedule: sw.SequentialPenalty(constraints, penalty=penalty, schedule=schedule)


METHODS: dict[str, Make] = {
    **{name: _with(penalty) for name, penalty in PENALTIES.items()},
    "fixed": lambda constraints, schedule: sw.FixedPenalty(constraints, schedule.first),
    "unconstrained": lambda constraints, schedule: sw.Unconstrained(constraints),
    "lagrangian": _lagrangian,
    "slow lagrangian": _slow_lagrangian,
}

CONSTRAINTS: dict[str, sw.Constraint] = {
    "at most": sw.AtMost("x", 1.0),
    "at least": sw.AtLeast("x", 1.0),
    "between": sw.Between("x", 0.0, 2.0),
    "equal": sw.Equal("x", 1.0, tolerance=0.5),
    "scaled": sw.AtMost("x", 1.0, scale=0.5, margin=0.15),
}


def batch(size: int, seed: int = 0, width: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Objective, measure x and indices of a batch; about half of the samples break a bound of 1."""
    generator = torch.Generator().manual_seed(seed)
    objective = torch.rand(size, generator=generator)
    measure = (
        2 * torch.rand(size, generator=generator) if width is None else 2 * torch.rand(size, width, generator=generator)
    )
    return objective, measure, torch.randperm(SAMPLES, generator=generator)[:size]


def assert_rounds_close(found: sw.Round, expected: sw.Round, rel: float = 1e-6) -> None:
    """Equal up to the rounding of sums."""
    assert (found.number, found.samples, found.constraints.keys()) == (
        expected.number,
        expected.samples,
        expected.constraints.keys(),
    )
    assert found.objective == pytest.approx(expected.objective, rel=rel)
    for name, fared in found.constraints.items():
        assert asdict(fared) == pytest.approx(asdict(expected[name]), rel=rel)
