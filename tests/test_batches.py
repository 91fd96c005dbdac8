import random
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from samplewise.batches import InMemory, ItemByItem, Whole, count, in_order, mix, source_of, to_device
from samplewise.errors import ConfigurationError, DataError


class Squares(Dataset[Any]):
    """A plain map-style data set whose samples are dictionaries."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> dict[str, float]:
        return {"x": float(i), "square": float(i * i)}


class Noisy(Dataset[Any]):
    """A data set with random transforms from all three generators."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Tensor:
        return torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))])


class Stored(Dataset[Tensor]):
    """A data set that reads whole batches, as from a memory map."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, i: int) -> Any:
        raise AssertionError("must not be read item by item")

    def take(self, index: Tensor) -> Tensor:
        return index * 10


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_tensors_are_sliced_by_whole_batches() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    source = source_of(data).source
    assert isinstance(source, InMemory)
    (batch,) = source.batches([torch.tensor([3, 1])])
    assert batch[0].tolist() == [3.0, 1.0]


def test_in_order_does_not_copy_memory() -> None:
    data = TensorDataset(torch.arange(10.0))
    (x,), _ = next(iter(in_order(data, batch_size=4)))
    assert x.data_ptr() == data.tensors[0].data_ptr()


@pytest.mark.parametrize(
    "data",
    [Squares(), TensorDataset(torch.arange(11.0)), Stored(), Subset(TensorDataset(torch.arange(20.0)), range(9))],
)
def test_in_order_gives_every_sample_once(data: Any) -> None:
    seen = torch.cat([index for _, index in in_order(data, batch_size=4)])
    assert seen.tolist() == list(range(len(data))) == list(range(count(data)))


def test_a_subset_of_tensors_keeps_its_own_numbers() -> None:
    data = Subset(TensorDataset(torch.arange(20.0)), [5, 7, 9])
    ((values,), index), *rest = in_order(data, batch_size=8)
    assert isinstance(source_of(data).source, InMemory)
    assert (values.tolist(), index.tolist(), rest) == ([5.0, 7.0, 9.0], [0, 1, 2], [])


def test_plain_data_sets_are_collated_as_pytorch_does() -> None:
    source = source_of(Squares()).source
    assert isinstance(source, ItemByItem)
    (batch,) = source.batches([torch.tensor([2, 3])])
    assert batch["square"].tolist() == [4.0, 9.0]


def test_a_batched_data_set_is_read_by_whole_batches() -> None:
    data: Any = Stored()
    source = source_of(data).source
    assert isinstance(source, Whole)
    assert next(source.batches([torch.tensor([6, 2])])).tolist() == [60, 20]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_depend_on_seed_and_batch_number_alone(workers: int) -> None:
    index = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4, 5])]
    source = source_of(Noisy(), num_workers=workers).source
    whole = list(source.batches(index, seed=1))
    resumed = list(source.batches(index[1:], seed=1, first=1))
    assert torch.equal(torch.stack(whole[1:]), torch.stack(resumed))
    assert not torch.equal(whole[0], next(iter(source.batches(index[:1], seed=2))))
    assert len(set(torch.stack(whole).flatten().tolist())) == 18


def test_a_loader_is_taken_over() -> None:
    loader = DataLoader(Squares(), batch_size=4, shuffle=True, drop_last=True, collate_fn=len)
    feed = source_of(loader)
    assert (feed.batch_size, feed.shuffle, feed.drop_last, feed.sampler) == (4, True, True, None)
    assert next(feed.source.batches([torch.tensor([0, 1, 2])])) == 3


def test_a_loader_of_tensors_is_still_sliced() -> None:
    feed = source_of(DataLoader(TensorDataset(torch.arange(4.0)), batch_size=2))
    assert isinstance(feed.source, InMemory)
    assert feed.shuffle is False


def test_a_sampler_of_ones_own_is_kept() -> None:
    sampler = WeightedRandomSampler([0.0, 1.0, 0.0], num_samples=5)
    feed = source_of(DataLoader(TensorDataset(torch.arange(3.0)), batch_size=2, sampler=sampler))
    assert feed.sampler is sampler


@pytest.mark.parametrize("data", [Stream(), DataLoader(Stream(), batch_size=2), 3])
def test_samples_without_numbers_are_refused(data: Any) -> None:
    with pytest.raises(DataError, match="map-style"):
        source_of(data)


def test_an_empty_data_set_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        source_of(TensorDataset(torch.zeros(0, 3)))


def test_a_loader_that_batches_by_itself_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="batch_size"):
        source_of(DataLoader(Squares(), batch_size=None))


def test_a_loader_that_shares_out_by_itself_is_refused() -> None:
    data = TensorDataset(torch.arange(4.0))
    sampler: DistributedSampler[Any] = DistributedSampler(data, num_replicas=2, rank=0)
    with pytest.raises(ConfigurationError, match="got one with a DistributedSampler"):
        source_of(DataLoader(data, batch_size=2, sampler=sampler))


def test_an_array_is_read_by_rows_although_it_has_a_take() -> None:
    rows = np.arange(12.0).reshape(4, 3)
    (batch,) = source_of(rows).source.batches([torch.tensor([1, 2])])  # type: ignore[arg-type]
    assert torch.equal(batch, torch.from_numpy(rows[1:3]))


def test_a_loaders_own_collation_is_kept_for_a_batched_data_set() -> None:
    with pytest.raises(AssertionError, match="item by item"):
        next(source_of(DataLoader(Stored(), batch_size=2, collate_fn=len)).source.batches([torch.tensor([0])]))


def test_to_device_asks_what_can_move_by_itself() -> None:
    class Encoding(UserDict[str, Tensor]):
        def to(self, device: torch.device) -> "Encoding":
            return Encoding({key: value.to(device) for key, value in self.items()})

    assert to_device([Encoding(x=torch.zeros(1))], torch.device("meta"))[0]["x"].device.type == "meta"


def test_to_device_follows_containers() -> None:
    pair = namedtuple("pair", "a b")
    batch = {"x": [torch.zeros(1), (torch.ones(1), "text")], "y": pair(torch.zeros(2), 3)}
    moved = to_device(batch, torch.device("meta"))
    assert moved["x"][0].device.type == moved["x"][1][0].device.type == moved["y"].a.device.type == "meta"
    assert (moved["x"][1][1], moved["y"].b, type(moved["y"])) == ("text", 3, pair)
    assert to_device(OrderedDict(a=1), torch.device("meta")) == {"a": 1}


def test_mix_separates_its_parts() -> None:
    assert mix(1, 23) != mix(12, 3)
    assert mix(1, "a") == mix(1, "a")
    assert 0 <= mix(0) < 2**63
