from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from natural_images import natural_batch
from samplewise import audit
from studies.watermark.networks import Lattice, Swift
from studies.watermark.patches import patch_room
from studies.watermark.pipeline import MarkedBatch, Pipeline, fixed_messages, written
from studies.watermark.recipe import Recipe


def make(network: Swift, **changes: Any) -> Pipeline:
    return Pipeline(Recipe(network="swift", **changes), network)


@pytest.fixture
def network() -> Swift:
    torch.manual_seed(0)
    return Swift(8, size=48, width=8)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return natural_batch(3, height=48, width=48), torch.tensor([5, 0, 7])


@given(st.lists(st.floats(-2.0, 3.0, width=32), min_size=1, max_size=20))
def test_written_is_what_an_eight_bit_file_stores(values: list[float]) -> None:
    stored = written(torch.tensor(values)).numpy() * 255
    expected = np.rint(np.clip(np.asarray(values, np.float32), 0, 1) * np.float32(255))
    np.testing.assert_allclose(stored, expected, atol=1e-4)


def test_gradients_pass_the_rounding_but_not_the_clamp() -> None:
    images = torch.tensor([-0.5, 0.3, 0.7, 1.5], requires_grad=True)
    written(images).sum().backward()
    assert images.grad is not None
    assert images.grad.tolist() == [0.0, 1.0, 1.0, 0.0]


def test_messages_of_tests_are_a_function_of_the_number_alone() -> None:
    many = fixed_messages(torch.arange(200), 77)
    assert torch.equal(fixed_messages(torch.tensor([150, 3]), 77), many[[150, 3]])
    assert set(many.unique().tolist()) == {0.0, 1.0}
    assert abs(float(many.mean()) - 0.5) < 0.02
    assert len(many.unique(dim=0)) == 200


def test_training_draws_messages_and_noise_and_testing_neither(network: Swift, batch: tuple[Tensor, Tensor]) -> None:
    pipeline = make(network, noise="gaussian(0.1)")
    network.eval()
    first, again = pipeline.embed(network, batch), pipeline.embed(network, batch)
    assert torch.equal(first.messages, fixed_messages(batch[1], 8))
    assert torch.equal(first.logits, again.logits)
    torch.testing.assert_close(first.logits, network.extract(first.marked))
    network.train()
    drawn, other = pipeline.embed(network, batch), pipeline.embed(network, batch)
    assert not torch.equal(drawn.messages, other.messages)
    assert not torch.allclose(drawn.logits, network.extract(drawn.marked))


def test_the_objective_is_the_message_loss_and_what_is_asked_for_beside_it(
    network: Swift, batch: tuple[Tensor, Tensor]
) -> None:
    network.eval()
    plain, measures = make(network).evaluate(network, batch)
    torch.testing.assert_close(plain, measures["message_loss"])
    made = make(network).embed(network, batch)
    error = (made.marked - made.covers).square().mean((1, 2, 3))
    weighted, _ = make(network, image_loss=0.7).evaluate(network, batch)
    torch.testing.assert_close(weighted, plain + 0.7 * error)
    adversarial = torch.tensor([1.0, 2.0, 3.0])
    judged, _ = make(network, adversarial=0.1).evaluate(network, made._replace(adversarial=adversarial))
    torch.testing.assert_close(judged, plain + 0.1 * adversarial)
    torch.testing.assert_close(measures["psnr"], -10 * error.log10())


class Copy(nn.Module):
    """Ships images as they are, times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))

    def forward(self, images: Tensor, messages: Tensor, channel: object) -> tuple[Tensor, Tensor]:
        return images * self.factor, messages - 0.5


@pytest.mark.parametrize("factor", [1.0, 1.0 + 1e-7, 0.99, 0.9899])
def test_identical_images_and_images_at_the_floor_have_finite_values_and_gradients(factor: float) -> None:
    images = torch.full((2, 1, 16, 16), 1.0)  # a factor of 0.99 is a PSNR of 40 dB
    model = Copy(factor)
    problem = make(Swift(8, size=16, width=8), floor=40.0).problem()
    measures = problem.evaluate(model, (images, torch.arange(2))).measures
    excess = problem.constraints[0].g(measures["psnr"])
    torch.relu(excess).sum().backward()
    assert model.factor.grad is not None
    assert torch.isfinite(measures["psnr"]).all()
    assert torch.isfinite(model.factor.grad)
    assert (model.factor.grad != 0) == (factor == 0.9899)


def test_an_audit_judges_what_ships(network: Swift, batch: tuple[Tensor, Tensor]) -> None:
    problem = make(network, floor=40.0, margin=1.0).problem()
    found = audit(problem, network, torch.utils.data.TensorDataset(*batch))
    made = make(network).embed(network.eval(), batch)
    assert isinstance(made, MarkedBatch)
    pixels = (made.marked * 255).round() - (made.covers * 255).round()
    expected = 10 * (255**2 / pixels.square().mean((1, 2, 3))).log10()
    torch.testing.assert_close(found["psnr"].values.float(), expected.detach(), rtol=1e-4, atol=0)
    assert found["psnr"].satisfied == pytest.approx(float((expected >= 40.0).float().mean()))


def test_with_local_floors_every_patch_of_an_image_has_a_measure() -> None:
    torch.manual_seed(0)
    network = Lattice(8, size=64, width=8)
    recipe = Recipe(network="lattice", bits=8, size=64, width=8, floor=41.0, margin=0.5, local=True)
    pipeline, batch = Pipeline(recipe, network), (natural_batch(3, height=64, width=96), torch.arange(3))
    network.train()
    _, measures = pipeline.evaluate(network, pipeline.embed(network, batch))
    assert measures["patches"].shape == (3, 2 * 3)
    assert measures["patches"].requires_grad
    made = pipeline.embed(network.eval(), batch)
    _, measures = pipeline.evaluate(network, made)
    torch.testing.assert_close(measures["patches"], patch_room(made.marked, made.covers, 41.0))
    bounds = {each.name: each for each in pipeline.problem().constraints}
    assert set(bounds) == {"psnr", "patches"}
    assert "patches" not in make(Swift(8, size=48, width=8)).evaluate(network, made)[1]
