"""The steps of an epoch: of samples by number in the epoch's order, or of a stream as it comes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils.data import DataLoader, IterableDataset

from samplewise.errors import ConfigurationError, DataError
from samplewise.samples import loader_like, mix, seeded
from samplewise.storage import distributed
from samplewise.training.plan import MicroBatch, epoch_order, plan_epoch
from samplewise.training.position import Position

if TYPE_CHECKING:
    from samplewise.training.request import Request

Step: TypeAlias = tuple[list[MicroBatch], Iterator[Any]]
"""The micro-batches of a step, and an iterator that gives their batches next."""


def steps_left(asked: Request, position: Position) -> tuple[int | None, Iterator[Step]]:
    """How many steps the present epoch has, if that is known, and those that are left of it."""
    if asked.stream is not None:
        return asked.stream.steps_per_epoch, asked.stream.steps_left(position)
    assert asked.feed is not None
    rank = distributed.replica()
    plan = plan_epoch(
        epoch_order(asked.feed, seed=asked.seed, epoch=position.epoch),
        batch_size=asked.size,
        accumulate=asked.accumulate,
        world=distributed.replicas(),
        rank=rank,
        drop_last=asked.feed.drop_last,
    )
    if not plan:
        raise DataError(f"the sampler gave no whole batch of {asked.size} samples in epoch {position.epoch + 1}")
    left = plan[position.step :]
    batches = asked.feed.source.batches(
        [part.index for step in left for part in step],
        seed=mix(asked.seed, "data", position.epoch, rank),
        first=position.step * asked.accumulate,
    )
    return len(plan), ((step, batches) for step in left)


def streamed(data: Any) -> DataLoader[Any] | None:
    """The DataLoader of a stream, or None if the data have numbers."""
    if isinstance(data, DataLoader):
        return data if isinstance(data.dataset, IterableDataset) else None
    return DataLoader(data) if isinstance(data, IterableDataset) else None


class Stream:
    """An IterableDataset as steps of ``size`` samples; what it gives is a function of ``seed`` and of its passes.

    Args:
        given: what is said of reading it.
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
                f"expected one process for a stream, got {distributed.world_size()}: nobody knows which part of it is "
                "whose. Give a data set whose samples have numbers, or train in one process"
            )
        loader = loader_like(
            given,
            given.dataset,
            batch_size=size // accumulate,
            drop_last=given.drop_last,
            collate_fn=_Counted(given.collate_fn),
            persistent_workers=False,  # they would not hear of the next epoch
        )
        self.steps_per_epoch = steps_per_epoch
        # A function that knows nothing of this object: its workers end as soon as nobody holds the one or the other.
        self._one_pass = partial(_one_pass, loader, accumulate, seed)
        self._going: Iterator[Step] | None = None

    def steps_left(self, position: Position) -> Iterator[Step]:
        """What is left of an epoch; what comes before it in the stream is read again and passed over."""
        if self.steps_per_epoch is None:
            return islice(self._one_pass(position.epoch), position.step, None)
        if self._going is None:
            self._going = islice(chain.from_iterable(map(self._one_pass, count())), position.steps, None)
        return islice(self._going, self.steps_per_epoch - position.step)


def _one_pass(loader: DataLoader[Any], accumulate: int, seed: int, number: int) -> Iterator[Step]:
    """The steps of a stream from its beginning to its end, for the time that ``number`` says, counted from 0."""
    stream, seen = loader.dataset, 0
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(number)
    batches = _batches(loader, mix(seed, "stream", number))
    while step := list(islice(batches, accumulate)):
        if loader.drop_last and len(step) < accumulate:
            break
        total, micro = sum(size for size, _ in step), []
        for size, _ in step:
            micro.append(MicroBatch(torch.arange(seen, seen + size), factor=size / total))
            seen += size
        yield micro, iter([batch for _, batch in step])
    if not seen:
        raise DataError(
            f"the stream {type(stream).__name__} gave no step in pass {number + 1}: expected an iterator from its "
            "beginning whenever it is asked for one, with at least one sample"
        )


def _batches(loader: DataLoader[Any], seed: int) -> Iterator[tuple[int, Any]]:
    """Batches with the number of their samples; what is random in them depends on ``seed`` alone."""
    loader.generator.manual_seed(seed)  # of which the workers' own seeds are drawn
    with seeded(seed):
        reading = iter(loader)
    for number in count():
        with seeded(mix(seed, number)):
            batch = next(reading, None)
        if batch is None:
            return
        yield batch


@dataclass(frozen=True)
class _Counted:
    """Collates samples and says how many they are, which a batch of any kind does not."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> tuple[int, Any]:
        return len(samples), self.collate(samples)
