"""What all methods share: the call, and the loss that it gives."""

import contextlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from samplewise.constraints import Constraint, at_bound
from samplewise.errors import ConfigurationError, MeasureError, constraint_named
from samplewise.methods.weighted import Weighted
from samplewise.problem import Evaluation, Measures, broadcast, measure_of, on_host, parse
from samplewise.schedules import Schedule

CHECK_EVERY = 100
"""Steps between looks at an accelerator's notes of values that are not finite, for whoever runs a loop."""


class Places(NamedTuple):
    """Where in the tables of per-sample state a batch is: ``(B,)`` of this process, ``present`` if no padding."""

    own: Tensor
    present: Tensor | None
    everyone: Tensor


class Method(Weighted, ABC):
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
    signed: ClassVar[bool] = False
    """Whether :meth:`term` gets of an equality on which side of it a value lies, not only how far off it is."""
    kink: bool = False
    """Whether the slope of the loss jumps where a bound is met, so that multipliers between 0 and tau fit there."""

    def __init__(self, constraints: Iterable[Constraint], schedule: Schedule | Mapping[str, Schedule]) -> None:
        super().__init__(constraints, schedule)
        if self.enforces and not self.constraints:
            raise ConfigurationError(
                f"expected at least one constraint for {type(self).__name__}, got none; for the objective alone use "
                "Unconstrained()"
            )
        self._read = self.tally.read_  # a module is slow to find its parts
        self._square: dict[str, int] = {}  # batch sizes at which a measure had as many values for a sample
        # Such as an error of at most 0.01 that training is to bring to -0.01: looked at in the first batch.
        bounded = [each for each in self.constraints if self.enforces and not each.reference]
        self._beyond_zero = [each for each in bounded if 0 < each.upper < each.margin]

    def locate(self, index: Tensor | None, present: Tensor | None) -> Places | None:
        """Where the per-sample state of ``index`` is, for methods that have such; raises before anything is counted."""
        return None

    def check_samples(self, count: int) -> None:
        """Raise if the method cannot serve a data set of ``count`` samples, for methods with per-sample state."""

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it each process has the state of all samples, for methods with such; every process must enter."""
        yield

    @property
    def counts(self) -> bool:
        """Whether a call now is part of training: a validation loss leaves no trace."""
        return self.training and torch.is_grad_enabled()

    @abstractmethod
    def term(self, i: int, g: Tensor, tau: float | Tensor, places: Places | None) -> Tensor:
        """What constraint i adds to the loss, for each entry of ``g``; ``places`` is what :meth:`locate` gave."""

    def cost(self, i: int, g: Tensor) -> Tensor:
        """What constraint i adds to the loss at tau = 1 while nothing is known: what ``tau0="auto"`` balances."""
        return self.term(i, g, 1.0, None)

    @abstractmethod
    def multipliers(self, name: str, g: Tensor, index: Tensor | None = None) -> Tensor:
        """Multiplier estimates of one constraint, of the shape of ``g``, for the samples ``index``.

        Of an equality ``g`` is :meth:`samplewise.Constraint.signed`, and so are the multipliers.
        """

    def costs(self, name: str, measure: Tensor) -> Tensor:
        """How much the mean objective would rise if each training sample alone met the constraint ``name``, ``(N,)``.

        To first order: its multiplier times what it lacks, over N. In a convex problem it is at least so much. Those
        that meet it already cost nothing more. Under several processes every one must call.

        Args:
            name: of the constraint.
            measure: what it bounds, of every sample of the training data in order, such as ``audit[name].values``.
        """
        constraint: Constraint = constraint_named(name, {each.name: each for each in self.as_trained})
        with self.gathered():
            lambdas = self.multipliers(name, at_bound(constraint.signed_residual(measure)), torch.arange(len(measure)))
        lacking = at_bound(constraint.excess(measure)).relu() / constraint.scale
        return (lambdas.detach().abs() * lacking).reshape(len(measure), -1).sum(1) / len(measure)

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
        # A module's own way to forward takes a tenth of the time of a call, so it is gone where somebody waits on it.
        hooks = self._forward_hooks or self._forward_pre_hooks or self._backward_hooks or self._backward_pre_hooks
        if hooks or self._compiled_call_impl is not None:
            loss: Tensor = super().__call__(objective, index=index, sample_weight=sample_weight, **measures)
            return loss
        return self._loss_of(objective, index, sample_weight, measures)

    def forward(
        self,
        objective: Tensor,
        *,
        index: Tensor | None = None,
        sample_weight: Tensor | None = None,
        **measures: Tensor | tuple[Tensor, Tensor],
    ) -> Tensor:
        """What a call gives, without hooks."""
        return self._loss_of(objective, index, sample_weight, measures)

    def _loss_of(
        self, objective: Tensor, index: Tensor | None, sample_weight: Tensor | None, measures: Measures
    ) -> Tensor:
        evaluation = parse(objective, measures, self.constraints, index, sample_weight)
        for name, measure in evaluation.measures.items():
            if measure.ndim > 1 and name not in evaluation.masks and not torch.compiler.is_compiling():
                self._check_square(name, measure)
        return self.loss(evaluation)

    def _check_square(self, name: str, measure: Tensor) -> None:
        """As many values for a sample as there are samples may be chance; with another batch size too it is a slip."""
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
        """Warn of margins that ask for values below zero of a measure that has none there; once."""
        for each in self._beyond_zero:
            if not bool((evaluation.measures[each.measure] < 0).any()):
                warnings.warn(
                    f"{each} has a margin of {each.margin:g}, larger than its bound, and no value in this batch is "
                    f"below 0: if {each.measure!r} is never negative, no sample can meet what training asks for. Make "
                    f"the margin smaller than {each.upper:g}",
                    stacklevel=4,
                )
        self._beyond_zero = []

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
        look = on_host(objective)
        if self._beyond_zero and not torch.compiler.is_compiling():
            self._check_margins(evaluation)
        margins = (self.tightening.tolist() if look else self.tightening) if self._steered else None
        for i, constraint in enumerate(self.constraints):
            # What is left out is put at the bound that training sees: there it costs nothing, and pulls at nothing.
            excess = constraint.excess(constraint.of(evaluation.measures))
            excess = evaluation.filled(constraint, excess, -(margins[i] if margins is not None else constraint.margin))
            if needed and not evaluation.measures[constraint.measure].requires_grad:
                raise MeasureError(
                    f"expected {measure_of(constraint)} to carry a gradient, as the objective does, got one without: "
                    "the constraint would not be enforced. Compute it from the model's output without detach(), "
                    "torch.no_grad() or rounding"
                )
            excesses.append(excess)
        places = self.locate(evaluation.index, present) if self.stateful else None
        if differentiated and self.training:
            self._count(evaluation, excesses, present, look)
            if self._looking:
                self._look(objective, excesses, present)
        total = objective
        if self.enforces:
            # As numbers where they can be read; as a tensor, so that a compiled graph is not rebuilt when tau grows.
            taus: Sequence[float] | Tensor = self.weights.tolist() if look else self.weights
            if self._looking and not self.counts:
                taus = self._before_training()
            for i, excess in enumerate(excesses):
                constraint = self.constraints[i]
                if self.signed and constraint.equality:
                    g = evaluation.filled(constraint, constraint.signed(constraint.of(evaluation.measures)), 0.0)
                else:
                    g = constraint.tightened(excess, None if margins is None else margins[i])
                term = self.term(i, g, taus[i], places)
                total = total + (term if term.ndim == 1 else term.sum(1))
        if weight is None or present is None:
            return total.mean()
        # What padding holds must not matter, not even NaN; a batch of padding alone has loss zero, not 0 / 0.
        kept = torch.where(present, total, 0.0) * weight
        return kept.sum() / weight.sum().clamp_min(torch.finfo(total.dtype).tiny)

    def _before_training(self) -> Tensor:
        """The weights of a loss that is not trained on while ``tau0="auto"`` may be open: 1 where it is."""
        if not torch.compiler.is_compiling() and bool(self.weights.isnan().any()):
            warnings.warn(
                "tau0='auto' is found in the first batch of training, and there was none yet: until then the loss "
                "takes tau = 1. For another one give tau0 as a number",
                stacklevel=4,
            )
        return self.weights.nan_to_num(1.0)

    def _count(self, evaluation: Evaluation, excesses: Sequence[Tensor], present: Tensor | None, look: bool) -> None:
        """Add the batch to the round's statistics, unless it holds values that are not finite: ``look`` at once."""
        # A copy, since its batch waits to be added up, and the caller may change it meanwhile; the rest is our own.
        columns = [evaluation.objective.detach().clone()]
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
        if evaluation.masks:
            for i, constraint in enumerate(self.constraints):
                if (mask := evaluation.masks.get(constraint.measure)) is not None:
                    none = ~(mask if mask.ndim == 1 else mask.any(1))
                    self.tally.without[i] += (none if present is None else none & present).sum()

    def _look(self, objective: Tensor, excesses: Sequence[Tensor], present: Tensor | None) -> None:
        """Find the first tau, where it is left open, or come nearer to it, from the gradients of a batch."""
        if torch.compiler.is_compiling():
            raise ConfigurationError(
                "tau0='auto' looks at the gradients of the first batches, which a compiled method cannot: take the "
                "first round before torch.compile(method), compile the model alone, or give tau0 as a number"
            )
        here = slice(None) if present is None else present

        def costs() -> Iterator[tuple[int, Tensor, Tensor]]:
            for i in self._open:
                g = self.constraints[i].tightened(excesses[i])[here]
                cost = self.cost(i, g.abs())
                yield i, cost if cost.ndim == 1 else cost.sum(1), (g > 0) if g.ndim == 1 else (g > 0).any(1)

        with torch.enable_grad():
            self.balance.look_(objective[here].mean(), costs())
        for i, rule in enumerate(self.rules()):
            self.weights[i] = rule.first
        self._look_again()
