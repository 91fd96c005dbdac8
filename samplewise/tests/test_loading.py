import os
import time
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from samplewise.samples import ItemByItem, source_of


class Watched(Dataset[Any]):
    """Says which process read a sample, and what a worker was prepared with; counts the samples read anywhere."""

    def __init__(self) -> None:
        self.prepared = -1
        self.read = torch.zeros((), dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> Tensor:
        self.read += 1
        return torch.tensor([os.getpid(), self.prepared])


def prepare(worker: int) -> None:
    """What users do in a ``worker_init_fn``: give each worker's copy of the data set something of its own."""
    info: Any = get_worker_info()
    info.dataset.prepared = 70 + worker


def batches(loader: DataLoader[Any]) -> list[Any]:
    return list(source_of(loader).source.batches([torch.tensor([i]) for i in range(4)]))


def test_a_loaders_worker_init_fn_runs_in_each_worker_on_the_users_data_set() -> None:
    read = torch.cat(batches(DataLoader(Watched(), num_workers=2, worker_init_fn=prepare)))
    assert sorted(set(read[:, 1].tolist())) == [70, 71]
    assert os.getpid() not in read[:, 0]


def test_a_worker_init_fn_without_workers_has_nothing_to_do() -> None:
    read = torch.cat(batches(DataLoader(Watched(), timeout=5, worker_init_fn=prepare)))
    assert read.tolist() == [[os.getpid(), -1]] * 4


@pytest.mark.parametrize("stay", [False, True])
def test_workers_stay_as_long_as_the_loader_says(stay: bool) -> None:
    source = source_of(DataLoader(Watched(), num_workers=1, persistent_workers=stay)).source
    first, second = (next(source.batches([torch.tensor([0])]))[0, 0] for _ in range(2))
    assert bool(first == second) is stay


def test_as_many_batches_are_read_ahead_as_the_loader_says() -> None:
    data = Watched()
    source = source_of(DataLoader(data, num_workers=1, prefetch_factor=9)).source
    reading = source.batches([torch.tensor([i]) for i in range(20)])
    next(reading)
    deadline = time.monotonic() + 300
    while data.read < 10 and time.monotonic() < deadline:  # the one taken and nine ahead; by itself PyTorch reads two
        time.sleep(0.01)
    assert data.read == 10


def test_what_else_a_loader_says_of_its_workers_is_taken_over() -> None:
    given = DataLoader(Watched(), num_workers=1, timeout=7, multiprocessing_context="spawn")
    ours = ItemByItem(given).loader
    assert (ours.timeout, ours.multiprocessing_context) == (7, given.multiprocessing_context)
