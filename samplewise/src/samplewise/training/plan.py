"""Which samples make up each step of an epoch, in each process."""

from dataclasses import dataclass

import torch
from torch import Tensor

from samplewise.samples import Feed, cut, mix


@dataclass(frozen=True)
class MicroBatch:
    """What one process computes in one backward pass."""

    index: Tensor
    """Sample numbers, ``(b,)``."""
    present: Tensor | None = None
    """False for padding, ``(b,)``; None if there is none."""
    factor: float = 1.0
    """What its mean loss must be multiplied by so that the step's gradient is that of the mean over the whole batch."""


def epoch_order(feed: Feed, *, seed: int, epoch: int) -> Tensor:
    """The sample numbers of an epoch in the order of training: a function of seed and epoch alone."""
    generator = torch.Generator().manual_seed(mix(seed, "order", epoch))
    if feed.sampler is None:
        length = feed.source.length
        return torch.randperm(length, generator=generator) if feed.shuffle else torch.arange(length)
    # A sampler of the user's own: its randomness is seeded, wherever it comes from.
    if hasattr(feed.sampler, "generator"):
        feed.sampler.generator = generator
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(seed, "sampler", epoch))
        return torch.tensor(list(feed.sampler), dtype=torch.int64)


def plan_epoch(
    order: Tensor, *, batch_size: int, accumulate: int = 1, world: int = 1, rank: int = 0, drop_last: bool = False
) -> list[list[MicroBatch]]:
    """Split an epoch into steps and each step into the ``accumulate`` micro-batches of process ``rank`` of ``world``.

    A step takes ``batch_size`` samples, over all processes and micro-batches together, whatever their number: so tau
    and the learning rate mean the same on any number of devices. Where the samples do not divide evenly, padding of
    weight zero keeps all processes in step.
    """
    steps = cut(order, batch_size)
    if drop_last and steps and len(steps[-1]) < batch_size:
        steps.pop()
    if world * accumulate == 1:
        return [[MicroBatch(step)] for step in steps]
    return [[_share(step, world * accumulate, i * world + rank, world) for i in range(accumulate)] for step in steps]


def _share(step: Tensor, parts: int, part: int, world: int) -> MicroBatch:
    """One of the equal parts of a step, the last of them padded."""
    size = -(-len(step) // parts)
    place = torch.arange(part * size, (part + 1) * size)
    present = place < len(step)
    real = int(present.sum())
    # Devices' gradients are averaged, micro-batches' are added.
    return MicroBatch(step[place * present], None if real == size else present, real * world / len(step))
