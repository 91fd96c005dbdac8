"""Data sets as batches of samples, each with its number in the data set."""

import contextlib
import functools
import hashlib
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset, default_collate
from torch.utils.data.distributed import DistributedSampler
from torch.utils.data.sampler import BatchSampler, RandomSampler, SequentialSampler

from samplewise.errors import ConfigurationError, DataError


class Numbered(Protocol):
    """Samples by number: a list of them, or any object with these two methods."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


Data = Dataset[Any] | DataLoader[Any] | Numbered


@runtime_checkable
class BatchedDataset(Numbered, Protocol):
    """A Dataset that gives a batch at once: what is read from memory or a memory map should be one."""

    def take(self, index: Tensor) -> Any:
        """The samples ``index`` as one batch."""


def mix(*parts: int | str) -> int:
    """A 63-bit seed from any numbers and words: stateless randomness, so a run can resume at any step."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def to_device(batch: Any, device: torch.device) -> Any:
    """``batch`` with its tensors on ``device``: tuples, lists, dictionaries and what has ``to`` are followed."""
    if isinstance(batch, Tensor):
        if batch.device == device:
            return batch
        # A copy that is not waited for is safe from pinned memory to CUDA alone: on MPS it gives wrong numbers.
        return batch.to(device, non_blocking=device.type == "cuda" and batch.is_pinned())
    if hasattr(batch, "to"):  # such as the batches of a tokenizer
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


class Source(ABC):
    """A data set of ``length`` samples as batches by sample number."""

    length: int

    @abstractmethod
    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        """The batches of the given sample numbers, in order.

        Random transforms of the samples depend on ``seed`` and on the number of the batch, counted from ``first``.
        """


@dataclass(frozen=True)
class InMemory(Source):
    """Tensors, sliced by batches; sample j is row ``rows[j]`` of them, row j if None."""

    length: int
    tensors: Sequence[Tensor]
    rows: Tensor | None = None

    def batches(self, indices: Sequence[Tensor | slice], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        for index in indices:
            rows = index if self.rows is None else self.rows[index]
            yield tuple(tensor[rows] for tensor in self.tensors)


@dataclass(frozen=True)
class BatchedSource(Source):
    """A :class:`BatchedDataset`."""

    length: int
    dataset: BatchedDataset

    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        return map(self.dataset.take, indices)


class ItemByItem(Source):
    """Any other data set, read as the DataLoader ``given`` would, but for its sampler and generator."""

    def __init__(self, given: DataLoader[Any]) -> None:
        dataset: Any = given.dataset
        self.length, self._order, self._reads = len(dataset), _Order(), False
        started = functools.partial(_start_worker, given.worker_init_fn)
        self.loader = loader_like(given, _Seeded(dataset), batch_sampler=self._order, worker_init_fn=started)

    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        order = [(mix(seed, number), index.tolist()) for number, index in enumerate(indices, first)]
        loader = self.loader
        if self._reads:  # workers that stay serve one reader: a second one would take them from the first
            yield from loader_like(loader, loader.dataset, batch_sampler=_Order(order), persistent_workers=False)
            return
        self._order.batches, self._reads = order, True
        try:
            yield from loader
        finally:
            self._reads = False


def loader_like(given: DataLoader[Any], dataset: Any, **instead: Any) -> DataLoader[Any]:
    """A DataLoader of ``dataset`` that reads as ``given`` does, but for what is said ``instead``."""
    names = ["collate_fn", "pin_memory", "num_workers", "worker_init_fn"]
    if given.num_workers > 0:
        names += ["prefetch_factor", "timeout", "multiprocessing_context", "persistent_workers"]
    said = {name: getattr(given, name) for name in names} | instead
    # A generator of its own: a loader draws a number whenever it starts, even without workers.
    return DataLoader(dataset, generator=torch.Generator(), **said)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """A context with random generators seeded by ``seed``; the caller's generators are restored afterwards."""
    own = torch.utils.data.get_worker_info() is None
    kept = (random.getstate(), np.random.get_state(), torch.get_rng_state()) if own else None
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        yield
    finally:
        if kept is not None:
            random.setstate(kept[0])
            np.random.set_state(kept[1])
            torch.set_rng_state(kept[2])


@dataclass
class _Order:
    """Batches, each as its seed and sample numbers, that are set anew for each epoch, so that the workers can stay."""

    batches: Sequence[tuple[int, list[int]]] = ()

    def __iter__(self) -> Iterator[tuple[int, list[int]]]:
        return iter(self.batches)


class _Seeded(Dataset[Any]):
    """Seeds the random generators for each batch: a resumed run sees the same transforms, in any worker."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, batch: tuple[int, list[int]]) -> list[Any]:
        seed, numbers = batch
        with seeded(seed):
            if "__getitems__" in vars(reader(self.dataset)):
                return list(self.dataset.__getitems__(numbers))
            return [self.dataset[number] for number in numbers]


def _start_worker(given: Callable[[int], None] | None, worker: int) -> None:
    """Show a worker the user's data set, not our wrapper of it, and run the user's ``worker_init_fn``."""
    info: Any = torch.utils.data.get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.dataset)  # PyTorch means it to be read only
    if given is not None:
        given(worker)


def reader(dataset: Any) -> type:
    """The most derived class that defines how ``dataset`` is read: an override, such as an augmentation, counts."""
    ways = {"__getitem__", "__getitems__", "take"}
    return next(kind for kind in type(dataset).__mro__ if ways & vars(kind).keys())


@dataclass(frozen=True)
class Feed:
    """A source together with the batch settings of the DataLoader it came from."""

    source: Source
    batch_size: int | None = None
    shuffle: bool | None = None
    drop_last: bool = False
    sampler: Iterable[int] | None = None
    """A sampler of the user's own; None for plain random or sequential order."""


def source_of(data: Data | Feed) -> Feed:
    """The :class:`Feed` of a data set or a DataLoader, or an error that says what is wrong with it."""
    if isinstance(data, Feed):
        return data
    if isinstance(data, DataLoader):
        return _from_loader(data)
    _check_samples(data, bare=True)
    return Feed(_source(DataLoader(data)))  # type: ignore[arg-type]  # PyTorch says Dataset, and takes more


def stream_loader(data: Any) -> DataLoader[Any] | None:
    """The DataLoader of a stream (IterableDataset), or None if the samples of ``data`` have numbers."""
    if isinstance(data, DataLoader):
        return data if isinstance(data.dataset, IterableDataset) else None
    return DataLoader(data) if isinstance(data, IterableDataset) else None


@dataclass(frozen=True)
class _Counted:
    """Collates samples and says how many they are, which a batch of any kind does not."""

    collate: Callable[[list[Any]], Any]

    def __call__(self, samples: list[Any]) -> tuple[int, Any]:
        return len(samples), self.collate(samples)


def stream_of(given: DataLoader[Any], batch_size: int, **instead: Any) -> DataLoader[Any]:
    """A loader of a stream for :func:`seeded_batches`."""
    counted = _Counted(given.collate_fn)
    # Workers that stay would not hear of the next epoch.
    own = {"batch_size": batch_size, "collate_fn": counted, "persistent_workers": False}
    return loader_like(given, given.dataset, **own | instead)


def seeded_batches(loader: DataLoader[Any], seed: int) -> Iterator[tuple[Any, Tensor]]:
    """The batches of one pass over a stream, and their samples' numbers in it; random by ``seed`` alone."""
    loader.generator.manual_seed(seed)  # of which the workers' own seeds are drawn
    with seeded(seed):
        reading = iter(loader)
    seen = 0
    for number in count():
        with seeded(mix(seed, number)):
            found = next(reading, None)
        if found is None:
            return
        size, batch = found
        yield batch, torch.arange(seen, seen + size)
        seen += size


def _check_samples(data: Any, *, bare: bool) -> None:
    """Refuse data without samples by index, and paths, tuples or bare tensors, which have them only by accident."""
    path = isinstance(data, str | bytes | os.PathLike)
    found = repr(data) if path else type(data).__name__
    slip = path or isinstance(data, tuple | Mapping) or (bare and isinstance(data, Tensor | np.ndarray))
    if slip or (bare and isinstance(data, list) and len({x.shape for x in data if isinstance(x, Tensor)}) > 1):
        raise DataError(
            f"expected a Dataset, a list of samples or a DataLoader, got {found}: wrap tensors, once they "
            "are loaded, in torch.utils.data.TensorDataset(x, y), whose samples are their rows"
        )
    if isinstance(data, IterableDataset) or not hasattr(type(data), "__getitem__"):
        raise DataError(
            f"expected a map-style Dataset, whose samples have numbers, or a DataLoader of one, got {found}: "
            "constraints are kept by sample, so each needs a number that stays. A stream (IterableDataset) can be "
            "trained on by fit, and audited by sw.audit"
        )
    if not hasattr(data, "__len__") or len(data) == 0:
        raise DataError(f"the data set {found} is empty or has no length: expected at least one sample")


def _from_loader(loader: DataLoader[Any]) -> Feed:
    _check_samples(loader.dataset, bare=False)
    plan: Any = loader.batch_sampler
    sampler: Any = getattr(plan, "sampler", None)
    if type(plan) is not BatchSampler or isinstance(sampler, DistributedSampler):
        found = "batch_size=None" if plan is None else f"the batch_sampler {type(plan).__name__}"
        raise ConfigurationError(
            "expected a DataLoader of all samples with a batch_size, got one with "
            f"{'a DistributedSampler' if isinstance(sampler, DistributedSampler) else found}: batches are made and "
            "divided between processes here. Give the DataLoader batch_size=... and, for an order of your own, "
            "sampler=...; or give the data set itself and batch_size=..."
        )
    source = _source(loader)
    plain = type(sampler) is SequentialSampler or (type(sampler) is RandomSampler and not sampler.replacement)
    plain = plain and len(sampler) == source.length
    shuffle = plain and type(sampler) is RandomSampler
    return Feed(source, plan.batch_size, shuffle, plan.drop_last, None if plain else sampler)


def _source(loader: DataLoader[Any]) -> Source:
    """The fastest source that gives the same samples as the loader."""
    data: Any = loader.dataset
    if loader.collate_fn is default_collate:
        kind = reader(data)
        # Tables have a take of another meaning: only what calls itself a Dataset is asked for batches.
        if isinstance(data, Dataset) and isinstance(data, BatchedDataset) and "take" in vars(kind):
            return BatchedSource(len(data), data)
        if kind is TensorDataset:
            return InMemory(len(data), data.tensors)
        if kind is Subset and reader(data.dataset) is TensorDataset:
            return InMemory(len(data), data.dataset.tensors, torch.as_tensor(data.indices))
    return ItemByItem(loader)


def check_whole(feed: Feed, advice: str = "to audit a part, give torch.utils.data.Subset(dataset, indices)") -> None:
    """Refuse a custom sampler where every sample is evaluated, since it would be ignored silently."""
    if feed.sampler is not None:
        raise ConfigurationError(
            f"expected data whose every sample counts, got a DataLoader with a {type(feed.sampler).__name__}: {advice}"
        )


def cut(index: Tensor, batch_size: int) -> list[Tensor]:
    """Sample numbers ``(N,)`` as batches of ``batch_size``, the last of as many as are left."""
    if batch_size < 1:
        raise ConfigurationError(f"expected batch_size >= 1, got {batch_size}")
    # PyTorch takes no size beyond 64 bits, and no part of nothing.
    return list(torch.split(index, min(batch_size, len(index)))) if len(index) else []


def batch_size_of(feed: Feed, batch_size: int | None) -> int:
    """The batch size of an evaluation: what is asked for, else that of a given DataLoader, else 256."""
    return batch_size if batch_size is not None else feed.batch_size or 256


def in_order(
    data: Data | Feed, *, batch_size: int | None = None, device: torch.device | None = None, rows: range | None = None
) -> Iterator[tuple[Any, Tensor]]:
    """Every sample, or those of ``rows``, once and in order, as ``(batch, index)`` with tensors on ``device``."""
    feed = source_of(data)
    check_whole(feed)
    source = feed.source
    wanted = rows if rows is not None else range(source.length)
    indices = cut(torch.arange(wanted.start, wanted.stop), batch_size_of(feed, batch_size))
    if isinstance(source, InMemory):  # slices of memory, not gathers: no copy
        batches = source.batches([slice(int(index[0]), int(index[-1]) + 1) for index in indices])
    else:
        batches = source.batches(indices)
    for batch, index in zip(batches, indices, strict=True):
        yield (batch, index) if device is None else (to_device(batch, device), index)
