"""One root exception; every subclass also inherits the fitting builtin, so plain handlers keep working."""

import difflib
import math
import numbers
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class FloormarkError(Exception):
    """Root of every error that floormark raises on purpose."""


class ConfigurationError(FloormarkError, ValueError):
    """An argument that cannot be right, such as a floor of 300 dB, or a name that is taken."""


class DataError(FloormarkError, ValueError):
    """A file or an array that cannot be used: torn, foreign, of the wrong shape."""


class RefusedError(FloormarkError, RuntimeError):
    """An image that cannot carry the message at the quality asked for; nothing was written."""


class OutputError(FloormarkError, OSError):
    """A file or a folder that cannot be written."""


class ProcessLostError(FloormarkError, ChildProcessError):
    """A worker process was ended from outside."""


def unexpected(error: Exception) -> str:
    """One line about an error that is a bug of ours: its kind and place, not its text, which may say anything."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"unexpected {type(error).__name__} at {Path(place.filename).name}:{place.lineno}: please report it"


@contextmanager
def prefix_path(path: Path | str) -> Iterator[None]:
    """Put the name of the file before the message of an error about it."""
    try:
        yield
    except (RefusedError, DataError, ConfigurationError) as error:
        raise type(error)(f"{path}: {error}") from error


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest of ``choices``, or an empty string."""
    near = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {near[0]!r}?" if near else ""


def finite_number(value: Any, what: str) -> float:
    """Return ``value`` as a float, or say that ``what`` must be a finite number."""
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # not shown: Python refuses to write out very long numbers
        raise ConfigurationError(f"expected a finite number for {what}, got one too large for a float") from None
    if not math.isfinite(number):
        raise ConfigurationError(f"expected a finite number for {what}, got {value!r}")
    return number


def printable(text: str) -> str:
    r"""Text on one line of a terminal: control characters are escaped, so that a name or message cannot control it.

    Example:
        >>> printable("x\x1b[31m\u202egnp.exe")
        'x\\x1b[31m\\u202egnp.exe'
    """
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
