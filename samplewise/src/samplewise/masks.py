"""Values that are not there: what a mask leaves out of a measure is NaN from there on, and never counts."""

import math
from collections.abc import Mapping
from dataclasses import fields
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


class ByContent:
    """A dataclass, made with ``eq=False``, that is equal to another if its fields are, tensors by their values.

    NaN is equal to NaN, since there is no value in both. The hash is of the numbers and names alone.
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


def present(values: Tensor) -> Tensor:
    """The values that are there, in one row."""
    return values[~values.isnan()]
