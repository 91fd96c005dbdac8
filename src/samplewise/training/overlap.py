"""Whether two data sets share samples, by number or by content."""

import copy
import hashlib
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from samplewise.errors import DataError
from samplewise.problem import SHOWN
from samplewise.samples import Data, ItemByItem, cut

BATCH = 256


def refuse_overlap(data: Mapping[str, Data], pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The contents of the data sets by name, or an error if two of them that must not share a sample.

    By content, so that a copy is found too, and by number for parts of one data set, whose samples may look different
    whenever they are read.
    """
    found = {name: contents(each) for name, each in data.items()}
    for first, second in pairs:
        known = set(found[first])
        shared = [number for number, content in enumerate(found[second]) if content in known]
        shared = shared or _of_one(data[first], data[second])
        if shared:
            named = ", ".join(map(str, shared[:SHOWN])) + ", ..." * (len(shared) > SHOWN)
            raise DataError(
                f"expected {second} to share no sample with {first}, but {len(shared):,} of its {len(found[second]):,} "
                f"are there too (sample {named} of {second}): leave them out of one, for example with "
                "torch.utils.data.Subset"
            )
    return found


def contents(data: Data) -> list[str]:
    """What each sample holds, as a fingerprint, in order; read one by one, since a batch may pad or mask them."""
    loader: DataLoader[Any] = copy.copy(data) if isinstance(data, DataLoader) else DataLoader(data)  # type: ignore[arg-type]
    loader.collate_fn = _fingerprints
    source = ItemByItem(loader)
    batches = source.batches(cut(torch.arange(source.length), BATCH))
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


def _of_one(first: Data, second: Data) -> list[int]:
    """Which samples of ``second`` are, by number, in ``first``, where both are parts of one data set."""
    (base, own), (other, its) = _numbers(first), _numbers(second)
    known = set(own)
    return [number for number, place in enumerate(its) if place in known] if base is other else []


def _numbers(data: Any) -> tuple[Any, list[int]]:
    """The data set that ``data`` is a part of, and which of its samples it has."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if not isinstance(data, Subset):
        return data, list(range(len(data)))
    base, numbers = _numbers(data.dataset)
    return base, [numbers[int(place)] for place in data.indices]
