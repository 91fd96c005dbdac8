"""What a method's call checks of its inputs: names, shapes, devices, finite values."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samplewise.constraints import Constraint
from samplewise.errors import MeasureError, MissingMeasureError, NotFiniteError, SampleIndexError, did_you_mean

SHOWN = 8  # how many sample indices an error message lists
WHOLE = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})


def can_look(values: Tensor) -> bool:
    """Whether values can be read at once: on an accelerator or in a compiled graph that would stall every step."""
    return not torch.compiler.is_compiling() and values.is_cpu


def measure_of(constraint: Constraint) -> str:
    """What a constraint bounds, in words for error messages."""
    return f"the measure of the constraint {constraint.name!r} ({constraint})"


def watched(constraints: Iterable[Constraint]) -> list[str]:
    """The values that must be finite, in words: the objective, then each constraint's measure."""
    return ["the objective", *map(measure_of, constraints)]


def check_objective(objective: Tensor) -> Tensor:
    """Return the objective in float32 at least; it must have one value for each sample."""
    if not isinstance(objective, Tensor):
        raise MeasureError(f"expected the objective as a tensor of shape (B,), got {type(objective).__name__}")
    if objective.ndim == 0:
        raise MeasureError(
            "expected the objective of each sample, shape (B,), got a scalar: it is already reduced. "
            "Compute the loss with reduction='none'; the method takes the mean itself"
        )
    if objective.ndim != 1 or not objective.numel():
        raise MeasureError(
            f"expected the objective of each sample, shape (B,) with B >= 1, got {tuple(objective.shape)}; "
            "reduce each sample to one number, but not the batch"
        )
    return _wide(objective)


def pick_measure(constraint: Constraint, measures: Mapping[str, Tensor], objective: Tensor) -> Tensor:
    """Return the measure that ``constraint`` bounds, in float32 at least, or say why it cannot be used."""
    name = constraint.measure
    measure = measures.get(name)
    if measure is None:
        given = ", ".join(sorted(measures)) or "none"
        raise MissingMeasureError(
            f"the constraint {constraint} needs the measure {name!r}, which was not given (given: {given})."
            f"{did_you_mean(name, measures)}"
        )
    check_shape(name, measure, objective)
    if measure.device != objective.device:
        raise MeasureError(
            f"the measure {name!r} is on {measure.device}, the objective on {objective.device}: move one of them"
        )
    return _wide(measure, name)


def check_shape(name: str, measure: Any, objective: Tensor) -> None:
    """Refuse a measure, bounded or not, that has no row for each sample of the objective."""
    if not isinstance(measure, Tensor):
        raise MeasureError(
            f"expected the measure {name!r} as a tensor, got {type(measure).__name__}; give one value for each sample"
        )
    shape = measure.shape
    if shape != objective.shape and (len(shape) != 2 or shape[:1] != objective.shape or not shape[1]):
        batch = len(objective)
        raise MeasureError(
            f"expected the measure {name!r} of shape ({batch},) or ({batch}, m), one row for each sample of the "
            f"objective, got {tuple(shape)}; do not average over the batch"
        )


def check_gradients(constraints: Sequence[Constraint], picked: Sequence[Tensor]) -> None:
    """Refuse measures that no gradient flows through: their constraints would hold nothing back."""
    for constraint, measure in zip(constraints, picked, strict=True):
        if not measure.requires_grad:
            raise MeasureError(
                f"expected {measure_of(constraint)} to carry a gradient, as the objective does, got one without: the "
                "constraint would not be enforced. Compute it from the model's output without detach(), "
                "torch.no_grad() or rounding"
            )


def _wide(values: Tensor, measure: str | None = None) -> Tensor:
    """The values of the measure, or of the objective, in float32 at least."""
    if values.dtype is torch.float32 or values.dtype is torch.float64:
        return values
    if not values.is_floating_point():
        what = "the objective" if measure is None else f"the measure {measure!r}"
        raise MeasureError(f"expected {what} of floating point type, got {values.dtype}; convert it with .float()")
    return values.float()


def check_index(index: Tensor, objective: Tensor) -> Tensor:
    """Return the sample indices as int64 on the objective's device; they are one whole number for each sample."""
    tensor = isinstance(index, Tensor)
    if tensor and index.dtype is torch.int64 and index.shape == objective.shape and index.device == objective.device:
        return index
    if not tensor or index.dtype not in WHOLE or index.shape != objective.shape:
        found = f"{tuple(index.shape)} of {index.dtype}" if tensor else type(index).__name__
        raise SampleIndexError(
            f"expected index as integers of shape ({len(objective)},), got {found}; it holds each sample's number in "
            "the data set"
        )
    return index.to(objective.device, torch.int64)


def check_sample_weight(sample_weight: Tensor, objective: Tensor) -> Tensor:
    """Return the sample weights in the objective's type; they are one number >= 0 for each sample."""
    if not isinstance(sample_weight, Tensor) or sample_weight.shape != objective.shape:
        found = tuple(sample_weight.shape) if isinstance(sample_weight, Tensor) else type(sample_weight).__name__
        raise MeasureError(f"expected sample_weight of shape ({len(objective)},), one for each sample, got {found}")
    if sample_weight.device != objective.device:
        raise MeasureError(
            f"sample_weight is on {sample_weight.device}, the objective on {objective.device}: move one of them"
        )
    sample_weight = sample_weight.to(objective.dtype)
    if can_look(sample_weight) and not bool(((sample_weight >= 0) & sample_weight.isfinite()).all()):
        raise MeasureError(f"expected finite sample_weight >= 0, zero for padding, got {sample_weight.tolist()}")
    return sample_weight


def raise_if_not_finite(
    named: Iterable[tuple[str, Tensor]], index: Tensor | None, step: int | None, present: Tensor | None = None
) -> None:
    """Raise an error that names the first of the ``(description, values)`` pairs with a value that is not finite."""
    for description, values in named:
        bad = ~values.detach().isfinite()
        if bad.ndim > 1:
            bad = bad.any(1)
        if present is not None:
            bad &= present
        if bad.any():
            where = bad.nonzero().flatten()
            samples = (where if index is None else index.to(where.device)[where]).tolist()
            raise not_finite(description, samples, len(samples), step, positions=index is None)


def not_finite(
    description: str, samples: list[int], count: int, step: int | None, *, positions: bool
) -> NotFiniteError:
    """The error for values that are not finite, in training at ``step`` or, without one, in an audit."""
    listed = ", ".join(map(str, samples[:SHOWN])) + (", ..." if count > min(len(samples), SHOWN) else "")
    kind = "position in the batch" if positions else "sample index"
    advice = "" if step is None else "and at the step size; weights after this step are not to be trusted"
    when = "" if step is None else f" at step {step}"
    return NotFiniteError(
        f"expected finite values, but {description} is not finite for {count} sample{'s' if count > 1 else ''}{when} "
        f"({kind}: {listed}). Look at these samples {advice}".rstrip()
    )
