"""A second constraint on every image: a frozen classifier must not see the mark."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from picture_folders import write_natural
from samplewise import audit
from samplewise.errors import ConfigurationError
from studies.pictures import Store, prepare
from studies.watermark.pipeline import DIAGNOSIS, Pipeline
from studies.watermark.recipe import RECIPE_FILE, SWIFT
from studies.watermark.training import make_network, read_trained, train

SMALL = replace(SWIFT, bits=4, size=32, floor=30.0, batch_size=4, steps_per_round=20, message_rounds=1, rounds=6)


class Texture(nn.Module):
    """Two findings: how rough the left and the right half are, which a mark changes."""

    def forward(self, images: Tensor) -> Tensor:
        rough = (images - functional.avg_pool2d(images, 3, stride=1, padding=1)).square()
        middle = images.shape[3] // 2
        halves = [rough[..., :middle].mean((1, 2, 3)), rough[..., middle:].mean((1, 2, 3))]
        return 4 + torch.stack(halves, 1).log()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return prepare(write_natural(tmp_path_factory.mktemp("pictures")), tmp_path_factory.mktemp("store") / "s", size=32)


def test_the_measure_is_the_change_of_every_probability(store: Store) -> None:
    network = make_network(SMALL).eval()
    pipeline = Pipeline(SMALL, network, Texture())
    batch = store.select("train").take(torch.arange(3))
    with torch.no_grad():
        found = pipeline.evaluate(network, batch)[1][DIAGNOSIS]
        marked = pipeline.embed(network, batch).marked
    assert found.shape == (3, 2)
    assert torch.allclose(found, (Texture()(marked).sigmoid() - Texture()(batch[0]).sigmoid()).abs())
    assert found.max() > 0


def test_both_constraints_are_those_of_one_problem(store: Store) -> None:
    problem = Pipeline(replace(SMALL, diagnosis=0.02), make_network(SMALL), Texture()).problem()
    assert [str(constraint) for constraint in problem.constraints] == ["psnr >= 30", "diagnosis <= 0.02"]
    # In training the bound is kept with a quarter to spare, and twice the bound is one unit too much, as 1 dB is.
    g = problem.constraints[1].g(torch.tensor([[0.015, 0.04]]))
    assert torch.allclose(g, torch.tensor([[0.0, 1.25]]))


def test_the_classifier_gives_gradients_and_takes_none(store: Store) -> None:
    class Learned(Texture):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images) * self.scale

    network, classifier = make_network(SMALL), Learned()
    pipeline = Pipeline(SMALL, network, classifier)
    pipeline.evaluate(network, store.select("train").take(torch.arange(2)))[1][DIAGNOSIS].sum().backward()
    assert classifier.scale.grad is None
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


def test_training_with_it_keeps_the_diagnosis_and_without_it_does_not(store: Store, tmp_path: Path) -> None:
    changes = {}
    for name, diagnosis in (("plain", None), ("kept", 0.02)):
        recipe = replace(SMALL, diagnosis=diagnosis, tau=0.1, growth=2.0)
        classifier = None if diagnosis is None else Texture()
        RECIPE_FILE.open(tmp_path / name, recipe, resume=False)
        solution = train(store, recipe, tmp_path / name, classifier=classifier, progress=False)
        problem = Pipeline(replace(SMALL, diagnosis=0.02), make_network(recipe), Texture()).problem()
        changes[name] = audit(problem, solution.model, store.select())[DIAGNOSIS].values.amax(1).mean()
    assert changes["kept"] < 0.5 * changes["plain"]
    assert [run.label for run in read_trained([tmp_path / "plain", tmp_path / "kept"])] == [
        "swift, C = 30 dB",
        "swift, C = 30 dB, diagnosis 0.02",
    ]


def test_what_does_not_belong_together_is_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="belong together"):
        train(store, replace(SMALL, diagnosis=0.02), tmp_path / "run")
    with pytest.raises(ConfigurationError, match="belong together"):
        train(store, SMALL, tmp_path / "run", classifier=Texture())
    with pytest.raises(ConfigurationError, match="between 0 and 1, got 2"):
        replace(SMALL, diagnosis=2)
    with pytest.raises(ConfigurationError, match="has no constraints"):
        replace(SMALL, diagnosis=0.1, image_loss=0.7)
    assert not (tmp_path / "run").exists()
