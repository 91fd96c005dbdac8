"""What a method's call checks of its inputs: names, shapes, devices, finite values."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from samplewise.constraints import Constraint
from samplewise.errors import MeasureError, MissingMeasureError, NotFiniteError, SampleIndexError, did_you_mean

SHOWN = 8  # how many sample indices an error message lists
HALF = frozenset({torch.float16, torch.bfloat16})


def can_look(values: Tensor) -> bool:
    """Whether values can be read at once: on an accelerator or in a compiled graph that would stall every step."""
    return not torch.compiler.is_compiling() and values.is_cpu


def check_objective(objective: Tensor, device: torch.device | None = None) -> Tensor:
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
    if not objective.is_floating_point():
        raise MeasureError(
            f"expected an objective of floating point type, got {objective.dtype}; convert it with .float()"
        )
    if device is not None and objective.device != device:
        raise MeasureError(
            f"the objective is on {objective.device}, the method on {device}: call method.to({str(objective.device)!r})"
        )
    return objective.float() if objective.dtype in HALF else objective


def pick_measure(constraint: Constraint, measures: Mapping[str, Tensor], objective: Tensor) -> Tensor:
    """Return the measure that ``constraint`` bounds, in float32 at least, or say why it cannot be used."""
    name = constraint.measure
    try:
        measure = measures[name]
    except KeyError:
        given = ", ".join(sorted(measures)) or "none"
        raise MissingMeasureError(
            f"the constraint {constraint} needs the measure {name!r}, which was not given (given: {given})."
            f"{did_you_mean(name, measures)}"
        ) from None
    if not isinstance(measure, Tensor):
        raise MeasureError(f"expected the measure {name!r} as a tensor, got {type(measure).__name__}")
    shape, (batch,) = measure.shape, objective.shape
    if len(shape) not in (1, 2) or shape[0] != batch or not measure.numel():
        raise MeasureError(
            f"expected the measure {name!r} of shape ({batch},) or ({batch}, m), one row for each sample of the "
            f"objective, got {tuple(shape)}; do not average over the batch"
        )
    if not measure.is_floating_point():
        raise MeasureError(
            f"expected the measure {name!r} of floating point type, got {measure.dtype}; convert it with .float()"
        )
    if measure.device != objective.device:
        raise MeasureError(
            f"the measure {name!r} is on {measure.device}, the objective on {objective.device}: move one of them"
        )
    return measure.float() if measure.dtype in HALF else measure


def check_index(index: Tensor, objective: Tensor) -> Tensor:
    """Return the sample indices as int64 on the objective's device; they are one whole number for each sample."""
    whole = isinstance(index, Tensor) and not (index.is_floating_point() or index.is_complex())
    if not whole or index.dtype == torch.bool or index.shape != objective.shape:
        found = f"{tuple(index.shape)} of {index.dtype}" if isinstance(index, Tensor) else type(index).__name__
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
