"""The gradient of the Lagrangian on a whole data set, in one pass."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.batches import Feed, in_order
from samplewise.gradients import gradient_of, trainable
from samplewise.methods import Method, checks
from samplewise.problem import Problem

__all__ = ["LagrangianPass"]


class Feasibility(NamedTuple):
    """Violations of one constraint by its true bound, in the measure's units."""

    violated: int
    total: float
    worst: float


class LagrangianPass:
    """One pass over the data: the gradients of ``f`` and of the Lagrangian, and g and lambda of every sample.

    Under several processes each takes its part of the samples and all get the whole result.

    Args:
        problem: gives objective and measures.
        model: in evaluation mode.
        feed: the data.
        method: gives the multipliers.
        batch_size: samples in a batch.
        device: where the model is.
    """

    def __init__(
        self, problem: Problem, model: nn.Module, feed: Feed, method: Method, batch_size: int, device: torch.device
    ) -> None:
        self.problem = problem
        self.method = method
        self.length = feed.source.length
        self.g: list[Tensor] = []
        """g of every sample, as training sees it, by constraint."""
        self.multipliers: list[Tensor] = []
        """lambda of every sample, the method's estimate, by constraint."""
        self.sizes: list[float] = []
        """Root mean square of each constraint's measure, in units of g."""
        self._weights = list(trainable(model).values())
        # The objective's sum; of each constraint how many are violated, by how much in all, and the measure's square.
        count = len(problem.constraints)
        self._sums = torch.zeros(1 + 3 * count, dtype=torch.float64, device=device)
        self._worst = torch.zeros(count, dtype=torch.float64, device=device)
        self._gradients = [torch.zeros_like(weight) for weight in self._weights]
        self._priced = [torch.zeros_like(weight) for weight in self._weights]
        mine = distributed.share(self.length)
        # A process without samples still evaluates one, to know the shapes, and counts nothing.
        for batch, index in in_order(feed, batch_size=batch_size, device=device, rows=mine or range(1)):
            with torch.enable_grad():
                evaluation = problem.evaluate(model, batch, index)
                self._add(evaluation.objective, dict(evaluation.measures), index, counts=bool(mine))
        self._reduce()

    def _add(self, objective: Tensor, measures: dict[str, Tensor], index: Tensor, *, counts: bool) -> None:
        constraints = self.problem.constraints
        picked = [measures[constraint.measure] for constraint in constraints]
        names = ["the objective", *(f"the measure of the constraint {c.name!r} ({c})" for c in constraints)]
        checks.raise_if_not_finite(zip(names, [objective, *picked], strict=True), index, step=None)
        gs = [constraint.g(measure) for constraint, measure in zip(constraints, picked, strict=True)]
        found = [
            self.method.multipliers(constraint.name, g.detach(), index).detach()
            for constraint, g in zip(constraints, gs, strict=True)
        ]
        if not self.g:
            self.g = [g.new_zeros(self.length, *g.shape[1:]) for g in gs]
            self.multipliers = [g.new_zeros(self.length, *g.shape[1:]) for g in gs]
        if not counts:
            return
        rows = slice(int(index[0]), int(index[-1]) + 1)
        for table, values in zip((*self.g, *self.multipliers), (*gs, *found), strict=True):
            table[rows] = values.detach()
        self._sums[0] += objective.detach().double().sum()
        for i, (constraint, measure) in enumerate(zip(constraints, picked, strict=True)):
            values = measure.detach().double()
            excess = constraint.excess(values)
            violation = torch.relu(excess if excess.ndim == 1 else excess.amax(1))
            rest = [(violation > 0).sum(), violation.sum(), values.square().sum()]
            self._sums[1 + 3 * i : 4 + 3 * i] += torch.stack([value.double() for value in rest])
            self._worst[i] = torch.maximum(self._worst[i], violation.max())
        priced = [(g * values).sum() for g, values in zip(gs, found, strict=True) if bool(values.any())]
        parts = gradient_of(objective.sum() / self.length, self._weights, retain_graph=bool(priced))
        torch._foreach_add_(self._gradients, parts)
        if priced:
            parts = gradient_of(torch.stack(priced).sum() / self.length, self._weights)
            torch._foreach_add_(self._priced, parts)

    def _reduce(self) -> None:
        """Join the processes' parts, each of which left zeros where the others wrote."""
        self.gradient = distributed.all_sum_(torch.cat([part.flatten() for part in self._gradients]))
        self.lagrangian = self.gradient + distributed.all_sum_(torch.cat([part.flatten() for part in self._priced]))
        total, *rest = distributed.all_sum_(self._sums).tolist()
        worst = distributed.all_max_(self._worst).tolist()
        self.objective = total / self.length
        self.feasibility = [Feasibility(int(rest[3 * i]), rest[3 * i + 1], largest) for i, largest in enumerate(worst)]
        self.sizes = [
            math.sqrt(rest[3 * i + 2] / table.numel()) / constraint.scale
            for i, (constraint, table) in enumerate(zip(self.problem.constraints, self.g, strict=True))
        ]
        self.g = [distributed.all_sum_(table).cpu() for table in self.g]
        self.multipliers = [distributed.all_sum_(table).cpu() for table in self.multipliers]
