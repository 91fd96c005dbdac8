"""Area under the ROC curve by pathology, with bootstrap intervals over patients."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from samplewise.data.pictures import PATHOLOGIES

__all__ = [
    "FEWEST",
    "Array",
    "Interval",
    "Score",
    "enough",
    "mean_of",
    "operating_points",
    "patient_weights",
    "resampled_auroc",
    "score",
]

Array: TypeAlias = NDArray[np.float64]
FEWEST = 30
"""Positives that a pathology must have for its AUROC to count in a mean, where nothing else is asked for."""
LEVEL = 0.95
"""Of all intervals."""


@dataclass(frozen=True)
class Interval:
    """A number and where it would lie for other patients like these."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: Array) -> Self:
        """The percentile interval of what resamples gave; those without a positive gave NaN and are left out."""
        if np.isnan(resampled).all():
            return cls(value, float("nan"), float("nan"))
        tail = (1 - LEVEL) / 2
        low, high = np.nanquantile(resampled, (tail, 1 - tail))
        return cls(value, float(low), float(high))

    @property
    def significant(self) -> bool:
        """Whether zero lies outside."""
        return bool(self.low > 0 or self.high < 0)


@dataclass(frozen=True)
class Score:
    """How well one pathology is told from the rest."""

    pathology: str
    positives: int
    auroc: Interval


def enough(labels: NDArray[np.uint8], fewest: int = FEWEST) -> NDArray[np.bool_]:
    """Which pathologies have enough positives among ``labels`` ``(n, 14)`` to count in a mean, ``(14,)``."""
    return cast(NDArray[np.bool_], labels.sum(0) >= fewest)


def patient_weights(patients: Sequence[str], resamples: int, seed: int) -> Array:
    """How often each image is drawn in each resample, ``(resamples, n)``.

    Whole patients are drawn with replacement: images of one patient are not independent.
    """
    names, owner = np.unique(np.asarray(patients), return_inverse=True)
    draws = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return draws[:, owner].astype(np.float64)


def resampled_auroc(labels: NDArray[np.uint8], scores: Array, weights: Array) -> Array:
    """AUROC of one pathology in every resample at once, ``(R,)``; NaN where one lacks positives or negatives.

    It is the share of pairs of a positive and a negative that are in the right order, ties counting half, each pair as
    often as it was drawn: one sort serves all resamples.

    Args:
        labels: zeros and ones, ``(n,)``.
        scores: larger for what looks positive, ``(n,)``.
        weights: how often each image counts, ``(R, n)``.
    """
    positive, negative = np.flatnonzero(labels), np.flatnonzero(labels == 0)
    negative = negative[np.argsort(scores[negative], kind="stable")]
    below = np.pad(weights[:, negative].cumsum(1), ((0, 0), (1, 0)))  # how many negatives are among the lowest 0, 1 ...
    first, last = (np.searchsorted(scores[negative], scores[positive], side) for side in ("left", "right"))
    drawn = weights[:, positive]
    with np.errstate(invalid="ignore"):
        pairs = 2 * drawn.sum(1) * below[:, -1]
        return cast(Array, (drawn * (below[:, first] + below[:, last])).sum(1) / pairs)


def score(labels: NDArray[np.uint8], scores: Array, weights: Array) -> tuple[Score, ...]:
    """AUROC of every pathology.

    Args:
        labels: zeros and ones, ``(n, 14)``.
        scores: ``(n, 14)``.
        weights: of the resamples, from :func:`patient_weights`.
    """
    found = []
    for k, name in enumerate(PATHOLOGIES):
        one = labels[:, k], scores[:, k]
        found.append(Score(name, int(labels[:, k].sum()), Interval.of(_auroc(*one), resampled_auroc(*one, weights))))
    return tuple(found)


def mean_of(labels: NDArray[np.uint8], scores: Array, weights: Array, *, counts: NDArray[np.bool_]) -> Interval:
    """Mean AUROC over the pathologies that count, from :func:`enough`; NaN if none does."""
    chosen = np.flatnonzero(counts)
    if not len(chosen):
        return Interval(float("nan"), float("nan"), float("nan"))
    values = np.mean([_auroc(labels[:, k], scores[:, k]) for k in chosen])
    resampled = np.mean([resampled_auroc(labels[:, k], scores[:, k], weights) for k in chosen], axis=0)
    return Interval.of(float(values), resampled)


def _auroc(labels: NDArray[np.uint8], scores: Array) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(labels, scores)) if 0 < labels.sum() < len(labels) else float("nan")


def operating_points(labels: NDArray[np.uint8], scores: Array) -> Array:
    """For each pathology the score with the most sensitivity plus specificity (Youden), ``(14,)``.

    A pathology with one kind of label only keeps a half.
    """
    from sklearn.metrics import roc_curve

    points = np.full(labels.shape[1], 0.5)
    for k, truth in enumerate(labels.T):
        if 0 < truth.sum() < len(truth):
            false, true, thresholds = roc_curve(truth, scores[:, k])
            points[k] = thresholds[1:][np.argmax((true - false)[1:])]  # the first stands for "never"
    return points
