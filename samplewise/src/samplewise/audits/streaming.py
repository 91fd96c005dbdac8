"""Totals over a data set of any size in constant memory: exact counts, the worst samples, quantiles to 0.05 %."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.constraints import Constraint, ViolationStats, present
from samplewise.problem import Evaluation
from samplewise.storage import distributed

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
BITS = 20  # of a float32 that tell values apart in the quantile sketch: sign, exponent, and eleven of its fraction


@dataclass(frozen=True)
class ConstraintTotals:
    """Totals of one constraint, without the values of each sample."""

    stats: ViolationStats
    quantiles: dict[float, float]
    """Of the values, to 0.05 % of their size."""
    worst_violators: tuple[tuple[int, float], ...]
    """Number and violation of the most violated samples, worst first; as many as were asked for."""


@dataclass(frozen=True)
class Totals:
    """Totals of a data set, without the values of each sample."""

    samples: int
    counted: int
    """Samples that have a value of some constraint."""
    violated: int
    """Samples that violate some constraint."""
    objective: float
    """Mean over all samples."""
    means: dict[str, float]
    constraints: dict[str, ConstraintTotals]


class TotalsAccumulator:
    """Adds up :class:`Totals` batch by batch; ``worst`` violators of each constraint are named."""

    def __init__(self, constraints: Sequence[Constraint], worst: int, device: torch.device) -> None:
        self.parts = [_ConstraintAccumulator(each, worst, device) for each in constraints]
        self.device = device
        self.sums = torch.zeros(4, dtype=torch.float64)  # samples, objective, counted, violated
        self.measures: dict[str, Tensor] = {}  # sum of the values that there are, and their number

    def add_(self, evaluation: Evaluation, *, counts: bool = True) -> None:
        """Add a batch with its samples' index; with ``counts`` False only the measures' names are learned."""
        for name, values in evaluation.measures.items():
            sums = self.measures.setdefault(name, torch.zeros(2, dtype=torch.float64))
            if counts:
                values = present(values.detach().double())
                sums += torch.tensor([float(values.sum()), len(values)], dtype=torch.float64)
        if not counts:
            return
        assert evaluation.index is not None  # which every batch of an audit has
        length, index = len(evaluation.objective), evaluation.index.cpu()
        either = torch.zeros(2, length, dtype=torch.bool)
        for part in self.parts:
            either |= torch.stack(part.add_(evaluation.measures, index))
        counted, violated = either.sum(1).tolist() if self.parts else (length, 0)
        objective = float(evaluation.objective.detach().double().sum())
        self.sums += torch.tensor([length, objective, counted, violated], dtype=torch.float64)

    def totals(self) -> Totals:
        """The totals over all processes, each of which must call."""
        samples, objective, counted, violated = distributed.all_sum_(self.sums.to(self.device)).tolist()
        means = {}
        for name, sums in self.measures.items():
            total, count = distributed.all_sum_(sums.to(self.device)).tolist()
            means[name] = total / count if count else math.nan
        parts = {part.constraint.name: part.totals() for part in self.parts}
        return Totals(int(samples), int(counted), int(violated), objective / samples, means, parts)


class _ConstraintAccumulator:
    def __init__(self, constraint: Constraint, worst: int, device: torch.device) -> None:
        self.constraint, self.worst, self.device = constraint, worst, device
        self.sums = torch.zeros(3, dtype=torch.float64)  # samples with a value, violated ones, total violation
        self.counts = torch.zeros(2**BITS, dtype=torch.int64)
        self.excess, self.samples = torch.full((worst,), -math.inf, dtype=torch.float64), torch.zeros(worst).long()

    def add_(self, measures: Mapping[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
        """Add a batch; returns which of its samples have a value, and which are violated."""
        values = self.constraint.of(measures).detach().cpu()
        excess = self.constraint.worst_excess(values).double()
        counted, violated = excess > -math.inf, excess > 0
        more = [float(counted.sum()), float(violated.sum()), float(excess.relu().sum())]
        self.sums += torch.tensor(more, dtype=torch.float64)
        bins = _bin(present(values).float())
        self.counts.index_add_(0, bins, torch.ones_like(bins))
        self._keep_worst_(torch.cat([self.excess, excess]), torch.cat([self.samples, index]))
        return counted, violated

    def _keep_worst_(self, excess: Tensor, samples: Tensor) -> None:
        # Of equal ones the first, wherever the batches or the processes end.
        order = samples.argsort(stable=True)
        order = order[excess[order].argsort(descending=True, stable=True)][: self.worst]
        self.excess, self.samples = excess[order], samples[order]

    def totals(self) -> ConstraintTotals:
        samples, violated, total = distributed.all_sum_(self.sums.to(self.device)).tolist()
        counts = distributed.all_sum_(self.counts.to(self.device)).cpu()
        self._keep_worst_(*(distributed.all_gather(each.to(self.device)).cpu() for each in (self.excess, self.samples)))
        worst = [(int(i), float(by)) for i, by in zip(self.samples, self.excess, strict=True) if by > 0]
        largest = worst[0][1] if worst else 0.0
        stats = ViolationStats(int(samples), int(violated), total, largest, share=self.constraint.share)
        return ConstraintTotals(stats, _quantiles(counts), tuple(worst))


def _bin(values: Tensor) -> Tensor:
    """The interval of the quantile sketch that each value is in; intervals are in the order of their values."""
    bits = values.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    found: Tensor = (ordered >> (32 - BITS)).long() + 2 ** (BITS - 1)
    return found


def _quantiles(counts: Tensor) -> dict[float, float]:
    below = counts.cumsum(0)
    if not (total := int(below[-1])):
        return {}
    ranks = torch.tensor([math.ceil(q * (total - 1)) for q in QUANTILES])
    bins = torch.searchsorted(below, ranks, right=True) - 2 ** (BITS - 1)
    ordered = ((bins << (32 - BITS)) + (1 << (31 - BITS))).to(torch.int32)  # the middle of the interval
    values = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
    return dict(zip(QUANTILES, values.tolist(), strict=True))
