"""Area under the ROC curve by pathology, with bootstrap intervals over patients."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from studies.pictures import PATHOLOGIES

Array: TypeAlias = NDArray[np.float64]
FEWEST = 30
"""Positives that a pathology must have for its AUROC to count in a mean, where nothing else is asked for."""
LEVEL = 0.95
"""Confidence level of all intervals."""


@dataclass(frozen=True)
class Interval:
    """A number with its bootstrap interval over patients."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, resampled: Array) -> Self:
        """The percentile interval of what resamples gave; those without a positive gave NaN and are left out."""
        if np.isnan(resampled).all():
            return cls(value, math.nan, math.nan)
        tail = (1 - LEVEL) / 2
        low, high = np.nanquantile(resampled, (tail, 1 - tail))
        return cls(value, float(low), float(high))

    @property
    def significant(self) -> bool:
        """Whether zero lies outside."""
        return bool(self.low > 0 or self.high < 0)


def enough(labels: NDArray[np.uint8], fewest: int = FEWEST) -> NDArray[np.bool_]:
    """Mask ``(14,)`` of the pathologies with enough positives in ``labels`` ``(n, 14)`` to count in a mean."""
    return cast(NDArray[np.bool_], labels.sum(0) >= fewest)


def patient_weights(patients: Sequence[str], resamples: int, seed: int) -> Array:
    """The number of draws of each image in each resample, ``(resamples, n)``.

    Whole patients are drawn with replacement: images of one patient are not independent.
    """
    names, owner = np.unique(np.asarray(patients), return_inverse=True)
    draws = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=resamples)
    return draws[:, owner].astype(np.float64)


def resampled_auroc(labels: NDArray[np.uint8], scores: Array, weights: Array) -> Array:
    """AUROC of one pathology in every resample at once, ``(R,)``; NaN where one lacks positives or negatives.

    From zeros and ones ``(n,)``, scores ``(n,)`` and how often each image counts ``(R, n)``: the share of pairs of
    a positive and a negative in the right order, ties counting half: one sort serves all resamples.
    """
    positive, negative = np.flatnonzero(labels), np.flatnonzero(labels == 0)
    negative = negative[np.argsort(scores[negative], kind="stable")]
    below = np.pad(weights[:, negative].cumsum(1), ((0, 0), (1, 0)))  # how many negatives are among the lowest 0, 1 ...
    first, last = (np.searchsorted(scores[negative], scores[positive], side) for side in ("left", "right"))
    drawn = weights[:, positive]
    with np.errstate(invalid="ignore"):
        pairs = 2 * drawn.sum(1) * below[:, -1]
        return cast(Array, (drawn * (below[:, first] + below[:, last])).sum(1) / pairs)


@dataclass(frozen=True, eq=False)
class Aurocs:
    """AUROC of every pathology, or the difference of two, with those of the resamples; NaN where there is none."""

    values: Array
    """``(14,)``."""
    resampled: Array
    """``(14, R)``."""

    @classmethod
    def of(cls, labels: NDArray[np.uint8], scores: Array, weights: Array) -> Self:
        """From zeros and ones and scores, both ``(n, 14)``, and the resamples of :func:`patient_weights`."""
        once, many = (
            np.stack([resampled_auroc(*column, each) for column in zip(labels.T, scores.T, strict=True)])
            for each in (np.ones((1, len(scores))), weights)
        )
        return cls(once[:, 0], many)

    def __sub__(self, before: Self) -> "Aurocs":
        return Aurocs(self.values - before.values, self.resampled - before.resampled)

    @property
    def intervals(self) -> list[Interval]:
        """One for each pathology."""
        return [Interval.of(float(value), each) for value, each in zip(self.values, self.resampled, strict=True)]

    def mean(self, counts: NDArray[np.bool_]) -> Interval:
        """The mean over the pathologies that count, from :func:`enough`; NaN if none does."""
        if not counts.any():
            return Interval(math.nan, math.nan, math.nan)
        return Interval.of(float(self.values[counts].mean()), self.resampled[counts].mean(0))

    def by_pathology(self, labels: NDArray[np.uint8]) -> list[dict[str, Any]]:
        """As plain values, each with its number of positives."""
        found = zip(PATHOLOGIES, labels.sum(0).tolist(), self.intervals, strict=True)
        return [
            {"pathology": name, "positives": positives, "auroc": asdict(interval)}
            for name, positives, interval in found
        ]


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
