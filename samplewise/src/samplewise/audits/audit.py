"""Audits: which samples of a data set are within their bounds, for any model, in eval mode and by the true bounds."""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from samplewise.audits.binomial import check, must_hold
from samplewise.audits.binomial import violation_rate_upper as violation_rate_upper
from samplewise.audits.columns import check_given, evaluate_all, for_each_batch, source_to_audit
from samplewise.audits.streaming import QUANTILES, ConstraintTotals, Totals, TotalsAccumulator
from samplewise.constraints import Constraint, ViolationStats, present
from samplewise.errors import ConfigurationError, constraint_named, whole_number
from samplewise.printed import Printed, Printout, percentage
from samplewise.problem import ByContent, Problem
from samplewise.samples import Data, Feed

INFEASIBLE = 1e20
"""The selection loss of a model that misses its target is at least this, of one that meets it at most half of it."""


def _not_kept(what: str) -> ConfigurationError:
    return ConfigurationError(f"{what} of an audit with keep_values=False cannot be known: audit with keep_values=True")


@dataclass(frozen=True, eq=False)
class ConstraintAudit(ByContent, ViolationStats):
    """Violation of one constraint on a data set, by its true bound and in the measure's units."""

    samples: int = field(init=False)
    violated: int = field(init=False)
    total: float = field(init=False)
    worst: float = field(init=False)
    share: float = field(init=False)
    constraint: Constraint
    kept: Tensor | None = field(repr=False)
    """The ``values``; None if they were not kept."""
    confidence: float
    """Of the upper bound on the violation rate."""
    n_comparisons: float = 1
    """Number of bounds that hold at once with that confidence: the constraints times the models compared."""
    totals: ConstraintTotals | None = field(default=None, repr=False)
    """What is known where the values were not kept."""

    def __post_init__(self) -> None:
        if self.totals is None:
            counted = int((self.excess > -math.inf).sum())
            stats = ViolationStats(counted, *ViolationStats.sums_of(self.excess))
        else:
            stats = self.totals.stats
        found = {name: getattr(stats, name) for name in ("samples", "violated", "total", "worst")}
        vars(self).update(**found, share=self.constraint.share)

    @property
    def values(self) -> Tensor:
        """:meth:`Constraint.of` every sample, ``(N,)`` or ``(N, m)``: the measure, or its difference from the bound of
        each sample; NaN where a sample has no value.
        """
        if self.kept is None:
            raise _not_kept("values")
        return self.kept

    @cached_property
    def excess(self) -> Tensor:
        """How far each sample lies beyond the bound, ``(N,)`` float64; of several values the worst, and minus infinity
        where a sample has no value.
        """
        # Found in the measure's own precision, as training finds it: in another one a value at its bound may be beyond.
        return self.constraint.worst_excess(self.values).double()

    @cached_property
    def violators(self) -> Tensor:
        """Numbers of the violated samples, in order."""
        return (self.excess > 0).nonzero().flatten()

    @cached_property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of the values; to 0.05 % of their size where the values were not kept."""
        if self.totals is not None:
            return self.totals.quantiles
        values = present(self.values).double().numpy()
        return dict(zip(QUANTILES, np.quantile(values, QUANTILES).tolist(), strict=True)) if len(values) else {}

    @cached_property
    def violation_rate_upper(self) -> float:
        """Exact upper bound on the violation rate, by :func:`violation_rate_upper`, at once with all constraints'."""
        return violation_rate_upper(self.violated, self.samples, self.confidence, self.n_comparisons)

    def worst_violators(self, k: int = 10) -> list[tuple[int, float]]:
        """The ``k`` most violated samples as ``(number, violation)``, worst first."""
        if self.totals is not None:
            named = self.totals.worst_violators
            if min(k, self.violated) > len(named):
                raise _not_kept(f"more than the {len(named)} worst violators")
            return list(named[:k])
        order = self.excess.argsort(descending=True, stable=True)[: min(k, self.violated)]
        return [(int(i), float(self.excess[i])) for i in order]

    @property
    def allowed_violators(self) -> list[tuple[int, float]]:
        """The worst violators, as many as are allowed; :meth:`samplewise.Method.costs` says what each would cost."""
        return self.worst_violators(self.allowed)

    def suggest(self, share: float = 0.99, confidence: float | None = None) -> Constraint:
        """The tightest bound that at least ``share`` of fresh samples like these meet, as a constraint ready to use.

        This holds with probability ``confidence``, the audit's if not given, for any distribution, where the samples
        were not used in training: the bound is an order statistic, a nonparametric tolerance bound. It takes some
        samples with a value, such as 299 for 0.99 at 95 % confidence. What these samples meet is in ``quantiles``.
        """
        confidence = self.confidence if confidence is None else confidence
        if not self.samples:
            return self.constraint  # any bound holds where no sample has a value
        needed = must_hold(self.samples, share, confidence, self.n_comparisons)
        bounded, values = self.excess[self.excess > -math.inf], present(self.values)
        reach = float(bounded.kthvalue(needed).values)
        # Adding to the bound rounds, so step outward, ever further, until the share is met as an audit counts it.
        step = 1e-15 * max(abs(reach), float(values.abs().max()), 1e-300)
        while True:
            constraint = self.constraint.relaxed(reach)
            if self.samples - int((constraint.worst_excess(self.values) > 0).sum()) >= needed:
                return constraint
            reach, step = reach + step, 2 * step

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without those of each sample."""
        counts = ("samples", "violated", "satisfied", "share", "allowed", "met", "mean_violation", "worst")
        return {
            "constraint": str(self.constraint),
            **{name: getattr(self, name) for name in (*counts, "confidence", "n_comparisons", "violation_rate_upper")},
            "quantiles": {f"{q:g}": value for q, value in self.quantiles.items()},
        }


@dataclass(frozen=True, eq=False)
class Audit(Printed, ByContent, Mapping[str, ConstraintAudit]):
    """What :func:`audit` found on a data set; ``audit["name"]`` is the part of one constraint."""

    objectives: Tensor
    """f_j of every sample, ``(N,)``; empty if values were not kept."""
    measures: dict[str, Tensor]
    """Every measure of every sample, those no constraint bounds included; NaN where a sample has no value. Empty if
    values were not kept."""
    bounds: tuple[Constraint, ...]
    confidence: float = 0.95
    n_comparisons: float = 1
    """How many models were compared on these samples, this one among them; the bounds are corrected for it.
    ``math.inf`` if the samples were trained on: then there is no bound for others."""
    totals: Totals | None = None
    """The totals, if values were not kept."""

    def __post_init__(self) -> None:
        check(self.confidence, self.n_comparisons)

    @cached_property
    def constraints(self) -> dict[str, ConstraintAudit]:
        """The part of each constraint, by its name."""
        total, found = len(self.bounds) * self.n_comparisons, {}
        for c in self.bounds:
            values = c.of(self.measures) if self.totals is None else None
            totals = None if self.totals is None else self.totals.constraints[c.name]
            found[c.name] = ConstraintAudit(c, values, self.confidence, total, totals)
        return found

    def __getitem__(self, name: str) -> ConstraintAudit:
        found: ConstraintAudit = constraint_named(name, self.constraints)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.constraints)

    def __len__(self) -> int:
        return len(self.constraints)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return len(self.objectives) if self.totals is None else self.totals.samples

    @cached_property
    def objective(self) -> float:
        """Mean objective."""
        return float(self.objectives.double().mean()) if self.totals is None else self.totals.objective

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean of every measure, over all values that are not missing."""
        if self.totals is not None:
            return self.totals.means
        return {name: float(values.double().nanmean()) for name, values in self.measures.items()}

    @cached_property
    def violated(self) -> int:
        """Samples that violate some constraint."""
        return self._any(part.excess > 0 for part in self.values()) if self.totals is None else self.totals.violated

    @cached_property
    def failed(self) -> int:
        """Samples that violate some constraint and are not among its allowed violators."""
        if self.totals is not None:
            if all(part.share == 1 for part in self.values()):
                return self.violated
            if len(self) > 1:
                raise _not_kept("how many samples fail several constraints with a share")
            return sum(part.failed for part in self.values())
        return self._any((part.excess > 0) & ~part.constraint.left_out(part.excess) for part in self.values())

    def _any(self, masks: Iterable[Tensor]) -> int:
        return int(sum(masks, torch.zeros(self.samples, dtype=torch.bool)).sum())  # of masks, + is or

    @property
    def met(self) -> bool:
        """Whether each constraint holds for the share of the samples that it asks for."""
        return all(part.met for part in self.values())

    @cached_property
    def counted(self) -> int:
        """Samples that have a value of some constraint, to which fractions and bounds refer."""
        if self.totals is not None:
            return self.totals.counted
        return self._any(part.excess > -math.inf for part in self.values()) if self.bounds else self.samples

    @property
    def satisfied(self) -> float:
        """Fraction of the counted samples that meet all constraints; 1 if none is counted."""
        return (self.counted - self.violated) / self.counted if self.counted else 1.0

    @cached_property
    def violation_rate_upper(self) -> float:
        """Exact upper bound on the probability of violating any constraint, by :func:`violation_rate_upper`."""
        return violation_rate_upper(self.violated, self.counted, self.confidence, self.n_comparisons)

    @cached_property
    def mean_violation(self) -> float:
        """Sum over the constraints of the mean violation, each in units of its scale."""
        return sum(part.mean_violation / part.constraint.scale for part in self.constraints.values() if part.samples)

    def selection_loss(self, target: float | None = None) -> float:
        """One number to choose a model by, lower is better: feasible ones first, and among them the objective.

        ``target`` is the fraction of samples that must meet all constraints; if None each constraint must hold for its
        own share. See :func:`samplewise.audits.audit.selection_loss`.
        """
        feasible, beyond = (self.met, self.failed) if target is None else (self.satisfied >= target, self.violated)
        return selection_loss(feasible, self.objective, beyond, self.mean_violation)

    def suggest(self, share: float = 0.99, confidence: float | None = None) -> dict[str, Constraint]:
        """For each constraint the tightest bound that at least ``share`` of fresh samples meet.

        With probability ``confidence``, the audit's if not given, all of them do: see :meth:`ConstraintAudit.suggest`.
        """
        return {name: part.suggest(share, confidence) for name, part in self.constraints.items()}

    def to_dict(self) -> dict[str, Any]:
        """The numbers as plain values, without those of each sample."""
        parts = {name: part.to_dict() for name, part in self.constraints.items()}
        sums = ("samples", "counted", "objective", "means", "violated", "satisfied", "met", "n_comparisons")
        return {**{name: getattr(self, name) for name in (*sums, "violation_rate_upper")}, "constraints": parts}

    def printout(self) -> Printout:
        known, notes = self.n_comparisons < math.inf, []
        head = ("constraint", "met", "violated", "mean violation", "worst")
        rows: list[tuple[str, ...]] = [(*head, "unseen at most") if known else head]
        for name, part in self.constraints.items():
            if not part.samples:
                rows.append((str(part.constraint), "no sample has a value"))
                continue
            may = f" ({part.allowed:,} may be)" if part.share < 1 else ""
            among = f" of {part.samples:,}" if part.samples < self.samples else ""
            upper = [percentage(part.violation_rate_upper, math.ceil, 2)] if known else []
            sizes = f"{part.mean_violation:.4g}", f"{part.worst:.4g}"
            fraction = percentage(part.satisfied, digits=2)
            rows.append((str(part.constraint), fraction, f"{part.violated:,}{among}{may}", *sizes, *upper))
            allowed = min(part.allowed, part.violated)
            shown = min(allowed, 5 if part.totals is None else len(part.totals.worst_violators[:5]))
            if named := [f"{number} (by {by:.3g})" for number, by in part.worst_violators(shown)]:
                notes.append(f"{name}, allowed violators: {', '.join(named)}" + (", ..." if allowed > shown else ""))
        if known and self.bounds:
            notes.insert(0, self._unseen)
        elif self.bounds:
            notes.insert(0, "Used in training, all or in part: nothing follows for other samples.")
        return Printout(self._verdict, rows if self.bounds else (), notes)

    @property
    def _verdict(self) -> str:
        """What holds, in one sentence."""
        objective = f"mean objective {self.objective:.6g}"
        if not self.bounds:
            return f"No constraint: {self.samples:,} samples, {objective}."
        among = " that have a value" if self.counted < self.samples else ""
        fraction = f"{percentage(self.satisfied, digits=2)} of {self.counted:,} samples{among} meet every constraint"
        return f"{'Met' if self.met else 'Not met'}: {fraction} ({self.violated:,} violated); {objective}."

    @property
    def _unseen(self) -> str:
        """The bound for unseen samples, in one sentence."""
        times = f", corrected for {self.n_comparisons:,.10g} comparisons" if self.n_comparisons > 1 else ""
        upper = percentage(self.violation_rate_upper, math.ceil, 2)
        at_once = "; the bounds in the table hold at once" if len(self.bounds) > 1 else ""
        return (
            f"Of samples like these, not used in training, at most {upper} are violated "
            f"({100 * self.confidence:.10g}% confidence{times}{at_once})."
        )


def selection_loss(feasible: bool, objective: float, violated: int, mean_violation: float) -> float:
    """One number that orders models as :func:`samplewise.fit` selects them, the lower the better.

    For a feasible model it is the objective itself, so that tolerances such as a scheduler's ``threshold`` mean what
    they mean for a loss. Infeasible models come after all feasible ones, ordered by the violated samples, 1e20 for
    each, and between equal numbers by the mean violation, which adds less than one sample.
    """
    if feasible:
        return min(objective, INFEASIBLE / 2)
    # By its logarithm: a fraction of the mean violation itself would be lost beside the samples' number.
    size = math.log2(min(max(mean_violation, sys.float_info.min), sys.float_info.max))
    return INFEASIBLE * (violated + (size + 1023) / 2048)


def audit(
    problem: Problem,
    model: nn.Module,
    data: Data | IterableDataset[Any] | Feed,
    *,
    keep_values: bool = True,
    worst: int = 100,
    confidence: float = 0.95,
    n_comparisons: float = 1,
    batch_size: int | None = None,
    device: torch.device | None = None,
) -> Audit:
    """Evaluate every sample once, in eval mode, and report what holds.

    Under several processes every one must call: each evaluates its part and all get the whole result. A stream, an
    IterableDataset, is read from its beginning to its end, in one process; its samples are numbered in that order.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: a Dataset or a DataLoader.
        keep_values: whether the audit holds the measures of every sample. If not, memory does not grow with the data:
            counts, means, the worst violators and the bounds are still exact, quantiles are to 0.05 %.
        worst: number of violators of each constraint to keep if values are not kept.
        confidence: of the upper bounds on the violation rate.
        n_comparisons: how many models were compared on these samples, such as the audits of :func:`samplewise.fit`;
            the bounds are corrected for it. ``math.inf`` if the samples were trained on: then there is no bound.
        batch_size: samples in a batch, which changes only speed and memory; the DataLoader's, or 256, if not given.
        device: where to evaluate; where the model's parameters are if not given.

    Example:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from samplewise import AtMost, Problem
        >>> problem = Problem(lambda model, batch: (batch[0], {"value": batch[0]}), [AtMost("value", 7.5)])
        >>> report = audit(problem, torch.nn.Identity(), TensorDataset(torch.arange(10.0)))
        >>> report["value"].satisfied, report["value"].violators
        (0.8, tensor([8, 9]))
    """
    check(confidence, n_comparisons)
    whole_number(worst, "worst", 1)
    device = check_given(problem, model, device)
    source = source_to_audit(data, batch_size)
    if keep_values:
        columns = evaluate_all(problem, model, source, batch_size, device)
        return Audit(columns.pop(""), columns, problem.constraints, confidence, n_comparisons)
    sums = TotalsAccumulator(problem.constraints, worst, device)
    for_each_batch(problem, model, source, batch_size, device, lambda batch, counts: sums.add_(batch, counts=counts))
    return Audit(torch.empty(0), {}, problem.constraints, confidence, n_comparisons, sums.totals())
