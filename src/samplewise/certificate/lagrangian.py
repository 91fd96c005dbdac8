"""The gradient of the Lagrangian on a whole data set, in one pass."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.batches import Feed, in_order
from samplewise.constraints import Constraint
from samplewise.gradients import gradient_of, trainable
from samplewise.methods import Method, checks
from samplewise.problem import Evaluation, Problem

__all__ = ["LagrangianSums", "Violations", "lagrangian_pass"]


class Violations(NamedTuple):
    """Violations of one constraint by its true bound, in the measure's units."""

    violated: int
    total: float
    worst: float


@dataclass(frozen=True)
class LagrangianSums:
    """What one pass over the data gives."""

    objective: float
    """Mean of f."""
    gradient: Tensor
    """Gradient of the mean of f, ``(n,)``."""
    lagrangian: Tensor
    """Gradient of the Lagrangian, ``(n,)``."""
    g: list[Tensor]
    """g of every sample, as training sees it, by constraint."""
    multipliers: list[Tensor]
    """lambda of every sample, the method's estimate, by constraint."""
    sizes: list[float]
    """Root mean square of each constraint's measure, in units of g."""
    violations: list[Violations]
    """By constraint."""


def lagrangian_pass(
    problem: Problem, model: nn.Module, feed: Feed, method: Method, *, batch_size: int, device: torch.device
) -> LagrangianSums:
    """The gradients of ``f`` and of the Lagrangian, and g and lambda of every sample, in one pass over the data.

    Under several processes each takes its part of the samples and all get the whole result.

    Args:
        problem: gives objective and measures.
        model: in evaluation mode.
        feed: the data.
        method: gives the multipliers.
        batch_size: samples in a batch.
        device: where the model is.
    """
    constraints, length = problem.constraints, feed.source.length
    weights = list(trainable(model).values())
    gradient, priced = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
    # Float64 on the CPU: not every device has that type.
    sums = torch.zeros(1 + 3 * len(constraints), dtype=torch.float64)
    worst = torch.zeros(len(constraints), dtype=torch.float64)
    tables: list[Tensor] = []  # g of each constraint, then the multipliers of each
    mine = distributed.share(length)
    # A process without samples still evaluates one, to know the shapes, and counts nothing.
    for batch, index in in_order(feed, batch_size=batch_size, device=device, rows=mine or range(1)):
        with torch.enable_grad():
            evaluation = problem.evaluate(model, batch, index)
            picked = _finite_measures(constraints, evaluation, index)
            gs = [constraint.g(measure) for constraint, measure in zip(constraints, picked, strict=True)]
        found = [
            method.multipliers(constraint.name, g.detach(), index).detach()
            for constraint, g in zip(constraints, gs, strict=True)
        ]
        tables = tables or [values.new_zeros(length, *values.shape[1:]) for values in (*gs, *gs)]
        if not mine:
            continue
        rows = slice(int(index[0]), int(index[-1]) + 1)
        for table, values in zip(tables, (*gs, *found), strict=True):
            table[rows] = values.detach()
        added, largest = _sums_of(constraints, evaluation.objective, picked)
        sums += added
        worst = worst.maximum(largest)
        with torch.enable_grad():
            terms = [(g * values).sum() for g, values in zip(gs, found, strict=True) if bool(values.any())]
            value = evaluation.objective.sum() / length
            torch._foreach_add_(gradient, gradient_of(value, weights, retain_graph=bool(terms)))
            if terms:
                torch._foreach_add_(priced, gradient_of(torch.stack(terms).sum() / length, weights))
    return _joined(constraints, length, gradient, priced, sums, worst, tables)


def _finite_measures(constraints: Sequence[Constraint], evaluation: Evaluation, index: Tensor) -> list[Tensor]:
    picked = [evaluation.measures[constraint.measure] for constraint in constraints]
    named = zip(checks.watched(constraints), [evaluation.objective, *picked], strict=True)
    checks.raise_if_not_finite(named, index, step=None)
    return picked


def _sums_of(constraints: Sequence[Constraint], objective: Tensor, picked: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """A batch's sums and worst violations, float64 on the CPU.

    The sums are the objective's, then of each constraint how many samples are violated, by how much in all, and the
    square of the measure.
    """
    sums, worst = [objective.detach().cpu().double().sum()], []
    for constraint, measure in zip(constraints, picked, strict=True):
        values = measure.detach().cpu()
        # In the measure's own precision, as in training and audits: in another one a value at its bound may be beyond.
        excess = constraint.excess(values).double()
        violation = torch.relu(excess if excess.ndim == 1 else excess.amax(1))
        sums += [(violation > 0).sum().double(), violation.sum(), values.double().square().sum()]
        worst.append(violation.max())
    return torch.stack(sums), torch.stack(worst) if worst else torch.zeros(0, dtype=torch.float64)


def _joined(
    constraints: Sequence[Constraint],
    length: int,
    gradient: list[Tensor],
    priced: list[Tensor],
    sums: Tensor,
    worst: Tensor,
    tables: list[Tensor],
) -> LagrangianSums:
    """Join the processes' parts, each of which left zeros where the others wrote."""
    whole = distributed.all_sum_(torch.cat([part.flatten() for part in gradient]))
    lagrangian = whole + distributed.all_sum_(torch.cat([part.flatten() for part in priced]))
    if distributed.world_size() > 1:  # which exchange what is on their devices
        sums, worst = distributed.all_sum_(sums.to(whole.device)), distributed.all_max_(worst.to(whole.device))
    tables = [distributed.all_sum_(table).cpu() for table in tables]
    g, multipliers = tables[: len(constraints)], tables[len(constraints) :]
    total, *rest = sums.tolist()
    return LagrangianSums(
        objective=total / length,
        gradient=whole,
        lagrangian=lagrangian,
        g=g,
        multipliers=multipliers,
        sizes=[
            math.sqrt(rest[3 * i + 2] / table.numel()) / constraint.scale
            for i, (constraint, table) in enumerate(zip(constraints, g, strict=True))
        ],
        violations=[Violations(int(rest[3 * i]), rest[3 * i + 1], largest) for i, largest in enumerate(worst.tolist())],
    )
