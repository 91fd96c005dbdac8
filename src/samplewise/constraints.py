"""Bounds on measures. ``g <= 0`` is satisfied, here and everywhere."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, replace
from itertools import combinations
from typing import Self

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, finite_number

__all__ = ["AtLeast", "AtMost", "Between", "Constraint", "Equal", "check_constraints"]

# What the call of a method takes for itself, so no measure can be called so.
RESERVED = frozenset({"self", "objective", "index", "sample_weight"})


@dataclass(frozen=True)
class Constraint(ABC):
    """One requirement ``g_ij(w) <= 0`` on every sample j: a constraint i of the paper's problem (3).

    Args:
        measure: name of the measure that is bounded, of shape ``(B,)`` or ``(B, m)``.
        scale: what one unit of ``g`` is in the measure's units, so that measures of different units are comparable
            in training.
        margin: how much the bound is tightened in training, in the measure's units. Audits always use the true bound.
        name: what the constraint is called in summaries; needed only where two constraints bound one measure.
    """

    measure: str
    _: KW_ONLY
    scale: float = 1.0
    margin: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.measure, str) or not self.measure.isidentifier():
            raise ConfigurationError(
                f"expected the measure's name as a Python identifier, got {self.measure!r}: "
                "measures are given to the method as keyword arguments"
            )
        if self.measure in RESERVED:
            raise ConfigurationError(
                f"a measure cannot be called {self.measure!r}, which a method's call takes for itself: rename it"
            )
        self._check_numbers("scale", "margin")
        if self.scale <= 0:
            raise ConfigurationError(f"{self.measure}: expected scale > 0, got {self.scale}; leave it out for 1")
        if self.margin < 0:
            raise ConfigurationError(
                f"{self.measure}: expected margin >= 0, got {self.margin}; to relax, move the bound"
            )
        if not isinstance(self.name, str):
            raise ConfigurationError(f"{self.measure}: expected the constraint's name as text, got {self.name!r}")
        if not self.name:
            object.__setattr__(self, "name", self.measure)

    def _check_numbers(self, *fields: str) -> None:
        for field in fields:
            object.__setattr__(self, field, finite_number(getattr(self, field), f"{field} of {self.measure!r}"))

    @abstractmethod
    def excess(self, measure: Tensor) -> Tensor:
        """How far each value lies beyond the true bound, in the measure's units: ``<= 0`` is satisfied."""

    @abstractmethod
    def relaxed(self, by: float) -> Self:
        """The same constraint with its bound moved outward by ``by``, or inward if ``by`` is negative."""

    @abstractmethod
    def __str__(self) -> str:
        """The requirement as a formula, such as ``mse <= 0.01``."""

    @property
    def interval(self) -> tuple[float, float]:
        """The values that satisfy the constraint with its margin, from lowest to highest."""
        return -math.inf, math.inf

    def g(self, measure: Tensor) -> Tensor:
        """The constraint function training sees, of the measure's shape: tightened by the margin, in units of scale."""
        return self.tightened(self.excess(measure))

    def tightened(self, excess: Tensor) -> Tensor:
        """``g`` from the excess over the true bound."""
        if self.margin:
            excess = excess + self.margin
        return excess if self.scale == 1.0 else excess / self.scale


@dataclass(frozen=True)
class AtMost(Constraint):
    """``measure <= bound`` for every sample.

    Example:
        >>> import torch
        >>> AtMost("mse", 0.01).excess(torch.tensor([0.03, 0.01]))
        tensor([0.0200, 0.0000])
    """

    bound: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers("bound")

    @property
    def interval(self) -> tuple[float, float]:
        return -math.inf, self.bound - self.margin

    def excess(self, measure: Tensor) -> Tensor:
        return measure - self.bound

    def relaxed(self, by: float) -> Self:
        return replace(self, bound=self.bound + by)

    def __str__(self) -> str:
        return f"{self.measure} <= {self.bound:g}"


@dataclass(frozen=True)
class AtLeast(Constraint):
    """``measure >= bound`` for every sample.

    Example:
        >>> import torch
        >>> AtLeast("psnr", 40).excess(torch.tensor([38.0, 41.0]))
        tensor([ 2., -1.])
    """

    bound: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers("bound")

    @property
    def interval(self) -> tuple[float, float]:
        return self.bound + self.margin, math.inf

    def excess(self, measure: Tensor) -> Tensor:
        return self.bound - measure

    def relaxed(self, by: float) -> Self:
        return replace(self, bound=self.bound - by)

    def __str__(self) -> str:
        return f"{self.measure} >= {self.bound:g}"


@dataclass(frozen=True)
class Between(Constraint):
    """``lower <= measure <= upper`` for every sample.

    Example:
        >>> import torch
        >>> Between("area", 1.0, 2.0).excess(torch.tensor([0.5, 1.5, 4.0]))
        tensor([ 0.5000, -0.5000,  2.0000])
    """

    lower: float
    upper: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers("lower", "upper")
        if self.lower > self.upper:
            raise ConfigurationError(
                f"{self.measure}: expected lower <= upper, got {self.lower} and {self.upper}: nothing lies between"
            )
        if 2 * self.margin > self.upper - self.lower:
            raise ConfigurationError(
                f"{self.measure}: the margin {self.margin} on both sides leaves nothing between {self.lower} and "
                f"{self.upper}; make it at most {(self.upper - self.lower) / 2:g}"
            )

    @property
    def interval(self) -> tuple[float, float]:
        return self.lower + self.margin, self.upper - self.margin

    def excess(self, measure: Tensor) -> Tensor:
        return torch.maximum(self.lower - measure, measure - self.upper)

    def relaxed(self, by: float) -> Self:
        half = (self.upper - self.lower) / 2
        by = max(by, -half)  # further inward they would cross
        return replace(self, lower=self.lower - by, upper=self.upper + by, margin=min(self.margin, half + by))

    def __str__(self) -> str:
        return f"{self.lower:g} <= {self.measure} <= {self.upper:g}"


@dataclass(frozen=True)
class Equal(Constraint):
    """``|measure - target| <= tolerance`` for every sample.

    Example:
        >>> import torch
        >>> Equal("norm", 1.0, tolerance=0.5).excess(torch.tensor([1.0, 2.0]))
        tensor([-0.5000,  0.5000])
    """

    target: float
    _: KW_ONLY
    tolerance: float

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_numbers("target", "tolerance")
        if self.tolerance < 0:
            raise ConfigurationError(f"{self.measure}: expected tolerance >= 0, got {self.tolerance}")
        if self.margin > self.tolerance:
            raise ConfigurationError(
                f"{self.measure}: the margin {self.margin} is wider than the tolerance {self.tolerance}: "
                "no value could satisfy the tightened constraint"
            )

    @property
    def interval(self) -> tuple[float, float]:
        reach = self.tolerance - self.margin
        return self.target - reach, self.target + reach

    def excess(self, measure: Tensor) -> Tensor:
        return (measure - self.target).abs() - self.tolerance

    def relaxed(self, by: float) -> Self:
        tolerance = max(0.0, self.tolerance + by)  # further inward nothing is left
        return replace(self, tolerance=tolerance, margin=min(self.margin, tolerance))

    def __str__(self) -> str:
        return f"|{self.measure} - {self.target:g}| <= {self.tolerance:g}"


def check_constraints(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Return the constraints as a tuple, or say what is wrong with them."""
    if isinstance(constraints, Constraint):
        raise ConfigurationError(f"expected a list of constraints, got one constraint: write [{constraints!r}]")
    if not isinstance(constraints, Iterable):
        raise ConfigurationError(f"expected a list of constraints, got {type(constraints).__name__}")
    found = tuple(constraints)
    for constraint in found:
        if not isinstance(constraint, Constraint):
            raise ConfigurationError(
                f"expected constraints such as AtMost('mse', 0.01), got {type(constraint).__name__}: {constraint!r}"
            )
    for name, count in Counter(constraint.name for constraint in found).items():
        if count > 1:
            raise ConfigurationError(
                f"{count} constraints are called {name!r}; expected a name of its own for each, for example "
                f"AtMost({name!r}, ..., name='{name}_high')"
            )
    _check_contradictions(found)
    return found


def _check_contradictions(constraints: tuple[Constraint, ...]) -> None:
    """Refuse bounds on one measure that no value can satisfy together."""
    for first, second in combinations(constraints, 2):
        if first.measure != second.measure:
            continue
        lower = max(first.interval[0], second.interval[0])
        upper = min(first.interval[1], second.interval[1])
        if lower > upper:
            margins = f" with margins {first.margin:g} and {second.margin:g}" if first.margin or second.margin else ""
            raise ConfigurationError(
                f"no sample can satisfy both {first} and {second}{margins}: the bounds contradict, so move one"
            )
