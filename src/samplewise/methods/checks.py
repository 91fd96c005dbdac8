"""What a method's call checks of its inputs: names, shapes, devices, finite values."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from samplewise.constraints import Constraint
from samplewise.errors import MeasureError, MissingMeasureError, NotFiniteError, SampleIndexError, did_you_mean

SHOWN = 8  # how many sample indices an error message lists


def check_objective(objective: Tensor) -> None:
    """The objective must have one value for each sample."""
    if not isinstance(objective, Tensor):
        raise MeasureError(f"expected the objective as a tensor of shape (B,), got {type(objective).__name__}")
    if objective.ndim == 0:
        raise MeasureError(
            "expected the objective of each sample, shape (B,), got a scalar: it is already reduced. "
            "Compute the loss with reduction='none'; the method takes the mean itself"
        )
    if objective.ndim != 1 or not len(objective):
        raise MeasureError(
            f"expected the objective of each sample, shape (B,) with B >= 1, got {tuple(objective.shape)}"
        )
    if not objective.is_floating_point():
        raise MeasureError(f"expected an objective of floating point type, got {objective.dtype}")


def pick_measure(constraint: Constraint, measures: Mapping[str, Tensor], objective: Tensor) -> Tensor:
    """Return the measure that ``constraint`` bounds, or say why it cannot be used."""
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
    if measure.ndim not in (1, 2) or len(measure) != len(objective) or not measure.numel():
        raise MeasureError(
            f"expected the measure {name!r} of shape ({len(objective)},) or ({len(objective)}, m), one row for each "
            f"sample of the objective, got {tuple(measure.shape)}; do not average over the batch"
        )
    if not measure.is_floating_point():
        raise MeasureError(f"expected the measure {name!r} of floating point type, got {measure.dtype}")
    if measure.device != objective.device:
        raise MeasureError(
            f"the measure {name!r} is on {measure.device}, the objective on {objective.device}: move one of them"
        )
    return measure


def check_index(index: Tensor, objective: Tensor) -> None:
    """Sample indices are one whole number for each sample."""
    if not isinstance(index, Tensor) or index.shape != objective.shape or index.is_floating_point():
        found = tuple(index.shape) if isinstance(index, Tensor) else type(index).__name__
        dtype = f" of {index.dtype}" if isinstance(index, Tensor) else ""
        raise SampleIndexError(f"expected index as integers of shape ({len(objective)},), got {found}{dtype}")


def check_sample_weight(sample_weight: Tensor, objective: Tensor) -> None:
    """Sample weights are one number for each sample."""
    if not isinstance(sample_weight, Tensor) or sample_weight.shape != objective.shape:
        found = tuple(sample_weight.shape) if isinstance(sample_weight, Tensor) else type(sample_weight).__name__
        raise MeasureError(f"expected sample_weight of shape ({len(objective)},), got {found}")


def bad_rows(values: Tensor) -> Tensor:
    """Mask ``(B,)`` of the samples with a value that is not finite."""
    bad = ~torch.isfinite(values.detach())
    return bad if bad.ndim == 1 else bad.any(1)


def raise_if_not_finite(named: Iterable[tuple[str, Tensor]], index: Tensor | None, step: int) -> None:
    """Raise an error that names the first of the ``(description, values)`` pairs with a value that is not finite."""
    for description, values in named:
        bad = bad_rows(values)
        if bad.any():
            where = bad.nonzero().flatten()
            samples = (where if index is None else index.to(where.device)[where]).tolist()
            raise not_finite(description, samples, len(samples), step, positions=index is None)


def not_finite(description: str, samples: list[int], count: int, step: int, *, positions: bool) -> NotFiniteError:
    """The error for values that are not finite."""
    listed = ", ".join(map(str, samples[:SHOWN])) + (", ..." if count > min(len(samples), SHOWN) else "")
    kind = "position in the batch" if positions else "sample index"
    return NotFiniteError(
        f"{description} is not finite for {count} sample{'s' if count > 1 else ''} at step {step} ({kind}: {listed}). "
        "Look at these samples and at the step size; weights after this step are not to be trusted"
    )
