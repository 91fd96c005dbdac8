"""What all methods share: the call, the round's statistics, the schedule and its state."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samplewise import distributed
from samplewise.constraints import Constraint, check_constraints
from samplewise.errors import CheckpointError, ConfigurationError, did_you_mean
from samplewise.methods import checks
from samplewise.schedules import Feasibility, Schedule

__all__ = ["ConstraintRound", "Method", "Round"]


@dataclass(frozen=True)
class ConstraintRound:
    """How one constraint fared in a round, by its true bound, in the measure's units.

    The numbers are taken while the weights move, batch by batch: an audit gives those of one model.
    """

    tau: float
    satisfied: float
    """Share of the samples that met the bound; a sample with several values meets it with all of them."""
    mean_violation: float
    worst: float
    """Largest violation, 0 if there was none."""


@dataclass(frozen=True)
class Round:
    """Summary of outer iteration k: what :meth:`Method.step` returns."""

    number: int
    """k, from 0."""
    samples: int
    objective: float
    """Mean objective over the samples."""
    constraints: dict[str, ConstraintRound]

    def __getitem__(self, name: str) -> ConstraintRound:
        return self.constraints[name]


class Method(nn.Module, ABC):
    """Turns the objective and the measures of a batch into one scalar loss.

    The loss is the mean over the batch of ``f_j`` plus what the constraints add for sample j, so tau means the same at
    any batch size. In training mode the call also keeps the round's statistics; :meth:`step` ends the round.

    Args:
        constraints: the requirements.
        schedule: one rule for tau, or one for each constraint by its name.
    """

    def __init__(self, constraints: Iterable[Constraint], schedule: Schedule | Mapping[str, Schedule]) -> None:
        super().__init__()
        self.constraints = check_constraints(constraints)
        self.schedules = _schedules(self.constraints, schedule)
        self._taus = [rule.tau0 for rule in self.schedules]
        self._before: list[Feasibility | None] = [None] * len(self.constraints)
        self._completed = 0
        self._calls = 0
        count = len(self.constraints)
        self.sums: Tensor
        self.worst: Tensor
        self.seen: Tensor
        self.weights: Tensor
        self.faults: Tensor
        self.register_buffer("sums", torch.zeros(1 + 2 * count))  # objective; violation and satisfied by constraint
        self.register_buffer("worst", torch.zeros(count))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("weights", torch.tensor(self._taus, dtype=torch.float32), persistent=False)
        # One row for the objective and for each constraint: how many values were not finite, first step, first sample.
        self.register_buffer("faults", torch.zeros(1 + count, 3, dtype=torch.int64), persistent=False)

    @abstractmethod
    def terms(self, gs: Sequence[Tensor], index: Tensor | None, sample_weight: Tensor | None) -> list[Tensor]:
        """What each constraint adds to the loss of each sample, shape ``(B,)`` each.

        Args:
            gs: for each constraint g of shape ``(B,)`` or ``(B, m)``.
            index: sample indices ``(B,)``.
            sample_weight: ``(B,)``; zero marks padding.
        """

    @abstractmethod
    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """Multiplier estimates of one constraint, of the shape of ``g``, for the samples ``index``."""

    def forward(
        self,
        objective: Tensor,
        *,
        index: Tensor | None = None,
        sample_weight: Tensor | None = None,
        **measures: Tensor,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            objective: f_j of each sample, shape ``(B,)``.
            index: each sample's number in the data set, shape ``(B,)``; needed by methods with per-sample state.
            sample_weight: weights of the mean, shape ``(B,)``. A sample of weight zero counts as absent.
            measures: ``(B,)`` or ``(B, m)`` each, by name. Measures no constraint bounds are ignored.

        Returns:
            A scalar.
        """
        checks.check_objective(objective)
        if index is not None:
            checks.check_index(index, objective)
        if sample_weight is not None:
            checks.check_sample_weight(sample_weight, objective)
        picked = [checks.pick_measure(constraint, measures, objective) for constraint in self.constraints]
        if self.training:
            self._tally(objective, picked, index, sample_weight)
        gs = [constraint.g(measure) for constraint, measure in zip(self.constraints, picked, strict=True)]
        total = objective
        for term in self.terms(gs, index, sample_weight):
            total = total + term
        if sample_weight is None:
            return total.mean()
        # A batch of padding alone has weight zero and loss zero, not NaN.
        return (total * sample_weight).sum() / sample_weight.sum().clamp_min(torch.finfo(total.dtype).tiny)

    def _tally(
        self, objective: Tensor, picked: list[Tensor], index: Tensor | None, sample_weight: Tensor | None
    ) -> None:
        """Add the batch to the round's statistics and look for values that are not finite."""
        present = None if sample_weight is None else sample_weight > 0
        with torch.no_grad():
            rows = [objective.detach() if present is None else objective.detach() * present]
            probes = []
            worst = []
            for constraint, measure in zip(self.constraints, picked, strict=True):
                excess = constraint.excess(measure.detach())
                if excess.ndim > 1:
                    excess = excess.amax(1)
                if present is not None:
                    excess = excess.masked_fill(~present, -1.0)
                violation = torch.relu(excess)
                rows += [violation, excess <= 0]
                worst.append(violation.max())
                probes.append(excess)
            sums = torch.stack([row.sum(dtype=torch.float32) for row in rows])
            self._watch(objective, picked, sums, probes, index)
            if present is not None:
                sums[2::2] -= (~present).sum()
                self.seen += present.sum()
            else:
                self.seen += len(objective)
            self.sums += sums
            if worst:
                torch.maximum(self.worst, torch.stack(worst).float(), out=self.worst)
        self._calls += 1

    def _watch(
        self, objective: Tensor, picked: list[Tensor], sums: Tensor, probes: list[Tensor], index: Tensor | None
    ) -> None:
        """Find values that are not finite: at once on a CPU, by a note on the device elsewhere (no stall)."""
        if objective.device.type == "cpu" and not torch.compiler.is_compiling():
            # One sum is finite only if all its parts are; the exact look is left to the rare case that it is not.
            probe = sums[0] + sum(excess.sum() for excess in probes)
            if not math.isfinite(float(probe)):
                checks.raise_if_not_finite(zip(self._watched(), [objective, *picked], strict=True), index, self._calls)
            return
        for row, values in enumerate([objective, *picked]):
            bad = checks.bad_rows(values)
            first = bad.int().argmax()
            sample = first if index is None else index[first]
            note = torch.stack([bad.sum(), torch.full_like(self.seen, self._calls), sample.to(torch.int64)])
            self.faults[row] = torch.where(self.faults[row, 0] > 0, self.faults[row], note)

    def _watched(self) -> list[str]:
        return ["the objective", *(f"the measure of the constraint {c.name!r} ({c})" for c in self.constraints)]

    def check(self) -> None:
        """Raise if a value that is not finite was noted on an accelerator since the last check (waits for it)."""
        for description, (count, step, sample) in zip(self._watched(), self.faults.tolist(), strict=True):
            if count:
                self.faults.zero_()
                raise checks.not_finite(description, [sample], count, step, positions=False)

    def summary(self) -> Round:
        """The round so far, over all processes; nothing changes."""
        self.check()
        sums = distributed.all_sum_(self.sums.clone()).tolist()
        worst = distributed.all_max_(self.worst.clone()).tolist()
        samples = int(distributed.all_sum_(self.seen.clone()).item())
        shares = [total / samples if samples else math.nan for total in sums]
        return Round(
            number=self._completed,
            samples=samples,
            objective=shares[0],
            constraints={
                constraint.name: ConstraintRound(
                    tau=self._taus[i], satisfied=shares[2 + 2 * i], mean_violation=shares[1 + 2 * i], worst=worst[i]
                )
                for i, constraint in enumerate(self.constraints)
            },
        )

    def step(self) -> Round:
        """End the round: return its summary, let tau grow, start new statistics (outer loop, section III)."""
        summary = self.summary()
        self._completed += 1
        for i, (rule, fared) in enumerate(zip(self.schedules, summary.constraints.values(), strict=True)):
            now = Feasibility(fared.satisfied, fared.mean_violation)
            self._taus[i] = rule.following(self._taus[i], self._completed, now, self._before[i])
            self._before[i] = now
        self.weights.copy_(torch.tensor(self._taus))
        self._forget()
        return summary

    def gather_(self) -> None:
        """Move all processes' statistics to the first one, whose state is then that of the whole run."""
        for buffer in (self.sums, self.seen):
            distributed.all_sum_(buffer)
        distributed.all_max_(self.worst)
        self.keep_statistics_of_first_()

    def keep_statistics_of_first_(self) -> None:
        """Forget the statistics in all processes but the first: after a load all hold those of the whole run."""
        if distributed.rank() > 0:
            self._forget()

    def _forget(self) -> None:
        for buffer in (self.sums, self.worst, self.seen):
            buffer.zero_()

    def _tau(self, i: int) -> float | Tensor:
        # A compiled graph must not be rebuilt whenever tau grows, so it reads tau from a buffer.
        return self.weights[i] if torch.compiler.is_compiling() else self._taus[i]

    def _position(self, name: str) -> int:
        for i, constraint in enumerate(self.constraints):
            if constraint.name == name:
                return i
        names = [constraint.name for constraint in self.constraints]
        raise ConfigurationError(f"no constraint is called {name!r}, only {names}.{did_you_mean(name, names)}")

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return self._completed

    @property
    def taus(self) -> dict[str, float]:
        """The present weight of each constraint."""
        return {constraint.name: tau for constraint, tau in zip(self.constraints, self._taus, strict=True)}

    @property
    def tau(self) -> float:
        """The present weight, where all constraints have the same."""
        if not self._taus:
            return 0.0
        if len(set(self._taus)) > 1:
            raise ConfigurationError(f"the constraints have different weights, {self.taus}: read method.taus")
        return self._taus[0]

    def get_extra_state(self) -> Tensor:
        """The schedule's state as one float64 tensor: exact on any device, and no pickle."""
        before = [math.nan if pair is None else value for pair in self._before for value in (pair or (0.0, 0.0))]
        return torch.tensor([self._completed, self._calls, *self._taus, *before], dtype=torch.float64)

    def set_extra_state(self, state: Any) -> None:
        """Take back what :meth:`get_extra_state` gave."""
        count = len(self.constraints)
        values = state.tolist()
        self._completed, self._calls = int(values[0]), int(values[1])
        self._taus = values[2 : 2 + count]
        pairs = zip(values[2 + count :: 2], values[3 + count :: 2], strict=True)
        self._before = [None if math.isnan(pair[0]) else Feasibility(*pair) for pair in pairs]
        self.weights.copy_(torch.tensor(self._taus))

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state of the same kind of method over the same constraints."""
        own = self.state_dict()
        wrong = [key for key in own if key not in state_dict or state_dict[key].shape != own[key].shape]
        wrong += [key for key in state_dict if key not in own]
        if wrong:
            raise CheckpointError(
                f"this state is of another method or other constraints than {type(self).__name__} over "
                f"{[str(c) for c in self.constraints]}: {', '.join(wrong)} differ in name or shape"
            )
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def extra_repr(self) -> str:
        return ", ".join(
            f"{constraint} (tau={tau:g})" for constraint, tau in zip(self.constraints, self._taus, strict=True)
        )


def _schedules(constraints: tuple[Constraint, ...], schedule: Schedule | Mapping[str, Schedule]) -> list[Schedule]:
    names = [constraint.name for constraint in constraints]
    if isinstance(schedule, Schedule):
        return [schedule] * len(names)
    if not isinstance(schedule, Mapping):
        raise ConfigurationError(
            f"expected a schedule such as Constant({schedule!r}) or Geometric({schedule!r}, growth=1.01), "
            f"got {type(schedule).__name__}"
        )
    for name in schedule:
        if name not in names:
            raise ConfigurationError(
                f"a schedule is given for {name!r}, which no constraint is called.{did_you_mean(name, names)}"
            )
    missing = [name for name in names if name not in schedule]
    if missing:
        raise ConfigurationError(f"no schedule is given for {', '.join(missing)}")
    return [schedule[name] for name in names]
