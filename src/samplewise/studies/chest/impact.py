"""What watermarks do to a diagnosis: the classifier on marked images as written, against the originals (Table II)."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from samplewise.data.pictures import PATHOLOGIES, PictureData
from samplewise.errors import DataError
from samplewise.measures import bit_error, psnr
from samplewise.problem import evaluation_mode
from samplewise.samples import in_order
from samplewise.studies.chest.auroc import (
    Array,
    Interval,
    Score,
    enough,
    mean_of,
    patient_weights,
    resampled_auroc,
    score,
)
from samplewise.studies.chest.classifier import labels_of, probabilities
from samplewise.studies.chest.densenet import Classifier
from samplewise.watermark.judging.measure import Watch, as_images, as_pixels, mark
from samplewise.watermark.judging.runs import Run
from samplewise.watermark.networks import Network

__all__ = ["Difference", "Impact", "Originals", "Seen", "judge_originals", "judge_run", "look_at"]

QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, eq=False)
class Originals:
    """What the classifier says of the images before anything is hidden in them."""

    data: PictureData
    labels: NDArray[np.uint8]
    """``(n, 14)``."""
    probabilities: Array
    """``(n, 14)``."""
    thresholds: Array
    """Operating points, ``(14,)``."""
    counts: NDArray[np.bool_]
    """Which pathologies have enough positives to count in a mean, ``(14,)``."""
    weights: Array
    """Of the resamples, ``(R, n)``: the same for every run, so that differences are paired."""
    scores: tuple[Score, ...]
    mean: Interval


@dataclass(frozen=True, eq=False)
class Seen:
    """What the classifier, the eye and the reader see of marked images as written."""

    probabilities: Array
    """``(n, 14)``."""
    psnr: Array
    """``(n,)``, in dB."""
    bit_error: Array
    """``(n,)``."""


@dataclass(frozen=True)
class Difference:
    """What one run changes for one pathology."""

    pathology: str
    counts: bool
    """Whether there are enough positives for it to count in a mean."""
    auroc: Interval
    """Marked minus original, paired."""
    flipped: float
    """Share of the images that are on the other side of the operating point."""
    mean_change: float
    """Mean ``|p(marked) - p(original)|``."""


@dataclass(frozen=True)
class Impact:
    """What one run changes."""

    name: str
    label: str
    differences: tuple[Difference, ...]
    mean: Interval
    """Of the difference of the mean AUROC over the pathologies that count."""
    mean_size: float
    """Mean over them of the difference's size."""
    significant: tuple[str, ...]
    """Those of them whose difference is significant."""
    flipped: float
    """Share of all images and pathologies that flip."""
    mean_change: float
    quantiles: dict[str, float]
    """Of each image's largest change of probability."""
    within: dict[str, float]
    """Share of the images none of whose probabilities changes by more than the bound."""
    psnr_mean: float
    psnr_min: float
    satisfied: float | None
    """Share of the images at or above the run's floor; None without one."""
    bit_error: float

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values."""
        plain = asdict(self)
        for one, difference in zip(plain["differences"], self.differences, strict=True):
            one["significant"] = difference.auroc.significant
        return plain


def judge_originals(
    classifier: Classifier,
    data: PictureData,
    *,
    fewest: int,
    resamples: int,
    seed: int,
    look: Callable[[], Array] | None = None,
) -> Originals:
    """Look at the images themselves.

    Args:
        classifier: in eval mode.
        data: pictures with labels that it was not trained on.
        fewest: positives that a pathology must have to count in a mean.
        resamples: of the bootstrap over patients.
        seed: of the resamples.
        look: gives what the classifier says of the pictures, ``(n, 14)``, where it is known already or watched.
    """
    labels_of(data.store)  # says what is wrong with pictures that have none
    labels = data.labels
    assert labels is not None
    counts = enough(labels, fewest)
    if not counts.any():
        raise DataError(f"{data.store.folder}: no pathology has {fewest} positives here: nothing to compare")
    found = probabilities(classifier, data) if look is None else look()
    weights = patient_weights(data.patients, resamples, seed)
    return Originals(
        data=data,
        labels=labels,
        probabilities=found,
        counts=counts,
        thresholds=classifier.thresholds.double().cpu().numpy(),
        weights=weights,
        scores=score(labels, found, weights),
        mean=mean_of(labels, found, weights, counts=counts),
    )


def look_at(
    classifier: Classifier, network: Network, data: PictureData, *, batch_size: int = 32, watch: Watch | None = None
) -> Seen:
    """Mark every image at its own resolution, write it as 8-bit grey, and look at what a file would hold.

    Args:
        classifier: resizes what it looks at by itself.
        network: of any size that takes these images.
        data: grey pictures.
        batch_size: images in a batch; it changes only speed and memory.
        watch: called as the work goes.
    """
    if data.store.size % network.cell:
        raise DataError(
            f"{data.store.folder}: expected images of a multiple of {network.cell} pixels, got {data.store.size}"
        )
    device = next(classifier.parameters()).device
    columns: list[tuple[torch.Tensor, ...]] = []
    with evaluation_mode(classifier), evaluation_mode(network.to(device)):
        for (images, numbers), index in in_order(data, batch_size=batch_size, device=device):
            _, messages, marked = mark(network, images, numbers)
            read = as_images(as_pixels(marked, "grey"), channels=1, device=device)
            errors = bit_error(network.extract(read.expand(-1, network.channels, -1, -1)), messages)
            columns.append((classifier(read).sigmoid(), psnr(read, images), errors))
            if watch is not None:
                watch(int(index[-1]) + 1, len(data))
    return Seen(*(torch.cat(column).double().cpu().numpy() for column in zip(*columns, strict=True)))


def judge_run(run: Run, originals: Originals, seen: Seen, *, bounds: Sequence[float]) -> Impact:
    """Compare what is seen of a run's marked images with the originals.

    Args:
        run: whose marks they are.
        originals: the same images before.
        seen: after.
        bounds: changes of probability for which to say how many images stay within.
    """
    before, after = originals.probabilities, seen.probabilities
    change = np.abs(after - before)
    flipped = (after >= originals.thresholds) != (before >= originals.thresholds)
    counts = originals.counts
    values, resampled = _differences(originals, after)
    largest = change.max(1)
    differences = tuple(
        Difference(
            name, bool(counts[k]), Interval.of(values[k], resampled[k]), flipped[:, k].mean(), change[:, k].mean()
        )
        for k, name in enumerate(PATHOLOGIES)
    )
    floor = None if run.recipe.image_loss else run.recipe.floor
    return Impact(
        name=run.name,
        label=run.label,
        differences=differences,
        mean=Interval.of(float(values[counts].mean()), resampled[counts].mean(0)),
        mean_size=float(np.abs(values[counts]).mean()),
        significant=tuple(one.pathology for one in differences if one.counts and one.auroc.significant),
        flipped=float(flipped.mean()),
        mean_change=float(change.mean()),
        quantiles={f"{q:g}": float(value) for q, value in zip(QUANTILES, np.quantile(largest, QUANTILES), strict=True)},
        within={f"{bound:g}": float((largest <= bound).mean()) for bound in bounds},
        psnr_mean=float(seen.psnr.mean()),
        psnr_min=float(seen.psnr.min()),
        satisfied=None if floor is None else float((seen.psnr >= floor).mean()),
        bit_error=float(seen.bit_error.mean()),
    )


def _differences(originals: Originals, after: Array) -> tuple[Array, Array]:
    """AUROC after minus before, ``(14,)``, and the same in every resample, ``(14, R)``."""
    labels, once = originals.labels, np.ones((1, len(after)))

    def paired(weights: Array) -> Array:
        return np.stack(
            [
                resampled_auroc(labels[:, k], after[:, k], weights)
                - resampled_auroc(labels[:, k], originals.probabilities[:, k], weights)
                for k in range(labels.shape[1])
            ]
        )

    return paired(once)[:, 0], paired(originals.weights)
