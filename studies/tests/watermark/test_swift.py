import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from natural_images import natural_batch
from samplewise.errors import ConfigurationError
from studies.watermark.networks.swift import Swift, _by_bit, _owners


def make(bits: int = 8, **arguments: int) -> Swift:
    torch.manual_seed(0)
    return Swift(bits, **{"size": 48, "width": 8, **arguments})


@given(slots=st.integers(1, 400), bits=st.integers(1, 50))
def test_every_slot_belongs_to_one_bit_and_the_bits_share_them_evenly(slots: int, bits: int) -> None:
    owners, order = _owners(slots, bits), _by_bit(slots, bits)
    assert torch.equal(order.sort().values, torch.arange(slots))
    assert torch.equal(owners[order], torch.arange(slots) % bits)
    counts = torch.bincount(owners, minlength=bits)
    assert counts.max() - counts.min() <= 1


def test_the_layout_of_files_that_are_out_there_does_not_change() -> None:
    assert _owners(12, 5).tolist() == [0, 0, 1, 0, 2, 3, 4, 4, 3, 2, 1, 1]


@settings(max_examples=20)
@given(height=st.integers(1, 4), width=st.integers(1, 4), bits=st.integers(1, 20))
def test_evidence_is_added_up_by_bit(height: int, width: int, bits: int) -> None:
    network = make(bits, slots=2)
    images = torch.rand(2, 1, 8 * height, 8 * width)
    evidence = network.decoder(functional.pixel_unshuffle(images - 0.5, 4)).flatten(1)
    expected = torch.zeros(2, bits).index_add(1, _owners(evidence.shape[1], bits), evidence)
    torch.testing.assert_close(network.extract(images), expected)


def test_one_residual_serves_all_channels_and_is_bounded() -> None:
    network = make(channels=3)
    images = natural_batch(2, 3, height=48, width=48)
    residual = network.embed(images, torch.ones(2, 8)) - images
    torch.testing.assert_close(residual[:, 0], residual[:, 2])
    assert 0 < residual.abs().max() <= 0.1


def test_an_image_is_treated_alike_alone_in_a_batch_and_in_training() -> None:
    network = make()
    images, messages = natural_batch(3, height=48, width=48), torch.randint(2, (3, 8)).float()
    together = network.train().embed(images, messages)
    alone = network.eval().embed(images[:1], messages[:1])
    torch.testing.assert_close(together[:1], alone)
    torch.testing.assert_close(network.train().extract(images)[:1], network.eval().extract(images[:1]))


def test_the_weights_serve_any_number_of_bits_and_any_size() -> None:
    small, large = make(8), make(30, size=64, slots=1)
    large.load_state_dict(small.state_dict())
    assert large.extract(torch.rand(1, 1, 40, 104)).shape == (1, 30)
    assert Swift(**small.arguments).arguments == small.arguments


def test_slots_follow_the_number_of_bits() -> None:
    assert [make(bits, size=224).slots for bits in (1, 200, 262, 500, 1000, 3136)] == [1, 1, 2, 2, 4, 4]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hold 1 to 144 bits, got 145"):
        make(145)
    with pytest.raises(ConfigurationError, match="8 pixels"):
        make(size=50)
    with pytest.raises(ConfigurationError, match="8 channels"):
        make(width=12)


def test_the_message_loss_is_the_cross_entropy_of_each_message() -> None:
    read, messages = torch.tensor([[2.0, -1.0], [0.5, 3.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    right = torch.sigmoid(torch.tensor([[2.0, 1.0], [-0.5, 3.0]]))
    torch.testing.assert_close(make().message_loss(read, messages), -right.log().mean(1))
