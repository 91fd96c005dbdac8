"""The problem: what to minimise and what must hold; and its evaluation on a batch.

Names, shapes, precision and device of objective and measures are checked here, once, before any method sees them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from samplewise.constraints import RESERVED, Constraint, check_constraints
from samplewise.errors import (
    ConfigurationError,
    MeasureError,
    MissingMeasureError,
    NotFiniteError,
    SampleIndexError,
    did_you_mean,
)

LISTED_SAMPLES = 8  # how many sample indices an error message lists
COMPARED = frozenset({torch.float32, torch.float64})
Measures = Mapping[str, Tensor | tuple[Tensor, Tensor]]
INTEGERS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


@dataclass(frozen=True)
class Fault:
    """Samples of a batch that have a value which cannot be used."""

    samples: list[int]
    """Some or all of them, by index, or by position in the batch where that is not ``numbered``."""
    count: int
    step: int | None
    """Of training; None in an audit."""
    numbered: bool = True

    def __str__(self) -> str:
        """The samples, as many as a message has room for."""
        return ", ".join(map(str, self.samples[:LISTED_SAMPLES])) + ", ..." * (
            self.count > min(len(self.samples), LISTED_SAMPLES)
        )

    @property
    def when(self) -> str:
        """The step in words, for messages."""
        return "" if self.step is None else f" at step {self.step}"


class ByContent:
    """Base of dataclasses with ``eq=False`` that are equal if all fields are equal, tensors entry by entry.

    NaN equals NaN, since it stands for a missing value. The hash is of numbers and strings alone.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self is other or all(_same(*(getattr(each, f.name) for each in (self, other))) for f in fields(self))  # type: ignore[arg-type]

    def __hash__(self) -> int:
        values = (getattr(self, field.name) for field in fields(self))  # type: ignore[arg-type]  # a dataclass
        return hash((type(self), *(each for each in values if isinstance(each, int | float | str) and each == each)))


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        if first.shape != second.shape or first.device != second.device:
            return False
        return bool(((first == second) | (first.isnan() & second.isnan())).all())
    if isinstance(first, Mapping) and isinstance(second, Mapping) and not isinstance(first, ByContent):
        return first.keys() == second.keys() and all(_same(value, second[key]) for key, value in first.items())
    if isinstance(first, tuple) and isinstance(second, tuple):
        return len(first) == len(second) and all(map(_same, first, second))
    return bool(first == second or (first != first and second != second))


@dataclass(slots=True, eq=False)
class Evaluation(ByContent):
    """Objective and measures of one batch, sample by sample, as :func:`parse` found them right."""

    objective: Tensor
    """f_j, shape ``(B,)``, float32 at least."""
    measures: Mapping[str, Tensor]
    """Shape ``(B,)`` or ``(B, m)`` each, the bounded ones in float32 at least; NaN where a mask leaves a value out.
    Audits report those no constraint bounds."""
    index: Tensor | None = None
    """Each sample's number in the data set, shape ``(B,)``."""
    sample_weight: Tensor | None = None
    """Weights of the mean, shape ``(B,)``; zero for padding."""
    masks: Mapping[str, Tensor] = field(default_factory=dict)
    """Where the measures that were given with a mask have values, of their shape."""

    def filled(self, constraint: Constraint, values: Tensor, by: float | Tensor) -> Tensor:
        """The ``values`` of a constraint with a number where a mask leaves them out."""
        mask = self.masks.get(constraint.measure)
        return values if mask is None else torch.where(mask, values, by)

    def check_finite(self, constraints: Iterable[Constraint], step: int | None = None) -> None:
        """Raise an error if the objective or a measure that ``constraints`` bound is not finite; it names which."""
        named = {"the objective": self.objective}
        named |= {measure_of(c): self.filled(c, c.of(self.measures), 0.0) for c in constraints}
        for what, values in named.items():
            bad = ~values.detach().isfinite()
            bad = bad if bad.ndim == 1 else bad.any(1)
            if self.sample_weight is not None:
                bad &= self.sample_weight > 0
            if bad.any():
                where = bad.nonzero().flatten()
                samples = (where if self.index is None else self.index.to(where.device)[where]).tolist()
                raise not_finite(what, Fault(samples, len(samples), step, numbered=self.index is not None))


def parse(
    objective: Tensor,
    measures: Measures,
    constraints: Iterable[Constraint],
    index: Tensor | None = None,
    sample_weight: Tensor | None = None,
) -> Evaluation:
    """Check what a user's code computed for a batch, and return it as an :class:`Evaluation`.

    Half precision stays outside: what ``constraints`` bound is compared in float32 at least, in training as in audits.
    """
    if not isinstance(objective, Tensor):
        raise MeasureError(f"expected the objective as a tensor of shape (B,), got {type(objective).__name__}")
    shape, device = objective.shape, objective.device
    if len(shape) != 1 or not shape[0]:
        got = f"{tuple(shape)}; reduce each sample to one number, but not the batch"
        if not shape:
            got = "a scalar: it is already reduced. Compute the loss with reduction='none'; the method takes the mean"
        raise MeasureError(f"expected the objective of each sample, shape (B,) with B >= 1, got {got}")
    if objective.dtype not in COMPARED:
        objective = _comparable("the objective", objective, device)
    found: dict[str, Tensor] = {}
    masks: dict[str, Tensor] = {}
    for name, values in measures.items():
        if name in RESERVED:
            raise MeasureError(f"a measure cannot be called {name!r}, which a method takes itself: rename it")
        if not isinstance(values, Tensor):
            values, masks[name] = _masked(name, values)
        found[name], its = values, values.shape
        if its != shape and (len(its) != 2 or its[0] != shape[0] or not its[1]):
            raise MeasureError(
                f"expected the measure {name!r} of shape ({shape[0]},) or ({shape[0]}, m), one row for each sample of "
                f"the objective, got {tuple(its)}; do not average over the batch"
            )
    for constraint in constraints:
        name = constraint.measure
        if name not in found:
            raise _missing(name, constraint, found)
        values = found[name]
        if values.dtype not in COMPARED or values.device != device:
            found[name] = _comparable(f"the measure {name!r}", values, device)
        if constraint.reference is not None:
            _check_reference(constraint, found, masks)
    right = isinstance(index, Tensor) and index.dtype is torch.int64 and index.shape == shape and index.device == device
    if index is not None and not right:
        index = check_index(index, objective)
    if sample_weight is not None:
        sample_weight = _sample_weight(sample_weight, objective)
    return Evaluation(objective, found, index, sample_weight, masks)


def _masked(name: str, given: Any) -> tuple[Tensor, Tensor]:
    """The values of a measure given as ``(values, mask)``, NaN where the mask is False, and the mask.

    Values outside the mask receive no gradient.
    """
    if not (isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, Tensor) for each in given)):
        raise MeasureError(
            f"expected the measure {name!r} as a tensor, got {type(given).__name__}; give one value for each sample, "
            "or a pair of tensors (values, mask) where some are left out"
        )
    values, mask = given
    if mask.dtype is not torch.bool or mask.shape != values.shape or mask.device != values.device:
        raise MeasureError(
            f"expected the mask of the measure {name!r} as bool of shape {tuple(values.shape)} on {values.device}, got "
            f"{tuple(mask.shape)} of {mask.dtype} on {mask.device}; it is True where there is a value"
        )
    return torch.where(mask, values, math.nan), mask


def _missing(name: str, constraint: Constraint, found: Mapping[str, Tensor]) -> MissingMeasureError:
    return MissingMeasureError(
        f"the constraint {constraint} needs the measure {name!r}, which was not given "
        f"(given: {', '.join(sorted(found)) or 'none'}).{did_you_mean(name, found)}"
    )


def _check_reference(constraint: Constraint, found: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Refuse per-sample bounds whose shape does not fit their measure."""
    name, measure = str(constraint.reference), found[constraint.measure]
    if name not in found:
        raise _missing(name, constraint, found)
    bound = found[name]
    if bound.shape not in (measure.shape, measure.shape[:1]) or bound.device != measure.device or name in masks:
        wanted = f"({len(measure)},) or {tuple(measure.shape)} on {measure.device}"
        got = f"{tuple(bound.shape)} on {bound.device}{'; a mask goes with the measure' if name in masks else ''}"
        raise MeasureError(f"expected {name!r} for {constraint} of shape {wanted}, got {got}")


def _comparable(what: str, values: Tensor, device: torch.device) -> Tensor:
    """The values in float32 at least, on the objective's ``device``."""
    if values.device != device:
        raise MeasureError(f"{what} is on {values.device}, the objective on {device}: move one of them")
    if not values.is_floating_point():
        raise MeasureError(f"expected {what} of floating point type, got {values.dtype}; convert it with .float()")
    return values if values.dtype in COMPARED else values.float()


def check_index(index: Any, objective: Tensor) -> Tensor:
    """Return the sample indices as int64 on the objective's device; they are one whole number for each sample."""
    if not isinstance(index, Tensor) or index.dtype not in INTEGERS or index.shape != objective.shape:
        found = f"{tuple(index.shape)} of {index.dtype}" if isinstance(index, Tensor) else type(index).__name__
        raise SampleIndexError(
            f"expected index as integers of shape ({len(objective)},), got {found}; it holds each sample's number in "
            "the data set"
        )
    return index.to(objective.device, torch.int64)


def _sample_weight(sample_weight: Any, objective: Tensor) -> Tensor:
    if not isinstance(sample_weight, Tensor) or sample_weight.shape != objective.shape:
        found = tuple(sample_weight.shape) if isinstance(sample_weight, Tensor) else type(sample_weight).__name__
        raise MeasureError(f"expected sample_weight of shape ({len(objective)},), one for each sample, got {found}")
    weight = _comparable("sample_weight", sample_weight.to(objective.dtype), objective.device)
    if on_host(weight) and not bool(((weight >= 0) & weight.isfinite()).all()):
        raise MeasureError(f"expected finite sample_weight >= 0, zero for padding, got {weight.tolist()}")
    return weight


def refuse_broadcast(evaluation: Evaluation, first: Callable[[], Evaluation]) -> None:
    """Refuse a measure with as many values for a sample as there are samples, if that is so for one sample too.

    ``first`` evaluates the first sample alone; it is called only where there is doubt.
    """
    for name, values in evaluation.measures.items():
        square = values.ndim == 2 and values.shape[1] == len(values) > 1 and name not in evaluation.masks
        if square and first().measures[name].numel() == 1:
            raise broadcast(name, len(values))


def broadcast(name: str, batch: int) -> MeasureError:
    """The error for a measure ``(B, B)``, the classic broadcasting mistake."""
    return MeasureError(
        f"expected the measure {name!r} of shape (B,), got (B, B) with B = {batch}: (B, 1) and (B,) were broadcast. "
        "Squeeze the model's output, model(x).squeeze(1)"
    )


def on_host(values: Tensor) -> bool:
    """Whether values can be read without waiting: not on an accelerator, and not in a compiled graph."""
    return not torch.compiler.is_compiling() and values.is_cpu


def measure_of(constraint: Constraint) -> str:
    """The bounded values of a constraint, in words for error messages."""
    return f"the measure of the constraint {constraint.name!r} ({constraint})"


def not_finite(what: str, fault: Fault) -> NotFiniteError:
    """The error for values that are not finite."""
    advice = "" if fault.step is None else " and the step size; weights after this step are not to be trusted"
    return NotFiniteError(
        f"expected finite values, but {what} is not finite for {fault.count} sample{'s' if fault.count > 1 else ''}"
        f"{fault.when} ({'sample index' if fault.numbered else 'position in the batch'}: {fault}). "
        f"Check these samples{advice}"
    )


# Of any model: a function that takes a class of its own could not be given for one that takes every Module.
Evaluate = Callable[[Any, Any], tuple[Tensor, Measures]]


class OverConstraints(Protocol):
    """The part of a method that a problem uses."""

    @property
    def constraints(self) -> tuple[Constraint, ...]: ...


class Problem:
    """``min_w sum_j f_j(w)`` subject to ``g_ij(w) <= 0`` for every constraint i and sample j (problem (3)).

    Args:
        evaluate: a function of the model and a batch, as the data set gives it, that returns the objective ``(B,)``
            and a dictionary of measures, ``(B,)`` or ``(B, m)`` each; those no constraint bounds of any type. A pair
            ``(values, mask)`` leaves out the values where the mask, bool of the same shape, is False.
        constraints: the requirements, each on one of the measures; those of the method if not given.
        method: over these constraints, that :func:`samplewise.fit` takes unless it is given another.

    Example:
        >>> import torch
        >>> from samplewise import AtMost
        >>> def evaluate(model, batch):
        ...     prediction = model(batch).squeeze(1)
        ...     return prediction, {"size": prediction.abs()}
        >>> problem = Problem(evaluate, [AtMost("size", 1.0)])
        >>> problem.evaluate(torch.nn.Linear(3, 1), torch.zeros(5, 3)).objective.shape
        torch.Size([5])
    """

    def __init__(
        self,
        evaluate: Evaluate,
        constraints: Iterable[Constraint] | None = None,
        *,
        method: OverConstraints | None = None,
    ) -> None:
        if not callable(evaluate):
            raise ConfigurationError(
                f"expected evaluate as a function of (model, batch), got {type(evaluate).__name__}; it returns the "
                "objective and the measures of the batch"
            )
        self.function = evaluate  # as it was given
        if constraints is None:
            if method is None:
                raise ConfigurationError('expected constraints, such as [sw.AtMost("error", 0.1)], or method=...')
            constraints = method.constraints
        self.constraints = check_constraints(constraints)
        self.method = method
        if method is not None:
            self.check_method_over(method.constraints)

    def evaluate(
        self, model: nn.Module, batch: Any, index: Tensor | None = None, sample_weight: Tensor | None = None
    ) -> Evaluation:
        """Objective and measures of a batch, as the data set gives it, checked; the rest is as in a method's call."""
        result = self.function(model, batch)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)):
            found = f"{type(result).__name__}{f' of {len(result)}' if isinstance(result, tuple) else ''}"
            raise MeasureError(f"expected evaluate(model, batch) to return (objective, {{name: measure}}), got {found}")
        objective, measures = result
        if index is not None and isinstance(objective, Tensor) and objective.ndim == 1 and len(objective) != len(index):
            raise MeasureError(
                f"the batch has {len(index)} samples, but evaluate returned an objective of shape "
                f"{tuple(objective.shape)}: expected one value for each sample"
            )
        return parse(objective, measures, self.constraints, index, sample_weight)

    def check_method_over(self, constraints: tuple[Constraint, ...]) -> None:
        if constraints != self.constraints:
            raise ConfigurationError(
                f"the method's constraints {[repr(c) for c in constraints]} are not the problem's "
                f"{[repr(c) for c in self.constraints]}: build the method with problem.constraints"
            )

    def __repr__(self) -> str:
        return f"Problem({', '.join(str(constraint) for constraint in self.constraints)})"


@contextmanager
def evaluation_mode(*models: nn.Module) -> Iterator[None]:
    """A context with the model in eval mode and no gradients; every module's training flag is put back afterwards."""
    flags = [(module, module.training) for model in models for module in model.modules()]
    for model in models:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training
