"""Records on disk: JSON read with one error, settings that people write as TOML, and what a folder is a run of."""

import csv
import io
import json
import math
import tomllib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from safetensors import SafetensorError

from samplewise.errors import CheckpointError, ConfigurationError, DataError, RecordError, SamplewiseError, did_you_mean
from samplewise.storage import disk

T = TypeVar("T")
MAX_TOML = 1 << 20  # bytes; a recipe has about a thousand
NONE = "none"
"""How None is written, which TOML has no word for."""
UNREADABLE = (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError)
WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text in quotes"}


@contextmanager
def decoding(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong inside, on a file that is missing, torn or foreign, into one :class:`RecordError`.

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


def read_json(path: Path, what: str, *, format: str | None = None, largest: int = -1) -> dict[str, Any]:
    """The object in a file of strict JSON, or an error as from :func:`decoding`.

    Args:
        path: of the file.
        what: it should be, such as ``a split``.
        format: that its entry ``format`` must name; the entry is left out of the result.
        largest: number of bytes that it may have; any if negative.
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
            content = file.read(-1 if largest < 0 else largest + 1)
        if 0 <= largest < len(content):
            raise ValueError(f"expected at most {largest:,} bytes")
        value = json.loads(content, parse_constant=refuse, object_pairs_hook=once)
        if not isinstance(value, dict):
            if format is None:
                raise ValueError(f"expected an object, got {type(value).__name__}")
            value = {}
    if format is not None and value.pop("format", None) != format:
        raise RecordError(f"{path}: is not {what} of this version of the library ({format}); make it anew")
    return value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows of the same columns, at least one, whole or not at all."""
    lines = io.StringIO()
    writer = csv.DictWriter(lines, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    disk.write_text(path, lines.getvalue())


def from_plain(kind: type[T], stored: Mapping[str, Any], **more: Any) -> T:
    """The dataclass ``kind`` of what JSON says of its fields, each of the field's type, and of what is given beside."""
    hints = typing.get_type_hints(kind)
    named = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # a dataclass, as said above
    said = {name: _value(stored[name], hints[name], name) for name in named if name in stored and name not in more}
    return kind(**said, **more)


def toml_values(path: Path, kind: type[Any], *, exclude: Collection[str] = ()) -> dict[str, Any]:
    """The settings that a file sets, by field and of the field's type.

    Args:
        path: of a TOML file.
        kind: a dataclass whose fields are bool, int, float, str, a Literal, an optional one of these or a tuple of one.
        exclude: fields that a file must not set, such as fingerprints of the data.

    Raises:
        DataError: the file cannot be read or is not TOML.
        ConfigurationError: it has an unknown key or a value of another type.
    """
    with decoding(path, "TOML"):
        with disk.open_regular(path) as file:
            content = file.read(MAX_TOML + 1)
        if len(content) > MAX_TOML:
            raise ValueError(f"expected at most {MAX_TOML:,} bytes")
        stored = tomllib.loads(content.decode("utf-8"))
    known = [field.name for field in fields(kind) if field.name not in exclude and field.init]
    if unknown := [name for name in stored if name not in known]:
        raise ConfigurationError(
            f"{path}: unknown key {unknown[0]!r}.{did_you_mean(unknown[0], known)} The keys are {', '.join(known)}"
        )
    hints = typing.get_type_hints(kind)
    try:
        return {name: _value(value, hints[name], name) for name, value in stored.items()}
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _value(value: Any, hint: Any, name: str) -> Any:
    """``value`` as the annotation ``hint`` wants it, or an error that says what is expected."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value in (None, NONE) and types.NoneType in arguments:
            return None
        others = [kind for kind in arguments if kind is not types.NoneType]
        if len(others) == 1:
            return _value(value, others[0], f'{name}, or "{NONE}"')
    elif origin is typing.Literal:
        if value in arguments and type(value) in map(type, arguments):
            return value
        raise ValueError(f"expected one of {', '.join(map(str, arguments))} as {name}, got {value!r}")
    elif origin is tuple and arguments[1:] == (...,):
        if isinstance(value, list):
            return tuple(_value(entry, arguments[0], name) for entry in value)
        raise ValueError(f"expected a list as {name}, got {value!r}")
    elif origin is Mapping:
        if isinstance(value, dict):
            return {key: _value(entry, arguments[1], f"{name}/{key}") for key, entry in value.items()}
        raise ValueError(f"expected an object as {name}, got {value!r}")
    elif hint is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    elif hint in (bool, int, str) and type(value) is hint:
        return value
    if hint not in WORDS:
        raise TypeError(f"{name}: a field of type {hint} cannot be read from a file")
    raise ValueError(f"expected {WORDS[hint]} as {name}, got {value!r}")


def toml_of(settings: Any, *, exclude: Collection[str] = ()) -> str:
    """The TOML of a dataclass without the fields ``exclude``, which :func:`toml_values` reads back.

    Example:
        >>> @dataclass
        ... class Training:
        ...     rate: float = 1e-3
        ...     steps: int | None = None
        >>> print(toml_of(Training()), end="")
        rate = 0.001
        steps = "none"
    """
    named = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in exclude}
    return "".join(f"{name} = {_text(value)}\n" for name, value in named.items())


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)  # "1e-05" and "1e+16" are TOML too
    # The escapes of JSON, but for DEL, are TOML's.
    return json.dumps(NONE if value is None else value, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True)
class SettingsFile(Generic[T]):
    """Where and how the settings of one kind of run are kept.

    Args:
        name: of the file in the run's folder.
        format: name and number of the version.
        kind: a dataclass of plain values.
        what: the kind of run in words, for messages.
    """

    name: str
    format: str
    kind: type[T]
    what: str

    def belongs_to(self, folder: Path) -> bool:
        """Whether ``folder`` is that of such a run, of whichever version."""
        path = folder / self.name
        named = str(read_json(path, "a run").get("format")) if path.exists() else ""
        return named.startswith(self.format.rstrip("0123456789"))

    def read(self, folder: Path) -> T:
        """The settings of the run in ``folder``."""
        path = folder / self.name
        if not path.exists():
            raise DataError(f"{folder}: holds no run of {self.what} ({self.name} is missing)")
        stored = read_json(path, f"a run of {self.what}")
        settings, known = stored.get("settings"), fields(self.kind)  # type: ignore[arg-type]  # a dataclass, see above
        # What was added later has a default, which an older run had without saying so.
        needed = {field.name for field in known if field.default is MISSING}
        named = isinstance(settings, dict) and needed <= settings.keys() <= {field.name for field in known}
        if stored.get("format") != self.format or not named:
            raise CheckpointError(f"{path}: is not a run of this version of {self.what}; choose another folder")
        with decoding(path, f"a run of {self.what}"):
            return from_plain(self.kind, stored["settings"])

    def write(self, folder: Path, settings: T) -> None:
        """Make ``folder`` that of a run with these settings."""
        plain: dict[str, Any] = asdict(settings)  # type: ignore[call-overload]
        disk.write_json(folder / self.name, {"format": self.format, "settings": plain})

    def open(self, folder: Path, settings: T, *, resume: bool) -> None:
        """Begin a run in ``folder`` or, with ``resume``, go on with one of the same settings; none is overwritten."""
        if (folder / self.name).exists():
            names = [field.name for field in fields(self.kind)]  # type: ignore[arg-type]
            there, here = ({name: getattr(run, name) for name in names} for run in (self.read(folder), settings))
            differ = [f"{name} {there[name]} there, {here[name]} here" for name in names if there[name] != here[name]]
            if differ:
                raise CheckpointError(f"{folder}: holds another run ({'; '.join(differ)}); choose another folder")
            if not resume:
                raise CheckpointError(
                    f"{folder}: holds a run already; add --resume to go on with it, or choose another folder"
                )
            disk.ensure_writable(folder)
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CheckpointError(f"{folder}: exists and is not a run of {self.what}; choose an empty or a new folder")
        disk.ensure_writable(folder)
        self.write(folder, settings)
