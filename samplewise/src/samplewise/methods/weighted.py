"""The weights of the constraints from round to round: their schedules, and how the constraints fared."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samplewise.constraints import Constraint, ViolationStats, check_constraints
from samplewise.errors import CheckpointError, ConfigurationError, SamplewiseError
from samplewise.methods.balance import InitialTau
from samplewise.methods.tally import FullPrecision, Round, RoundStatistics
from samplewise.problem import Fault, measure_of, not_finite
from samplewise.schedules import AUTO, Schedule, for_each

MET = 3  # rounds in a row that a constraint must be met for its tau to be kept: one may be luck


class Weighted(FullPrecision):
    """Constraints, each with a tau that follows its schedule: what a method is before it has a loss."""

    def __init__(self, constraints: Iterable[Constraint], schedule: Schedule | Mapping[str, Schedule]) -> None:
        super().__init__()
        self.constraints = check_constraints(constraints)
        self.schedules = for_each(schedule, [constraint.name for constraint in self.constraints])
        self.tally = RoundStatistics(len(self.constraints), len(self._watched()))
        # The name says what it is the state of, so that loading refuses another by itself. It may hold no dot.
        names = ", ".join(constraint.name for constraint in self.constraints)
        self._completed = f"rounds of {type(self).__name__} over {names}".replace(".", "_")
        self.register_buffer(self._completed, torch.zeros((), dtype=torch.int64))
        taus = torch.tensor([rule.first for rule in self.schedules], dtype=torch.float64)
        self.weights = nn.Buffer(taus)
        # Of the last round that had samples: tau (0 before the first tau is known), and the fields of ViolationStats.
        self.last = nn.Buffer(torch.cat([taus.nan_to_num().unsqueeze(1), taus.new_zeros(len(taus), 4)], dim=1))
        # Of each constraint: rounds after which tau could grow, and rounds up to now in which it was met.
        self.pace = nn.Buffer(torch.zeros(len(taus), 2, dtype=torch.int64))
        self.tightening = nn.Buffer(taus.new_tensor([each.margin for each in self.constraints]))
        self.from_outside = nn.Buffer(torch.zeros((), dtype=torch.bool))  # whether steer_ says tau and margin
        self._steered = False  # the same, at hand in every step; no part of what makes a run this run
        self.balance = InitialTau(len(taus))
        self._open = [i for i, rule in enumerate(self.schedules) if rule.tau0 == AUTO]
        self._looking = bool(self._open)  # for tau0, as long as it is not found
        # Not of this one: a copy has its own.
        self.register_load_state_dict_post_hook(Weighted._look_again)  # type: ignore[no-untyped-call]
        self._told: set[str] = set()  # constraints of which it was said that their tau is at its maximum

    def _look_again(self, *_: object) -> None:
        self._steered = bool(self.from_outside)
        self._looking = bool(self._open) and not (self._steered or self.balance.complete(self.rounds))

    @property
    def looks(self) -> bool:
        """Whether a call in training differentiates the batch, to find the first tau."""
        return self._looking

    def _is_equality(self, name: str) -> bool:
        return any(each.equality for each in self.constraints if each.name == name)

    def rules(self) -> list[Schedule]:
        """The schedules with the first tau that was found, where it was left open."""
        rules = list(self.schedules)
        for i in self._open:
            if not math.isnan(found := self.balance.tau0(i)):
                rules[i] = rules[i].starting_at(found)
        return rules

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
        return self.tally.round(self.rounds, self.taus, [each.share for each in self.constraints])

    def step(self) -> Round:
        """End the round: return its summary, let tau grow, start new statistics (outer loop, section III).

        tau is kept while every sample has met the constraint for three rounds or more: the multipliers are below tau
        then, and more would change nothing. Where a share is asked for, that of the samples is enough: the others keep
        their price, but it is not raised for them. With a margin tau grows on, since the samples are held to more than
        that. Once a tau is at its maximum and its constraint is still not met, a warning says so.
        """
        summary = self.summary()
        if not summary.samples:
            warnings.warn(
                "step() ends a round without a sample: only calls in training mode with gradients enabled count. Call "
                "the method on the round's batches first, outside of torch.no_grad()",
                stacklevel=2,
            )
        self.get_buffer(self._completed).add_(1)
        for i, (rule, now) in enumerate(zip(self.rules(), summary.constraints.values(), strict=True)):
            tau, (_, before) = float(self.weights[i]), self._last(i)
            grown, met = self.pace[i].tolist()
            if now.samples:
                met = met + 1 if now.met else 0
                self.last[i] = self.last.new_tensor([tau, now.samples, now.violated, now.total, now.worst])
            if not self._steered and (met < MET or self.constraints[i].margin):
                grown += 1
                self.weights[i] = rule.following(tau, grown, now, before)
            self.pace[i] = self.pace.new_tensor([grown, met])
        self._look_again()
        self.tally.start_()
        self._tell_maximum(summary)
        return summary

    def steer_(self, taus: Mapping[str, float], margins: Mapping[str, float]) -> None:
        """Take tau and margin of every constraint from now on from outside: the schedules say nothing more then.

        Both are part of the state; the constraints keep the margins of their own.
        """
        for i, each in enumerate(self.constraints):
            self.weights[i], self.tightening[i] = taus[each.name], margins[each.name]
        self.from_outside.fill_(True)
        self._look_again()

    def _last(self, i: int) -> tuple[float, ViolationStats | None]:
        """The weight of constraint i in the last round that had samples, and how it fared there."""
        tau, samples, violated, total, worst = self.last[i].tolist()
        fared = ViolationStats(int(samples), int(violated), total, worst, share=self.constraints[i].share)
        return tau, fared if samples else None

    @property
    def at_maximum(self) -> list[str]:
        """The constraints that were not met in the last round although tau was at its maximum."""
        found = []
        for i, rule in enumerate(self.rules()):
            tau, fared = self._last(i)
            if fared is not None and rule.exhausted(tau, fared):
                found.append(self.constraints[i].name)
        return found

    def _tell_maximum(self, summary: Round) -> None:
        for name in self.at_maximum:
            if summary.samples and name not in self._told:
                self._told.add(name)
                fared = summary[name]
                may = f", where {fared.allowed} may be" if fared.share < 1 else ""
                warnings.warn(
                    f"tau of {name!r} has reached its maximum, {summary.taus[name]:g}, with {fared.violated} of "
                    f"{fared.samples} samples violated{may}, worst by {fared.worst:.3g}: the constraints may not be "
                    "satisfiable together, or need a larger maximum=",
                    stacklevel=3,
                )

    def gather_(self) -> None:
        """Tell the first process what all have, so that its state is that of the whole run; every process must call."""
        self.tally.gather_()

    @property
    def rounds(self) -> int:
        """How many rounds are complete."""
        return int(self.get_buffer(self._completed))

    @property
    def taus(self) -> dict[str, float]:
        """The present weight of each constraint; NaN where it is ``"auto"`` and no batch was seen yet."""
        return self._named(self.weights)

    @property
    def margins(self) -> dict[str, float]:
        """By how much each constraint is tightened at present, in its measure's units."""
        return self._named(self.tightening)

    @property
    def as_trained(self) -> tuple[Constraint, ...]:
        """The constraints with the margins that they have at present: what multipliers are the prices of."""
        return tuple(replace(each, margin=self.margins[each.name]) for each in self.constraints)

    @property
    def tau0s(self) -> dict[str, float]:
        """The weight of each constraint in the first round; NaN where it is ``"auto"`` and no batch was seen yet."""
        return {each.name: rule.first for each, rule in zip(self.constraints, self.rules(), strict=True)}

    @property
    def trained_taus(self) -> dict[str, float]:
        """The tau of each constraint that the model was last trained under, with which multipliers are estimated.

        After :meth:`step`, until a sample is seen, that is tau of the round before: the model is still its minimiser.
        """
        return self._named(self.weights if self.tally.open else self.last[:, 0])

    def _named(self, values: Tensor) -> dict[str, float]:
        return {constraint.name: value for constraint, value in zip(self.constraints, values.tolist(), strict=True)}

    @property
    def tau(self) -> float:
        """The present weight, where all constraints have the same."""
        taus = self.taus
        if len(set(map(str, taus.values()))) > 1:  # as text, since NaN is unlike itself
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
        return ", ".join(f"{constraint} (tau={AUTO if math.isnan(tau) else f'{tau:g}'})" for constraint, tau in pairs)
