"""State on disk: safetensors with JSON in their header. No pickle is ever loaded.

Tensors of which each process holds a part lie beside that file, in a folder of safetensors, one for each process.
"""

import hashlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from samplewise.errors import CheckpointError
from samplewise.storage import distributed
from samplewise.storage.disk import check_regular, write_tensors
from samplewise.storage.sharding import Part, check_parts, is_sharded, write_parts

FORMAT = "samplewise-state-1"
SUFFIX, PARTS = ".safetensors", ".parts"
MODEL_FILE = f"model{SUFFIX}"
"""What was trained, in the folder of its run."""


def save_state(path: Path, state: dict[str, Any], *, first: bool = True) -> None:
    """Write nested dictionaries and lists of tensors and plain values to one file, whole or not at all.

    Where tensors are sharded every process must call, and writes its parts; the ``first`` writes the file, last.
    """
    tensors: dict[str, Tensor] = {}
    parts: dict[str, Tensor] = {}
    skeleton = _take_apart(state, tensors, parts)
    if parts:
        skeleton["__parts__"] = write_parts(path.with_suffix(PARTS), parts)
    if first:
        # Copies, since tensors that share memory (tied weights) cannot be stored as they are.
        tensors = {name: value.cpu().contiguous().clone() for name, value in tensors.items()}
        text = json.dumps(skeleton)  # NaN and infinities as Python writes and reads them
        write_tensors(path, tensors, {"format": FORMAT, "state": text, "digest": _digest(text, tensors)})


def load_state(path: Path) -> dict[str, Any]:
    """Read what :func:`save_state` wrote, or raise :class:`CheckpointError` if the file is torn or foreign.

    Sharded tensors come as :class:`samplewise.storage.sharding.Part`; then every process must call.
    """
    text, tensors, _ = _read(path)
    return _state(path, text, tensors)


def _read(path: Path) -> tuple[str, dict[str, Tensor], str]:
    """What one file holds, checked: the state without its tensors as text, the tensors, and their checksum."""
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise CheckpointError(f"{path} is not a checkpoint of this library (format {header.get('format')!r})")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary
        text, digest = header["state"], header.get("digest", "")
        if _digest(text, tensors) != digest:
            raise CheckpointError(f"{path} is damaged: its contents do not match its checksum")
        return text, tensors, digest
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read, it is torn or not a checkpoint: {error}") from error


def _state(path: Path, text: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The state that :func:`_read` found; where it has parts every process must call."""
    try:
        skeleton = json.loads(text)
        if isinstance(skeleton, dict) and "__parts__" in skeleton:
            check_parts(path.with_suffix(PARTS), skeleton["__parts__"])
        state = _put_together(skeleton, tensors, path.with_suffix(PARTS))
    except (OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read, it is torn or not a checkpoint: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"{path} is not a checkpoint: expected a dictionary, got {type(state).__name__}")
    return state


def _digest(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _take_apart(value: Any, tensors: dict[str, Tensor], parts: dict[str, Tensor], path: str = "") -> Any:
    """Move the tensors out of ``value``; what is left is JSON with their names in their place."""
    if isinstance(value, Tensor):
        while path in tensors or path in parts:  # a name may hold a slash itself
            path += "'"
        if is_sharded(value):
            parts[path] = value
            return {"__part__": [path, list(value.shape), str(value.dtype).removeprefix("torch.")]}
        tensors[path] = value.detach()
        return {"__tensor__": path}
    if isinstance(value, dict):
        # As pairs, since optimisers number their parameters and JSON knows only text as keys.
        return {"__items__": [[key, _take_apart(item, tensors, parts, f"{path}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [_take_apart(item, tensors, parts, f"{path}/{i}") for i, item in enumerate(value)]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise CheckpointError(f"cannot save {path[1:]}: expected tensors and plain values, got {type(value).__name__}")


def _put_together(value: Any, tensors: dict[str, Tensor], folder: Path) -> Any:
    if isinstance(value, list):
        return [_put_together(item, tensors, folder) for item in value]
    if not isinstance(value, dict):
        return value
    if "__tensor__" in value:
        return tensors[value["__tensor__"]]
    if "__part__" in value:
        name, shape, dtype = value["__part__"]
        return Part(folder, name, torch.Size(shape), getattr(torch, dtype))
    return {key: _put_together(item, tensors, folder) for key, item in value["__items__"]}


class Checkpoints:
    """The checkpoints of one run in one folder, of which the newest ``keep`` stay."""

    def __init__(self, folder: Path, *, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep
        self.read = folder  # the file that every process has read the state from

    def _newest_first(self) -> list[Path]:
        return sorted(self.folder.glob(f"step-*{SUFFIX}"), reverse=True)

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write a state; every process must call."""
        first = distributed.rank() == 0
        save_state(self.folder / f"step-{step:012d}{SUFFIX}", state, first=first)
        if first:
            self.prune()

    def prune(self) -> None:
        """Remove what is too old; a kill right after a write leaves one too many, or parts without their file."""
        for old in self._newest_first()[self.keep :]:
            old.unlink(missing_ok=True)
        for parts in self.folder.glob(f"step-*{PARTS}"):
            if not parts.with_suffix(SUFFIX).exists():
                shutil.rmtree(parts, ignore_errors=True)

    def __len__(self) -> int:
        return len(self._newest_first())

    def latest(self) -> dict[str, Any] | None:
        """The state in the newest file that every process can read, the same in all of them; None if there is none.

        Every process must call. Files that one of them cannot read are skipped with a warning.
        """
        seen = distributed.all_objects([path.name for path in self._newest_first()])
        found = sorted({name for names in seen for name in names}, reverse=True)
        for name in found:
            self.read = self.folder / name
            try:
                return self._read_together(self.read)
            except CheckpointError as error:
                warnings.warn(f"{error}; using the one before it", stacklevel=2)
        if found:
            several = distributed.world_size() > 1
            advice = " by every process: is it a folder that they share?" if several else ": start anew elsewhere"
            raise CheckpointError(f"none of the {len(found)} checkpoints in {self.folder} can be read{advice}")
        return None

    def _read_together(self, path: Path) -> dict[str, Any]:
        """The state in a file that all processes find the same; else all raise, so that none goes on alone."""
        with distributed.together():
            text, tensors, digest = _read(path)
        if len(set(distributed.all_objects(digest))) > 1:
            raise CheckpointError(f"{path} is not the same file for every process")
        return _state(path, text, tensors)
