"""The file that says what a run's folder is a run of, so that nothing else is ever written over it."""

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar

from samplewise import checkpoint
from samplewise.errors import CheckpointError, DataError

__all__ = ["SettingsFile"]

T = TypeVar("T")


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
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{folder}: holds no run of {self.what} ({self.name} is missing)") from None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        known = fields(self.kind)  # type: ignore[arg-type]  # a dataclass, as said above
        # What was added later has a default, which an older run had without saying so.
        needed = {field.name for field in known if field.default is MISSING}
        if not isinstance(stored, dict) or stored.get("format") != self.format:
            raise CheckpointError(f"{path}: is not a run of this version of {self.what}; choose another folder")
        settings = stored.get("settings")
        if not isinstance(settings, dict) or not needed <= settings.keys() <= {field.name for field in known}:
            raise CheckpointError(f"{path}: is not a run of this version of {self.what}; choose another folder")
        return self.kind(**settings)

    def write(self, folder: Path, settings: T) -> None:
        """Make ``folder`` that of a run with these settings."""
        plain: dict[str, Any] = asdict(settings)  # type: ignore[call-overload]
        checkpoint.write_json(folder / self.name, {"format": self.format, "settings": plain})

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
            checkpoint.ensure_writable(folder)
            return
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise CheckpointError(f"{folder}: exists and is not a run of {self.what}; choose an empty or a new folder")
        checkpoint.ensure_writable(folder)
        self.write(folder, settings)

    def _check_same(self, folder: Path, stored: T, wanted: T) -> None:
        differ = [
            f"{field.name} {getattr(stored, field.name)} there, {getattr(wanted, field.name)} here"
            for field in fields(self.kind)  # type: ignore[arg-type]
            if getattr(stored, field.name) != getattr(wanted, field.name)
        ]
        if differ:
            raise CheckpointError(f"{folder}: holds another run ({'; '.join(differ)}); choose another folder")
