"""Whether two data sets share samples, by number or by content."""

import copy
import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Subset, SubsetRandomSampler, TensorDataset

from samplewise.errors import DataError
from samplewise.problem import SHOWN
from samplewise.samples import Data, ItemByItem, cut, mix

BATCH = 256
CHUNK = 2**24  # bytes of memory that are hashed at once
WORDS = (torch.int64, torch.int32, torch.uint8)


def refuse_overlap(data: Mapping[str, Data], pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The contents of the data sets by name, or an error if two of them that must not share a sample.

    By content, so that a copy is found too, and by number for parts of one data set, whose samples may look different
    whenever they are read.
    """
    found = {name: contents(each) for name, each in data.items()}
    for first, second in pairs:
        known = set(found[first])
        both = [number for number, content in enumerate(found[second]) if content in known]
        both = both or shared(keys(data[first]), keys(data[second]))
        if both:
            named = ", ".join(map(str, both[:SHOWN])) + ", ..." * (len(both) > SHOWN)
            raise DataError(
                f"expected {second} to share no sample with {first}, but {len(both):,} of its {len(found[second]):,} "
                f"are there too (sample {named} of {second}): leave them out of one, for example with "
                "torch.utils.data.Subset"
            )
    return found


def contents(data: Data) -> list[str]:
    """What each sample holds, as a fingerprint, in order; read one by one, since a batch may pad or mask them."""
    loader: DataLoader[Any] = copy.copy(data) if isinstance(data, DataLoader) else DataLoader(data)  # type: ignore[arg-type]
    loader.collate_fn = _fingerprints
    source = ItemByItem(loader)
    batches = source.batches(cut(_drawn(loader), BATCH))
    return [each for batch in batches for each in batch]


def _fingerprints(samples: list[Any]) -> list[str]:
    return [hashlib.blake2b(b"/".join(_parts(sample)), digest_size=8).hexdigest() for sample in samples]


def _parts(sample: Any) -> Iterator[bytes]:
    """The bytes of what a sample is made of; a number has those of the tensor that it becomes."""
    if isinstance(sample, Tensor):
        yield sample.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(sample, Mapping):
        for key in sorted(sample, key=str):
            yield str(key).encode()
            yield from _parts(sample[key])
    elif isinstance(sample, list | tuple):
        for part in sample:
            yield from _parts(part)
    elif isinstance(sample, int | float):
        yield np.asarray(sample).tobytes()
    elif hasattr(sample, "tobytes"):  # an array or a picture
        yield sample.tobytes()
    else:
        yield pickle.dumps(sample)


Keys = tuple[Tensor, Tensor]
"""Of each sample a number for its place and one for its content, ``(N,)`` each."""


def keys(data: Data) -> Keys:
    """What the samples of a data set are known by without reading any one by one: their places in the data sets that
    it is made of, and their contents where these lie in memory.
    """
    return _keys(data, _place), _keys(data, _content)


def shared(first: Keys, second: Keys) -> list[int]:
    """Which samples of the ``second`` data set are in the ``first`` too, as far as their :func:`keys` tell."""
    for ours, theirs in zip(first, second, strict=True):
        if (found := torch.isin(theirs, ours)).any():
            return found.nonzero().flatten().tolist()
    return []


def _keys(data: Any, key: Callable[[Any], Tensor]) -> Tensor:
    """A number for each sample, the same wherever it is met: in a part of its data set, or beside another's samples."""
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
    """What each sample of tensors in memory holds, hashed; of other data where they lie."""
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
