"""The steps of an epoch as micro-batches: samples by index in the epoch's order, or a stream in its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from samplewise.errors import ConfigurationError, DataError
from samplewise.samples import Feed, cut, mix, seeded_batches, stream_of
from samplewise.storage import distributed
from samplewise.training.state import RunState

if TYPE_CHECKING:
    from samplewise.training.spec import RunSpec


@dataclass(frozen=True)
class Part:
    """The samples of one backward pass of one process."""

    index: Tensor
    """Sample numbers, ``(b,)``."""
    present: Tensor | None = None
    """False for padding, ``(b,)``; None if there is none."""
    factor: float = 1.0
    """What its mean loss must be multiplied by so that the step's gradient is that of the mean over the whole batch."""
    last: bool = True
    """Whether the step ends with it, so that processes exchange their gradients."""


Step: TypeAlias = Iterable[tuple[Part, Any]]
"""The micro-batches of one optimiser step, as the data set gives them; each is read when it is asked for."""


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
) -> list[list[Part]]:
    """Split an epoch into steps and each step into the ``accumulate`` parts of process ``rank`` of ``world``.

    A step takes ``batch_size`` samples, over all processes and micro-batches together, whatever their number: so tau
    and the learning rate mean the same on any number of devices. Where the samples do not divide evenly, padding of
    weight zero keeps all processes in step.
    """
    steps = cut(order, batch_size)
    if drop_last and steps and len(steps[-1]) < batch_size:
        steps.pop()
    if world * accumulate == 1:
        return [[Part(step)] for step in steps]
    return [[_part(step, i, accumulate, world, rank) for i in range(accumulate)] for step in steps]


def _part(step: Tensor, i: int, accumulate: int, world: int, rank: int) -> Part:
    """Micro-batch i of process ``rank``: one of the equal parts of a step, the last of them padded."""
    size, number = -(-len(step) // (world * accumulate)), i * world + rank
    place = torch.arange(number * size, (number + 1) * size)
    present = place < len(step)
    real = int(present.sum())
    # Devices' gradients are averaged, micro-batches' are added.
    factor = real * world / len(step)
    return Part(step[place * present], None if real == size else present, factor, last=i == accumulate - 1)


def steps_left(spec: RunSpec, state: RunState) -> tuple[int | None, Iterator[Step]]:
    """The number of steps in the present epoch, if known, and the remaining steps."""
    if spec.stream is not None:
        return spec.stream.steps_per_epoch, spec.stream.steps_left(state)
    assert spec.feed is not None
    rank = distributed.replica()
    plan = plan_epoch(
        epoch_order(spec.feed, seed=spec.seed, epoch=state.epoch),
        batch_size=spec.size,
        accumulate=spec.accumulate,
        world=distributed.replicas(),
        rank=rank,
        drop_last=spec.feed.drop_last,
    )
    if not plan:
        raise DataError(f"the sampler gave no whole batch of {spec.size} samples in epoch {state.epoch + 1}")
    left = plan[state.step :]
    batches = spec.feed.source.batches(
        [part.index for step in left for part in step],
        seed=mix(spec.seed, "data", state.epoch, rank),
        first=state.step * spec.accumulate,
    )
    return len(plan), (zip(step, batches, strict=False) for step in left)


class Stream:
    """An IterableDataset as steps of ``size`` samples; what it gives is a function of ``seed`` and of its passes.

    Args:
        given: the DataLoader whose collation, workers and ``drop_last`` are taken over.
        size: samples in a step.
        accumulate: micro-batches in a step.
        seed: of what is random in the stream.
        steps_per_epoch: steps in an epoch, which goes on in the stream where the one before it ended, and from its end
            to its beginning. One pass if None.
    """

    def __init__(
        self, given: DataLoader[Any], *, size: int, accumulate: int, seed: int, steps_per_epoch: int | None
    ) -> None:
        if given.batch_size is None:
            raise ConfigurationError(
                "expected a DataLoader with a batch_size, got batch_size=None: a stream is to give samples, not batches"
            )
        if size % accumulate:
            raise ConfigurationError(
                f"batch_size={size} is no multiple of accumulate={accumulate}: a stream has micro-batches of one size"
            )
        if distributed.world_size() > 1:
            raise ConfigurationError(
                f"expected one process for a stream, got {distributed.world_size()}: nothing says which part of it is "
                "whose. Give a data set whose samples have numbers, or train in one process"
            )
        loader = stream_of(given, size // accumulate, drop_last=given.drop_last)
        self.steps_per_epoch = steps_per_epoch
        # A function that knows nothing of this object: its workers end as soon as nobody holds the one or the other.
        self._one_pass = partial(_one_pass, loader, accumulate, seed)
        self._going: Iterator[Step] | None = None

    def steps_left(self, state: RunState) -> Iterator[Step]:
        """The remaining steps of an epoch; earlier samples of the stream are read again and skipped."""
        if self.steps_per_epoch is None:
            return islice(self._one_pass(state.epoch), state.step, None)
        if self._going is None:
            self._going = islice(chain.from_iterable(map(self._one_pass, count())), state.steps, None)
        return islice(self._going, self.steps_per_epoch - state.step)


def _one_pass(loader: DataLoader[Any], accumulate: int, seed: int, number: int) -> Iterator[Step]:
    """The steps of a stream from its beginning to its end, in pass ``number``, counted from 0."""
    stream, steps = loader.dataset, 0
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(number)
    batches = seeded_batches(loader, mix(seed, "stream", number))
    while step := list(islice(batches, accumulate)):
        if loader.drop_last and len(step) < accumulate:
            break
        total, last = sum(len(index) for _, index in step), len(step) - 1
        yield [(Part(index, None, len(index) / total, i == last), batch) for i, (batch, index) in enumerate(step)]
        steps += 1
    if not steps:
        raise DataError(
            f"the stream {type(stream).__name__} gave no step in pass {number + 1}: expected an iterator from its "
            "beginning whenever it is asked for one, with at least one sample"
        )
