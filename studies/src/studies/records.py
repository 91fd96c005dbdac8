"""Files of the studies: settings as TOML, the kind of run that a folder holds, tables as Markdown."""

from __future__ import annotations

import hashlib
import json
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from samplewise import storage
from samplewise.errors import CheckpointError, ConfigurationError, DataError, did_you_mean
from samplewise.report import RunReport, read_fit
from samplewise.storage import decoding, ensure_writable, read_json, write_json, write_text

if TYPE_CHECKING:
    from torch import nn

T = TypeVar("T")
MAX_TOML = 1 << 20  # bytes; a recipe has about a thousand
RECIPE_TOML = "recipe.toml"
NONE = "none"
"""How None is written, which TOML has no word for."""


def check_least(settings: Any, **least: float) -> None:
    """Refuse settings with a field below its least value; None is no value."""
    for name, bound in least.items():
        if (value := getattr(settings, name)) is not None and value < bound:
            raise ConfigurationError(f"expected {name.replace('_', ' ')} of at least {bound}, got {value}")


def fingerprint_of(network: nn.Module) -> str:
    """A short hash of a network's weights."""
    digest = hashlib.sha256()
    for name, value in network.state_dict().items():
        digest.update(name.encode() + value.cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def markdown_table(rows: Iterable[Sequence[object]]) -> str:
    r"""A table in Markdown whose columns line up; the first row is its head.

    Example:
        >>> print(markdown_table([["run", "PSNR"], ["c|40", 41.2]]))
        | run   | PSNR |
        |-------|------|
        | c\|40 | 41.2 |
    """
    cells = [[str(each).replace("|", "\\|") for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


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
        with storage.open_regular(path) as file:
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
        return {name: _from_toml(value, hints[name], name) for name, value in stored.items()}
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _from_toml(value: Any, hint: Any, name: str) -> Any:
    if types.NoneType not in typing.get_args(hint):
        return storage.typed_value(value, hint, name)
    return None if value == NONE else storage.typed_value(value, hint, f'{name}, or "{NONE}"')


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
    texts = {name: json.dumps(NONE if value is None else value, ensure_ascii=False) for name, value in named.items()}
    # Numbers, lists and escapes of JSON, but for DEL, are TOML's.
    return "".join(f"{name} = {text}\n" for name, text in texts.items()).replace("\x7f", "\\u007f")


@dataclass(frozen=True)
class SettingsFile(Generic[T]):
    """Where and how the settings of one kind of run are kept.

    Args:
        name: of the file in the run's folder.
        format: name and number of the version.
        kind: a dataclass of plain values.
        what: the kind of run in words, for messages.
        derived: fields that follow from the data and files that a run is given, which no recipe sets.
    """

    name: str
    format: str
    kind: type[T]
    what: str
    derived: tuple[str, ...] = ()

    def given(self, recipe: Path | None, **options: Any) -> dict[str, Any]:
        """What differs from the defaults: what the recipe's file sets, then the options that are not None."""
        stored = {} if recipe is None else toml_values(recipe, self.kind, exclude=self.derived)
        return {**stored, **{name: value for name, value in options.items() if value is not None}}

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
            return storage.from_plain(self.kind, stored["settings"])

    def write(self, folder: Path, settings: T) -> None:
        """Make ``folder`` that of a run with these settings, and leave a recipe for another run."""
        write_text(folder / RECIPE_TOML, toml_of(settings, exclude=self.derived))
        plain: dict[str, Any] = asdict(settings)  # type: ignore[call-overload]
        write_json(folder / self.name, {"format": self.format, "settings": plain})

    def open(self, folder: Path, settings: T, *, resume: bool) -> None:
        """Begin a run in ``folder`` or, with ``resume``, go on with one of the same settings; none is overwritten."""
        if (folder / self.name).exists():
            there, here = (vars(run) for run in (self.read(folder), settings))
            differ = [f"{name} {there[name]} there, {here[name]} here" for name in here if there[name] != here[name]]
            if differ:
                raise CheckpointError(f"{folder}: holds another run ({'; '.join(differ)}); choose another folder")
            if not resume:
                raise CheckpointError(
                    f"{folder}: holds a run already; add --resume to go on with it, or choose another folder"
                )
            ensure_writable(folder)
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CheckpointError(f"{folder}: exists and is not a run of {self.what}; choose an empty or a new folder")
        ensure_writable(folder)
        self.write(folder, settings)


def read_fit_within(
    folder: Path, settings_file: SettingsFile[Any], key: str
) -> tuple[RunReport, Mapping[str, Any]] | None:
    """The run in ``folder/fit`` of a command that keeps its settings, reported as ``key``, in ``settings_file``.

    Returns:
        The run and the command's settings; None if the folder is of another kind.
    """
    if not settings_file.belongs_to(folder):
        return None
    settings = asdict(settings_file.read(folder))
    found = read_fit(folder / "fit")
    if found is None:
        raise DataError(f"{folder}: its training has not begun yet; make the report later")
    (run,) = found
    named = replace(run, name=folder.resolve().name, folder=str(folder), settings={key: settings, **run.settings})
    return named, settings
