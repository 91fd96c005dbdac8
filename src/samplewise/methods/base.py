"""What all methods share: the call, the schedule and its state."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint, Fared, check_constraints
from samplewise.errors import CheckpointError, ConfigurationError, MeasureError, SamplewiseError
from samplewise.methods.tally import FullPrecision, Round, Tally
from samplewise.problem import Evaluation, Fault, broadcast, can_look, measure_of, not_finite, parse
from samplewise.schedules import Schedule, for_each

CHECK_EVERY = 100
"""Steps between looks at an accelerator's notes of values that are not finite, for whoever runs a loop."""


class Places(NamedTuple):
    """Where in the tables of per-sample state a batch is: ``(B,)`` of this process, ``present`` if no padding."""

    own: Tensor
    present: Tensor | None
    everyone: Tensor


class Method(FullPrecision, ABC):
    """Turns the objective and the measures of a batch into one scalar loss.

    The loss is the mean over the batch of ``f_j`` plus what the constraints add for sample j, so tau means the same at
    any batch size. In training mode, where gradients are enabled, the call also keeps the round's statistics;
    :meth:`step` ends the round.

    ``.half()`` or ``.to(dtype)`` of a method, or of a module that holds it, leave the method's state as it is.

    Args:
        constraints: the requirements.
        schedule: one rule for tau, or one for each constraint by its name.
    """

    enforces: ClassVar[bool] = True
    """Whether the constraints change the loss, so that their measures must carry gradients."""
    stateful: ClassVar[bool] = False
    """Whether there is a state for each sample, so that a call needs the samples' numbers."""
    kink: bool = False
    """Whether the slope of the loss jumps where a bound is met, so that multipliers between 0 and tau fit there."""

    def __init__(self, constraints: Iterable[Constraint], schedule: Schedule | Mapping[str, Schedule]) -> None:
        super().__init__()
        self.constraints = check_constraints(constraints)
        self.schedules = for_each(schedule, [constraint.name for constraint in self.constraints])
        self.tally = Tally(len(self.constraints), len(self._watched()))
        self._read = self.tally.read_  # a module is slow to find its parts
        # The name says what it is the state of, so that loading refuses another by itself. It may hold no dot.
        names = ", ".join(constraint.name for constraint in self.constraints)
        self._completed = f"rounds of {type(self).__name__} over {names}".replace(".", "_")
        self.register_buffer(self._completed, torch.zeros((), dtype=torch.int64))
        taus = torch.tensor([rule.tau0 for rule in self.schedules], dtype=torch.float64)
        self.weights = nn.Buffer(taus)
        # Of the last round that had samples: tau, and the fields of Fared.
        self.last = nn.Buffer(torch.cat([taus.unsqueeze(1), taus.new_zeros(len(taus), 4)], dim=1))
        self._square: dict[str, int] = {}  # batch sizes at which a measure had as many values for a sample

    def locate(self, index: Tensor | None, present: Tensor | None) -> Places | None:
        """Where the per-sample state of ``index`` is, for methods that have such; raises before anything is counted."""
        return None

    def check_samples(self, count: int) -> None:
        """Raise if the method cannot serve a data set of ``count`` samples, for methods with per-sample state."""

    @property
    def counts(self) -> bool:
        """Whether a call now is part of training: a validation loss leaves no trace."""
        return self.training and torch.is_grad_enabled()

    @abstractmethod
    def term(self, i: int, g: Tensor, tau: float | Tensor, places: Places | None) -> Tensor:
        """What constraint i adds to the loss, for each entry of ``g``; ``places`` is what :meth:`locate` gave."""

    @abstractmethod
    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """Multiplier estimates of one constraint, of the shape of ``g``, for the samples ``index``."""

    def __call__(
        self, objective: Tensor, *, index: Tensor | None = None, sample_weight: Tensor | None = None, **measures: Tensor
    ) -> Tensor:
        """The loss of a batch, a scalar.

        The batch counts into the round's statistics, and moves multipliers, only in training mode with gradients
        enabled: a call after ``eval()`` or under ``torch.no_grad()``, such as a validation loss, changes nothing.

        Args:
            objective: f_j of each sample, shape ``(B,)``.
            index: each sample's number in the data set, shape ``(B,)``; needed by methods with per-sample state.
            sample_weight: weights of the mean, shape ``(B,)``. A sample of weight zero counts as absent.
            measures: ``(B,)`` or ``(B, m)`` each, by name. Where the objective carries a gradient the bounded ones
                must too, unless nothing is enforced.
        """
        evaluation = parse(objective, measures, self.constraints, index, sample_weight)
        for name, measure in evaluation.measures.items():
            if measure.ndim > 1 and not torch.compiler.is_compiling():
                self._check_square(name, measure)
        return self.loss(evaluation)

    # A call goes here at once: a module's own way there costs as much as the rest, and says nothing of the arguments.
    forward = __call__

    def _check_square(self, name: str, measure: Tensor) -> None:
        """As many values for a sample as there are samples may be chance; with another batch size too it is a slip."""
        batch, before = len(measure), self._square.get(name)
        if measure.shape[1] != batch:
            self._square[name] = 0  # settled: this measure has its own number of values
        elif batch > 1 and before is None:
            self._square[name] = batch
        elif batch > 1 and before == batch:  # again, and perhaps always: all batches may be of one size
            self._square[name] = -batch
            warnings.warn(f"{broadcast(name, batch)}, unless each sample has {batch} values of it", stacklevel=3)
        elif batch > 1 and before not in (0, -batch):
            raise broadcast(name, batch)

    def loss(self, evaluation: Evaluation) -> Tensor:
        """The loss of a batch that is checked already: what a call and :func:`samplewise.fit` both end in."""
        objective, weight = evaluation.objective, evaluation.sample_weight
        if not objective.is_cpu and objective.device != self.weights.device:
            device = str(objective.device)
            raise MeasureError(
                f"the objective is on {device}, the method on {self.weights.device}: call method.to({device!r})"
            )
        present = None if weight is None else weight > 0
        differentiated = torch.is_grad_enabled()
        needed, excesses = self.enforces and differentiated and objective.requires_grad, []
        for constraint in self.constraints:
            excess = constraint.excess(evaluation.measures[constraint.measure])
            if needed and not excess.requires_grad:
                raise MeasureError(
                    f"expected {measure_of(constraint)} to carry a gradient, as the objective does, got one without: "
                    "the constraint would not be enforced. Compute it from the model's output without detach(), "
                    "torch.no_grad() or rounding"
                )
            excesses.append(excess)
        places = self.locate(evaluation.index, present) if self.stateful else None
        look = can_look(objective)
        if differentiated and self.training:
            self._count(evaluation, excesses, present, look)
        total = objective
        if self.enforces:
            # As numbers where they can be read; as a tensor, so that a compiled graph is not rebuilt when tau grows.
            taus = self.weights.tolist() if look else self.weights
            for i, excess in enumerate(excesses):
                term = self.term(i, self.constraints[i].tightened(excess), taus[i], places)
                total = total + (term if term.ndim == 1 else term.sum(1))
        if weight is None or present is None:
            return total.mean()
        # What padding holds must not matter, not even NaN; a batch of padding alone has loss zero, not 0 / 0.
        kept = torch.where(present, total, 0.0) * weight
        return kept.sum() / weight.sum().clamp_min(torch.finfo(total.dtype).tiny)

    def _count(self, evaluation: Evaluation, excesses: Sequence[Tensor], present: Tensor | None, look: bool) -> None:
        """Add the batch to the round's statistics, unless it holds values that are not finite: ``look`` at once."""
        columns = [evaluation.objective.detach()]
        for excess in excesses:
            excess = excess.detach()
            # The largest of several values would hide that another one is minus infinity; 0 * inf does not.
            columns.append(excess if excess.ndim == 1 else excess.amax(1) + (0 * excess).sum(1))
        if present is not None:
            columns = [column.where(present, 0.0) for column in columns]
        if not look:
            values = torch.stack(columns)
            self.tally.note_(0, ~values.isfinite(), evaluation.index)
            self.tally.add_(values, present)
        elif not self._read(columns, columns[0].numel() if present is None else int(present.sum())):
            evaluation.check_finite(self.constraints, step=self.tally.calls)

    def _watched(self) -> list[Callable[[Fault], SamplewiseError]]:
        """What is looked at for faults, as the errors for it: the objective, then each constraint's measure."""
        return [partial(not_finite, what) for what in ("the objective", *map(measure_of, self.constraints))]

    def check(self, *, everywhere: bool = False) -> None:
        """Raise if a bad value was noted on an accelerator since the last check (waits for it).

        With ``everywhere`` in any process: every one must call, and all raise.
        """
        found = self.tally.first_fault_(everywhere=everywhere)
        if found is not None:
            watched, fault = found
            raise self._watched()[watched](fault)

    def summary(self) -> Round:
        """The round so far, over all processes, each of which must call; nothing changes."""
        self.check(everywhere=True)  # if only one raised, the others would wait for it
        return self.tally.round(self.rounds, self.taus)

    def step(self) -> Round:
        """End the round: return its summary, let tau grow, start new statistics (outer loop, section III)."""
        summary = self.summary()
        self.get_buffer(self._completed).add_(1)
        for i, (rule, now) in enumerate(zip(self.schedules, summary.constraints.values(), strict=True)):
            tau = float(self.weights[i])
            _, samples, violated, total, worst = self.last[i].tolist()
            before = Fared(int(samples), int(violated), total, worst) if samples else None
            self.weights[i] = rule.following(tau, self.rounds, now, before)
            if summary.samples:
                self.last[i] = self.last.new_tensor([tau, *astuple(now)])
        self.tally.start_()
        return summary

    def gather_(self) -> None:
        """Move all processes' statistics to the first one, whose state is then that of the whole run."""
        self.tally.gather_()

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return int(self.get_buffer(self._completed))

    @property
    def taus(self) -> dict[str, float]:
        """The present weight of each constraint."""
        return self._named(self.weights)

    @property
    def prices(self) -> dict[str, float]:
        """The weight of each constraint that the model was last trained under, which multipliers are estimated with.

        After :meth:`step`, until a sample is seen, that is tau of the round before: the model is still its minimiser.
        """
        return self._named(self.weights if self.tally.open else self.last[:, 0])

    def _named(self, values: Tensor) -> dict[str, float]:
        return {constraint.name: value for constraint, value in zip(self.constraints, values.tolist(), strict=True)}

    @property
    def tau(self) -> float:
        """The present weight, where all constraints have the same."""
        taus = self.taus
        if len(set(taus.values())) > 1:
            raise ConfigurationError(f"the constraints have different weights, {taus}: read method.taus")
        return next(iter(taus.values()), 0.0)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state of the same kind of method over constraints of the same names, whole or not at all."""
        before = {name: value.clone() for name, value in self.state_dict().items()}
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except (RuntimeError, AttributeError, TypeError) as error:
            super().load_state_dict(before)
            raise CheckpointError(
                f"this state is of another method, other constraints or other data than {type(self).__name__} over "
                f"{[str(constraint) for constraint in self.constraints]}: load it into the method it was saved from "
                f"({' '.join(str(error).split())})"
            ) from error

    def extra_repr(self) -> str:
        pairs = zip(self.constraints, self.taus.values(), strict=True)
        return ", ".join(f"{constraint} (tau={tau:g})" for constraint, tau in pairs)
