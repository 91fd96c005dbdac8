"""Whether two data sets share samples, by number or by content."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Subset

from samplewise.errors import DataError
from samplewise.problem import SHOWN
from samplewise.samples import Data, in_order


def contents(data: Data) -> list[bytes]:
    """What each sample holds, as a fingerprint, in order."""
    return [hashlib.blake2b(row, digest_size=16).digest() for batch, _ in in_order(data) for row in _rows(batch)]


def digest(contents: list[bytes]) -> str:
    """A whole data set in one word, whatever the order of its samples."""
    return hashlib.blake2b(b"".join(sorted(contents)), digest_size=16).hexdigest()


def refuse_overlap(data: Mapping[str, Data]) -> dict[str, list[bytes]]:
    """The contents of the data sets by name, or an error if two of them share a sample.

    By content, so that a copy is found too, and by number for parts of one data set, whose samples may look different
    whenever they are read.
    """
    found = {name: contents(each) for name, each in data.items()}
    for first, second in combinations(data, 2):
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


def _rows(batch: Any) -> Iterator[bytes]:
    """The bytes of each sample of a batch."""
    columns = [list(_column(leaf)) for leaf in _leaves(batch)]
    return (b"/".join(row) for row in zip(*columns, strict=True))


def _leaves(batch: Any) -> Iterator[Any]:
    """What a batch is made of: its tensors, and lists with one entry for each sample."""
    if isinstance(batch, Mapping) or hasattr(batch, "items"):
        batch = tuple(batch[key] for key in sorted(batch))
    elif not isinstance(batch, tuple) and not (isinstance(batch, list) and any(isinstance(x, Tensor) for x in batch)):
        yield batch
        return
    for part in batch:
        yield from _leaves(part)


def _column(leaf: Any) -> Iterator[bytes]:
    if not isinstance(leaf, Tensor):
        return (repr(each).encode() for each in leaf)
    flat = leaf.detach().cpu().contiguous().reshape(len(leaf), -1)
    return (row.tobytes() for row in flat.view(torch.uint8).numpy())


def _of_one(first: Data, second: Data) -> list[int]:
    """Which samples of ``second`` are, by number, in ``first``, where both are parts of one data set."""
    (base, own), (other, its) = _numbers(first), _numbers(second)
    return [number for number, place in enumerate(its) if place in set(own)] if base is other else []


def _numbers(data: Any) -> tuple[Any, list[int]]:
    """The data set that ``data`` is a part of, and which of its samples it has."""
    if isinstance(data, DataLoader):
        data = data.dataset
    if not isinstance(data, Subset):
        return data, list(range(len(data)))
    base, numbers = _numbers(data.dataset)
    return base, [numbers[int(place)] for place in data.indices]
