"""Records on disk: strict JSON, and dataclasses read from it, with one kind of error."""

import csv
import json
import math
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from safetensors import SafetensorError

from samplewise.errors import RecordError, SamplewiseError
from samplewise.storage import disk

T = TypeVar("T")
UNREADABLE = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text in quotes"}


@contextmanager
def decoding(path: Path, what: str) -> Iterator[None]:
    """A context that turns any error of a missing, torn or foreign file into one :class:`RecordError`.

    It names the file and ``what`` it should be, such as ``a split``.
    """
    try:
        yield
    except SamplewiseError:
        raise
    except (*UNREADABLE, SafetensorError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        if isinstance(error, AttributeError | LookupError | TypeError):  # whose words alone say little
            why = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path}: cannot be read as {what}: {why or error}") from error


def read_json(path: Path, what: str, *, format: str | None = None) -> dict[str, Any]:
    """The object in a file of strict JSON, or an error as from :func:`decoding`.

    Args:
        path: of the file.
        what: it should be, such as ``a split``.
        format: that its entry ``format`` must name; the entry is left out of the result.
    """

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is not strict JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # Of two entries of one name a reader may see the first, where programs take the last.
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("an entry is there twice")
        return found

    with decoding(path, what):
        with disk.open_regular(path) as file:
            content = file.read()
        value = json.loads(content, parse_constant=refuse, object_pairs_hook=once)
        if not isinstance(value, dict):
            if format is None:
                raise ValueError(f"expected an object, got {type(value).__name__}")
            value = {}
    if format is not None and value.pop("format", None) != format:
        raise RecordError(f"{path}: is not {what} of this version of the library ({format}); make it anew")
    return value


def from_plain(kind: type[T], stored: Mapping[str, Any], **more: Any) -> T:
    """The dataclass ``kind`` from the fields in JSON, each checked against its type, and from those given beside."""
    hints = typing.get_type_hints(kind)
    named = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass, as said above
    said = {name: typed_value(stored[name], hints[name], name) for name in named if name in stored and name not in more}
    return kind(**said, **more)


def typed_value(value: Any, hint: Any, name: str) -> Any:
    """``value`` of JSON or TOML as the annotation ``hint`` wants it, or an error that says what is expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        others = [kind for kind in arguments if kind is not types.NoneType]
        if len(others) == 1:
            return typed_value(value, others[0], name)
    elif origin is typing.Literal:
        if value in arguments and type(value) in map(type, arguments):
            return value
        raise ValueError(f"expected one of {', '.join(map(str, arguments))} as {name}, got {value!r}")
    elif origin is tuple and arguments[1:] == (...,):
        if isinstance(value, list):
            return tuple(typed_value(entry, arguments[0], name) for entry in value)
        raise ValueError(f"expected a list as {name}, got {value!r}")
    elif origin is Mapping:
        if isinstance(value, dict):
            return {key: typed_value(entry, arguments[1], f"{name}/{key}") for key, entry in value.items()}
        raise ValueError(f"expected an object as {name}, got {value!r}")
    elif hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    elif hint in (bool, int, str) and type(value) is hint:
        return value
    if hint not in WORDS:
        raise TypeError(f"{name}: a field of type {hint} cannot be read from a file")
    raise ValueError(f"expected {WORDS[hint]} as {name}, got {value!r}")
