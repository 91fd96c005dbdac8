import random
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from samplewise import AtMost, Constant, Problem, SequentialPenalty, audit
from samplewise.errors import ConfigurationError, DataError
from samplewise.samples import (
    BatchedSource,
    InMemory,
    ItemByItem,
    check_whole,
    cut,
    in_order,
    mix,
    source_of,
    to_device,
)
from small import fit


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


def loader_of(samples: Any, **said: Any) -> DataLoader[Any]:
    """A DataLoader of what PyTorch's types do not name but its loader takes."""
    return DataLoader(samples, **said)


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
    assert seen.tolist() == list(range(len(data))) == list(range(source_of(data).source.length))


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
    assert isinstance(source, BatchedSource)
    assert next(source.batches([torch.tensor([6, 2])])).tolist() == [60, 20]


@pytest.mark.parametrize("workers", [0, 2])
def test_random_transforms_depend_on_seed_and_batch_number_alone(workers: int) -> None:
    index = [torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4, 5])]
    source = source_of(DataLoader(Noisy(), num_workers=workers)).source
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


@pytest.mark.parametrize("sampler", [WeightedRandomSampler([0.0, 1.0, 0.0], 5), SequentialSampler(range(2))])
def test_a_sampler_of_ones_own_or_over_a_part_is_kept(sampler: Any) -> None:
    assert source_of(DataLoader(TensorDataset(torch.arange(3.0)), batch_size=2, sampler=sampler)).sampler is sampler


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (Stream(), "map-style"),
        (DataLoader(Stream(), batch_size=2), "map-style"),
        (3, "map-style"),
        (Squares, "got type"),
        (TensorDataset(torch.zeros(0, 3)), "empty"),
        ([], "empty"),
        (loader_of([]), "empty"),
    ],
)
def test_what_has_no_samples_by_number_is_refused(data: Any, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        source_of(data)


class ByLength(BatchSampler):
    """A batch sampler of the user's own."""


SHARED: DistributedSampler[Any] = DistributedSampler(Squares(), num_replicas=2, rank=0)


@pytest.mark.parametrize(
    ("loader", "found"),
    [
        (DataLoader(Squares(), batch_size=2, sampler=SHARED), "a DistributedSampler"),
        (DataLoader(Squares(), batch_size=None), "batch_size=None"),
        (DataLoader(Squares(), batch_sampler=ByLength(range(11), 4, False)), "the batch_sampler ByLength"),
        (DataLoader(Squares(), batch_sampler=[[0, 1], [2]]), "the batch_sampler list"),
    ],
)
def test_a_loader_that_batches_by_itself_is_refused_by_its_name(loader: DataLoader[Any], found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        source_of(loader)


def test_a_plain_batch_sampler_says_what_a_batch_size_and_a_sampler_say() -> None:
    sampler = WeightedRandomSampler([1.0] * 11, num_samples=5)
    feed = source_of(DataLoader(Squares(), batch_sampler=BatchSampler(sampler, 3, drop_last=True)))
    assert (feed.batch_size, feed.drop_last, feed.sampler, feed.shuffle) == (3, True, sampler, False)


class Table:
    """Not a Dataset, with a ``take`` of another meaning, as arrays and tables have one."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Tensor:
        return torch.tensor([i, 10 * i])

    def take(self, index: Tensor) -> Any:
        raise AssertionError("must not be asked for batches")


@pytest.mark.parametrize("data", [Table(), loader_of(Table()), loader_of(np.array([[0, 0], [1, 10], [2, 20]]))])
def test_only_a_dataset_is_asked_for_batches(data: Any) -> None:
    (batch,) = source_of(data).source.batches([torch.tensor([1, 2])])
    assert batch.tolist() == [[1, 10], [2, 20]]


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


class Shifted(TensorDataset):
    """Tensors with a change of each sample, as augmentation makes it."""

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        return tuple(100 + tensor[i] for tensor in self.tensors)


class ShiftedSubset(Subset[Any]):
    def __getitem__(self, i: Any) -> Any:
        return (100 + self.dataset[self.indices[i]][0],)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[i] for i in indices]


class ShiftedStore(Stored):
    def __getitem__(self, i: int) -> Tensor:
        return torch.tensor(100.0 + i)


class Labelled(TensorDataset):
    """Tensors with something beside them that changes no sample."""

    labels = ("a", "b")


numbers = torch.arange(6.0)


@pytest.mark.parametrize(
    "data",
    [
        Shifted(numbers),
        DataLoader(Shifted(numbers)),
        Subset(Shifted(numbers), range(6)),
        Subset(Subset(Shifted(numbers), range(6)), range(6)),
        ConcatDataset([Shifted(numbers[:2]), Shifted(numbers[2:])]),
        ShiftedSubset(TensorDataset(numbers), range(6)),
        ShiftedStore(),
    ],
)
def test_what_a_subclass_makes_of_a_sample_is_not_passed_over(data: Any) -> None:
    (batch,) = source_of(data).source.batches([torch.tensor([1, 4])])
    values = batch if isinstance(batch, Tensor) else batch[0]
    assert values.tolist() == [101.0, 104.0]


class Wrapper:
    """Changes each sample of what it wraps, and passes on everything else it is asked for."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Tensor:
        return 100 + torch.as_tensor(self.inner[i][0])

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not yet there while a worker unpickles it
            raise AttributeError(name)
        return getattr(self.inner, name)


def test_a_wrapper_is_not_passed_over_for_what_it_wraps() -> None:
    (batch,) = source_of(Wrapper(Subset(TensorDataset(numbers), range(6)))).source.batches([torch.tensor([1, 4])])
    assert batch.tolist() == [101.0, 104.0]


def test_a_subclass_that_changes_no_sample_is_still_sliced() -> None:
    assert isinstance(source_of(Labelled(numbers)).source, InMemory)
    assert isinstance(source_of(Subset(Labelled(numbers), [1, 2])).source, InMemory)


def test_a_subclass_may_be_shorter_than_its_tensors() -> None:
    class Fewer(TensorDataset):
        def __len__(self) -> int:
            return 4

    assert [index.tolist() for _, index in in_order(Fewer(numbers), batch_size=3)] == [[0, 1, 2], [3]]


class Batches(Squares):
    """Gives many items at once in a way of its own."""

    def __getitems__(self, indices: list[int]) -> list[dict[str, float]]:
        return [{"x": -float(i)} for i in indices]


def test_many_items_are_asked_for_at_once_where_the_data_set_offers_it() -> None:
    (batch,) = source_of(Batches()).source.batches([torch.tensor([1, 4])])
    assert batch["x"].tolist() == [-1.0, -4.0]


class Duck:
    """Has a length and items, and no base class that says so."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": torch.tensor(float(i))}


@pytest.mark.parametrize("samples", [Duck(), [{"x": torch.tensor(float(i))} for i in range(5)]])
@pytest.mark.parametrize("loaded", [False, True])
def test_lists_and_duck_typed_objects_are_data_sets(samples: Any, loaded: bool) -> None:
    model = torch.nn.PReLU()  # leaves what is positive as it is, so what is violated is known
    problem = Problem(lambda model, batch: (model(-batch["x"]), {"x": model(batch["x"])}), [AtMost("x", 2.5)])
    data = loader_of(samples, batch_size=2) if loaded else samples
    assert audit(problem, model, data)["x"].violators.tolist() == [3, 4]
    method = SequentialPenalty(problem.constraints, schedule=Constant(1.0))
    solution = fit(problem, model, data, method=method, rate=1e-3, epochs=1, batch_size=2)
    assert solution.audits["train"]["x"].violators.tolist() == [3, 4]


@pytest.mark.parametrize(
    "slip",
    [
        torch.zeros(4, 2),
        np.zeros((4, 2)),
        (torch.zeros(4, 2), torch.zeros(4)),
        [torch.zeros(4, 2), torch.zeros(4)],
        {"x": torch.zeros(4)},
        "data/train",
        Path("data/train"),
        loader_of((torch.zeros(4, 2), torch.zeros(4))),
    ],
)
def test_a_slip_for_a_data_set_is_refused_with_what_to_do(slip: Any) -> None:
    with pytest.raises(DataError, match="TensorDataset"):
        source_of(slip)


@pytest.mark.parametrize("persistent", [True, False])
def test_two_may_read_at_once_though_the_workers_stay(persistent: bool) -> None:
    data: Any = list(range(40))
    given: DataLoader[Any] = DataLoader(data, batch_size=10, num_workers=1, persistent_workers=persistent)
    source = source_of(given).source
    pieces = list(torch.arange(40).split(10))
    for _ in range(2):  # and again, when the workers are free
        first = source.batches(pieces)
        read = [next(first), *source.batches(pieces[:1]), *first]
        assert [batch.tolist() for batch in read] == [each.tolist() for each in (*pieces[:1], *pieces)]


def test_a_list_of_ragged_samples_needs_a_loader_that_collates_them() -> None:
    ragged = [torch.zeros(1), torch.zeros(2)]
    ((batch, index),) = in_order(loader_of(ragged, batch_size=2, collate_fn=list))
    assert ([len(sample) for sample in batch], index.tolist()) == ([1, 2], [0, 1])


@pytest.mark.parametrize(
    ("data", "given", "sizes"),
    [
        (DataLoader(TensorDataset(torch.zeros(7)), batch_size=3), None, [3, 3, 1]),
        (DataLoader(TensorDataset(torch.zeros(7)), batch_size=3), 5, [5, 2]),
        (TensorDataset(torch.zeros(600)), None, [256, 256, 88]),
        (TensorDataset(torch.zeros(7)), 2**70, [7]),
    ],
)
def test_batches_in_order_are_as_large_as_asked_for_or_as_the_loader_says(
    data: Any, given: int | None, sizes: list[int]
) -> None:
    assert [len(index) for _, index in in_order(data, batch_size=given)] == sizes
    assert [len(batch[0]) for batch, _ in in_order(source_of(data), batch_size=given)] == sizes


def test_a_batch_has_at_least_one_sample() -> None:
    with pytest.raises(ConfigurationError, match="batch_size >= 1, got 0"):
        cut(torch.arange(3), 0)
    assert cut(torch.arange(0), 3) == []


def test_a_sampler_is_refused_with_the_advice_of_the_caller() -> None:
    feed = source_of(DataLoader(TensorDataset(numbers), sampler=WeightedRandomSampler([1.0] * 6, 6)))
    with pytest.raises(ConfigurationError, match="Subset"):
        check_whole(feed)
    with pytest.raises(ConfigurationError, match="audit_on="):
        check_whole(feed, "give audit_on={'train': dataset}")


def test_what_was_understood_stays_as_it_is() -> None:
    feed = source_of(TensorDataset(numbers))
    assert source_of(feed) is feed


class Copies(TorchFunctionMode):
    """Stands in for devices that are not here: notes how tensors would be copied to them."""

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self.waited: list[bool] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.is_pinned:
            return self.pinned
        if func is Tensor.to:
            self.waited.append(not (kwargs or {}).get("non_blocking", False))
            return args[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("device", "pinned", "waited"),
    [
        ("cpu", False, []),  # where the tensor is: nothing is copied
        ("mps", False, [True]),
        ("mps", True, [True]),
        ("cuda:0", False, [True]),
        ("cuda:0", True, [False]),
    ],
)
def test_only_a_copy_from_pinned_memory_to_cuda_is_not_waited_for(
    device: str, pinned: bool, waited: list[bool]
) -> None:
    with Copies(pinned) as copies:
        to_device([numbers], torch.device(device))
    assert copies.waited == waited
