"""What watermarks do to a diagnosis: the classifier on marked images as written, against the originals (Table II)."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from floormark import RefusedError, Watermarker
from samplewise.errors import CheckpointError, DataError
from samplewise.measures import bit_error, psnr
from samplewise.problem import evaluation_mode
from samplewise.samples import in_order
from samplewise.storage import load_state, save_state
from studies.chest.auroc import Array, Aurocs, Interval, enough, patient_weights
from studies.chest.densenet import Classifier, probabilities
from studies.pictures import PATHOLOGIES, PictureData
from studies.watermark.evaluation.measure import OnProgress, mark
from studies.watermark.evaluation.shipped import ship
from studies.watermark.networks import Lattice, Network
from studies.watermark.operators import as_images, as_pixels
from studies.watermark.training import Run

QUANTILES = (0.5, 0.9, 0.99, 1.0)
Diagnoses = Mapping[str, Array]
"""Of marked images as written ``probabilities`` ``(n, 14)``, ``psnr`` in dB ``(n,)`` and ``bit_error`` ``(n,)``."""


@dataclass(frozen=True, eq=False)
class Originals:
    """The classifier's predictions for the original images."""

    data: PictureData
    labels: NDArray[np.uint8]
    """``(n, 14)``."""
    probabilities: Array
    """``(n, 14)``."""
    thresholds: Array
    """Operating points, ``(14,)``."""
    counts: NDArray[np.bool_]
    """A mask of the pathologies with enough positives to count in a mean, ``(14,)``."""
    weights: Array
    """Of the resamples, ``(R, n)``: the same for every run, so that differences are paired."""
    aurocs: Aurocs


@dataclass(frozen=True)
class Difference:
    """The effect of one run's marks on one pathology."""

    pathology: str
    counts: bool
    """Whether there are enough positives for it to count in a mean."""
    auroc: Interval
    """Marked minus original, paired."""
    flipped: float
    """Share of the images that are on the other side of the operating point."""
    mean_change: float
    """Mean ``|p(marked) - p(original)|``."""
    significant: bool


@dataclass(frozen=True)
class Impact:
    """The effect of one run's marks on the diagnosis."""

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
    refused: int = 0
    """Images that the tool did not mark, which stay as they are."""


def evaluate_originals(
    classifier: Classifier,
    data: PictureData,
    diagnose: Callable[[], Diagnoses],
    *,
    fewest: int,
    resamples: int,
    seed: int,
) -> Originals:
    """Evaluate the originals; a pathology counts in a mean with ``fewest`` positives.

    ``diagnose`` gives the probabilities of the pictures, and is called once it is known that there is something to
    compare.
    """
    labels = data.labels
    counts = enough(labels, fewest)
    if not counts.any():
        raise DataError(f"{data.store.folder}: no pathology has {fewest} positives here: nothing to compare")
    found, weights = diagnose()["probabilities"], patient_weights(data.patients, resamples, seed)
    thresholds = classifier.thresholds.double().cpu().numpy()
    return Originals(data, labels, found, thresholds, counts, weights, Aurocs.of(labels, found, weights))


def diagnose_originals(classifier: Classifier, data: PictureData, **how: Any) -> Diagnoses:
    """The classifier's predictions for the pictures; ``how`` is as for :func:`diagnose_marked`."""
    return {"probabilities": probabilities(classifier, data, **how)}


def diagnose_marked(
    classifier: Classifier,
    network: Network,
    data: PictureData,
    *,
    floor: float | None = None,
    batch_size: int = 32,
    watch: OnProgress | None = None,
) -> Diagnoses:
    """Mark every image at its own resolution, write it as 8-bit grey, and diagnose what a file would hold.

    A lattice marks as the tool does, at ``floor``. An image that the tool refuses stays as it is, with NaN for its PSNR
    and bit error.
    """
    if data.store.size % network.cell:
        raise DataError(
            f"{data.store.folder}: expected images of a multiple of {network.cell} pixels, got {data.store.size}"
        )
    device = next(classifier.parameters()).device
    marker = Watermarker(network.in_the_tool()) if isinstance(network, Lattice) and floor is not None else None
    columns: list[tuple[torch.Tensor, ...]] = []
    with evaluation_mode(classifier), evaluation_mode(network if marker else network.to(device)):
        for (images, numbers), index in in_order(data, batch_size=batch_size, device=device):
            if marker is not None and floor is not None:
                pixels, wrong = _shipped(marker, as_pixels(images, "grey"), numbers.tolist(), floor)
                read, errors = as_images(pixels, channels=1, device=device), torch.from_numpy(wrong).to(device)
            else:
                _, messages, marked = mark(network, images, numbers)
                read = as_images(as_pixels(marked, "grey"), channels=1, device=device)
                errors = bit_error(network.extract(read.expand(-1, network.channels, -1, -1)), messages)
            reached = torch.where(errors.isnan(), torch.nan, psnr(read, images))
            columns.append((classifier(read).sigmoid(), reached, errors))
            if watch is not None:
                watch(int(index[-1]) + 1, len(data))
    names = ("probabilities", "psnr", "bit_error")
    found = (torch.cat(column).double().cpu().numpy() for column in zip(*columns, strict=True))
    return dict(zip(names, found, strict=True))


def _shipped(
    marker: Watermarker, covers: NDArray[np.uint8], numbers: Sequence[int], floor: float
) -> tuple[NDArray[np.uint8], Array]:
    """Images ``(B, H, W)`` marked by the tool, and its bit errors ``(B,)``, NaN where it refuses."""
    pixels, wrong = covers.copy(), np.full(len(covers), np.nan)
    for place, number in enumerate(numbers):
        with suppress(RefusedError):
            pixels[place] = ship(marker, covers[place], number, floor)
            wrong[place] = marker.extract(pixels[place]).corrected_errors / marker.network.bits
    return pixels, wrong


def diagnosed_once(folder: Path, about: Mapping[str, str], of: str, diagnose: Callable[[], Diagnoses]) -> Diagnoses:
    """The result of ``diagnose``, cached in ``folder`` so that an interrupted comparison need not repeat it.

    ``about`` are the fingerprints of classifier and pictures, ``of`` that of the network that marked them: what was
    kept of others is not taken.
    """
    path, about = folder / f"{of}.safetensors", {**about, "of": of}
    if path.exists():
        with suppress(CheckpointError):  # torn or foreign: done again
            stored = load_state(path)
            if stored.get("about") == about:
                return {name: values.numpy() for name, values in stored["arrays"].items()}
    found = diagnose()
    save_state(path, {"about": about, "arrays": {name: torch.from_numpy(each) for name, each in found.items()}})
    return found


def evaluate_run(run: Run, originals: Originals, diagnoses: Diagnoses, *, bounds: Sequence[float]) -> Impact:
    """Compare the diagnoses of a run's marked images with those of the originals.

    For each of ``bounds``, a change of probability, it is said how many images stay within.
    """
    before, after, counts = originals.probabilities, diagnoses["probabilities"], originals.counts
    change = np.abs(after - before)
    flipped = (after >= originals.thresholds) != (before >= originals.thresholds)
    moved = Aurocs.of(originals.labels, after, originals.weights) - originals.aurocs
    differences = tuple(
        Difference(name, bool(counts[k]), auroc, flipped[:, k].mean(), change[:, k].mean(), auroc.significant)
        for k, (name, auroc) in enumerate(zip(PATHOLOGIES, moved.intervals, strict=True))
    )
    largest = change.max(1)
    marked = ~np.isnan(diagnoses["psnr"])
    if not marked.any():
        raise DataError(f"{run.folder}: the tool can mark none of the images at {run.recipe.floor:g} dB: train longer")
    reached = diagnoses["psnr"][marked]
    floor = None if run.recipe.image_loss else run.recipe.floor
    return Impact(
        name=run.name,
        label=run.label,
        differences=differences,
        mean=moved.mean(counts),
        mean_size=float(np.abs(moved.values[counts]).mean()),
        significant=tuple(one.pathology for one in differences if one.counts and one.significant),
        flipped=float(flipped.mean()),
        mean_change=float(change.mean()),
        quantiles={f"{q:g}": float(np.quantile(largest, q)) for q in QUANTILES},
        within={f"{bound:g}": float((largest <= bound).mean()) for bound in bounds},
        psnr_mean=float(reached.mean()),
        psnr_min=float(reached.min()),
        satisfied=None if floor is None else float((reached >= floor).mean()),
        bit_error=float(diagnoses["bit_error"][marked].mean()),
        refused=int((~marked).sum()),
    )
