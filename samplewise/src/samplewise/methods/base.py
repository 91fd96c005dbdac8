"""The method: how the objective and the constraints of a batch become one scalar loss, and what a round is."""

import contextlib
import math
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from samplewise.constraints import Constraint, at_bound, check_constraints
from samplewise.errors import CheckpointError, ConfigurationError, MeasureError, SamplewiseError, constraint_named
from samplewise.methods.coefficients import Coefficients
from samplewise.methods.statistics import FullPrecision, Round, RoundStatistics
from samplewise.printed import Printed, Printout
from samplewise.problem import Evaluation, Fault, broadcast, measure_of, not_finite, on_host, parse
from samplewise.schedules import AUTO, Schedule, for_each

CHECK_EVERY = 100
"""Steps between two calls of :meth:`Method.check` on an accelerator, for whoever runs a loop."""


class Method(Printed, FullPrecision):
    """Turns the objective and the measures of a batch into one scalar loss.

    The loss is the mean over the batch of ``f_j`` plus what the constraints add for sample j, so tau means the same at
    any batch size. In training mode, where gradients are enabled, the call also updates the round's statistics;
    :meth:`step` ends the round. ``.half()`` and ``.to(dtype)`` leave the method's state as it is.

    Args:
        constraints: the requirements.
        schedule: one rule for tau, or one for each constraint by its name.
    """

    enforces: ClassVar[bool] = True
    """Whether the constraints change the loss, so that their measures must carry gradients."""
    stateful: ClassVar[bool] = False
    """Whether there is a state for each sample, so that a call needs the samples' indices."""
    signed: ClassVar[bool] = False
    """Whether the loss takes the signed residual of an equality, not its absolute value."""
    index_checks: ClassVar[int] = 0
    """How many properties of the sample indices are checked beside the values."""
    follows_shares: ClassVar[bool] = False
    """Whether tau rises and falls with the share of a constraint, and samples far beyond it get no penalty."""
    kink: bool = False
    """Whether the slope of the loss jumps at a bound, so that multipliers between 0 and tau are right there."""

    def __init__(self, constraints: Iterable[Constraint], schedule: Schedule | Mapping[str, Schedule]) -> None:
        super().__init__()
        self.constraints = check_constraints(constraints)
        if self.enforces and not self.constraints:
            raise ConfigurationError(
                f"expected at least one constraint for {type(self).__name__}, got none; for the objective alone use "
                "Unconstrained()"
            )
        schedules = for_each(schedule, [constraint.name for constraint in self.constraints])
        self.coefficients = Coefficients(self.constraints, schedules, self.follows_shares)
        checked = 1 + len(self.constraints) + self.index_checks
        self.statistics = RoundStatistics(len(self.constraints), checked, self.coefficients.shared)
        vars(self).update(self._modules)  # where they are found at once: nn.Module is slow to find its parts
        self._takes_sign = [self.signed and each.equality for each in self.constraints]
        self._warned: set[str] = set()  # constraints of which a warning said that their tau is at its maximum
        self._square: dict[str, int] = {}  # batch sizes at which a measure had as many values for a sample
        # Such as an error of at most 0.01 that training is to bring to -0.01: checked in the first batch.
        bounded = [each for each in self.constraints if self.enforces and not each.reference]
        self._beyond_zero = [each for each in bounded if 0 < each.upper < each.margin]

    # What a kind of method defines.

    @abstractmethod
    def cost(self, i: int, g: Tensor) -> Tensor:
        """What constraint i adds to the loss at tau = 1, for each entry of ``g``."""

    def term(
        self, i: int, g: Tensor, tau: float | Tensor, rows: Tensor | None, present: Tensor | None, counts: bool
    ) -> tuple[Tensor, float | Tensor]:
        """What constraint i adds to the loss for each entry of ``g``, as a value and a factor that it is multiplied by.

        ``rows`` is what :meth:`locate` returned; ``present`` masks the samples ``(B,)``, if any are padding. A call
        that ``counts`` is part of training.
        """
        return self.cost(i, g), tau

    @abstractmethod
    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """Multiplier estimates of one constraint, of the shape of ``g``, for the samples ``index``.

        Of an equality ``g`` is :meth:`samplewise.Constraint.signed`, and the multipliers have either sign.
        """

    def locate(self, index: Tensor | None, present: Tensor | None, counts: bool) -> Tensor | None:
        """Rows of the per-sample state for ``index``, if the method has any; raises before anything is counted."""
        return None

    def check_samples(self, count: int) -> None:
        """Raise if the method has per-sample state for another number of samples than ``count``."""

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """A context in which each process has the per-sample state of all samples; every process must enter it."""
        yield

    def gather_(self) -> None:
        """Make the first process's state that of the whole run; every process must call."""
        self.statistics.gather_()

    # The loss of a batch.

    def __call__(
        self,
        objective: Tensor,
        *,
        index: Tensor | None = None,
        sample_weight: Tensor | None = None,
        **measures: Tensor | tuple[Tensor, Tensor],
    ) -> Tensor:
        """The loss of a batch, a scalar.

        The batch counts into the round's statistics, and moves multipliers, only in training mode with gradients
        enabled: a call after ``eval()`` or under ``torch.no_grad()``, such as a validation loss, changes nothing.

        Args:
            objective: f_j of each sample, shape ``(B,)``.
            index: each sample's number in the data set, shape ``(B,)``; needed by methods with per-sample state.
            sample_weight: weights of the mean, shape ``(B,)``. A sample of weight zero counts as absent.
            measures: ``(B,)`` or ``(B, m)`` each, by name, or a pair ``(values, mask)``: what the mask, bool of the
                same shape, leaves out never counts. Where the objective carries a gradient the bounded ones must too,
                unless nothing is enforced.
        """
        # nn.Module's way to forward takes a tenth of the time of a call, so it is taken only where there are hooks.
        hooks = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        plain = not hooks and self._compiled_call_impl is None
        call = self.forward if plain else super().__call__
        return call(objective, index=index, sample_weight=sample_weight, **measures)

    def forward(
        self,
        objective: Tensor,
        *,
        index: Tensor | None = None,
        sample_weight: Tensor | None = None,
        **measures: Tensor | tuple[Tensor, Tensor],
    ) -> Tensor:
        """The loss of a batch, without hooks."""
        evaluation = parse(objective, measures, self.constraints, index, sample_weight)
        for name, measure in evaluation.measures.items():
            if measure.ndim > 1 and name not in evaluation.masks and not torch.compiler.is_compiling():
                self._check_square(name, measure)
        return self.loss(evaluation)

    def loss(self, evaluation: Evaluation) -> Tensor:
        """The loss of a batch that is checked already; a call and :func:`samplewise.fit` both use it."""
        objective, weight, coefficients = evaluation.objective, evaluation.sample_weight, self.coefficients
        host, differentiable = on_host(objective), torch.is_grad_enabled()
        counts = self.training and differentiable  # a validation loss leaves no trace
        if not host and objective.device != coefficients.taus.device:
            device, own = str(objective.device), coefficients.taus.device
            raise MeasureError(f"the objective is on {device}, the method on {own}: call method.to({device!r})")
        if self._beyond_zero and not torch.compiler.is_compiling():
            self._check_margins(evaluation)
        present = None if weight is None else weight > 0
        # Numbers where they can be read; tensors elsewhere, so that a compiled graph is not rebuilt when they change.
        margins = coefficients.margin_values if host or not coefficients.is_steered else coefficients.margins
        excesses = self._excesses(evaluation, margins, differentiable)
        rows = self.locate(evaluation.index, present, counts) if self.stateful else None
        if counts:
            self._count(evaluation, excesses, present, host)
            if coefficients.estimating:
                self._estimate_tau0(objective, excesses, present)
        total = objective
        if self.enforces:
            taus: Sequence[float] | Tensor = coefficients.tau_values if host else coefficients.taus
            if coefficients.estimating and not counts:
                taus = self._taus_before_training()
            for i, constraint in enumerate(self.constraints):
                if self._takes_sign[i]:
                    g = evaluation.filled(constraint, constraint.signed(constraint.of(evaluation.measures)), 0.0)
                else:
                    g = constraint.tightened(excesses[i], margins[i])
                    if i in coefficients.shared:
                        limit = coefficients.limit_values[i] if host else coefficients.shares[i, 0]
                        g = without_outliers(g, g, limit)
                values, factor = self.term(i, g, taus[i], rows, present, counts)
                total = add_scaled(total, values if values.ndim == 1 else values.sum(1), factor)
        if weight is None or present is None:
            return total.mean()
        # What padding holds must not matter, not even NaN; a batch of padding alone has loss zero, not 0 / 0.
        kept = torch.where(present, total, 0.0) * weight
        return kept.sum() / weight.sum().clamp_min(torch.finfo(total.dtype).tiny)

    def _excesses(
        self, evaluation: Evaluation, margins: Sequence[float] | Tensor, differentiable: bool
    ) -> list[Tensor]:
        """The excess over each true bound, of the measures' shapes."""
        measures, found = evaluation.measures, []
        needed = differentiable and self.enforces and evaluation.objective.requires_grad
        for i, constraint in enumerate(self.constraints):
            values = measures[constraint.measure]
            if needed and not values.requires_grad:
                raise MeasureError(
                    f"expected {measure_of(constraint)} to carry a gradient, as the objective does, got one without: "
                    "the constraint would not be enforced. Compute it from the model's output without detach(), "
                    "torch.no_grad() or rounding"
                )
            excess = constraint.excess(constraint.of(measures) if constraint.reference else values)
            if evaluation.masks:
                # A missing value is put at the bound that training uses: there it costs nothing and has no gradient.
                excess = evaluation.filled(constraint, excess, -margins[i])
            found.append(excess)
        return found

    def _count(self, evaluation: Evaluation, excesses: Sequence[Tensor], present: Tensor | None, host: bool) -> None:
        """Add the batch to the round's statistics, unless it holds values that are not finite."""
        statistics, objective, worst = self.statistics, evaluation.objective.detach(), []
        for excess in excesses:
            excess = excess.detach()
            # The largest of several values would hide that another one is minus infinity; 0 * inf does not.
            worst.append(excess if excess.ndim == 1 else excess.amax(1) + (0 * excess).sum(1))
        if present is not None:
            objective, *worst = (each.where(present, 0.0) for each in (objective, *worst))
        if not host:
            statistics.note_(0, ~torch.stack([objective, *worst]).isfinite(), evaluation.index)
            statistics.add_(objective, worst, present)
        elif not statistics.read_(objective, worst, objective.shape[0] if present is None else int(present.sum())):
            evaluation.check_finite(self.constraints, step=statistics.calls)
        if evaluation.masks:
            for i, constraint in enumerate(self.constraints):
                if (mask := evaluation.masks.get(constraint.measure)) is not None:
                    missing = ~(mask if mask.ndim == 1 else mask.any(1))
                    statistics.missing[i] += (missing if present is None else missing & present).sum()
        for i in statistics.shared:
            here, mask = present, evaluation.masks.get(self.constraints[i].measure)
            if mask is not None:
                has_value = mask if mask.ndim == 1 else mask.any(1)
                here = has_value if here is None else has_value & here
            statistics.spread_(i, self.constraints[i].tightened(worst[i], self.constraints[i].margin), here)

    def _estimate_tau0(self, objective: Tensor, excesses: Sequence[Tensor], present: Tensor | None) -> None:
        """Improve the estimate of tau0, where it is ``"auto"``, by the gradients of a batch."""
        if torch.compiler.is_compiling():
            raise ConfigurationError(
                "tau0='auto' needs the gradients of the first batches, which a compiled method cannot give: take the "
                "first round before torch.compile(method), compile the model alone, or give tau0 as a number"
            )
        here = slice(None) if present is None else present

        def costs() -> Iterator[tuple[int, Tensor, Tensor]]:
            for i in self.coefficients.auto:
                g = self.constraints[i].tightened(excesses[i], self.constraints[i].margin)[here]
                cost = self.cost(i, g.abs())
                yield i, cost if cost.ndim == 1 else cost.sum(1), (g > 0) if g.ndim == 1 else (g > 0).any(1)

        with torch.enable_grad():
            self.coefficients.estimate_tau0_(objective[here], costs())

    def _taus_before_training(self) -> Tensor:
        """The weights of a loss outside training while ``tau0="auto"`` is being estimated: 1 where unknown."""
        taus = self.coefficients.taus
        if not torch.compiler.is_compiling() and bool(taus.isnan().any()):
            warnings.warn(
                "tau0='auto' is estimated in the first batch of training, and there was none yet: until then the loss "
                "takes tau = 1. For another one give tau0 as a number",
                stacklevel=4,
            )
        return taus.nan_to_num(1.0)

    def _check_square(self, name: str, measure: Tensor) -> None:
        """Raise if a measure is ``(B, B)`` for two batch sizes: once may be chance, twice is a broadcasting mistake."""
        batch, before = len(measure), self._square.get(name)
        if measure.shape[1] != batch:
            self._square[name] = 0  # settled: this measure has its own number of values
        elif batch > 1 and before is None:
            self._square[name] = batch
            warnings.warn(
                f"{broadcast(name, batch)}. If each sample has {batch} values of it, say so by a mask of ones: "
                f"{name}=(values, torch.ones_like(values, dtype=torch.bool))",
                stacklevel=4,
            )
        elif batch > 1 and before not in (0, batch):
            raise broadcast(name, batch)

    def _check_margins(self, evaluation: Evaluation) -> None:
        """Warn, once, of margins that ask for values below zero of a measure that is never negative."""
        for each in self._beyond_zero:
            if not bool((evaluation.measures[each.measure] < 0).any()):
                warnings.warn(
                    f"{each} has a margin of {each.margin:g}, larger than its bound, and no value in this batch is "
                    f"below 0: if {each.measure!r} is never negative, no sample can meet what training asks for. Make "
                    f"the margin smaller than {each.upper:g}",
                    stacklevel=4,
                )
        self._beyond_zero = []

    # Rounds.

    def _fault_error(self, row: int, fault: Fault) -> SamplewiseError:
        """The error for a fault of a checked value: the objective, then each constraint's measure."""
        return not_finite("the objective" if row == 0 else measure_of(self.constraints[row - 1]), fault)

    def check(self, *, everywhere: bool = False) -> None:
        """Raise if a bad value was noted on an accelerator since the last check (waits for it).

        With ``everywhere`` in any process: every one must call, and all raise.
        """
        if (found := self.statistics.first_fault_(everywhere=everywhere)) is not None:
            raise self._fault_error(*found)

    def summary(self) -> Round:
        """The round so far, over all processes, each of which must call; nothing changes."""
        self.check(everywhere=True)  # if only one raised, the others would wait for it
        return self.statistics.round(self.rounds, self.taus, [each.share for each in self.constraints])

    def step(self) -> Round:
        """End the round: return its summary, let tau grow, start new statistics (outer loop, section III).

        tau is kept while the constraint has been met for three rounds or more: the multipliers are then below tau, and
        more would change nothing. With a margin tau keeps growing, since training asks for more than the true bound.
        For a share below 1 :class:`SequentialPenalty` also lowers tau if more samples meet the constraint than the
        share asks for. A warning says, once, that a constraint is not met although its tau is at its maximum.
        """
        summary = self.summary()
        if not summary.samples:
            warnings.warn(
                "step() ends a round without a sample: only calls in training mode with gradients enabled count. Call "
                "the method on the round's batches first, outside of torch.no_grad()",
                stacklevel=2,
            )
        self.coefficients.step_(summary.constraints.values(), self.statistics.histograms())
        self.statistics.start_()
        self._warn_at_maximum(summary)
        return summary

    def _warn_at_maximum(self, summary: Round) -> None:
        for name in self.at_maximum:
            if summary.samples and name not in self._warned:
                self._warned.add(name)
                stats = summary[name]
                may = f", where {stats.allowed} may be" if stats.share < 1 else ""
                warnings.warn(
                    f"tau of {name!r} has reached its maximum, {summary.taus[name]:g}, with {stats.violated} of "
                    f"{stats.samples} samples violated{may}, worst by {stats.worst:.3g}: the constraints may not be "
                    "satisfiable together, or need a larger maximum=",
                    stacklevel=3,
                )

    def steer_(self, taus: Mapping[str, float], margins: Mapping[str, float]) -> None:
        """Set tau and margin of every constraint from outside; the schedules have no effect from now on.

        Both are part of the state; the constraints keep their own margins.
        """
        self.coefficients.steer_(taus, margins)

    @property
    def rounds(self) -> int:
        """Number of complete rounds."""
        return int(self.coefficients.rounds)

    @property
    def taus(self) -> dict[str, float]:
        """The present weight of each constraint; NaN where it is ``"auto"`` and there was no batch yet."""
        return self.coefficients.named(self.coefficients.taus)

    @property
    def tau(self) -> float:
        """The present weight, where all constraints have the same."""
        taus = self.taus
        if len(set(map(str, taus.values()))) > 1:  # as text, since NaN is unlike itself
            raise ConfigurationError(f"the constraints have different weights, {taus}: read method.taus")
        return next(iter(taus.values()), 0.0)

    @property
    def tau0s(self) -> dict[str, float]:
        """The weight of each constraint in the first round; NaN where it is ``"auto"`` and there was no batch yet."""
        return {each.name: rule.first for each, rule in zip(self.constraints, self.coefficients.rules(), strict=True)}

    @property
    def trained_taus(self) -> dict[str, float]:
        """The weight of each constraint in the last training of the model, with which multipliers are estimated.

        After :meth:`step`, until the next batch, that is tau of the round before: the model is still its minimiser.
        """
        coefficients = self.coefficients
        return coefficients.named(coefficients.taus if self.statistics.open else coefficients.last[:, 0])

    @property
    def trained_limits(self) -> dict[str, float]:
        """The g beyond which a sample got no penalty in the last training; infinite if every sample got one."""
        coefficients = self.coefficients
        if not coefficients.shared:
            return dict.fromkeys(self.taus, math.inf)
        return coefficients.named(coefficients.shares[:, 0 if self.statistics.open else 1])

    @property
    def margins(self) -> dict[str, float]:
        """By how much each constraint is tightened at present, in its measure's units."""
        return self.coefficients.named(self.coefficients.margins)

    @property
    def as_trained(self) -> tuple[Constraint, ...]:
        """The constraints with their present margins, to which the multipliers belong."""
        return tuple(replace(each, margin=self.margins[each.name]) for each in self.constraints)

    @property
    def at_maximum(self) -> list[str]:
        """The constraints that were not met in the last round although tau was at its maximum."""
        return self.coefficients.at_maximum()

    def costs(self, name: str, measure: Tensor) -> Tensor:
        """How much the mean objective would rise if each training sample alone met the constraint ``name``, ``(N,)``.

        To first order: the sample's multiplier times its violation, over N; a lower bound in a convex problem, and
        zero for samples that meet it or got no penalty. Under several processes every one must call.

        Args:
            name: of the constraint.
            measure: what it bounds, of every sample of the training data in order, such as ``audit[name].values``.
        """
        constraint: Constraint = constraint_named(name, {each.name: each for each in self.as_trained})
        with self.gathered():
            residual = at_bound(constraint.signed_residual(measure))
            lambdas = self.multipliers(name, residual, torch.arange(len(measure)))
        violation = at_bound(constraint.excess(measure)).relu() / constraint.scale
        return (lambdas.detach().abs() * violation).reshape(len(measure), -1).sum(1) / len(measure)

    def _is_equality(self, name: str) -> bool:
        return any(each.equality for each in self.constraints if each.name == name)

    # State.

    def _identity(self) -> str:
        return f"{type(self).__name__} over {', '.join(constraint.name for constraint in self.constraints)}"

    def get_extra_state(self) -> Tensor:
        """The kind of the method and the names of its constraints, as bytes: checkpoints hold tensors only."""
        return torch.tensor(list(self._identity().encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """Refuse the state of another kind of method, or of other constraints."""
        found = bytes(state.tolist()).decode(errors="replace")
        if found != self._identity():
            raise CheckpointError(f"expected the state of {self._identity()}, got that of {found}")

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

    def printout(self) -> Printout:
        stuck = self.at_maximum
        verdict = "In training" if self.rounds or self.statistics.open else "Not trained yet"
        verdict = f"Not met at the largest tau: {', '.join(stuck)}" if stuck else verdict
        rows = [("constraint", "tau", "first tau", "margin")]
        for each in self.constraints:
            taus = (self.taus[each.name], self.tau0s[each.name])
            tau, first = (AUTO if math.isnan(value) else f"{value:.4g}" for value in taus)
            rows.append((str(each), tau, first, f"{self.margins[each.name]:.4g}"))
        done = f"{self.rounds} {'round' if self.rounds == 1 else 'rounds'} done"
        return Printout(f"{verdict}: {type(self).__name__}, {done}.", rows if self.constraints else ())

    def extra_repr(self) -> str:
        pairs = zip(self.constraints, self.taus.values(), strict=True)
        return ", ".join(f"{constraint} (tau={AUTO if math.isnan(tau) else f'{tau:g}'})" for constraint, tau in pairs)


def without_outliers(values: Tensor, g: Tensor, limit: float | Tensor) -> Tensor:
    """``values``, of the shape of ``g``, with zeros for the samples whose worst ``g`` is beyond the limit."""
    if not isinstance(limit, Tensor) and limit == math.inf:
        return values
    worst = g if g.ndim == 1 else g.amax(1, keepdim=True)
    return torch.where(worst > limit, 0.0, values)


def add_scaled(first: Tensor, second: Tensor, factor: float | Tensor) -> Tensor:
    """``first + factor * second``, in one operation where the factor is a number."""
    return first + factor * second if isinstance(factor, Tensor) else torch.add(first, second, alpha=factor)
