"""Training of the pathology classifier: a store of X-rays with labels in, a folder with the network out."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader

from samplewise import Problem, Solution, Unconstrained, Validation, fit
from samplewise.errors import ConfigurationError, DataError
from samplewise.samples import mix
from samplewise.storage import MODEL_FILE, alone, decoding, distributed, provenance, read_json, write_json
from studies.chest.auroc import Aurocs, enough, operating_points, patient_weights
from studies.chest.densenet import Classifier, load_classifier, load_pretrained, probabilities, save_classifier
from studies.pictures import PATHOLOGIES, Store
from studies.records import SettingsFile, check_least

if TYPE_CHECKING:
    from lightning_fabric import Fabric

SCORES_FILE = "result.json"
RESAMPLES = 2000


@dataclass(frozen=True)
class ClassifierSettings:
    """The settings of a classifier; rate and patience are the paper's."""

    size: int = 224
    """Height and width of its input; pictures of other sizes are resized."""
    batch_size: int = 64
    rate: float = 1e-4
    anneal: bool = False
    """Whether the learning rate falls to zero as a cosine over the epochs."""
    epochs: int = 100
    """At most."""
    patience: int = 10
    """Epochs without a smaller validation loss after which training ends."""
    balance: float = 1.0
    """Largest weight of a positive label; each gets the ratio of negatives to positives up to it."""
    augment: bool = True
    """Whether training images are mirrored, turned, moved and scaled a little."""
    seed: int = 0
    data: str = ""
    """Fingerprint of the pictures."""
    weights: str = ""
    """Hash of the file of published weights it starts from; empty from scratch."""

    def __post_init__(self) -> None:
        check_least(self, size=32, batch_size=2, epochs=1, patience=1, balance=1)
        if not self.rate > 0:
            raise ConfigurationError(f"expected a learning rate above 0, got {self.rate}")

    def of(self, store: Store, weights: Path | None) -> ClassifierSettings:
        """The same for these pictures and this file of weights."""
        if weights is None:
            return replace(self, data=store.fingerprint, weights="")
        with decoding(weights, "weights of DenseNet-121"):
            digest = hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        return replace(self, data=store.fingerprint, weights=digest)


SETTINGS_FILE = SettingsFile(
    "classifier.json", "samplewise-classifier-1", ClassifierSettings, "classifier training", derived=("data", "weights")
)


def positive_weight(labels: Tensor, largest: float) -> Tensor:
    """Ratio of negatives to positives of ``labels`` ``(n, 14)``, from 1 to ``largest``, ``(14,)``."""
    positives = labels.sum(0).clamp(min=1)
    return ((len(labels) - positives) / positives).clamp(1.0, largest)


def classification(labels: Tensor, *, weight: Tensor | None = None, augment: nn.Module | None = None) -> Problem:
    """Binary cross entropy of every pathology, without constraints.

    ``labels`` are those of all pictures of the store, ``(N, 14)``, and ``weight`` that of a positive one, ``(14,)``.
    """

    def evaluate(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        images, numbers = batch
        if model.training and augment is not None:
            images = augment(images)
        logits = model(images)
        targets = labels.to(logits.device)[numbers]
        weights = None if weight is None else weight.to(logits)
        loss = functional.binary_cross_entropy_with_logits(logits, targets, pos_weight=weights, reduction="none")
        return loss.mean(1), {}

    return Problem(evaluate, [])


def make_augmentation() -> nn.Module:
    """Small changes between two X-rays of one patient: a turn, a shift, another distance; and a mirror."""
    from kornia.augmentation import AugmentationSequential, RandomAffine, RandomHorizontalFlip

    return AugmentationSequential(
        RandomHorizontalFlip(p=0.5),
        RandomAffine(degrees=8.0, translate=(0.05, 0.05), scale=(0.9, 1.1), p=1.0),
    )


def open_run(
    store: Store, settings: ClassifierSettings, folder: Path, *, weights: Path | None = None, resume: bool
) -> Classifier:
    """Refuse what cannot be trained, or make ``folder`` ready for the run; returns the classifier it begins with.

    ``weights`` is a file of published ImageNet weights, or of another classifier, to start from; without, it starts
    from scratch. With ``resume`` the run that is there goes on. Of several processes the first one makes the folder.
    """
    pictures = store.select("train")
    labels = torch.from_numpy(pictures.labels).float()
    if settings.batch_size > len(pictures):
        raise DataError(
            f"{store.folder}: {len(pictures)} training pictures do not fill a batch of {settings.batch_size}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(settings.seed, "classifier"))
        classifier = Classifier(settings.size)
    if weights is not None:
        load_pretrained(classifier, weights)
    classifier.start_at((labels.sum(0) + 1) / (len(labels) + 2))
    if distributed.rank() == 0:
        SETTINGS_FILE.open(folder, settings, resume=resume)
    return classifier


def train_classifier(
    store: Store,
    settings: ClassifierSettings,
    folder: Path,
    classifier: Classifier,
    *,
    fabric: Fabric | None = None,
) -> Solution:
    """Train ``classifier``, which :func:`open_run` gave; killed at any moment, the same goes on to the same weights.

    The folder gets checkpoints, the history, and at the end the network and what it reaches.
    """
    labels, pictures = torch.from_numpy(store.labels).float(), store.select("train")
    augment = make_augmentation() if settings.augment else None
    problem = classification(labels, weight=positive_weight(labels[pictures.rows], settings.balance), augment=augment)
    optimizer = torch.optim.Adam(classifier.parameters(), lr=settings.rate, fused=True)
    # Batch norm must not see a last batch of a few pictures.
    loader = DataLoader(pictures, batch_size=settings.batch_size, shuffle=True, drop_last=True)
    steps = len(loader) * settings.epochs
    with alone(folder, "run"):
        solution = fit(
            problem,
            classifier,
            loader,
            method=Unconstrained(problem.constraints),
            optimizer=optimizer,
            epochs=settings.epochs,
            seed=settings.seed,
            scheduler=(CosineAnnealingLR(optimizer, steps), "step") if settings.anneal else None,
            audit_on={"validation": DataLoader(store.select("validation"), batch_size=64)},
            validation=Validation(patience=settings.patience),
            checkpoint=folder / "fit",
            fabric=fabric,
        )
    if distributed.rank() == 0:
        assert isinstance(solution.model, Classifier)
        _finish(folder, settings, store, solution.model, solution)
    return solution


def read_classifier(folder: Path) -> Classifier:
    """The classifier of a finished run."""
    SETTINGS_FILE.read(folder)
    if not (folder / MODEL_FILE).exists():
        raise DataError(f"{folder}: its training is unfinished; go on with the command that began it and --resume")
    return load_classifier(folder / MODEL_FILE)


def check_unseen(folder: Path, store: Store) -> None:
    """Refuse pictures of another set, or split otherwise: the classifier may have been trained on its test part."""
    path = folder / SCORES_FILE
    with decoding(path, "a result of chest classifier"):
        split = read_json(path, "a result of chest classifier")["pictures"]["split"]
    if SETTINGS_FILE.read(folder).data != store.fingerprint or split != store.split.origin:
        raise DataError(
            f"{store.folder}: holds other pictures than {folder} was trained on, or splits them otherwise, so its test "
            "part may be known to the classifier; give the store of its training, or one of another size"
        )


def _finish(
    folder: Path, settings: ClassifierSettings, store: Store, classifier: Classifier, solution: Solution
) -> None:
    """Set the operating points, write the classifier, and say how good it is."""
    found = {}
    for part in ("validation", "test"):
        data = store.select(part)
        labels, scores = data.labels, probabilities(classifier, data)
        if part == "validation":
            classifier.thresholds.copy_(torch.from_numpy(operating_points(labels, scores)))
        aurocs = Aurocs.of(labels, scores, patient_weights(data.patients, RESAMPLES, settings.seed))
        found[part] = {
            "images": len(data),
            "patients": len(set(data.patients)),
            "mean_auroc": asdict(aurocs.mean(enough(labels))),
            "left_out": [name for name, counts in zip(PATHOLOGIES, enough(labels), strict=True) if not counts],
            "pathologies": aurocs.by_pathology(labels),
        }
    write_json(
        folder / SCORES_FILE,
        {
            "status": solution.status.name,
            "selected": solution.selected.to_dict(),
            "epochs": len(solution.history.rows),
            "settings": asdict(settings),
            "thresholds": dict(zip(PATHOLOGIES, classifier.thresholds.tolist(), strict=True)),
            "pictures": {"size": store.size, "train": len(store.split.train), "split": store.split.origin},
            **found,
            "seconds": sum(row["seconds"] for row in solution.history.rows),
            "provenance": provenance(seed=settings.seed, device=str(next(classifier.parameters()).device)),
        },
    )
    save_classifier(folder / MODEL_FILE, classifier)  # last: it says that the run is finished
