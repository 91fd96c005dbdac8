"""One root exception; every subclass also is the builtin that fits, so plain handlers keep working."""

import difflib
import math
import numbers
from collections.abc import Iterable
from typing import Any

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "DataError",
    "MeasureError",
    "MissingMeasureError",
    "MissingPackageError",
    "NotFiniteError",
    "OutputError",
    "RefusedError",
    "SampleIndexError",
    "SamplewiseError",
    "did_you_mean",
    "finite_number",
]


class SamplewiseError(Exception):
    """Root of every error this library raises on purpose."""


class ConfigurationError(SamplewiseError, ValueError):
    """An argument that cannot be right: a growth below 1, bounds that contradict each other."""


class MeasureError(SamplewiseError, ValueError):
    """An objective or a measure of the wrong shape, type or device."""


class MissingMeasureError(SamplewiseError, KeyError):
    """A constraint names a measure that was not given."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr, with quotes and escapes


class MissingPackageError(SamplewiseError, ImportError):
    """A package of one of the extras is not installed."""


class NotFiniteError(SamplewiseError, ArithmeticError):
    """An objective or a measure is NaN or infinite."""


class SampleIndexError(SamplewiseError, IndexError):
    """A sample index out of range, missing or given twice."""


class DataError(SamplewiseError, ValueError):
    """Data that cannot be used: empty, of another length, not decodable."""


class CheckpointError(SamplewiseError, RuntimeError):
    """A checkpoint that is torn, foreign, or of another problem."""


class OutputError(SamplewiseError, OSError):
    """A folder that cannot be written."""


class RefusedError(SamplewiseError, RuntimeError):
    """An image that cannot carry the message at the quality asked for; nothing was written."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest of ``choices``, or an empty string."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def finite_number(value: Any, what: str) -> float:
    """Return ``value`` as a float, or say that ``what`` must be a finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ConfigurationError(f"expected a finite number for {what}, got {value!r}")
    return float(value)
