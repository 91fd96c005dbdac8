"""Bounds on measures, and how they fared. ``g <= 0`` is satisfied, here and everywhere."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from itertools import combinations

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, finite_number

# What the call of a method takes for itself, so no measure can be called so.
RESERVED = frozenset({"self", "objective", "index", "sample_weight"})


@dataclass(frozen=True, repr=False)
class Constraint:
    """``lower <= measure <= upper`` for every sample: ``g_ij(w) <= 0``, a constraint i of the paper's problem (3).

    :func:`AtMost`, :func:`AtLeast`, :func:`Between` and :func:`Equal` are four ways to make one. With a ``share`` below
    1 the rest of the samples may violate it. They keep their price in the loss, since leaving out the worst of each
    batch did not help on MNIST, but tau is not raised for them, and they are no failure.

    Args:
        measure: name of the measure that is bounded, of shape ``(B,)`` or ``(B, m)``.
        lower: the least value that satisfies the constraint.
        upper: the largest.
        scale: what one unit of ``g`` is in the measure's units, so that measures of different units are comparable
            in training.
        margin: how much the bounds are tightened in training, in the measure's units. Audits always use the true ones.
        share: how many of the samples must satisfy the constraint, as a share of all.
        name: what the constraint is called in summaries; needed only where two constraints bound one measure.
        reference: name of what the bounds are counted from, a value of each sample's own that is given like a measure;
            from zero if there is none.
    """

    measure: str
    lower: float = -math.inf
    upper: float = math.inf
    _: KW_ONLY
    scale: float = 1.0
    margin: float = 0.0
    share: float = 1.0
    name: str = ""
    reference: str | None = None

    def __post_init__(self) -> None:
        measure = self.measure
        for name in (measure,) if self.reference is None else (measure, self.reference):
            if not isinstance(name, str) or not name.isidentifier():
                raise ConfigurationError(
                    f"expected the measure's name as a Python identifier, got {name!r}: measures are given to the "
                    "method as keyword arguments"
                )
            if name in RESERVED:
                raise ConfigurationError(f"a measure cannot be called {name!r}, which a method takes itself: rename it")
        numbers = {"lower": -math.inf, "upper": math.inf, "scale": None, "margin": None, "share": None}
        for field, absent in numbers.items():
            value = getattr(self, field)
            if not isinstance(value, float) or value != absent:
                what = field if absent is None else "bound"
                object.__setattr__(self, field, finite_number(value, f"{what} of {measure!r}"))
        if self.name == "":
            object.__setattr__(self, "name", measure)
        lower, upper, margin, reach = self.lower, self.upper, self.margin, self.reach
        between = f"between {lower:g} and {upper:g}"
        for wrong, message in (
            (self.scale <= 0, f"expected scale > 0, got {self.scale}; leave it out for 1"),
            (margin < 0, f"expected margin >= 0, got {margin}; to relax, move the bound"),
            (not 0 < self.share <= 1, f"expected a share in (0, 1], got {self.share}; 1 is every sample"),
            (measure == self.reference, "expected a bound on it, got the measure itself: nothing would be asked for"),
            (not isinstance(self.name, str), f"expected the constraint's name as text, got {self.name!r}"),
            (lower == -upper == -math.inf, f"expected a finite lower bound, upper bound or both, got {lower}, {upper}"),
            (lower > upper, f"expected lower <= upper, got {lower} and {upper}: nothing lies between"),
            (margin > reach, f"the margin {margin} on both sides leaves nothing {between}; make it at most {reach:g}"),
        ):
            if wrong:
                raise ConfigurationError(f"{measure}: {message}")

    @property
    def reach(self) -> float:
        """How far inward the bounds can move before they meet."""
        return (self.upper - self.lower) / 2

    @property
    def bound(self) -> float:
        """The one bound of :func:`AtMost` and :func:`AtLeast`."""
        if self.reach < math.inf or self.reference:
            raise AttributeError(f"{self} has not one number as its bound: read lower, upper and reference")
        return self.lower if self.upper == math.inf else self.upper

    @property
    def interval(self) -> tuple[float, float]:
        """The values that satisfy the constraint with its margin, from lowest to highest."""
        return self.lower + self.margin, self.upper - self.margin

    @property
    def column(self) -> str:
        """What is bounded by numbers: the measure, or its difference from the reference."""
        return f"{self.measure} - {self.reference}" if self.reference else self.measure

    def of(self, measures: Mapping[str, Tensor]) -> Tensor:
        """The values of :attr:`column` among the measures of some samples, of the measure's shape.

        Everything below takes these for its measure. NaN stands where a sample has no value.
        """
        values = measures[self.measure]
        if not self.reference:
            return values
        reference = measures[self.reference].to(values.dtype)
        return values - (reference if reference.ndim == values.ndim else reference.unsqueeze(1))

    def excess(self, measure: Tensor) -> Tensor:
        """How far each value lies beyond the true bound, in the measure's units: ``<= 0`` is satisfied."""
        if self.lower == -math.inf:
            return measure - self.upper
        if self.upper == math.inf:
            return self.lower - measure
        return torch.maximum(self.lower - measure, measure - self.upper)

    def worst_excess(self, measure: Tensor) -> Tensor:
        """The excess of each sample, ``(B,)``: the largest of its values where it has several, minus infinity where it
        has none.
        """
        excess = self.excess(measure)
        excess = torch.where(excess.isnan(), -math.inf, excess)
        return excess if excess.ndim == 1 else excess.amax(1)

    def g(self, measure: Tensor) -> Tensor:
        """The constraint function training sees, of the measure's shape: tightened by the margin, in units of scale."""
        return self.tightened(self.excess(measure))

    def tightened(self, excess: Tensor, margin: float | Tensor | None = None) -> Tensor:
        """``g`` from the excess over the true bound, by another ``margin`` than its own if one is given."""
        if margin is not None:
            excess = excess + margin
        elif self.margin:
            excess = excess + self.margin
        return excess if self.scale == 1.0 else excess / self.scale

    def left_out(self, excess: Tensor) -> Tensor:
        """Which samples may violate, a mask ``(N,)``: those of the largest ``excess``, as many as the share allows of
        those that have a value.
        """
        found = torch.zeros_like(excess, dtype=torch.bool)
        if allowed := may_violate(int((excess > -math.inf).sum()), self.share):
            found[excess.argsort(descending=True, stable=True)[:allowed]] = True
        return found

    @property
    def equality(self) -> bool:
        """Whether the bounds meet, as :func:`Equal` with tolerance 0 makes them: multipliers then have either sign."""
        return self.lower == self.upper

    def signed(self, measure: Tensor) -> Tensor:
        """``(measure - upper) / scale``: of an equality the value that is zero where it holds, whose size is ``g``."""
        return (measure - self.upper) / self.scale

    def signed_residual(self, measure: Tensor) -> Tensor:
        """What the multipliers multiply, of the measure's shape: ``g``, or :meth:`signed` where it is an equality."""
        return self.signed(measure) if self.equality else self.g(measure)

    def relaxed(self, by: float) -> "Constraint":
        """The same constraint with its bounds moved outward by ``by``; if negative inward, at most until they meet."""
        by = max(by, -self.reach)
        margin = min(self.margin, max(0.0, self.reach + by))
        return replace(self, lower=self.lower - by, upper=self.upper + by, margin=margin)

    def __repr__(self) -> str:
        """How one would write it, such as ``AtMost('mse', 0.01, margin=0.001)``."""
        kind = "AtMost" if self.lower == -math.inf else "AtLeast" if self.upper == math.inf else "Between"
        bounds = [f"{bound!r}" for bound in (self.lower, self.upper) if math.isfinite(bound)]
        if self.reference:
            plain = kind != "Between" and 0.0 in (self.lower, self.upper)
            sides = [f"lower={self.lower!r}", f"upper={self.upper!r}", f"reference={self.reference!r}"]
            kind, bounds = (kind, [repr(self.reference)]) if plain else ("Constraint", sides)
        absent = {"scale": 1.0, "margin": 0.0, "share": 1.0, "name": self.measure}
        more = [f"{key}={getattr(self, key)!r}" for key, value in absent.items() if getattr(self, key) != value]
        return f"{kind}({', '.join([repr(self.measure), *bounds, *more])})"

    def __str__(self) -> str:
        """The requirement as a formula, such as ``mse <= 0.01``, and ``mse <= 0.01 for 95 %`` if that is the share."""
        share = f" for {100 * self.share:.10g} %" if self.share < 1 else ""
        lower, upper = map(self._side, (self.lower, self.upper))
        if self.equality or self.upper == math.inf:
            return f"{self.measure} {'=' if self.equality else '>='} {lower}{share}"
        return f"{f'{lower} <= ' if self.lower > -math.inf else ''}{self.measure} <= {upper}{share}"

    def _side(self, bound: float) -> str:
        """A bound in words, such as ``0.01``, ``limit`` or ``limit + 0.01``."""
        if not self.reference:
            return f"{bound:g}"
        return f"{self.reference} {'+' if bound > 0 else '-'} {abs(bound):g}" if bound else self.reference


def may_violate(samples: int, share: float) -> int:
    """How many of so many samples may violate a constraint that a share of them must satisfy.

    Example:
        >>> may_violate(100, 0.95), may_violate(99, 0.95), may_violate(100, 1.0)
        (5, 4, 0)
    """
    # The most that leave a quotient of at least the share: 93 / 100 is 0.93, but (1 - 0.93) * 100 is below 7.
    allowed = int((1 - share) * samples) + 1
    while allowed and (allowed > samples or (samples - allowed) / samples < share):
        allowed -= 1
    return allowed


@dataclass(frozen=True)
class ViolationStats:
    """How one constraint fared on some samples, by its true bound and in the measure's units."""

    samples: int
    """That have a value: of the others nothing is asked."""
    violated: int
    """Samples beyond the bound; one with several values is, if any of them is."""
    total: float
    """Sum of ``max(0, excess)``; of a sample with several values the largest counts."""
    worst: float
    """Largest violation, 0 if every sample is within the bound."""
    _: KW_ONLY
    share: float = 1.0
    """Of the samples that was asked for."""

    @staticmethod
    def sums_of(excess: Tensor) -> tuple[int, float, float]:
        """``violated``, ``total`` and ``worst`` of the samples' worst excess, ``(N,)``, added up in float64."""
        violation = torch.relu(excess.detach().double())
        return int((violation > 0).sum()), float(violation.sum()), float(violation.max())

    @property
    def satisfied(self) -> float:
        """Share of the samples within the bound; NaN if none has a value."""
        return (self.samples - self.violated) / self.samples if self.samples else math.nan

    @property
    def allowed(self) -> int:
        """How many samples may violate the constraint."""
        return may_violate(self.samples, self.share)

    @property
    def failed(self) -> int:
        """How many more do than may."""
        return max(0, self.violated - self.allowed)

    @property
    def met(self) -> bool:
        """Whether the share that was asked for is satisfied."""
        return not self.failed

    @property
    def mean_violation(self) -> float:
        """Mean of ``max(0, excess)`` over the samples, as in the paper's Table I."""
        return self.total / self.samples if self.samples else math.nan


def check_constraints(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """Return the constraints as a tuple, or say what is wrong with them."""
    if isinstance(constraints, Constraint):
        raise ConfigurationError(f"expected a list of constraints, got one constraint: write [{constraints!r}]")
    if not isinstance(constraints, Iterable):
        raise ConfigurationError(f"expected a list of constraints, got {type(constraints).__name__}")
    found = tuple(constraints)
    for each in found:
        if not isinstance(each, Constraint):
            raise ConfigurationError(
                f"expected constraints such as AtMost('mse', 0.01), got {type(each).__name__}: {each!r}"
            )
    for first, second in combinations(found, 2):
        if first.name == second.name:
            raise ConfigurationError(
                f"2 constraints are called {first.name!r}; expected a name of its own for each, for example "
                f"AtMost({first.measure!r}, ..., name='{first.name}_high')"
            )
        lower, upper = max(first.interval[0], second.interval[0]), min(first.interval[1], second.interval[1])
        apart = first.share + second.share <= 1  # some samples may meet the one, and others the other
        if first.column == second.column and lower > upper and not apart:
            margins = f" with margins {first.margin:g} and {second.margin:g}" if first.margin or second.margin else ""
            raise ConfigurationError(
                f"no sample can satisfy both {first} and {second}{margins}: the bounds contradict, so move one"
            )
    return found
