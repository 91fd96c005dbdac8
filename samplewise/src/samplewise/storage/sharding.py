"""Sharded tensors (torch's DTensor): detected, gathered, written and read."""

import contextlib
import hashlib
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakSet

import torch
from torch import Tensor, nn

from samplewise.errors import CheckpointError, ConfigurationError
from samplewise.storage import distributed
from samplewise.storage.disk import PARTIAL, cannot_write, write_tensors

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(value: Any) -> "TypeGuard[DTensor]":
    """Whether each process holds a part of this tensor (DTensor); found without that slow import."""
    return isinstance(value, Tensor) and hasattr(value, "to_local")


def local(tensor: Tensor) -> Tensor:
    """This process's part of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor


_unsharded: "WeakSet[FSDPModule]" = WeakSet()  # modules whose weights each process holds whole for the time being


def _parts(model: nn.Module) -> "list[FSDPModule]":
    """The modules whose weights torch's fully_shard has sharded."""
    if "torch.distributed.fsdp" not in sys.modules:  # a slow import, which whoever shards has made
        return []
    from torch.distributed.fsdp import FSDPModule

    return [part for part in model.modules() if isinstance(part, FSDPModule)]


def has_shards(model: nn.Module) -> bool:
    """Whether the weights of a model are sharded, so that all processes must call it, equally often."""
    # Right after a call some weights may be whole, and will not be at the next one.
    return any(part not in _unsharded for part in _parts(model)) or any(map(is_sharded, model.parameters()))


def reshard_(model: nn.Module) -> None:
    """Shard weights again that the last call left gathered."""
    for part in _parts(model):
        part.reshard()


@contextlib.contextmanager
def unsharded(model: nn.Module, *, steps: bool = False) -> Iterator[None]:
    """A context in which each process has all the weights of a model, to evaluate and differentiate it alone.

    Other models are left as they are. Afterwards the weights are sharded again, and changes of them are lost.
    With ``steps`` a backward pass still exchanges gradients, as a step needs.
    """
    if not has_shards(model):
        yield
        return
    parts = _parts(model)
    try:
        for part in parts:
            _unsharded.add(part)
            _set_sharding(part, after_forward=True, after_backward=True, exchange=steps)
            part.unshard()
        if has_shards(model):
            raise ConfigurationError(
                "expected weights sharded by fully_shard, got some of another parallelism: gradients of single "
                "samples, which this takes, cannot be had of them. Load the weights into a model of one process"
            )
        yield
    finally:
        for part in parts:
            _unsharded.discard(part)
            # PyTorch's own defaults: the outermost weights are needed first in the backward pass.
            _set_sharding(part, after_forward=part is parts[0], after_backward=False, exchange=True)
            part.reshard()


def _set_sharding(part: Any, *, after_forward: bool, after_backward: bool, exchange: bool) -> None:
    part.set_reshard_after_forward(not after_forward, recurse=False)
    part.set_reshard_after_backward(not after_backward, recurse=False)
    part.set_requires_gradient_sync(exchange, recurse=False)


@dataclass(frozen=True)
class Part:
    """A reference to a tensor that was written in parts."""

    folder: Path
    name: str
    shape: torch.Size
    dtype: torch.dtype


def reshard_like(value: Any, like: Any) -> Any:
    """Nested dictionaries and lists with every tensor sharded as the one at its place in ``like`` is.

    A tensor in ``like`` stands for all that is below it. A :class:`Part` is read from disk, each process its own shard,
    whatever the number of processes that wrote it.
    """
    wanted: dict[Path, dict[str, Tensor]] = {}
    found = _held(value, like, wanted)
    for folder, tensors in wanted.items():
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
        from torch.distributed.checkpoint.state_dict_loader import load

        reader = HuggingFaceStorageReader(str(folder))
        with _as_torch_does(folder):
            load(dict(tensors), storage_reader=reader, no_dist=distributed.world_size() == 1)
    return found


def _held(value: Any, like: Any, wanted: dict[Path, dict[str, Tensor]]) -> Any:
    if isinstance(value, dict):
        return {
            key: _held(each, like.get(key) if isinstance(like, dict) else like, wanted) for key, each in value.items()
        }
    if isinstance(value, list):
        return [_held(each, like, wanted) for each in value]
    fits = isinstance(like, Tensor) and isinstance(value, Tensor | Part) and like.shape == value.shape
    if isinstance(value, Part):
        room = (
            torch.empty_like(like.detach(), dtype=value.dtype) if fits else torch.empty(value.shape, dtype=value.dtype)
        )
        return wanted.setdefault(value.folder, {}).setdefault(value.name, room)
    if fits and is_sharded(like) and not is_sharded(value):
        from torch.distributed.tensor import distribute_tensor

        # Every process read the same: none has to send anything.
        return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return value


def write_parts(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Write tensors, every process its own parts, to safetensors files in ``folder``: their checksums by name.

    Every process must call.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    making = folder.parent / f"{PARTIAL}{folder.name}"
    if distributed.rank() == 0:
        shutil.rmtree(making, ignore_errors=True)
    writer = HuggingFaceStorageWriter(str(making), save_distributed=True)
    state = {name: value.detach() for name, value in tensors.items()}
    with _as_torch_does(making):
        save(state, storage_writer=writer, no_dist=distributed.world_size() == 1)
    # The second process writes the second file.
    mine = {path.name: _checksum(path) for path in making.glob(f"shard-{distributed.rank() + 1:05d}-*")}
    known = distributed.all_objects(mine)
    if distributed.rank() == 0:
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed before it wrote what goes with it
        making.replace(folder)
    return {name: checksum for each in known for name, checksum in each.items()}


def check_parts(folder: Path, checksums: Mapping[str, str]) -> None:
    """Refuse parts of which one is gone or damaged; each process checks some, and all raise."""
    with distributed.together():
        for name in sorted(checksums)[distributed.rank() :: distributed.world_size()]:
            if not (folder / name).is_file() or _checksum(folder / name) != checksums[name]:
                raise CheckpointError(f"{folder} is damaged: {name} does not match its checksum")


@contextlib.contextmanager
def weights_in_one(folder: Path, tensors: Mapping[str, Tensor]) -> Iterator[Callable[[Path], None]]:
    """A function that writes tensors to one safetensors file, sharded or not.

    Every process must enter; the first calls it. Temporary files lie in ``folder``.
    """
    if not any(map(is_sharded, tensors.values())):
        yield lambda path: write_tensors(path, tensors)
        return
    making, rooms = folder / f"{PARTIAL}whole", {}
    try:
        if distributed.rank() == 0:
            making.mkdir(exist_ok=True)
        for number, (name, value) in enumerate(tensors.items()):
            # One weight at a time is gathered and put on disk; PyTorch's own way to one file takes no integers.
            full = value
            if is_sharded(value):
                there: Any = value.to(value.device_mesh.device_type)  # where the processes exchange
                full = there.full_tensor()
            if distributed.rank() == 0:
                rooms[name] = _on_disk(making / str(number), full.cpu()) if full.numel() else full.cpu()
    except OSError as error:
        raise cannot_write(making, error) from error
    yield lambda path: write_tensors(path, rooms)
    if distributed.rank() == 0:
        shutil.rmtree(making)


def _on_disk(path: Path, tensor: Tensor) -> Tensor:
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, tensor.nbytes)  # where there is no room, memory on disk ends the process
    room = torch.from_file(str(path), shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return room.view(tensor.shape).copy_(tensor)


@contextlib.contextmanager
def _as_torch_does(folder: Path) -> Iterator[None]:
    """Reading and writing with PyTorch's errors as ours, and without its warning that there is one process."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled, unavailable or uninitialized")
        try:
            yield
        except (CheckpointException, OSError) as error:
            causes = [error] if isinstance(error, OSError) else [cause for cause, _ in error.failures.values()]
            if full := next((cause for cause in causes if isinstance(cause, OSError)), None):
                raise cannot_write(folder, full) from error
            raise CheckpointError(f"{folder}: {'; '.join(map(str, causes))}") from error


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
