"""Labelled images in memory, split into train and test; and the digits that ship inside scikit-learn."""

import hashlib
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from samplewise.errors import ConfigurationError, DataError, needed_for

DEEPEST = 16.0  # the brightest pixel of the digits, which count inked dots in blocks of 4 x 4


@dataclass(frozen=True)
class ImageData:
    """Images and labels in memory: ``TensorDataset(images (N, D) float32 in [0, 1], labels (N,) int64)`` twice."""

    name: str
    shape: tuple[int, int]
    """Height and width of one image; ``D`` is their product."""
    train: TensorDataset
    test: TensorDataset
    held_out: str = "test"
    """What :attr:`test` is: the published test set, or a validation part of the training set."""

    @classmethod
    def from_bytes(cls, name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Self:
        """From images of uint8, shape ``(N, H, W)``, and labels ``(N,)``, for train and test."""
        if train[0].shape[1:] != test[0].shape[1:]:
            raise DataError(
                f"{name}: expected images of one size, got {tuple(train[0].shape[1:])} for training and "
                f"{tuple(test[0].shape[1:])} for test"
            )
        height, width = train[0].shape[1:]
        return cls(name, (height, width), _dataset(*train), _dataset(*test))

    @property
    def pixels(self) -> int:
        """D, the number of pixels of one image."""
        return self.shape[0] * self.shape[1]

    @property
    def classes(self) -> int:
        """The number of classes, by the largest label."""
        return 1 + int(max(self.train.tensors[1].max(), self.test.tensors[1].max()))

    @property
    def shared(self) -> int:
        """How many test images are training images too, pixel by pixel: from these nothing follows for unseen ones."""
        seen = {hash(image.tobytes()) for image in self.train.tensors[0].numpy()}
        return sum(hash(image.tobytes()) in seen for image in self.test.tensors[0].numpy())

    def with_validation(self, samples: int, seed: int = 0) -> Self:
        """The training set split in two, for choosing settings without the test set.

        Args:
            samples: how many training samples become the held-out part, in the place of the test set.
            seed: of the permutation that decides which.
        """
        total = len(self.train)
        if not 0 < samples < total:
            raise ConfigurationError(f"expected a validation part of 1 to {total - 1} samples, got {samples}")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        kept, held = order[:-samples].sort().values, order[-samples:].sort().values
        images, labels = self.train.tensors
        return replace(
            self,
            train=TensorDataset(images[kept], labels[kept]),
            test=TensorDataset(images[held], labels[held]),
            held_out="validation",
        )

    def fingerprint(self) -> str:
        """A short hash of all images and labels: two runs with one fingerprint saw the same data."""
        digest = hashlib.sha256()
        for tensor in (*self.train.tensors, *self.test.tensors):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def _dataset(images: Tensor, labels: Tensor) -> TensorDataset:
    return TensorDataset(images.flatten(1).to(torch.float32).div_(255.0), labels.to(torch.int64))


def digits(*, test_share: float = 0.2, seed: int = 0) -> ImageData:
    """Load the 1,797 handwritten digits of 8 x 8 pixels with a stratified split, the same for the same seed.

    Args:
        test_share: share of the samples that is held out, of every class alike.
        seed: of the split.
    """
    if not 0 < test_share < 1:
        raise ConfigurationError(f"expected a share between 0 and 1 for the test set, got {test_share}")
    with needed_for("reading the digits", "demo"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[rng.permutation(members)[: max(1, round(test_share * len(members)))]] = True
    pixels = torch.from_numpy(images / DEEPEST * 255.0).reshape(-1, 8, 8)
    classes = torch.from_numpy(labels)
    mask = torch.from_numpy(held)
    return ImageData.from_bytes("digits", (pixels[~mask], classes[~mask]), (pixels[mask], classes[mask]))
