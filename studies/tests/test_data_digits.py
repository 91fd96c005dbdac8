import pytest
import torch

from samplewise.errors import ConfigurationError
from studies.data import digits


def test_the_digits_are_split_alike_in_every_class() -> None:
    data = digits(test_fraction=0.25, seed=3)
    assert len(data.train) + len(data.test) == 1797
    assert data.shape == (8, 8)
    images, labels = data.train.tensors
    assert images.dtype == torch.float32
    assert float(images.min()) == 0.0
    assert float(images.max()) == 1.0
    every = torch.bincount(torch.cat([labels, data.test.tensors[1]]))
    held = torch.bincount(data.test.tensors[1])
    assert torch.all((held - 0.25 * every).abs() <= 0.5)


def test_the_split_is_a_function_of_the_seed() -> None:
    assert torch.equal(digits(seed=1).test.tensors[0], digits(seed=1).test.tensors[0])
    assert not torch.equal(digits(seed=1).test.tensors[0], digits(seed=2).test.tensors[0])


def test_a_share_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        digits(test_fraction=1.0)
