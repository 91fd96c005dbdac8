"""Which data sets share samples, told without reading them one by one."""

from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, SubsetRandomSampler, TensorDataset

from samplewise.training.overlap import keys, shared
from small import make_data

DATA = make_data(40)
X, Y = DATA.tensors
ROWS = [(x, int(y)) for x, y in zip(X, Y, strict=True)]


class Unread(Dataset[Any]):
    """Must not be read; ``dataset`` is what it would transform."""

    def __init__(self, dataset: Any = None) -> None:
        if dataset is not None:
            self.dataset = dataset

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("read")


FILES = Unread()


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (DATA, DataLoader(DATA, batch_size=7), range(40)),
        (DataLoader(DATA, batch_size=7, shuffle=True), DATA, range(40)),
        (DATA, TensorDataset(X, Y), range(40)),
        (DATA, TensorDataset(X), range(40)),
        (DATA, TensorDataset(X[30:], Y[30:]), range(10)),
        (DATA, TensorDataset(X.clone(), Y.clone()), range(40)),
        (DATA, TensorDataset(X.flip(0), Y.flip(0)), range(40)),
        (TensorDataset(X[1:]), TensorDataset(X.t().contiguous().t()), range(1, 40)),
        (Subset(DATA, range(20)), Subset(DATA, range(18, 30)), [0, 1]),
        (Subset(DATA, range(20)), Subset(DATA, range(20, 40)), []),
        (Subset(Subset(FILES, range(5, 40)), [0, 1]), Subset(FILES, [6, 7]), [0]),
        (FILES, ConcatDataset([make_data(5, seed=1), Subset(FILES, [3])]), [5]),
        (ConcatDataset([FILES, DATA]), DataLoader(Subset(ConcatDataset([DATA, FILES]), [2, 50])), [0, 1]),
        (FILES, Unread(), []),
        (FILES, Unread(FILES), range(40)),
        (Subset(FILES, range(9)), Unread(Unread(FILES)), range(9)),
        (DataLoader(FILES, sampler=SubsetRandomSampler(range(20))), Subset(FILES, range(20, 40)), []),
        (DataLoader(FILES, sampler=SubsetRandomSampler(range(20))), Subset(FILES, range(19, 40)), [0]),
        (ROWS, ROWS[5:], range(35)),
        (ROWS, [(x, y) for x, y in ROWS], []),
        (DATA, make_data(40, seed=1), []),
        (TensorDataset(torch.zeros(1, 2).expand(40, 2), X), TensorDataset(torch.zeros(1, 2).expand(40, 2), X + 1), []),
    ],
)
def test_samples_in_both_are_found_by_place_and_in_memory_by_content(first: Any, second: Any, expected: Any) -> None:
    assert shared(keys(first), keys(second)) == list(expected)
