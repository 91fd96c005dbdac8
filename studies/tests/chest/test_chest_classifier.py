import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn import functional

from picture_folders import write_pictures
from samplewise.errors import CheckpointError, ConfigurationError, DataError
from samplewise.storage import MODEL_FILE
from small_chest import make_store
from studies.chest.classifier import (
    SCORES_FILE,
    ClassifierSettings,
    check_unseen,
    classification,
    make_augmentation,
    open_run,
    positive_weight,
    read_classifier,
    train_classifier,
)
from studies.chest.densenet import Classifier, probabilities
from studies.pictures import Store, find, prepare
from studies.records import fingerprint_of

SMALL = ClassifierSettings(size=32, batch_size=9, epochs=3, rate=1e-3, augment=False)


def train(store: Store, settings: ClassifierSettings, folder: Path, *, resume: bool = False) -> None:
    train_classifier(store, settings, folder, open_run(store, settings, folder, resume=resume))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_store(tmp_path_factory.mktemp("chest"))


@pytest.fixture(scope="module")
def run(store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "classifier"
    train(store, SMALL.of(store, None), folder)
    return folder


def test_a_run_leaves_a_classifier_and_what_it_reaches(store: Store, run: Path) -> None:
    result = json.loads((run / SCORES_FILE).read_text())
    assert result["epochs"] == 3
    assert result["pictures"]["split"] == {"rule": "patients", "seed": 0}
    assert len(result["test"]["left_out"]) == 14  # none has 30 positives here
    classifier = read_classifier(run)
    assert not classifier.training
    assert not any(parameter.requires_grad for parameter in classifier.parameters())
    data = store.select("test")
    found = probabilities(classifier, data)
    assert found.shape == (6, 14)
    for k, one in enumerate(result["test"]["pathologies"]):
        truth = data.labels[:, k]
        if 0 < truth.sum() < len(truth):
            assert one["auroc"]["value"] == pytest.approx(roc_auc_score(truth, found[:, k]))
    assert classifier.thresholds.tolist() == pytest.approx(list(result["thresholds"].values()))
    assert len(fingerprint_of(read_classifier(run))) == 16


def test_a_run_is_not_overwritten_and_goes_on_only_as_itself(store: Store, run: Path) -> None:
    settings = SMALL.of(store, None)
    with pytest.raises(CheckpointError, match="add --resume"):
        train(store, settings, run)
    with pytest.raises(CheckpointError, match=r"rate 0\.001 there, 0\.1 here"):
        train(store, replace(settings, rate=0.1), run, resume=True)
    before = fingerprint_of(read_classifier(run))
    (run / MODEL_FILE).unlink()  # as if it had been killed right before the end
    train(store, settings, run, resume=True)
    assert fingerprint_of(read_classifier(run)) == before


def test_other_pictures_or_another_split_are_refused(store: Store, run: Path, tmp_path: Path) -> None:
    check_unseen(run, store)
    (tmp_path / "data").symlink_to(store.folder.parent / "data")
    check_unseen(run, _prepared(tmp_path, "larger", size=40))  # the same pictures and split, larger
    with pytest.raises(DataError, match="splits them otherwise"):
        check_unseen(run, _prepared(tmp_path, "other", seed=1))
    with pytest.raises(DataError, match="other pictures"):
        check_unseen(run, make_store(tmp_path / "new", patients=12))


def _prepared(folder: Path, name: str, *, size: int = 32, seed: int = 0) -> Store:
    return prepare(find(folder / "data", labels=True), folder / name, size=size, seed=seed, workers=1)


def test_the_loss_is_the_mean_cross_entropy_with_capped_weights() -> None:
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    logits = torch.randn(2, 2, generator=torch.Generator().manual_seed(0))

    class Fixed(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return logits

    numbers = torch.tensor([3, 4])
    weight = positive_weight(labels, 2.0)
    assert weight.tolist() == [1.5, 2.0]  # 3 negatives to 2 positives, and 4 to 1 capped
    found = classification(labels, weight=weight).evaluate(Fixed(), (torch.zeros(2, 1, 4, 4), numbers)).objective
    truth = labels[numbers]
    likelihood = weight * truth * functional.logsigmoid(logits) + (1 - truth) * functional.logsigmoid(-logits)
    assert torch.allclose(found, -likelihood.mean(1))


def test_training_images_are_changed_and_others_are_not(store: Store) -> None:
    seen: list[torch.Tensor] = []

    class Watching(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            seen.append(images)
            return torch.zeros(len(images), 14)

    problem = classification(torch.from_numpy(store.labels).float(), augment=torch.nn.ReflectionPad2d(1))
    images, numbers = store.select("train").take(torch.arange(4))
    for training in (True, False):
        problem.evaluate(Watching().train(training), (images, numbers))
    assert [tuple(each.shape[2:]) for each in seen] == [(34, 34), (32, 32)]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"size": 16}, "size of at least 32"), ({"rate": 0.0}, "rate above 0"), ({"balance": 0.5}, "at least 1, got 0.5")],
)
def test_wrong_settings_are_refused(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ClassifierSettings(**wrong)  # type: ignore[arg-type]


def test_pictures_without_labels_and_too_few_are_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="batch of 64"):
        open_run(store, ClassifierSettings(size=32), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
    write_pictures(tmp_path / "data", ["a.png", "b.png", "c.png"])
    plain = prepare(find(tmp_path / "data"), tmp_path / "store", size=32, workers=1)
    with pytest.raises(DataError, match="have no labels"):
        open_run(plain, ClassifierSettings(size=32), tmp_path / "run", resume=False)


def test_the_augmentation_keeps_size_and_range_and_follows_the_seed() -> None:
    augment, images = make_augmentation(), torch.rand(4, 1, 32, 32)
    torch.manual_seed(0)
    first = augment(images)
    torch.manual_seed(0)
    assert torch.equal(augment(images), first)
    assert first.shape == images.shape
    assert not torch.equal(first, images)
    assert first.min() >= 0
    assert first.max() <= 1


def test_an_unfinished_run_is_no_classifier(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no run"):
        read_classifier(tmp_path)
    (tmp_path / "classifier.json").write_bytes((run / "classifier.json").read_bytes())
    with pytest.raises(DataError, match="unfinished"):
        read_classifier(tmp_path)


def test_it_starts_at_the_prevalence() -> None:
    classifier = Classifier(32)
    classifier.start_at(torch.full((14,), 0.1))
    bias = classifier.densenet.get_parameter("class_layers.out.bias")
    assert torch.allclose(bias.sigmoid(), torch.tensor(0.1))
