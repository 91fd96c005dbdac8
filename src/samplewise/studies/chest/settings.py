"""What a training of the pathology classifier is of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from samplewise.data.pictures import Store
from samplewise.data.records import SettingsFile
from samplewise.errors import ConfigurationError, DataError

__all__ = ["MADE", "SETTINGS_FILE", "ClassifierSettings"]

MADE = ("data", "weights")
"""Settings that follow from the pictures and the weights, and that nobody chooses."""


@dataclass(frozen=True)
class ClassifierSettings:
    """All that a classifier depends on beside the pictures; rate and patience are the paper's."""

    size: int = 224
    """Height and width that it looks at; pictures of other sizes are resized."""
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
        for name, least in (("size", 32), ("batch_size", 2), ("epochs", 1), ("patience", 1), ("balance", 1)):
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"expected {name.replace('_', ' ')} of at least {least}, got {getattr(self, name)}"
                )
        if not self.rate > 0:
            raise ConfigurationError(f"expected a learning rate above 0, got {self.rate}")

    def of(self, store: Store, weights: Path | None) -> ClassifierSettings:
        """The same for these pictures and this file of weights."""
        try:
            digest = "" if weights is None else hashlib.sha256(weights.read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise DataError(f"{weights}: cannot be read: {error.strerror or error}") from error
        return replace(self, data=store.index.fingerprint, weights=digest)


SETTINGS_FILE = SettingsFile("classifier.json", "samplewise-classifier-1", ClassifierSettings, "classifier training")
