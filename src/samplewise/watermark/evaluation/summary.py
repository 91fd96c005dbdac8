"""The numbers of an evaluation over all images: quality against the floor, bit errors, and the bits they leave."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from samplewise.audit import violation_rate_upper
from samplewise.watermark.evaluation.network import Column, Evaluation

__all__ = ["Attacked", "Quality", "Reading", "Share", "Summary", "capacity", "summarise"]

Flags = NDArray[np.bool_]
NAMED = 100
"""Images that a summary names at most; the table of images has all."""


def capacity(error: Column, bits: int) -> Column:
    """Bits that ``bits`` sent over a binary symmetric channel are worth, ``L (1 - H2(p))``, for each error rate.

    Errors above one half count as one half: who reads cannot know that the message is inverted.

    Example:
        >>> capacity(np.array([0.0, 0.11, 0.5, 1.0]), 200).round()
        array([200., 100.,   0.,   0.])
    """
    from scipy.special import entr  # here, so that importing the library stays quick

    error = np.minimum(error, 0.5)
    entropy = (entr(error) + entr(1 - error)) / np.log(2)
    return np.asarray(bits * (1 - entropy))


@dataclass(frozen=True)
class Share:
    """How many of the samples hold, and what that says about others like them."""

    samples: int
    held: int
    share: float
    at_least: float
    """Exact (Clopper-Pearson) lower bound on the share among fresh samples, at the summary's confidence."""

    @classmethod
    def of(cls, held: Flags, confidence: float) -> Self:
        """Count those that hold, of shape ``(N,)``."""
        samples, count = len(held), int(held.sum())
        return cls(samples, count, count / samples, 1 - violation_rate_upper(samples - count, samples, confidence))


@dataclass(frozen=True)
class Reading:
    """How well messages were read."""

    bit_error_mean: float
    bit_error_median: float
    bit_error_worst: float
    bit_accuracy: float
    """One minus the mean bit error."""
    error_free: Share
    """Images whose whole message was read right."""
    usable_bits: float
    """Capacity at the mean bit error."""
    usable_bits_by_image: float
    """Mean of the images' own capacities: more than the other where images differ, and a little by chance."""

    @classmethod
    def of(cls, errors: Column, bits: int, confidence: float) -> Self:
        """Over the bit error of every image."""
        mean = float(errors.mean())
        return cls(
            bit_error_mean=mean,
            bit_error_median=float(np.median(errors)),
            bit_error_worst=float(errors.max()),
            bit_accuracy=1 - mean,
            error_free=Share.of(errors == 0, confidence),
            usable_bits=float(capacity(np.array(mean), bits)),
            usable_bits_by_image=float(capacity(errors, bits).mean()),
        )


@dataclass(frozen=True)
class Quality:
    """How near marked images are to their covers."""

    psnr_mean: float
    psnr_median: float
    psnr_min: float
    satisfied: Share
    """Images that meet the floor."""
    patients_satisfied: Share
    """Patients all of whose images meet it: images of one patient are not independent, patients are."""
    ssim_mean: float | None = None
    ssim_min: float | None = None
    max_difference: float | None = None
    """Largest change of any pixel, in grey levels."""
    changed_mean: float | None = None
    """Mean share of the pixels that changed."""


@dataclass(frozen=True)
class Attacked:
    """How well messages were read after one attack."""

    way: str
    attack: str
    reading: Reading


@dataclass(frozen=True)
class Summary:
    """An evaluation in a few numbers."""

    floor: float
    confidence: float
    images: int
    patients: int
    quality: Mapping[str, Quality]
    """By way: grey, rgb, float."""
    reading: Mapping[str, Reading]
    attacks: tuple[Attacked, ...]
    below_floor: tuple[tuple[str, float], ...]
    """Name and PSNR of images whose grey file misses the floor, worst first, a hundred at most."""
    with_errors: tuple[tuple[str, float], ...]
    """Name and bit error of images whose grey file is not read right, worst first, a hundred at most."""

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            **asdict(self),
            "below_floor": [{"name": name, "psnr": value} for name, value in self.below_floor],
            "with_errors": [{"name": name, "bit_error": value} for name, value in self.with_errors],
        }


def summarise(evaluation: Evaluation, floor: float, *, confidence: float = 0.95) -> Summary:
    """Sum up an evaluation.

    Args:
        evaluation: of every image.
        floor: PSNR in dB that every image should reach.
        confidence: of the exact bounds.
    """
    measures = evaluation.measures
    readings = {way: measures[f"{way}/bit_error"] for way in evaluation.ways}
    attacks = {key: values[~np.isnan(values)] for key, values in evaluation.attacks.items()}
    error = measures["grey/bit_error"]
    return Summary(
        floor=floor,
        confidence=confidence,
        images=len(evaluation),
        patients=len(set(evaluation.patients)),
        quality={way: _quality(evaluation, way, floor, confidence) for way in evaluation.ways},
        reading={way: Reading.of(errors, evaluation.bits, confidence) for way, errors in readings.items()},
        attacks=tuple(
            Attacked(*_parts(key), Reading.of(errors, evaluation.bits, confidence)) for key, errors in attacks.items()
        ),
        below_floor=_worst(evaluation, measures["grey/psnr"], measures["grey/psnr"] < floor),
        with_errors=_worst(evaluation, error, error > 0, largest=True),
    )


def _quality(evaluation: Evaluation, way: str, floor: float, confidence: float) -> Quality:
    measures = {
        key.removeprefix(f"{way}/"): values for key, values in evaluation.measures.items() if key.startswith(f"{way}/")
    }
    psnr = measures["psnr"]
    held = dict.fromkeys(evaluation.patients, True)
    for patient, value in zip(evaluation.patients, psnr, strict=True):
        held[patient] &= bool(value >= floor)
    files = (
        {}
        if "ssim" not in measures
        else {
            "ssim_mean": float(measures["ssim"].mean()),
            "ssim_min": float(measures["ssim"].min()),
            "max_difference": float(measures["max_difference"].max()),
            "changed_mean": float(measures["changed"].mean()),
        }
    )
    return Quality(
        psnr_mean=float(psnr.mean()),
        psnr_median=float(np.median(psnr)),
        psnr_min=float(psnr.min()),
        satisfied=Share.of(psnr >= floor, confidence),
        patients_satisfied=Share.of(np.array(list(held.values())), confidence),
        **files,
    )


def _parts(key: str) -> tuple[str, str]:
    """The way and the attack of a column."""
    way, _, attack = key.partition("/")
    return way, attack


def _worst(
    evaluation: Evaluation, values: Column, failed: Flags, *, largest: bool = False
) -> tuple[tuple[str, float], ...]:
    order = np.argsort(-values if largest else values, kind="stable")
    return tuple((evaluation.names[i], float(values[i])) for i in order if failed[i])[:NAMED]
