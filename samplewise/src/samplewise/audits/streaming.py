"""What holds on a data set of any size, in constant memory: exact counts, the worst samples, quantiles to 0.05 %."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samplewise.audits.audit import QUANTILES
from samplewise.audits.binomial import check, violation_rate_upper
from samplewise.audits.columns import check_given, for_each_batch
from samplewise.constraints import Constraint, ViolationStats
from samplewise.errors import constraint_named, whole_number
from samplewise.masks import ByContent, present
from samplewise.problem import Evaluation, Problem
from samplewise.samples import Data, Feed, source_of
from samplewise.storage import distributed

BITS = 20  # of a float32 that are told apart: sign, exponent, and eleven of its fraction


@dataclass(frozen=True, eq=False)
class StreamedConstraint(ByContent, ViolationStats):
    """How one constraint fares: a :class:`~samplewise.audits.ConstraintAudit` without every sample's value."""

    constraint: Constraint
    quantiles: dict[float, float]
    """Of the values, to 0.05 % of their size."""
    worst_violators: list[tuple[int, float]]
    """Of the most violated samples the number and the violation, worst first; as many as were asked for."""
    violation_rate_upper: float
    """Exact upper bound on the violation rate, at once with all constraints'."""


@dataclass(frozen=True, eq=False)
class StreamedAudit(ByContent, Mapping[str, StreamedConstraint]):
    """What holds on a whole data set; ``audit["name"]`` is the part of one constraint."""

    samples: int
    objective: float
    """Mean over all samples."""
    violated: int
    """Samples that violate a constraint, whichever."""
    violation_rate_upper: float
    """Exact upper bound on the probability of violating any constraint."""
    constraints: dict[str, StreamedConstraint]
    counted: int
    """Samples that have a value of some constraint: of these shares and bounds are."""

    def __getitem__(self, name: str) -> StreamedConstraint:
        found: StreamedConstraint = constraint_named(name, self.constraints)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.constraints)

    def __len__(self) -> int:
        return len(self.constraints)

    @property
    def satisfied(self) -> float:
        """Share of the counted samples that meet all constraints; 1 if none is counted."""
        return (self.counted - self.violated) / self.counted if self.counted else 1.0


class _Seen:
    """What is kept of one constraint while samples pass."""

    def __init__(self, constraint: Constraint, worst: int, device: torch.device) -> None:
        self.constraint, self.worst = constraint, worst
        self.length, self.violated, self.total = 0, torch.zeros((), dtype=torch.int64), 0.0
        self.counts = torch.zeros(2**BITS, dtype=torch.int64)
        self.excess, self.samples = torch.full((worst,), -math.inf, dtype=torch.float64), torch.zeros(worst).long()
        self.device = device

    def add_(self, measures: Mapping[str, Tensor], index: Tensor) -> tuple[Tensor, Tensor]:
        """Take in a batch; which of its samples have a value, and which are violated."""
        values = self.constraint.of(measures).detach().cpu()
        excess = self.constraint.worst_excess(values).double()
        counted, violated = excess > -math.inf, excess > 0
        self.length += int(counted.sum())
        self.violated += violated.sum()
        self.total += float(excess.relu().sum())
        places = _place(present(values).float())
        self.counts.index_add_(0, places, torch.ones_like(places))
        self._keep_(torch.cat([self.excess, excess]), torch.cat([self.samples, index]))
        return counted, violated

    def _keep_(self, excess: Tensor, samples: Tensor) -> None:
        # Of equal ones the first, wherever the batches or the processes end.
        order = samples.argsort(stable=True)
        order = order[excess[order].argsort(descending=True, stable=True)][: self.worst]
        self.excess, self.samples = excess[order], samples[order]

    def found(self, confidence: float, together: float) -> StreamedConstraint:
        """What all processes have seen together."""
        sums = torch.tensor([self.length, self.violated, self.total], dtype=torch.float64, device=self.device)
        length, violated, total = distributed.all_sum_(sums).tolist()
        counts = distributed.all_sum_(self.counts.to(self.device)).cpu()
        kept = (distributed.all_gather(each.to(self.device)).cpu() for each in (self.excess, self.samples))
        self._keep_(*kept)
        worst = [(int(i), float(by)) for i, by in zip(self.samples, self.excess, strict=True) if by > 0]
        return StreamedConstraint(
            int(length),
            int(violated),
            total,
            worst[0][1] if worst else 0.0,
            self.constraint,
            _quantiles(counts),
            worst,
            violation_rate_upper(int(violated), int(length), confidence, together),
            share=self.constraint.share,
        )


def _place(values: Tensor) -> Tensor:
    """Which of the intervals that :data:`BITS` tell apart each value is in, in their order."""
    bits = values.view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    place: Tensor = (ordered >> (32 - BITS)).long() + 2 ** (BITS - 1)
    return place


def _quantiles(counts: Tensor) -> dict[float, float]:
    below = counts.cumsum(0)
    if not (total := int(below[-1])):
        return {}
    ranks = torch.tensor([math.ceil(q * (total - 1)) for q in QUANTILES])
    places = torch.searchsorted(below, ranks, right=True) - 2 ** (BITS - 1)
    ordered = ((places << (32 - BITS)) + (1 << (31 - BITS))).to(torch.int32)  # the middle of the interval
    values = torch.where(ordered < 0, ordered ^ 0x7FFFFFFF, ordered).view(torch.float32)
    return dict(zip(QUANTILES, values.tolist(), strict=True))


def audit_in_stream(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    *,
    worst: int = 100,
    confidence: float = 0.95,
    compared: float = 1,
    batch_size: int | None = None,
    device: torch.device | None = None,
) -> StreamedAudit:
    """What :func:`samplewise.audits.audit` says of a data set of any size, in memory that does not grow with it.

    Counts, means and the worst samples are exact, and so are the bounds that follow from them; quantiles are to 0.05 %.
    Under several processes every one must call.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: a Dataset or a DataLoader.
        worst: how many violated samples of each constraint are named.
        confidence: of the upper bounds on the violation rate.
        compared: as in :func:`samplewise.audits.audit`.
        batch_size: samples in a batch; the DataLoader's, or 256, if not given.
        device: where to evaluate; where the model's parameters are if not given.
    """
    check(confidence, compared)
    whole_number(worst, "worst", 1)
    device, feed = check_given(problem, model, device), source_of(data)
    seen = [_Seen(each, worst, device) for each in problem.constraints]
    sums, mine = torch.zeros(3, dtype=torch.float64), bool(distributed.part_of(feed.source.length))

    def add(evaluation: Evaluation) -> None:
        if mine and evaluation.index is not None:
            masks = [torch.stack(each.add_(evaluation.measures, evaluation.index.cpu())) for each in seen]
            either = sum(masks, torch.zeros(2, len(evaluation.index), dtype=torch.bool))  # of masks, + is or
            sums.add_(torch.cat([evaluation.objective.double().sum().cpu().view(1), either.sum(1)]))

    for_each_batch(problem, model, feed, batch_size, device, add)
    objective, counted, violated = distributed.all_sum_(sums.to(device)).tolist()
    length, together = feed.source.length, len(seen) * compared
    parts = {each.constraint.name: each.found(confidence, together) for each in seen}
    counted = int(counted) if parts else length
    upper = violation_rate_upper(int(violated), counted, confidence, compared)
    return StreamedAudit(length, objective / length, int(violated), upper, parts, counted)
