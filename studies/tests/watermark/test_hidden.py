import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from samplewise.errors import ConfigurationError
from samplewise.measures import bit_error
from studies.watermark.networks.hidden import Hidden, MessageConv2d, average_pool


def make(seed: int = 0) -> Hidden:
    torch.manual_seed(seed)
    return Hidden(6, size=9, width=5).double()


def batch(count: int = 3, *, bits: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, 9, 7, generator=generator, dtype=torch.float64)
    return images, torch.randint(2, (count, bits), generator=generator)


def joined(messages: Tensor, features: Tensor, images: Tensor) -> Tensor:
    """The message repeated over all pixels, before features and image."""
    repeated = messages[:, :, None, None].expand(-1, -1, *images.shape[2:])
    return torch.cat([repeated.to(images.dtype), features, images], dim=1)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.grad for name, value in module.named_parameters() if value.grad is not None}


def test_the_network_has_the_published_layers() -> None:
    network = Hidden(200)
    shapes = [tuple(value.shape) for value in network.parameters() if value.ndim > 1]
    middle = (64, 64, 3, 3)
    encoder = [(64, 3, 3, 3), *[middle] * 3, (64, 267, 3, 3), (3, 64, 1, 1)]
    decoder = [(64, 3, 3, 3), *[middle] * 6, (200, 64, 3, 3), (200, 200)]
    assert shapes == encoder + decoder
    norms = [module.num_features for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms == [64] * 5 + [64] * 7 + [200]
    assert sum(isinstance(module, nn.ReLU) for module in network.modules()) == 13


SMALL = st.integers(1, 4)


@given(
    bits=SMALL, features=SMALL, channels=SMALL, outputs=SMALL, height=st.integers(1, 6), width=st.integers(1, 6),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_the_messages_convolution_is_the_plain_one(
    bits: int, features: int, channels: int, outputs: int, height: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    fast = MessageConv2d(bits, features, channels, outputs).double()
    plain = nn.Conv2d(bits + features + channels, outputs, 3, padding=1).double()
    plain.load_state_dict(fast.state_dict())
    given_to = [
        [torch.randn(2, bits), torch.randn(2, features, height, width), torch.randn(2, channels, height, width)]
    ] * 2
    first, second = ([value.double().requires_grad_() for value in values] for values in given_to)
    found, expected = fast(*first), plain(joined(*second))
    torch.testing.assert_close(found, expected)
    upstream = torch.randn_like(expected)
    found.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(gradients(fast), gradients(plain))
    torch.testing.assert_close([value.grad for value in first], [value.grad for value in second])


class Plain(nn.Module):
    """The same weights, put together in the straightforward way."""

    def __init__(self, network: Hidden) -> None:
        super().__init__()
        encoder, decoder = copy.deepcopy(network.encoder), copy.deepcopy(network.decoder)
        self.features, self.draw, self.read, self.linear = (
            encoder.features,
            encoder.draw,
            decoder.features,
            decoder.linear,
        )
        merge = encoder.merge
        self.merge = nn.Conv2d(merge.in_channels, merge.out_channels, 3, padding=1).double()
        self.merge.load_state_dict(merge.state_dict())

    def forward(self, images: Tensor, messages: Tensor) -> tuple[Tensor, Tensor]:
        marked = self.draw(self.merge(joined(messages, self.features(images), images)))
        pooled = nn.functional.adaptive_avg_pool2d(self.read(marked), 1).flatten(1)
        return marked, self.linear(pooled)


@pytest.mark.parametrize("training", [True, False])
def test_the_network_is_the_straightforward_one(training: bool) -> None:
    network = make().train(training)
    plain = Plain(network).train(training)
    images, messages = batch()
    marked = network.embed(images, messages)
    read = network.extract(marked)
    expected_marked, expected_read = plain(images, messages)
    torch.testing.assert_close(marked, expected_marked)
    torch.testing.assert_close(read + 0.5, expected_read)
    assert not torch.equal(network.embed(images, 1 - messages), marked)

    (network.message_loss(read, messages).mean() + (marked - images).square().mean()).backward()
    ((expected_read - messages).square().mean() + (expected_marked - images).square().mean()).backward()
    ours = {name.replace("decoder.features", "read"): value for name, value in gradients(network).items()}
    ours = {name.removeprefix("encoder.").removeprefix("decoder."): value for name, value in ours.items()}
    torch.testing.assert_close(ours, gradients(plain))
    assert len(ours) == len(list(network.parameters()))


def test_a_half_is_where_a_bit_turns() -> None:
    network = make()
    images, _ = batch(1)
    with torch.no_grad():
        network.decoder.linear.weight.zero_()
        network.decoder.linear.bias.copy_(torch.tensor([0.4, 0.6, -3.0, 3.0, 0.1, 0.9]))
    read = network.extract(images)
    assert bit_error(read, torch.tensor([[0, 1, 0, 1, 0, 1]])).item() == 0.0
    ones = torch.ones(1, 6)
    expected = sum((value - 1) ** 2 for value in (0.4, 0.6, -3.0, 3.0, 0.1, 0.9)) / 6
    assert network.message_loss(read, ones).item() == pytest.approx(expected)


def test_each_message_has_its_own_loss() -> None:
    read, messages = torch.tensor([[0.5, 0.5], [0.5, -0.5]]), torch.tensor([[1, 1], [0, 0]])
    torch.testing.assert_close(make().message_loss(read, messages), torch.tensor([0.0, 0.5]))


def test_an_image_depends_on_its_batch_in_training_only() -> None:
    network = make()
    images, messages = batch()
    network.embed(images, messages)  # moves the running statistics away from their start
    alone, together = network.embed(images[:1], messages[:1]), network.embed(images, messages)[:1]
    assert (alone - together).abs().max() > 1e-3
    network.eval()
    torch.testing.assert_close(network.embed(images[:1], messages[:1]), network.embed(images, messages)[:1])


def test_the_mean_over_pixels_is_pytorchs() -> None:
    values = [torch.randn(2, 3, 5, 4, dtype=torch.float64)] * 2
    first, second = (value.clone().requires_grad_() for value in values)
    found, expected = average_pool(first), nn.functional.adaptive_avg_pool2d(second, 1).flatten(1)
    torch.testing.assert_close(found, expected)
    found.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(first.grad, second.grad)


@pytest.mark.parametrize("wrong", [{"bits": 0}, {"bits": 4, "width": 0}, {"bits": 4, "channels": 0}])
def test_a_network_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="of at least 1, got bits="):
        Hidden(**wrong)
