"""Bounds on measures, and statistics of their violation. ``g <= 0`` is satisfied, here and everywhere."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from itertools import combinations
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from samplewise.errors import ConfigurationError, finite_number

# Arguments of a method's call, so no measure can have these names.
RESERVED = frozenset({"self", "objective", "index", "sample_weight"})


@dataclass(frozen=True, repr=False)
class Constraint:
    """``lower <= measure <= upper`` for every sample: ``g_ij(w) <= 0``, a constraint i of the paper's problem (3).

    :func:`AtMost`, :func:`AtLeast`, :func:`Between` and :func:`Equal` are four ways to make one. With a ``share`` below
    1 the remaining samples may violate it: tau is not raised for them, :class:`samplewise.SequentialPenalty` drops the
    penalty of those furthest beyond, and an audit does not count them as failures.

    Args:
        measure: name of the measure that is bounded, of shape ``(B,)`` or ``(B, m)``.
        lower: the least value that satisfies the constraint.
        upper: the largest.
        scale: the violation, in the measure's units, that counts as ``g = 1``; it makes measures of different units
            comparable in training.
        margin: how much the bounds are tightened in training, in the measure's units. Audits always use the true ones.
        share: the fraction of the samples that must satisfy the constraint.
        name: of the constraint in summaries; needed only where two constraints bound one measure.
        reference: name of a per-sample value, given like a measure, that the bounds are relative to; zero if None.
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
            (measure == self.reference, "expected a bound on it, got the measure itself: nothing would be required"),
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
        """The lowest and the highest value that satisfy the constraint with its margin."""
        return self.lower + self.margin, self.upper - self.margin

    @property
    def column(self) -> str:
        """Name of the bounded values: the measure, or its difference from the reference."""
        return f"{self.measure} - {self.reference}" if self.reference else self.measure

    def of(self, measures: Mapping[str, Tensor]) -> Tensor:
        """The values of :attr:`column` among the measures of some samples, of the measure's shape.

        The methods below take these as their ``measure``. NaN stands where a sample has no value.
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
        """The largest excess of each sample, ``(B,)``; minus infinity where a sample has no value."""
        excess = self.excess(measure)
        excess = torch.where(excess.isnan(), -math.inf, excess)
        return excess if excess.ndim == 1 else excess.amax(1)

    def g(self, measure: Tensor) -> Tensor:
        """The constraint function used in training, of the measure's shape: with the margin, in units of scale."""
        return self.tightened(self.excess(measure), self.margin)

    def tightened(self, excess: Tensor, margin: float | Tensor) -> Tensor:
        """``g`` from the excess over the true bound and a margin."""
        if isinstance(margin, Tensor) or margin:
            excess = excess + margin
        return excess if self.scale == 1.0 else excess / self.scale

    def left_out(self, excess: Tensor) -> Tensor:
        """Mask ``(N,)`` of the samples of largest ``excess``, as many as may violate the constraint by its share.

        Samples without a value do not count.
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
        """``h = (measure - upper) / scale``: the residual of an equality, zero where it holds; ``|h|`` is ``g``."""
        return (measure - self.upper) / self.scale

    def signed_residual(self, measure: Tensor) -> Tensor:
        """What the multipliers multiply, of the measure's shape: ``g``, or :meth:`signed` where it is an equality."""
        return self.signed(measure) if self.equality else self.g(measure)

    def relaxed(self, by: float) -> "Constraint":
        """The same constraint with bounds moved outward by ``by``, or inward if negative, at most until they meet."""
        by = max(by, -self.reach)
        margin = min(self.margin, max(0.0, self.reach + by))
        return replace(self, lower=self.lower - by, upper=self.upper + by, margin=margin)

    def __repr__(self) -> str:
        """The call that makes it, such as ``AtMost('mse', 0.01, margin=0.001)``."""
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
        """The requirement as a formula, such as ``mse <= 0.01`` or, with a share, ``mse <= 0.01 for 95 %``."""
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


class Options(TypedDict, total=False):
    """The options of :class:`Constraint` that the functions below take."""

    scale: float
    margin: float
    share: float
    name: str


def AtMost(measure: str, bound: float | str, **options: Unpack[Options]) -> Constraint:
    """``measure <= bound`` for every sample; the options are those of :class:`Constraint`.

    The bound is a number, or the name of a per-sample bound that is given with the batch like a measure, of shape
    ``(B,)`` or that of the measure. It needs no gradient.

    Example:
        >>> import torch
        >>> AtMost("mse", 0.01).excess(torch.tensor([0.03, 0.01]))
        tensor([0.0200, 0.0000])
        >>> print(AtMost("error", "limit"))
        error <= limit
    """
    number, reference = _relative(bound)
    return Constraint(measure, upper=number, reference=reference, **options)


def AtLeast(measure: str, bound: float | str, **options: Unpack[Options]) -> Constraint:
    """``measure >= bound`` for every sample; bound and options are those of :func:`AtMost`."""
    number, reference = _relative(bound)
    return Constraint(measure, lower=number, reference=reference, **options)


def _relative(bound: float | str) -> tuple[float, str | None]:
    """A bound as a number and the name of the reference that it is relative to."""
    return (0.0, bound) if isinstance(bound, str) else (bound, None)


def Between(measure: str, lower: float, upper: float, **options: Unpack[Options]) -> Constraint:
    """``lower <= measure <= upper`` for every sample; the options are those of :class:`Constraint`.

    Example:
        >>> import torch
        >>> Between("area", 1.0, 2.0).excess(torch.tensor([0.5, 1.5, 4.0]))
        tensor([ 0.5000, -0.5000,  2.0000])
    """
    if isinstance(lower, str) or isinstance(upper, str):
        raise ConfigurationError(
            f"{measure}: expected two numbers, got {lower!r} and {upper!r}; for bounds of each sample's own give "
            f"AtLeast({measure!r}, ...) and AtMost({measure!r}, ..., name=...)"
        )
    lower, upper = (finite_number(each, f"bound of {measure!r}") for each in (lower, upper))
    return Constraint(measure, lower, upper, **options)


def Equal(measure: str, target: float | str, *, tolerance: float, **options: Unpack[Options]) -> Constraint:
    """``|measure - target| <= tolerance`` for every sample; target and options are as the bound of :func:`AtMost`.

    Example:
        >>> import torch
        >>> Equal("norm", 1.0, tolerance=0.5).excess(torch.tensor([1.0, 2.0]))
        tensor([-0.5000,  0.5000])
    """
    target, reference = _relative(target)
    target, tolerance = (finite_number(each, f"bound of {measure!r}") for each in (target, tolerance))
    if tolerance < 0:
        raise ConfigurationError(f"{measure}: expected tolerance >= 0, got {tolerance}")
    return Constraint(measure, target - tolerance, target + tolerance, reference=reference, **options)


def at_bound(g: Tensor) -> Tensor:
    """``g`` with 0 in place of missing values (NaN): at its bound a value costs nothing and has no gradient."""
    return torch.where(g.isnan(), 0.0, g)


def present(values: Tensor) -> Tensor:
    """The values that are not missing (NaN), flattened."""
    return values[~values.isnan()]


def may_violate(samples: int, share: float) -> int:
    """How many of ``samples`` may violate a constraint that ``share`` of them must satisfy.

    Example:
        >>> may_violate(100, 0.95), may_violate(99, 0.95), may_violate(100, 1.0)
        (5, 4, 0)
    """
    # The largest number whose complement is at least the share: 93 / 100 is 0.93, but (1 - 0.93) * 100 is below 7.
    allowed = int((1 - share) * samples) + 1
    while allowed and (allowed > samples or (samples - allowed) / samples < share):
        allowed -= 1
    return allowed


@dataclass(frozen=True)
class ViolationStats:
    """Violation of one constraint over some samples, by its true bound and in the measure's units.

    A sample with several values counts by the worst of them.
    """

    samples: int
    """Number of samples that have a value."""
    violated: int
    """Number of samples beyond the bound."""
    total: float
    """Sum of ``max(0, excess)``."""
    worst: float
    """Largest violation, 0 if every sample is within the bound."""
    _: KW_ONLY
    share: float = 1.0
    """Fraction of the samples that must be within the bound."""

    @staticmethod
    def sums_of(excess: Tensor) -> tuple[int, float, float]:
        """``violated``, ``total`` and ``worst`` from each sample's worst excess, ``(N,)``, summed in float64."""
        violation = torch.relu(excess.detach().double())
        return int((violation > 0).sum()), float(violation.sum()), float(violation.max())

    @property
    def satisfied(self) -> float:
        """Fraction of the samples within the bound; NaN if none has a value."""
        return (self.samples - self.violated) / self.samples if self.samples else math.nan

    @property
    def allowed(self) -> int:
        """Number of samples that may violate the constraint."""
        return may_violate(self.samples, self.share)

    @property
    def failed(self) -> int:
        """Number of violated samples beyond those allowed."""
        return max(0, self.violated - self.allowed)

    @property
    def met(self) -> bool:
        """Whether the required share of the samples is within the bound."""
        return not self.failed

    @property
    def mean_violation(self) -> float:
        """Mean of ``max(0, excess)`` over the samples, as in the paper's Table I."""
        return self.total / self.samples if self.samples else math.nan


def check_constraints(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The constraints as a tuple, or an error that says what is wrong with them."""
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
