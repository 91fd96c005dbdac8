"""Batches of any data set together with each sample's number in it."""

import contextlib
import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from samplewise.errors import ConfigurationError, DataError

__all__ = ["BatchedDataset", "Data", "check_whole", "count", "in_order", "mix", "source_of", "to_device"]

Data = Dataset[Any] | DataLoader[Any]


@runtime_checkable
class BatchedDataset(Protocol):
    """A data set that gives whole batches at once: what is read from memory or a memory map should be one."""

    def __len__(self) -> int: ...

    def take(self, index: Tensor) -> Any:
        """The samples ``index`` as one batch."""


def mix(*parts: int | str) -> int:
    """A 63-bit seed from any numbers and words: stateless randomness, so a run can resume at any step."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def to_device(batch: Any, device: torch.device) -> Any:
    """``batch`` with its tensors on ``device``: tuples, lists, dictionaries and what has ``to`` are followed."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
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
    """A data set as batches by sample number.

    Args:
        length: number of samples.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    @abstractmethod
    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        """The batches of the given sample numbers, in order.

        Args:
            indices: the sample numbers of each batch.
            seed: what random transforms of the samples, if any, depend on,
            first: together with the number of the batch, counted from here.
        """


class InMemory(Source):
    """Tensors, sliced by whole batches."""

    def __init__(self, tensors: Sequence[Tensor], subset: Tensor | None = None) -> None:
        super().__init__(len(tensors[0]) if subset is None else len(subset))
        self.tensors = tensors
        self.subset = subset

    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        for index in indices:
            rows = index if self.subset is None else self.subset[index]
            yield tuple(tensor[rows] for tensor in self.tensors)


class Whole(Source):
    """A :class:`BatchedDataset`."""

    def __init__(self, dataset: BatchedDataset) -> None:
        super().__init__(len(dataset))
        self.dataset = dataset

    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        for index in indices:
            yield self.dataset.take(index)


class ItemByItem(Source):
    """Any other map-style data set, through PyTorch's DataLoader and its worker processes."""

    def __init__(self, dataset: Any, collate: Any, num_workers: int, pin_memory: bool) -> None:
        super().__init__(len(dataset))
        self._order = _Order()
        self._loader = DataLoader(
            _Seeded(dataset),
            batch_sampler=self._order,
            collate_fn=collate or default_collate,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            pin_memory=pin_memory,
            generator=torch.Generator(),  # its own: it draws a number whenever it starts, even without workers
        )

    def batches(self, indices: Sequence[Tensor], *, seed: int = 0, first: int = 0) -> Iterator[Any]:
        self._order.batches = [[mix(seed, number), *index.tolist()] for number, index in enumerate(indices, first)]
        return iter(self._loader)


class _Order(Sampler[list[int]]):
    """Batches that are set anew for each epoch, so that the workers can stay."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _Seeded(Dataset[Any]):
    """Seeds the random generators for each batch: a resumed run sees the same transforms, in any worker."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitems__(self, keys: list[int]) -> list[Any]:
        seed, *index = keys
        with contextlib.nullcontext() if get_worker_info() else _generators_kept():
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.default_generator.manual_seed(seed)
            if hasattr(self.dataset, "__getitems__"):
                return list(self.dataset.__getitems__(index))
            return [self.dataset[i] for i in index]

    def __getitem__(self, key: int) -> Any:
        return self.dataset[key]


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Give the caller's random generators back as they were."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])


@dataclass(frozen=True)
class Feed:
    """A source with what a given DataLoader said of batches."""

    source: Source
    batch_size: int | None = None
    shuffle: bool | None = None
    drop_last: bool = False
    sampler: Iterable[int] | None = None
    """A sampler of the user's own; None for plain random or sequential order."""


def source_of(data: Data, *, num_workers: int = 0) -> Feed:
    """Understand a Dataset or a DataLoader, or say what is wrong with it."""
    if isinstance(data, DataLoader):
        return _from_loader(data)
    return Feed(_source(data, collate=None, num_workers=num_workers, pin_memory=False))


def _from_loader(loader: DataLoader[Any]) -> Feed:
    if isinstance(loader.dataset, IterableDataset):
        _source(loader.dataset, None, 0, False)  # raises the error for it
    if loader.batch_sampler is None or type(loader.batch_sampler) is not BatchSampler:
        raise ConfigurationError(
            "expected a DataLoader with a batch_size; this one batches by itself (batch_size=None or a batch_sampler). "
            "Give the Dataset and batch_size=... instead"
        )
    if isinstance(loader.sampler, DistributedSampler):
        raise ConfigurationError(
            "expected a DataLoader of all samples, got one with a DistributedSampler: they are shared out between the "
            "processes here. Give the Dataset, or a DataLoader with shuffle=True"
        )
    collate = None if loader.collate_fn is default_collate else loader.collate_fn
    source = _source(loader.dataset, collate, loader.num_workers, loader.pin_memory)
    sampler = loader.sampler
    plain = type(sampler).__name__ == "SequentialSampler"
    shuffled = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == source.length
    return Feed(
        source,
        batch_size=loader.batch_size,
        shuffle=shuffled,
        drop_last=loader.drop_last,
        sampler=None if plain or shuffled else sampler,
    )


def _source(data: Any, collate: Any, num_workers: int, pin_memory: bool) -> Source:
    if isinstance(data, list | tuple | Tensor):
        raise DataError(
            f"expected a Dataset or a DataLoader, got {type(data).__name__}: wrap tensors in "
            "torch.utils.data.TensorDataset(x, y)"
        )
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        raise DataError(
            f"expected a map-style Dataset, whose samples have numbers, or a DataLoader of one, got "
            f"{type(data).__name__}: constraints are kept by sample, so each needs a number that stays"
        )
    if not hasattr(data, "__len__") or len(data) == 0:
        raise DataError(f"the data set {type(data).__name__} is empty or has no length: expected at least one sample")
    # Arrays and tables have a take of another meaning: only what calls itself a Dataset is asked for whole batches.
    if collate is None and isinstance(data, Dataset) and isinstance(data, BatchedDataset):
        return Whole(data)
    if collate is None and isinstance(data, TensorDataset):
        return InMemory(data.tensors)
    if collate is None and isinstance(data, Subset) and isinstance(data.dataset, TensorDataset):
        return InMemory(data.dataset.tensors, torch.as_tensor(data.indices))
    return ItemByItem(data, collate, num_workers, pin_memory)


def count(data: Data) -> int:
    """Number of samples."""
    return source_of(data).source.length


def check_whole(feed: Feed) -> None:
    """Refuse a sampler of the user's own where every sample is to be judged: it would be passed over in silence."""
    if feed.sampler is not None:
        raise ConfigurationError(
            f"expected data whose every sample counts, got a DataLoader with a {type(feed.sampler).__name__}: to audit "
            "a part of a data set give that part, torch.utils.data.Subset(dataset, indices)"
        )


def in_order(
    data: Data | Feed, *, batch_size: int, device: torch.device | None = None, rows: range | None = None
) -> Iterator[tuple[Any, Tensor]]:
    """Every sample once, in order, as ``(batch, index)``.

    Args:
        data: a Dataset, a DataLoader, or what :func:`source_of` made of one.
        batch_size: samples in a batch.
        device: where tensors go.
        rows: only these samples.
    """
    feed = data if isinstance(data, Feed) else source_of(data)
    check_whole(feed)
    source = feed.source
    wanted = rows if rows is not None else range(source.length)
    indices = list(torch.split(torch.arange(wanted.start, wanted.stop), batch_size)) if len(wanted) else []
    if isinstance(source, InMemory) and source.subset is None:
        # Slices of memory, not gathers: no copy.
        batches: Iterator[Any] = (
            tuple(tensor[int(index[0]) : int(index[-1]) + 1] for tensor in source.tensors) for index in indices
        )
    else:
        batches = source.batches(indices)
    for batch, index in zip(batches, indices, strict=True):
        yield (batch, index) if device is None else (to_device(batch, device), index)
