"""What all methods share: the call, the schedule and its state."""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from samplewise.constraints import Constraint, check_constraints
from samplewise.errors import CheckpointError, ConfigurationError, MeasureError, SamplewiseError, did_you_mean
from samplewise.methods import checks
from samplewise.methods.full_precision import FullPrecision
from samplewise.methods.tally import Fault, Round, Tally
from samplewise.schedules import Feasibility, Schedule, for_each

__all__ = ["Method", "Rows"]


class Rows(NamedTuple):
    """Rows of the tables of per-sample state."""

    own: Tensor
    """Of this process's batch, ``(B,)``."""
    everyone: Tensor
    """Of all processes' batches, one after the other."""


class Method(FullPrecision, ABC):
    """Turns the objective and the measures of a batch into one scalar loss.

    The loss is the mean over the batch of ``f_j`` plus what the constraints add for sample j, so tau means the same at
    any batch size. In training mode, where gradients are enabled, the call also keeps the round's statistics;
    :meth:`step` ends the round.

    Half precision stays outside: values are taken to float32 first, and ``.half()`` or ``.to(dtype)`` of a method or
    of a module that holds it leave the method's state as it is.

    Args:
        constraints: the requirements.
        schedule: one rule for tau, or one for each constraint by its name.
    """

    enforces: ClassVar[bool] = True
    """Whether the constraints change the loss, so that their measures must carry gradients."""
    weights: Tensor

    def __init__(self, constraints: Iterable[Constraint], schedule: Schedule | Mapping[str, Schedule]) -> None:
        super().__init__()
        self.constraints = check_constraints(constraints)
        self.schedules = for_each(schedule, [constraint.name for constraint in self.constraints])
        self.tally = Tally(len(self.constraints), len(self._watched()))
        self._taus = [rule.tau0 for rule in self.schedules]
        self._before: list[Feasibility | None] = [None] * len(self.constraints)
        self._trained = list(self._taus)  # of the last round that had samples
        self._completed = 0
        self.register_buffer("weights", torch.tensor(self._taus, dtype=torch.float32), persistent=False)

    def locate(self, index: Tensor | None, present: Tensor | None) -> Rows | None:
        """Where the batch's per-sample state is, for methods that have such; raises before anything is counted.

        Args:
            index: sample indices ``(B,)``.
            present: mask ``(B,)`` of the samples that are not padding; None if all are.
        """
        return None

    def check_samples(self, count: int) -> None:
        """Raise if the method cannot serve a data set of ``count`` samples, for methods with per-sample state."""
        return None

    def _counts(self) -> bool:
        """Whether a call now is part of training: a validation loss leaves no trace."""
        return self.training and torch.is_grad_enabled()

    @abstractmethod
    def add_terms(self, total: Tensor, gs: Sequence[Tensor], rows: Rows | None, present: Tensor | None) -> Tensor:
        """Return ``total`` plus what the constraints add to the loss of each sample, shape ``(B,)``.

        Args:
            total: the objective of each sample, ``(B,)``.
            gs: for each constraint g of shape ``(B,)`` or ``(B, m)``.
            rows: what :meth:`locate` gave.
            present: mask ``(B,)`` of the samples that are not padding; None if all are.
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

        The batch counts into the round's statistics, and moves multipliers, only in training mode with gradients
        enabled: a call after ``eval()`` or under ``torch.no_grad()``, such as a validation loss, changes nothing.

        Args:
            objective: f_j of each sample, shape ``(B,)``.
            index: each sample's number in the data set, shape ``(B,)``; needed by methods with per-sample state.
            sample_weight: weights of the mean, shape ``(B,)``. A sample of weight zero counts as absent.
            measures: ``(B,)`` or ``(B, m)`` each, by name. Measures no constraint bounds are ignored. Where the
                objective carries a gradient the bounded ones must too, unless nothing is enforced.

        Returns:
            A scalar.
        """
        objective = checks.check_objective(objective)
        if not objective.is_cpu and objective.device != self.weights.device:
            raise MeasureError(
                f"the objective is on {objective.device}, the method on {self.weights.device}: "
                f"call method.to({str(objective.device)!r})"
            )
        if index is not None:
            index = checks.check_index(index, objective)
        present = None
        if sample_weight is not None:
            sample_weight = checks.check_sample_weight(sample_weight, objective)
            present = sample_weight > 0
        picked = [checks.pick_measure(constraint, measures, objective) for constraint in self.constraints]
        if self.enforces and objective.requires_grad and torch.is_grad_enabled():
            checks.check_gradients(self.constraints, picked)
        excesses = [constraint.excess(measure) for constraint, measure in zip(self.constraints, picked, strict=True)]
        rows = self.locate(index, present)
        if self._counts():
            self._count(objective, picked, excesses, index, present)
        gs = [constraint.tightened(excess) for constraint, excess in zip(self.constraints, excesses, strict=True)]
        total = self.add_terms(objective, gs, rows, present)
        if sample_weight is None or present is None:
            return total.mean()
        # What padding holds must not matter, not even NaN; a batch of padding alone has loss zero, not 0 / 0.
        kept = torch.where(present, total, 0.0) * sample_weight
        return kept.sum() / sample_weight.sum().clamp_min(torch.finfo(total.dtype).tiny)

    def _count(
        self,
        objective: Tensor,
        picked: list[Tensor],
        excesses: list[Tensor],
        index: Tensor | None,
        present: Tensor | None,
    ) -> None:
        """Add the batch to the round's statistics, unless it holds values that are not finite."""
        columns = [objective.detach()]
        for excess in excesses:
            excess = excess.detach()
            # The largest of several values would hide that another one is minus infinity; 0 * inf does not.
            columns.append(excess if excess.ndim == 1 else excess.amax(1) + (0 * excess).sum(1))
        values = torch.stack(columns)
        if present is not None:
            values = values.where(present, 0.0)
        tally = self.tally
        if not checks.can_look(values):
            tally.note_(0, ~values.isfinite(), index)
            tally.add_(values, present)
        elif not tally.read_(values, values.shape[1] if present is None else int(present.sum())):
            named = zip(self._watched(), [objective, *picked], strict=True)
            checks.raise_if_not_finite(named, index, tally.calls, present)

    def _watched(self) -> list[str]:
        """What is looked at for faults, in words."""
        return checks.watched(self.constraints)

    def _error(self, fault: Fault) -> SamplewiseError:
        return checks.not_finite(
            self._watched()[fault.row], [fault.sample], fault.affected, fault.step, positions=not fault.numbered
        )

    def check(self) -> None:
        """Raise if a bad value was noted on an accelerator since the last check (waits for it)."""
        self._raise_fault(everywhere=False)

    def _raise_fault(self, *, everywhere: bool) -> None:
        fault = self.tally.first_fault_(everywhere=everywhere)
        if fault is not None:
            raise self._error(fault)

    def summary(self) -> Round:
        """The round so far, over all processes, each of which must call; nothing changes."""
        self._raise_fault(everywhere=True)  # in all processes: if only one raised, the others would wait for it
        return self.tally.totals().round(self._completed, self.taus)

    def step(self) -> Round:
        """End the round: return its summary, let tau grow, start new statistics (outer loop, section III)."""
        summary = self.summary()
        if summary.samples:
            self._trained = list(self._taus)
        self._completed += 1
        for i, (rule, fared) in enumerate(zip(self.schedules, summary.constraints.values(), strict=True)):
            now = Feasibility(fared.satisfied, fared.mean_violation)
            self._taus[i] = rule.following(self._taus[i], self._completed, now, self._before[i])
            if summary.samples:
                self._before[i] = now
        self._write_weights()
        self.tally.reset_()
        return summary

    def gather_(self) -> None:
        """Move all processes' statistics to the first one, whose state is then that of the whole run."""
        self.tally.gather_()

    def _write_weights(self) -> None:
        self.weights.copy_(torch.tensor(self._taus, dtype=torch.float32))

    def _tau(self, i: int) -> float | Tensor:
        # A compiled graph must not be rebuilt whenever tau grows, so it reads tau from a buffer.
        return self.weights[i] if torch.compiler.is_compiling() else self._taus[i]

    def _plus(self, total: Tensor, i: int, value: Tensor) -> Tensor:
        """``total + tau_i * value``, in one operation where tau is a number."""
        tau = self._tau(i)
        return total + tau * value if isinstance(tau, Tensor) else torch.add(total, value, alpha=tau)

    def _position(self, name: str) -> int:
        names = [constraint.name for constraint in self.constraints]
        if name not in names:
            raise ConfigurationError(f"no constraint is called {name!r}, only {names}.{did_you_mean(name, names)}")
        return names.index(name)

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return self._completed

    @property
    def taus(self) -> dict[str, float]:
        """The present weight of each constraint."""
        return self._named(self._taus)

    @property
    def prices(self) -> dict[str, float]:
        """The weight of each constraint that the model was last trained under, which multipliers are estimated with.

        After :meth:`step`, until a sample is seen, that is tau of the round before: the model is still its minimiser.
        """
        return self._named(self._taus if self.tally.begun else self._trained)

    def _named(self, values: list[float]) -> dict[str, float]:
        return {constraint.name: value for constraint, value in zip(self.constraints, values, strict=True)}

    @property
    def tau(self) -> float:
        """The present weight, where all constraints have the same."""
        if len(set(self._taus)) > 1:
            raise ConfigurationError(f"the constraints have different weights, {self.taus}: read method.taus")
        return self._taus[0] if self._taus else 0.0

    def _fingerprint(self) -> float:
        """Tells states of other methods and other constraints apart; bounds and schedules may change."""
        kinds = [(type(constraint).__name__, constraint.name, constraint.measure) for constraint in self.constraints]
        return float(zlib.crc32(repr((type(self).__name__, kinds)).encode()))

    def get_extra_state(self) -> Tensor:
        """The schedule's state as one float64 tensor: exact on any device, and no pickle."""
        before = [value for pair in self._before for value in (pair or (math.nan, math.nan))]
        values = [self._fingerprint(), self._completed, *self._taus, *before, *self._trained]
        return torch.tensor(values, dtype=torch.float64)

    def set_extra_state(self, state: Any) -> None:
        """Take back what :meth:`get_extra_state` gave."""
        count, (fingerprint, completed, *values) = len(self.constraints), state.tolist()
        if fingerprint != self._fingerprint() or len(values) != 4 * count:
            raise CheckpointError(self._foreign())
        self._completed = int(completed)
        self._taus, before, self._trained = values[:count], values[count : 3 * count], values[3 * count :]
        pairs = zip(before[::2], before[1::2], strict=True)
        self._before = [None if math.isnan(pair[0]) else Feasibility(*pair) for pair in pairs]
        self._write_weights()

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state of the same kind of method over the same constraints, whole or not at all."""
        own = self.state_dict()
        wrong = own.keys() ^ state_dict.keys()
        wrong |= {key for key in own.keys() & state_dict.keys() if not self._fits(key, own[key], state_dict[key])}
        if wrong:
            raise CheckpointError(f"{self._foreign()} ({', '.join(sorted(wrong))} differ)")
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def _fits(self, key: str, own: Tensor, saved: Any) -> bool:
        if not isinstance(saved, Tensor) or saved.shape != own.shape:
            return False
        return key != "_extra_state" or bool(saved[0] == own[0])

    def _foreign(self) -> str:
        return (
            f"this state is of another method or other constraints than {type(self).__name__} over "
            f"{[str(constraint) for constraint in self.constraints]}: load it into the method it was saved from"
        )

    def extra_repr(self) -> str:
        pairs = zip(self.constraints, self._taus, strict=True)
        return ", ".join(f"{constraint} (tau={tau:g})" for constraint, tau in pairs)
