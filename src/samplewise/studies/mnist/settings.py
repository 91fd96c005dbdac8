"""What a run of the study is of, and the folder that holds it."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self, get_args

from samplewise import checkpoint
from samplewise.data import ImageData
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.studies.mnist.network import Latent, Network
from samplewise.studies.mnist.rows import Row

__all__ = ["RUN_FILE", "Settings", "open_run", "read_settings", "row_folder", "write_settings"]

RUN_FILE = "run.json"
FORMAT = "samplewise-mnist-1"


@dataclass(frozen=True)
class Settings:
    """All that the rows of one table have in common; the defaults are the paper's."""

    data: str
    fingerprint: str
    """Hash of the data, so that a run goes on only with what it began with."""
    pixels: int = 784
    classes: int = 10
    held_out: str = "test"
    """Name of the second split: ``test``, or ``validation`` while settings are chosen."""
    theta: float = 0.01
    latent: Latent = "linear"
    hidden: int = 256
    code: int = 20
    epochs: int = 250
    warm_epochs: int = 5
    batch_size: int = 128

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ConfigurationError(f"expected theta > 0, got {self.theta}: no reconstruction has a smaller error")
        if self.latent not in get_args(Latent):
            raise ConfigurationError(f"expected latent as one of {', '.join(get_args(Latent))}, got {self.latent!r}")
        for name in ("hidden", "code", "epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"expected {name.replace('_', ' ')} >= 1, got {getattr(self, name)}")
        if self.warm_epochs < 0:
            raise ConfigurationError(f"expected warm epochs >= 0, got {self.warm_epochs}")

    @classmethod
    def of(cls, data: ImageData, **chosen: Any) -> Self:
        """The settings for ``data``, with what differs from the paper."""
        return cls(
            data=data.name,
            fingerprint=data.fingerprint(),
            pixels=data.pixels,
            classes=data.classes,
            held_out=data.held_out,
            **chosen,
        )

    def network(self) -> Network:
        """A network of these sizes, freshly initialised."""
        return Network(pixels=self.pixels, classes=self.classes, hidden=self.hidden, code=self.code, latent=self.latent)


def read_settings(out: Path) -> Settings:
    """The settings of the run in ``out``."""
    path = out / RUN_FILE
    try:
        stored = json.loads(path.read_text())
    except FileNotFoundError:
        raise DataError(f"{out}: holds no run of this study ({RUN_FILE} is missing)") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from error
    known = {field.name for field in fields(Settings)}
    if not isinstance(stored, dict) or stored.get("format") != FORMAT or set(stored.get("settings", ())) != known:
        raise CheckpointError(f"{path}: is not a run of this version of the study; choose another folder")
    return Settings(**stored["settings"])


def open_run(out: Path, settings: Settings, *, resume: bool) -> None:
    """Begin a run in ``out``, or go on with the one that is there.

    Args:
        out: the run's folder.
        settings: what the rows have in common.
        resume: whether a run may be there already. It must be one of the same settings; nothing is overwritten.
    """
    if (out / RUN_FILE).exists():
        stored = read_settings(out)
        _check_same(out, stored, settings)
        if not resume:
            raise CheckpointError(
                f"{out}: holds a run already; add --resume to go on with it, or choose another folder"
            )
        checkpoint.ensure_writable(out)
        return
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out}: exists and is not a run of this study; choose an empty or a new folder")
    checkpoint.ensure_writable(out)
    write_settings(out, settings)


def write_settings(out: Path, settings: Settings) -> None:
    """Make ``out`` the folder of a run with these settings."""
    checkpoint.write_json(out / RUN_FILE, {"format": FORMAT, "settings": asdict(settings)})


def _check_same(out: Path, stored: Settings, wanted: Settings) -> None:
    differ = [
        f"{field.name} {getattr(stored, field.name)} there, {getattr(wanted, field.name)} here"
        for field in fields(Settings)
        if getattr(stored, field.name) != getattr(wanted, field.name)
    ]
    if differ:
        raise CheckpointError(f"{out}: holds another run ({'; '.join(differ)}); choose another folder")


def row_folder(out: Path, row: Row, seed: int) -> Path:
    """Where the run of one row with one seed lives."""
    return out / "rows" / row.folder / f"seed-{seed}"
