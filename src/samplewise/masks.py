"""Values that are not there: what a mask leaves out of a measure is NaN from there on, and never counts."""

import math
from typing import Any

import torch
from torch import Tensor

from samplewise.errors import MeasureError


def masked(name: str, given: Any) -> tuple[Tensor, Tensor]:
    """The values of a measure that was given as ``(values, mask)``, NaN where the mask is False; and the mask.

    No gradient comes to what is left out, whatever happens to the values later.
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


def at_bound(g: Tensor) -> Tensor:
    """``g`` with 0 where there is no value: exactly at its bound it costs nothing and pulls at nothing."""
    return torch.where(g.isnan(), 0.0, g)


def present(values: Tensor) -> Tensor:
    """The values that are there, in one row."""
    return values[~values.isnan()]
