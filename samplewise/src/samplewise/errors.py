"""One root exception; every subclass also is the builtin that fits, so plain handlers keep working."""

import contextlib
import difflib
import math
import numbers
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any


class SamplewiseError(Exception):
    """Root of every error this library raises on purpose."""


class ConfigurationError(SamplewiseError, ValueError):
    """An invalid argument: a growth below 1, bounds that contradict each other."""


class MeasureError(SamplewiseError, ValueError):
    """An objective or a measure of the wrong shape, type or device."""


class _MissingNameError(SamplewiseError, KeyError):
    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print the repr, with quotes and escapes


class MissingMeasureError(_MissingNameError):
    """A constraint names a measure that was not given."""


class MissingColumnError(_MissingNameError):
    """A name that no column of a history has."""


class MissingConstraintError(MissingMeasureError, ConfigurationError):
    """A name that no constraint has."""


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


class RecordError(CheckpointError, DataError):
    """A file of a run, or of data, that cannot be read in the expected format."""


class OutputError(SamplewiseError, OSError):
    """A folder that cannot be written."""


class ProcessesError(SamplewiseError, RuntimeError):
    """Processes that should work together and do not."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest of ``choices``, or an empty string."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def constraint_named(name: str, choices: Mapping[str, Any]) -> Any:
    """The entry of ``choices`` for the constraint ``name``, or an error that lists the names."""
    if name not in choices:
        raise MissingConstraintError(
            f"no constraint is called {name!r}, only {list(choices)}.{did_you_mean(name, choices)}"
        )
    return choices[name]


def install(extra: str, package: str = "samplewise") -> str:
    """How to install an extra of ``package``, for messages, however the package itself was installed."""
    needed = " ".join(map(repr, _requirements(extra, package)))
    return f"pip install {needed}" if needed else f"install what its extra {extra!r} lists"


def _requirements(extra: str, package: str) -> list[str]:
    """The requirements of an extra, by the package's own metadata: an index may not have the package."""
    from importlib import metadata  # here, since importing the library is to stay quick

    found: list[str] = []
    with contextlib.suppress(metadata.PackageNotFoundError):
        for needed, _, condition in (each.partition(";") for each in metadata.requires(package) or ()):
            if f'extra == "{extra}"' in condition:
                others = re.fullmatch(r"(samplewise|studies)\[(.*)\]", needed.strip())
                nested = [(each, others[1]) for each in others[2].split(",")] if others else []
                found += chain(*(_requirements(*each) for each in nested)) if others else [needed.strip()]
    return list(dict.fromkeys(found))


@contextlib.contextmanager
def needed_for(what: str, extra: str) -> Iterator[None]:
    """A context in which a failed import says that ``what`` needs the package, and which ``extra`` installs it."""
    try:
        yield
    except ImportError as error:
        raise MissingPackageError(f"{what} needs {error.name}; {install(extra)}") from error


def finite_number(
    value: Any, what: str, *, above: float = -math.inf, below: float = math.inf, advice: str = ""
) -> float:
    """Return ``value`` as a float, or say that ``what`` must be a finite number, and between which."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # not shown: Python refuses to write out very long numbers
        raise ConfigurationError(f"expected a finite number for {what}, got one too large for a float") from None
    if not math.isfinite(number):
        raise ConfigurationError(f"expected a finite number for {what}, got {value!r}")
    if not above < number < below:
        limits = f"{what} > {above:g}" if below == math.inf else f"{above:g} < {what} < {below:g}"
        raise ConfigurationError(f"expected {limits}, got {value}{advice}")
    return number


def whole_number(value: Any, what: str, least: int) -> int:
    """Return ``value``, or say that ``what`` must be a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"expected {what} as a whole number >= {least}, got {value!r}")
    return value


def printable(text: str) -> str:
    r"""Text on one line of a terminal or a page: what a file says cannot move, colour or turn round what is around it.

    Example:
        >>> printable("x\x1b[31m\u202egnp.exe")
        'x\\x1b[31m\\u202egnp.exe'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
