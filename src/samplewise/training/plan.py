"""Which samples make up each step of an epoch, on each process, in each micro-batch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samplewise.batches import Feed, mix

__all__ = ["MicroBatch", "epoch_order", "plan_epoch"]


@dataclass(frozen=True)
class MicroBatch:
    """What one process computes in one backward pass."""

    index: Tensor
    """Sample numbers, ``(b,)``."""
    present: Tensor | None = None
    """False for padding, ``(b,)``; None if there is none."""
    factor: float = 1.0
    """What its mean loss must be multiplied by so that the step's gradient is that of the mean over the whole batch."""


def epoch_order(feed: Feed, *, shuffle: bool, seed: int, epoch: int) -> Tensor:
    """The sample numbers of an epoch in the order of training: a function of seed and epoch alone."""
    generator = torch.Generator().manual_seed(mix(seed, "order", epoch))
    if feed.sampler is not None:
        return _sampled(feed.sampler, generator, mix(seed, "sampler", epoch))
    if shuffle:
        return torch.randperm(feed.source.length, generator=generator)
    return torch.arange(feed.source.length)


def _sampled(sampler: Any, generator: torch.Generator, seed: int) -> Tensor:
    """What a sampler of the user's own draws when its randomness, wherever it comes from, is seeded."""
    if hasattr(sampler, "generator"):
        sampler.generator = generator
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drawn: Iterable[int] = iter(sampler)
        return torch.tensor(list(drawn), dtype=torch.int64)


def plan_epoch(
    order: Tensor, *, batch_size: int, accumulate: int = 1, world: int = 1, rank: int = 0, drop_last: bool = False
) -> list[list[MicroBatch]]:
    """Split an epoch into steps and each step into the micro-batches of one process.

    A step takes ``batch_size`` samples, over all processes and micro-batches together, whatever their number: so tau
    and the learning rate mean the same on any number of devices. Where the samples do not divide evenly, padding of
    weight zero keeps all processes in step.

    Args:
        order: sample numbers of the epoch, ``(N,)``.
        batch_size: samples in a step.
        accumulate: micro-batches in a step.
        world: number of processes.
        rank: number of this process.
        drop_last: leave out a last step of fewer samples.

    Returns:
        For each step its micro-batches.
    """
    steps = list(torch.split(order, batch_size))
    if drop_last and len(steps) > 1 and len(steps[-1]) < batch_size:
        steps.pop()
    if world * accumulate == 1:
        return [[MicroBatch(step)] for step in steps]
    return [_share(step, accumulate, world, rank) for step in steps]


def _share(step: Tensor, accumulate: int, world: int, rank: int) -> list[MicroBatch]:
    parts = world * accumulate
    size = -(-len(step) // parts)
    padding = size * parts - len(step)
    padded = torch.cat([step, step[:1].expand(padding)])
    present = torch.arange(len(padded)) < len(step)
    micro = []
    for i in range(accumulate):
        rows = slice((i * world + rank) * size, (i * world + rank + 1) * size)
        real = int(present[rows].sum())
        # Devices' gradients are averaged, micro-batches' are added.
        factor = real * world / len(step)
        micro.append(MicroBatch(padded[rows], None if real == size else present[rows], factor))
    return micro
