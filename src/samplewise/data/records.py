"""Records on disk: JSON files read with one error, and the file that says what a run's folder is a run of."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from samplewise import disk
from samplewise.errors import CheckpointError, DataError, RecordError, SamplewiseError

__all__ = ["SettingsFile", "decoding", "read_json"]

T = TypeVar("T")


@contextmanager
def decoding(path: Path, what: str) -> Iterator[None]:
    """Turn whatever goes wrong inside, on a file that is missing, torn or foreign, into one error that names it.

    Args:
        path: of the file.
        what: it should be, such as ``a split``.

    Raises:
        RecordError: the file cannot be read as that.
    """
    try:
        yield
    except SamplewiseError:
        raise
    except (ArithmeticError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, AttributeError | LookupError | TypeError):  # whose words alone say little
            why = f"{type(error).__name__}: {error}"
        raise RecordError(f"{path}: cannot be read as {what}: {why or error}") from error


def read_json(path: Path, what: str, *, format: str | None = None, largest: int = -1) -> dict[str, Any]:
    """The object in a file of strict JSON.

    Args:
        path: of the file.
        what: it should be, such as ``a split``.
        format: that its entry ``format`` must name; the entry is left out of the result.
        largest: number of bytes that are read; all if negative.

    Raises:
        RecordError: the file cannot be read as that.
    """
    with decoding(path, what):
        with path.open("rb") as file:
            value = json.loads(file.read(largest), parse_constant=_refuse)
        if not isinstance(value, dict):
            if format is None:
                raise ValueError(f"expected an object, got {type(value).__name__}")
            value = {}
    if format is not None and value.pop("format", None) != format:
        raise RecordError(f"{path}: is not {what} of this version of the library ({format}); make it anew")
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not strict JSON")


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

    def read(self, folder: Path) -> T:
        """The settings of the run in ``folder``."""
        path = folder / self.name
        if not path.exists():
            raise DataError(f"{folder}: holds no run of {self.what} ({self.name} is missing)")
        stored = read_json(path, f"a run of {self.what}")
        known = fields(self.kind)  # type: ignore[arg-type]  # a dataclass, as said above
        # What was added later has a default, which an older run had without saying so.
        needed = {field.name for field in known if field.default is MISSING}
        if stored.get("format") != self.format:
            raise CheckpointError(f"{path}: is not a run of this version of {self.what}; choose another folder")
        settings = stored.get("settings")
        if not isinstance(settings, dict) or not needed <= settings.keys() <= {field.name for field in known}:
            raise CheckpointError(f"{path}: is not a run of this version of {self.what}; choose another folder")
        with decoding(path, f"a run of {self.what}"):
            return self.kind(**settings)

    def write(self, folder: Path, settings: T) -> None:
        """Make ``folder`` that of a run with these settings."""
        plain: dict[str, Any] = asdict(settings)  # type: ignore[call-overload]
        disk.write_json(folder / self.name, {"format": self.format, "settings": plain})

    def open(self, folder: Path, settings: T, *, resume: bool) -> None:
        """Begin a run in ``folder``, or go on with the one that is there.

        Args:
            folder: of the run.
            settings: what it is a run of.
            resume: whether a run may be there already. It must be one of the same settings; nothing is overwritten.
        """
        if (folder / self.name).exists():
            self._check_same(folder, self.read(folder), settings)
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

    def _check_same(self, folder: Path, stored: T, wanted: T) -> None:
        differ = [
            f"{field.name} {getattr(stored, field.name)} there, {getattr(wanted, field.name)} here"
            for field in fields(self.kind)  # type: ignore[arg-type]
            if getattr(stored, field.name) != getattr(wanted, field.name)
        ]
        if differ:
            raise CheckpointError(f"{folder}: holds another run ({'; '.join(differ)}); choose another folder")
