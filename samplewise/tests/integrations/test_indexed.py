"""Samples say their number, whatever they are, and a DataLoader makes batches of it."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from samplewise.integrations import Indexed


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_end_with_the_numbers_of_their_samples(shuffle: bool) -> None:
    x = torch.rand(10, 3)
    seen = []
    for values, index in DataLoader(Indexed(TensorDataset(x)), batch_size=4, shuffle=shuffle):
        assert torch.equal(values, x[index])
        seen += index.tolist()
    assert sorted(seen) == list(range(10))


def test_a_sample_that_is_no_tuple_becomes_one() -> None:
    assert Indexed(["a", "b"])[1] == ("b", 1)
    assert len(Indexed(["a", "b"])) == 2
