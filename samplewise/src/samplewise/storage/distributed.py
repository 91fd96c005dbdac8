"""The few collective operations the library needs; each is the identity in a single process."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from samplewise.errors import CheckpointError, ProcessesError, SamplewiseError

_AVAILABLE = dist.is_available()


def _running() -> bool:
    return _AVAILABLE and dist.is_initialized()


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if _running() else 1


def rank() -> int:
    """Number of this process among them, from 0."""
    return dist.get_rank() if _running() else 0


_replicas: dist.ProcessGroup | None = None  # of this process and those that have other samples; None for all


def split_samples_among(group: dist.ProcessGroup | None) -> None:
    """Split samples over the processes of ``group`` from now on, over all if None.

    The processes outside the group hold other parts of the same models. Every process must call, with its own group.
    """
    global _replicas
    _replicas = group


def replicas() -> int:
    """Number of processes that have samples of their own; a group that holds one model together counts once."""
    return dist.get_world_size(_replicas) if _running() else 1


def replica() -> int:
    """Number of this process, or of its group, among them, from 0."""
    return dist.get_rank(_replicas) if _running() else 0


def part_of(length: int) -> range:
    """The samples, out of ``length``, that this process takes when each takes a part; empty if there are too few."""
    size = -(-length // replicas())
    return range(min(replica() * size, length), min((replica() + 1) * size, length))


def _exchange_(tensor: Tensor, operation: Callable[[Tensor], object]) -> Tensor:
    """Run the operation on ``tensor`` in place; a clear error if the other processes do not answer."""
    if world_size() > 1:
        try:
            operation(tensor)
        except RuntimeError as error:
            raise ProcessesError(
                f"the other {world_size() - 1} processes did not answer: fit, audit, certify and a method's step must "
                f"be called by every process, not by the first alone, and none may have ended ({error})"
            ) from error
    return tensor


def all_sum_(tensor: Tensor) -> Tensor:
    """Add up ``tensor`` over all processes that have samples of their own, in place."""
    return _exchange_(tensor, lambda own: dist.all_reduce(own, dist.ReduceOp.SUM, group=_replicas))


def all_max_(tensor: Tensor) -> Tensor:
    """Take the largest ``tensor`` over all processes, in place and entry by entry."""
    return _exchange_(tensor, lambda own: dist.all_reduce(own, dist.ReduceOp.MAX))


def from_first_(tensor: Tensor) -> Tensor:
    """Copy the first process's ``tensor`` to all, in place."""
    return _exchange_(tensor, lambda own: dist.broadcast(own, 0))


def broadcast_buffers_(module: nn.Module, *, but: type[nn.Module] | tuple[()] = ()) -> None:
    """Copy the first process's buffers, such as running statistics, to all; modules of type ``but`` keep their own."""
    kept = {id(buffer) for part in module.modules() if isinstance(part, but) for buffer in part.buffers()}
    for buffer in module.buffers():
        if id(buffer) not in kept:
            from_first_(buffer)


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate tensors of one shape, of all processes that have samples of their own, along the first dimension."""
    if replicas() == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(replicas())]
    _exchange_(tensor.contiguous(), lambda own: dist.all_gather(parts, own, group=_replicas))
    return torch.cat(parts)


def all_parts(tensor: Tensor, length: int) -> Tensor:
    """The rows of all processes, each of which has the rows :func:`part_of` ``length``."""
    return all_gather(_padded(tensor, -(-length // replicas())))[:length]


def to_first(tensor: Tensor) -> Tensor:
    """The rows of all processes, any number of each, in the first process; the others keep their own."""
    if replicas() == 1:
        return tensor
    counts = all_gather(torch.tensor([len(tensor)], device=tensor.device)).tolist()
    padded = _padded(tensor, max(counts))
    parts = [torch.empty_like(padded) for _ in counts] if replica() == 0 else None
    _exchange_(padded, lambda own: dist.gather(own, parts, group=_replicas, group_dst=0))
    return tensor if parts is None else torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _padded(tensor: Tensor, length: int) -> Tensor:
    return torch.cat([tensor, tensor.new_zeros(length - len(tensor), *tensor.shape[1:])])


def all_objects(value: Any) -> list[Any]:
    """The value of every process, in order; for small plain values."""
    if world_size() == 1:
        return [value]
    found = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


@contextlib.contextmanager
def together() -> Iterator[None]:
    """A context in which an error of this library in one process is raised in all: else the others would wait."""
    own = None
    try:
        yield
    except SamplewiseError as error:
        own = error
    found = all_objects("" if own is None else str(own))
    if own is not None:
        raise own
    if other := next(filter(None, found), ""):
        raise CheckpointError(f"another process: {other}")
