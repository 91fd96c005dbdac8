"""The 1,797 handwritten digits of 8 x 8 pixels that ship inside scikit-learn: data without a download."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from samplewise.data.images import ImageData
from samplewise.errors import ConfigurationError, DataError

__all__ = ["digits"]

DEEPEST = 16.0  # the brightest pixel: these images count inked dots in blocks of 4 x 4


def digits(*, test_share: float = 0.2, seed: int = 0) -> ImageData:
    """Load the digits with a stratified split, the same for the same seed.

    Args:
        test_share: share of the samples that is held out, of every class alike.
        seed: of the split.
    """
    if not 0 < test_share < 1:
        raise ConfigurationError(f"expected a share between 0 and 1 for the test set, got {test_share}")
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise DataError(
            "the embedded digits come with scikit-learn, which is not installed: pip install 'samplewise[demo]'"
        ) from error
    images, labels = load_digits(return_X_y=True)
    held = _stratified(labels, test_share, np.random.default_rng(seed))
    pixels = torch.from_numpy(images / DEEPEST * 255.0).reshape(-1, 8, 8)
    classes = torch.from_numpy(labels)
    mask = torch.from_numpy(held)
    return ImageData.from_bytes("digits", (pixels[~mask], classes[~mask]), (pixels[mask], classes[mask]))


def _stratified(labels: NDArray[Any], share: float, rng: np.random.Generator) -> NDArray[Any]:
    """A mask of the held-out samples: of each class the same share, rounded, at least one."""
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = max(1, round(share * len(members)))
        held[rng.permutation(members)[:count]] = True
    return held
