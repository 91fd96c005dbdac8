"""State on disk: safetensors with JSON in their header, written whole or not at all. No pickle is ever loaded."""

import contextlib
import hashlib
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from samplewise import distributed
from samplewise.errors import CheckpointError, OutputError

__all__ = [
    "MODEL_FILE",
    "Checkpoints",
    "alone",
    "atomic",
    "ensure_writable",
    "load_state",
    "lock",
    "save_state",
    "strict_json",
    "write_json",
]

FORMAT = "samplewise-state-1"
SUFFIX = ".safetensors"
MODEL_FILE = f"model{SUFFIX}"
"""What was trained, in the folder of its run."""


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Give a temporary name beside ``path``; what is written there is flushed to disk and takes its name at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        _sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def lock(file: IO[Any], busy: str) -> None:
    """Keep other processes from ``file``; the system lifts the lock when this one ends, however it ends.

    Raises:
        CheckpointError: another process holds it; the message is ``busy``.
    """
    try:
        import fcntl
    except ImportError:  # Windows has no such lock
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CheckpointError(busy) from None


@contextlib.contextmanager
def alone(folder: Path, what: str) -> Iterator[None]:
    """Keep a second run out of ``folder``, made if need be; of the processes of one run only the first locks it."""
    folder.mkdir(parents=True, exist_ok=True)
    if distributed.rank() != 0:
        yield
        return
    with (folder / ".lock").open("w") as file:
        lock(file, f"{folder}: another process is working on this {what}; wait for it or end it")
        yield


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    # Without it the new name itself may be lost in a power failure. Some systems cannot do it; then it is not needed.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def strict_json(value: Any) -> Any:
    """``value`` with NaN and infinities as null, which strict JSON asks for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): strict_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict_json(item) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    """Write strict, indented JSON, whole or not at all."""
    with atomic(Path(path)) as temporary:
        temporary.write_text(json.dumps(strict_json(value), indent=2, allow_nan=False) + "\n")


def ensure_writable(folder: Path, *, needed: int = 0) -> Path:
    """Make ``folder`` and try it, so that a run that cannot write says so at its start and not at its end.

    Args:
        folder: where the run will write.
        needed: bytes the run will need at least.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".probe.") as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise OutputError(f"cannot write to the folder {folder}: {error.strerror or error}. Choose another") from error
    if free < needed:
        raise OutputError(
            f"the folder {folder} has {free / 1e6:.0f} MB free, but checkpoints will need {needed / 1e6:.0f} MB: "
            "free some space or choose another folder"
        )
    return folder


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write nested dictionaries and lists of tensors and plain values to one file, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    skeleton = _take_apart(state, tensors)
    text = json.dumps(skeleton, allow_nan=False)
    header = {"format": FORMAT, "state": text, "digest": _digest(text, tensors)}
    try:
        with atomic(Path(path)) as temporary:
            save_file(tensors, temporary, metadata=header)
    except (OSError, SafetensorError) as error:
        raise OutputError(f"cannot write the checkpoint {path}: {error}. What was saved before is untouched") from error


def load_state(path: Path) -> dict[str, Any]:
    """Read what :func:`save_state` wrote, or raise :class:`CheckpointError` if the file is torn or foreign."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of this library (format {header.get('format')!r})")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary
        text = header["state"]
        skeleton = json.loads(text)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read, it is torn or not a checkpoint: {error}") from error
    if _digest(text, tensors) != header.get("digest"):
        raise CheckpointError(f"{path} is damaged: its contents do not match its checksum")
    state = _put_together(skeleton, tensors)
    assert isinstance(state, dict)
    return state


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_apart(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Move the tensors out of ``value``; what is left is JSON with their names in their place."""
    if isinstance(value, Tensor):
        # A copy, since tensors that share memory (tied weights) cannot be stored as they are.
        tensors[path] = value.detach().cpu().contiguous().clone()
        return {"__tensor__": path}
    if isinstance(value, dict):
        # As pairs, since optimisers number their parameters and JSON knows only text as keys.
        return {"__items__": [[key, _take_apart(item, tensors, f"{path}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_take_apart(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        return {"__float__": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(
        f"cannot save {path.lstrip('/')}: expected tensors and plain values, got {type(value).__name__}"
    )


def _put_together(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_put_together(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "__tensor__" in value:
        return tensors[value["__tensor__"]]
    if "__float__" in value:
        return float(value["__float__"])
    return {key: _put_together(item, tensors) for key, item in value["__items__"]}


class Checkpoints:
    """The checkpoints of one run in one folder; the newest ``keep`` stay.

    Args:
        folder: where they are.
        keep: how many stay.
    """

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = keep

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob(f"step-*{SUFFIX}"), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write the state after ``step`` optimiser steps, then remove what is too old."""
        save_state(self.folder / f"step-{step:012d}{SUFFIX}", state)
        for old in self._newest_first()[self.keep :]:
            old.unlink(missing_ok=True)

    def clear_torn(self) -> None:
        """Remove what a kill in the middle of a write left behind."""
        for path in self.folder.glob(f".step-*{SUFFIX}.*.tmp"):
            path.unlink(missing_ok=True)

    def latest(self) -> dict[str, Any] | None:
        """The newest state that can be read; those that cannot are skipped with a warning. None if there is none."""
        found = self._newest_first()
        for path in found:
            try:
                return load_state(path)
            except CheckpointError as error:
                warnings.warn(f"{error}; using the one before it", stacklevel=2)
        if found:
            raise CheckpointError(
                f"none of the {len(found)} checkpoints in {self.folder} can be read: start anew elsewhere"
            )
        return None
