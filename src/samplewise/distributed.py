"""The few collective operations the library needs; each is the identity in a single process."""

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["all_gather", "all_max_", "all_sum_", "from_first_", "rank", "share", "world_size"]


def _running() -> bool:
    return dist.is_available() and dist.is_initialized()


def world_size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if _running() else 1


def rank() -> int:
    """Number of this process among them, from 0."""
    return dist.get_rank() if _running() else 0


def share(length: int) -> range:
    """The samples, out of ``length``, that this process takes when each takes a part; empty if there are too few."""
    size = -(-length // world_size())
    return range(min(rank() * size, length), min((rank() + 1) * size, length))


def all_sum_(tensor: Tensor) -> Tensor:
    """Add up ``tensor`` over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.SUM)
    return tensor


def all_max_(tensor: Tensor) -> Tensor:
    """Take the largest ``tensor`` over all processes, in place and entry by entry."""
    if world_size() > 1:
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor


def from_first_(tensor: Tensor) -> Tensor:
    """Copy the first process's ``tensor`` to all, in place."""
    if world_size() > 1:
        dist.broadcast(tensor, 0)
    return tensor


def all_gather(tensor: Tensor) -> Tensor:
    """Concatenate the processes' tensors, which must have one shape, along the first dimension."""
    if world_size() == 1:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)
