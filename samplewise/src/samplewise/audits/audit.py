"""What holds on a whole data set: any model, however it was trained, as it ships (eval mode, true bounds)."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samplewise.audits.binomial import check, must_hold, percentage
from samplewise.audits.binomial import violation_rate_upper as violation_rate_upper
from samplewise.audits.columns import check_given, evaluate_all
from samplewise.audits.selection import selection_loss
from samplewise.constraints import Constraint, ViolationStats, present
from samplewise.errors import constraint_named
from samplewise.problem import ByContent, Problem
from samplewise.samples import Data, Feed, source_of

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, eq=False)
class ConstraintAudit(ByContent, ViolationStats):
    """How one constraint fares on a data set, by its true bound and in the measure's units, sample by sample."""

    samples: int = field(init=False)
    violated: int = field(init=False)
    total: float = field(init=False)
    worst: float = field(init=False)
    share: float = field(init=False)
    constraint: Constraint
    values: Tensor = field(repr=False)
    """:meth:`Constraint.of` every sample, ``(N,)`` or ``(N, m)``: the measure, or its difference from each sample's own
    bound; NaN where a sample has no value."""
    confidence: float
    """Of the upper bound on the violation rate."""
    n_comparisons: float = 1
    """How many bounds hold at once with that confidence: the constraints times the models compared."""
    excess: Tensor = field(init=False, repr=False)
    """How far each sample lies beyond the bound, ``(N,)`` float64; the worst of its values where it has several, minus
    infinity where it has none."""

    def __post_init__(self) -> None:
        # Found in the measure's own precision, as training finds it: in another one a value at its bound may be beyond.
        excess = self.constraint.worst_excess(self.values).double()
        violated, total, worst = ViolationStats.sums_of(excess)
        found = {"samples": int((excess > -math.inf).sum()), "violated": violated, "total": total, "worst": worst}
        vars(self).update(**found, share=self.constraint.share, excess=excess)

    @cached_property
    def violators(self) -> Tensor:
        """Numbers of the violated samples, in order."""
        return (self.excess > 0).nonzero().flatten()

    @cached_property
    def quantiles(self) -> dict[float, float]:
        """Quantiles of the values."""
        values = present(self.values).double().numpy()
        return dict(zip(QUANTILES, np.quantile(values, QUANTILES).tolist(), strict=True)) if len(values) else {}

    @cached_property
    def violation_rate_upper(self) -> float:
        """Exact upper bound on the violation rate, by :func:`violation_rate_upper`, at once with all constraints'."""
        return violation_rate_upper(self.violated, self.samples, self.confidence, self.n_comparisons)

    def worst_violators(self, k: int = 10) -> list[tuple[int, float]]:
        """The ``k`` most violated samples as ``(number, violation)``, worst first."""
        order = self.excess.argsort(descending=True, stable=True)[: min(k, self.violated)]
        return [(int(i), float(self.excess[i])) for i in order]

    @property
    def allowed_violators(self) -> list[tuple[int, float]]:
        """The worst violators, as many as may be; :meth:`samplewise.Method.costs` says what each would have cost."""
        return self.worst_violators(self.allowed)

    def suggest(self, share: float = 0.99, confidence: float | None = None) -> Constraint:
        """The tightest bound that at least ``share`` of fresh samples like these meet, as a constraint ready to use.

        Samples are those that have a value here.

        It keeps its word with probability ``confidence``, the audit's if not given, whatever the distribution, where
        the samples were not used in training: an order statistic of theirs, a nonparametric tolerance bound. It takes
        some samples, such as 299 for 0.99 at 95 % confidence. What these samples themselves meet is in ``quantiles``.
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
class Audit(ByContent, Mapping[str, ConstraintAudit]):
    """What holds on a whole data set, by its columns; ``audit["name"]`` is the part of one constraint."""

    objectives: Tensor
    """f_j of every sample, ``(N,)``."""
    measures: dict[str, Tensor]
    """Every measure of every sample, those no constraint bounds included; NaN where a sample has no value."""
    bounds: tuple[Constraint, ...]
    confidence: float = 0.95
    n_comparisons: float = 1
    """How many models were compared on these samples, this one among them: the bounds are corrected for so many
    (Bonferroni). ``math.inf`` if they were trained on: then nothing is said of others."""

    def __post_init__(self) -> None:
        check(self.confidence, self.n_comparisons)

    @cached_property
    def constraints(self) -> dict[str, ConstraintAudit]:
        """How each constraint fares, by its name."""
        total = len(self.bounds) * self.n_comparisons
        return {c.name: ConstraintAudit(c, c.of(self.measures), self.confidence, total) for c in self.bounds}

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
        return len(self.objectives)

    @cached_property
    def objective(self) -> float:
        """Mean objective."""
        return float(self.objectives.double().mean())

    @cached_property
    def means(self) -> dict[str, float]:
        """Mean of every measure, over the values that there are."""
        return {name: float(values.double().nanmean()) for name, values in self.measures.items()}

    @cached_property
    def violated(self) -> int:
        """Samples that violate a constraint, whichever."""
        return self._any(part.excess > 0 for part in self.values())

    @cached_property
    def failed(self) -> int:
        """Samples that violate a constraint which does not give them up."""
        return self._any((part.excess > 0) & ~part.constraint.left_out(part.excess) for part in self.values())

    def _any(self, masks: Iterable[Tensor]) -> int:
        return int(sum(masks, torch.zeros(self.samples, dtype=torch.bool)).sum())  # of masks, + is or

    @property
    def met(self) -> bool:
        """Whether each constraint holds for the share of samples that it asks for."""
        return not self.failed

    @cached_property
    def counted(self) -> int:
        """Samples that have a value of some constraint: of these shares and bounds are."""
        return self._any(part.excess > -math.inf for part in self.values()) if self.bounds else self.samples

    @property
    def satisfied(self) -> float:
        """Share of the counted samples that meet all constraints; 1 if none is counted."""
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

        ``target`` is the share of samples that must meet all constraints; if None each constraint must hold for its own
        share. See :func:`samplewise.audits.selection.selection_loss`.
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

    def __str__(self) -> str:
        lines = [f"{self.samples:,} samples, mean objective {self.objective:.6g}"]
        several, known = len(self.bounds) > 1, self.n_comparisons < math.inf
        for name, part in self.constraints.items():
            may = f", {part.allowed:,} may be" if part.share < 1 else ""
            if not part.samples:
                lines.append(f"  {name}: {part.constraint} asks for nothing here: no sample has a value")
                continue
            held = f"{part.constraint} holds for {self._share(part)} ({part.violated:,} violated{may})"
            sizes = f"mean violation {part.mean_violation:.4g}, worst {part.worst:.4g}"
            upper = self._upper(part.violation_rate_upper, " for all constraints at once" if several else "")
            lines.append(f"  {name}: {held}; {sizes}" + (f"; {upper}" if known else ""))
            if named := [f"{number} (by {by:.3g})" for number, by in part.allowed_violators]:
                lines.append(f"    given up: {', '.join(named[:5])}" + (", ..." if named[5:] else ""))
        if several:
            held = f"{self._share(self)} meet every constraint ({self.violated:,} violated)"
            lines.append(f"  all: {held}" + (f"; {self._upper(self.violation_rate_upper)}" if known else ""))
        return "\n".join(lines if known else [*lines, "  used in training, all or in part: nothing follows for others"])

    def _share(self, part: "ConstraintAudit | Audit") -> str:
        """The share that is satisfied, and of which samples if some have no value."""
        counted = part.counted if isinstance(part, Audit) else part.samples
        among = f" of the {counted:,} samples that have a value" if counted < self.samples else ""
        return percentage(part.satisfied, digits=2) + among

    def _upper(self, rate: float, at_once: str = "") -> str:
        corrected = (
            f", corrected for {self.n_comparisons:,.10g} comparisons on these samples" if self.n_comparisons > 1 else ""
        )
        return (
            f"of samples like these, not used in training, at most {percentage(rate, math.ceil, 2)} are violated "
            f"({100 * self.confidence:.10g}% confidence{at_once}{corrected})"
        )


def audit(
    problem: Problem,
    model: nn.Module,
    data: Data | Feed,
    *,
    confidence: float = 0.95,
    n_comparisons: float = 1,
    batch_size: int | None = None,
    device: torch.device | None = None,
) -> Audit:
    """Evaluate every sample once, in eval mode, and report what holds.

    Under several processes every one must call: each evaluates its part and all get the whole result.

    Args:
        problem: what to minimise and what must hold.
        model: any model; its training flag is left as it was.
        data: a Dataset or a DataLoader.
        confidence: of the upper bounds on the violation rate.
        n_comparisons: how many models were compared on these samples, such as the audits of :func:`samplewise.fit`;
            the bounds are corrected for it. ``math.inf`` if it was trained on them: then they say nothing of others.
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
    device = check_given(problem, model, device)
    columns = evaluate_all(problem, model, source_of(data), batch_size, device)
    return Audit(columns.pop(""), columns, problem.constraints, confidence, n_comparisons)
