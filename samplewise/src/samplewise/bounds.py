"""Four ways to make a constraint, by a bound that is a number or each sample's own."""

from typing import TypedDict, Unpack

from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, finite_number


class Options(TypedDict, total=False):
    """What every way to make a :class:`Constraint` takes, and hands on to it."""

    scale: float
    margin: float
    share: float
    name: str


def AtMost(measure: str, bound: float | str, **options: Unpack[Options]) -> Constraint:
    """``measure <= bound`` for every sample; the options are those of :class:`Constraint`.

    The bound is a number, or the name of each sample's own, which is given with the batch like a measure: of shape
    ``(B,)`` or that of the measure. It needs no gradient.

    Example:
        >>> import torch
        >>> AtMost("mse", 0.01).excess(torch.tensor([0.03, 0.01]))
        tensor([0.0200, 0.0000])
        >>> print(AtMost("error", "limit"))
        error <= limit
    """
    number, reference = _counted(bound)
    return Constraint(measure, upper=number, reference=reference, **options)


def AtLeast(measure: str, bound: float | str, **options: Unpack[Options]) -> Constraint:
    """``measure >= bound`` for every sample; bound and options are those of :func:`AtMost`."""
    number, reference = _counted(bound)
    return Constraint(measure, lower=number, reference=reference, **options)


def _counted(bound: float | str) -> tuple[float, str | None]:
    """A bound as a number, and what that is counted from."""
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
    target, reference = _counted(target)
    target, tolerance = (finite_number(each, f"bound of {measure!r}") for each in (target, tolerance))
    if tolerance < 0:
        raise ConfigurationError(f"{measure}: expected tolerance >= 0, got {tolerance}")
    return Constraint(measure, target - tolerance, target + tolerance, reference=reference, **options)
