"""Settings that people write: any frozen dataclass of plain values, read from TOML and written to it."""

import dataclasses
import json
import math
import tomllib
import types
import typing
from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from samplewise.errors import ConfigurationError, DataError, did_you_mean

__all__ = ["read_toml", "toml_of", "toml_values"]

T = TypeVar("T")
MAX_FILE = 1 << 20  # bytes; a recipe has about a thousand
NONE = "none"
"""How None is written, which TOML has no word for."""


def read_toml(path: Path, kind: type[T], *, apart: Collection[str] = ()) -> T:
    """Read the dataclass ``kind`` from a file; what it does not name keeps its default.

    Args:
        path: of the file.
        kind: a dataclass whose fields are bool, int, float, str, a Literal, an optional one of these or a tuple of one.
        apart: fields that a file must not set, such as fingerprints of the data.

    Raises:
        DataError: the file cannot be read or is not TOML.
        ConfigurationError: it has an unknown key, a value of another type, one that ``kind`` itself refuses, or lacks
            one without a default.
    """
    values = toml_values(path, kind, apart=apart)
    missing = [
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]  # a dataclass, as said above
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.name not in values and field.init
    ]
    if missing:
        raise ConfigurationError(f"{path}: expected the keys {', '.join(missing)}, got none")
    try:
        return kind(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def toml_values(path: Path, kind: type[Any], *, apart: Collection[str] = ()) -> dict[str, Any]:
    """The values that a file sets, by field of ``kind`` and of its types, for ``dataclasses.replace``.

    Args:
        path: of the file.
        kind: as for :func:`read_toml`.
        apart: fields that a file must not set.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
        if len(content) > MAX_FILE:
            raise ValueError(f"expected at most {MAX_FILE:,} bytes")
        stored = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: is not TOML: {error}") from error
    hints = {name: hint for name, hint in typing.get_type_hints(kind).items() if name not in apart}
    known = [field.name for field in dataclasses.fields(kind) if field.name in hints and field.init]
    for name in stored:
        if name not in known:
            raise ConfigurationError(
                f"{path}: unknown key {name!r}.{did_you_mean(name, known)} The keys are {', '.join(known)}"
            )
    try:
        return {name: _value(value, hints[name], name) for name, value in stored.items()}
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def toml_of(value: Any, *, apart: Collection[str] = ()) -> str:
    """The TOML of a dataclass, which :func:`read_toml` reads back as an equal one.

    Args:
        value: the dataclass.
        apart: fields to leave out.

    Example:
        >>> @dataclasses.dataclass
        ... class Training:
        ...     rate: float = 1e-3
        ...     steps: int | None = None
        >>> print(toml_of(Training()), end="")
        rate = 0.001
        steps = "none"
    """
    named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.name not in apart}
    return "".join(f"{name} = {_text(entry)}\n" for name, entry in named.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # "1e-05" and "1e+16" are TOML too
    # The escapes of JSON, but for DEL, are TOML's.
    return json.dumps(NONE if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, hint: Any, name: str) -> Any:
    """``value`` as the annotation ``hint`` wants it, or an error that says what is expected."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        if value == NONE and types.NoneType in arguments:
            return None
        others = [kind for kind in arguments if kind is not types.NoneType]
        if len(others) == 1:
            optional = types.NoneType in arguments
            return _value(value, others[0], f'{name}, or "{NONE}"' if optional else name)
    elif typing.get_origin(hint) is typing.Literal:
        if value in arguments and type(value) in map(type, arguments):
            return value
        raise ConfigurationError(f"expected one of {', '.join(map(str, arguments))} as {name}, got {value!r}")
    elif typing.get_origin(hint) is tuple and arguments[1:] == (...,):
        if isinstance(value, list):
            return tuple(_value(entry, arguments[0], name) for entry in value)
        raise ConfigurationError(f"expected a list as {name}, got {value!r}")
    elif hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    elif hint in (bool, int, str) and type(value) is hint:
        return value
    words = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text in quotes"}
    if hint not in words:
        raise TypeError(f"{name}: a field of type {hint} cannot be read from TOML")
    raise ConfigurationError(f"expected {words[hint]} as {name}, got {value!r}")
