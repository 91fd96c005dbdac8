"""Whether two data sets share samples, by place or by content."""

import copy
import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, SubsetRandomSampler, TensorDataset

from samplewise.errors import DataError
from samplewise.problem import LISTED_SAMPLES
from samplewise.samples import Data, ItemByItem, cut, mix

BATCH = 256
CHUNK = 2**24  # bytes of memory that are hashed at once
WORDS = (torch.int64, torch.int32, torch.uint8)


@dataclass(frozen=True)
class Keys:
    """Keys of the samples of a data set, ``(N,)`` each: by place and by content."""

    places: Tensor
    """Where it lies: its number in the data set at the base of this one, or its place in memory."""
    contents: Tensor
    """A hash of its tensors, of a ``TensorDataset``; of other data the place."""
    read: Tensor | None = None
    """A hash of the sample as the data set gives it; None if none was read."""

    @property
    def fingerprints(self) -> list[str]:
        """The keys that were ``read``, as text."""
        return [] if self.read is None else [f"{each & (2**64 - 1):016x}" for each in self.read.tolist()]


def keys(data: Data, *, read: bool = False) -> Keys:
    """The keys of a data set's samples; none is read one by one unless that is asked for."""
    return Keys(_keys(data, _place), _keys(data, _content), _read(data) if read else None)


def shared(first: Keys, second: Keys) -> list[int]:
    """The samples of the ``second`` data set that are also in the ``first``, by their keys."""
    for ours, theirs in (
        (first.places, second.places),
        (first.contents, second.contents),
        (first.read, second.read),
    ):
        if ours is not None and theirs is not None and (found := torch.isin(theirs, ours)).any():
            return found.nonzero().flatten().tolist()
    return []


def copied(known: Keys) -> int:
    """How many samples of a data set hold what an earlier one of it holds; 0 if none was read."""
    return 0 if known.read is None else len(known.read) - len(known.read.unique())


def refuse_overlap(known: Mapping[str, Keys], pairs: Iterable[tuple[str, str]]) -> None:
    """Raise if two data sets that must not share a sample do."""
    for first, second in pairs:
        if both := shared(known[first], known[second]):
            named = ", ".join(map(str, both[:LISTED_SAMPLES])) + ", ..." * (len(both) > LISTED_SAMPLES)
            raise DataError(
                f"expected {second} to share no sample with {first}, but {len(both):,} of its "
                f"{len(known[second].places):,} are there too (sample {named} of {second}): leave them out of one, for "
                "example with torch.utils.data.Subset"
            )


def _read(data: Data) -> Tensor:
    """A hash of each sample, in order; read one by one, since a batch may pad or mask them."""
    loader: DataLoader[Any] = copy.copy(data) if isinstance(data, DataLoader) else DataLoader(data)  # type: ignore[arg-type]
    loader.collate_fn = _hashes
    return torch.cat(list(ItemByItem(loader).batches(cut(_drawn(loader), BATCH))))


def _hashes(samples: list[Any]) -> Tensor:
    digests = (hashlib.blake2b(b"/".join(_bytes(sample)), digest_size=8).digest() for sample in samples)
    return torch.tensor([int.from_bytes(digest, signed=True) for digest in digests])


def _bytes(sample: Any) -> Iterator[bytes]:
    """The bytes of what a sample is made of; a number has those of the tensor that it becomes."""
    if isinstance(sample, Tensor):
        yield sample.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(sample, Mapping):
        for key in sorted(sample, key=str):
            yield str(key).encode()
            yield from _bytes(sample[key])
    elif isinstance(sample, list | tuple):
        for part in sample:
            yield from _bytes(part)
    elif isinstance(sample, int | float):
        yield np.asarray(sample).tobytes()
    elif hasattr(sample, "tobytes"):  # an array or a picture
        yield sample.tobytes()
    else:
        yield pickle.dumps(sample)


def _keys(data: Any, key: Callable[[Any], Tensor]) -> Tensor:
    """A number for each sample that is the same in a part of its data set, or joined with another one."""
    if isinstance(data, DataLoader):
        return _keys(data.dataset, key)[_drawn(data)]
    if isinstance(data, Subset):
        return _keys(data.dataset, key)[torch.as_tensor(data.indices, dtype=torch.int64)]
    if isinstance(data, ConcatDataset):
        return torch.cat([_keys(each, key) for each in data.datasets])
    inner: Any = getattr(data, "dataset", None)  # of one that transforms the samples of another
    if hasattr(inner, "__getitem__") and hasattr(inner, "__len__") and len(inner) == len(data):
        return _keys(inner, key)
    return key(data)


def _drawn(loader: DataLoader[Any]) -> Tensor:
    """The numbers of the samples that a loader draws."""
    few = loader.sampler.indices if isinstance(loader.sampler, SubsetRandomSampler) else None
    return torch.arange(len(loader.dataset)) if few is None else torch.as_tensor(few, dtype=torch.int64)  # type: ignore[arg-type]


def _place(data: Any) -> Tensor:
    """Where each sample of a data set lies: in memory, or as its number in this object."""
    if isinstance(data, TensorDataset):
        for each in data.tensors:
            if each.numel() and each.layout is torch.strided and (each.stride(0) or len(each) == 1):
                return each.data_ptr() + each.stride(0) * each.element_size() * torch.arange(len(each))
    if isinstance(data, list) and not any(isinstance(each, int | float | str) for each in data):
        return torch.tensor([id(each) for each in data])
    return mix("samples of", id(data)) + torch.arange(len(data))


def _content(data: Any) -> Tensor:
    """A hash of each sample's content, for tensors in memory; of its place, for other data."""
    if not isinstance(data, TensorDataset) or any(each.layout is not torch.strided for each in data.tensors):
        return _place(data)
    keys = torch.zeros(len(data), dtype=torch.int64)
    for part, tensor in enumerate(data.tensors):
        for rows in torch.arange(len(tensor)).split(max(1, CHUNK // max(1, tensor[0].nbytes))):
            values = tensor[rows[0] : rows[-1] + 1].detach().cpu().reshape(len(rows), -1)
            held = values.clone(memory_format=torch.contiguous_format).view(torch.uint8)  # aligned for wider words
            words = held.view(next(kind for kind in WORDS if held.shape[1] % kind.itemsize == 0)).to(torch.int64)
            generator = torch.Generator().manual_seed(mix("content", part))
            factors = torch.randint(-(2**63), 2**63 - 1, (words.shape[1],), generator=generator)
            keys[rows] += (words * factors).sum(1)  # which wraps around
    return keys
