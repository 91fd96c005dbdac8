"""What was measured, in a few numbers: quality against the floor, bit errors, and the bits they leave."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from samplewise.audit import violation_rate_upper
from samplewise.watermark.judging.measure import Column, Measured

__all__ = ["Attacked", "BitErrors", "Quality", "Share", "Summary", "capacity", "summarise"]

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
class BitErrors:
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
    satisfied: Share | None
    """Images that meet the floor, if there is one."""
    patients_satisfied: Share | None
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
    reading: BitErrors


@dataclass(frozen=True)
class Summary:
    """One run in a few numbers."""

    floor: float | None
    """In dB; None for a baseline that was trained without one and is not judged by one."""
    confidence: float
    images: int
    patients: int
    quality: Mapping[str, Quality]
    """By way: grey, rgb, float."""
    reading: Mapping[str, BitErrors]
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


def summarise(measured: Measured, floor: float | None, *, confidence: float = 0.95) -> Summary:
    """Summarise what was measured.

    Args:
        measured: the numbers of every image.
        floor: PSNR in dB that every image should reach; None without one.
        confidence: of the exact bounds.
    """
    columns, bits = measured.columns, measured.bits
    psnr, error = columns["grey/psnr"], columns["grey/bit_error"]
    return Summary(
        floor=floor,
        confidence=confidence,
        images=len(measured),
        patients=len(set(measured.patients)),
        quality={way: _quality(measured, way, floor, confidence) for way in measured.ways},
        reading={way: BitErrors.of(columns[f"{way}/bit_error"], bits, confidence) for way in measured.ways},
        attacks=tuple(
            Attacked(way, attack, BitErrors.of(errors, bits, confidence))
            for (way, attack), errors in measured.attacks.items()
        ),
        below_floor=_worst(measured, psnr, psnr < (-np.inf if floor is None else floor)),
        with_errors=_worst(measured, error, error > 0, largest=True),
    )


def _quality(measured: Measured, way: str, floor: float | None, confidence: float) -> Quality:
    columns = {key.removeprefix(f"{way}/"): values for key, values in measured.columns.items() if key.startswith(way)}
    psnr = columns["psnr"]
    satisfied = patients = None
    if floor is not None:
        held = psnr >= floor
        satisfied = Share.of(held, confidence)
        missed = {patient for patient, met in zip(measured.patients, held, strict=True) if not met}
        patients = Share.of(np.array([one not in missed for one in dict.fromkeys(measured.patients)]), confidence)
    files = (
        {}
        if "ssim" not in columns
        else {
            "ssim_mean": float(columns["ssim"].mean()),
            "ssim_min": float(columns["ssim"].min()),
            "max_difference": float(columns["max_difference"].max()),
            "changed_mean": float(columns["changed"].mean()),
        }
    )
    return Quality(float(psnr.mean()), float(np.median(psnr)), float(psnr.min()), satisfied, patients, **files)


def _worst(
    measured: Measured, values: Column, failed: Flags, *, largest: bool = False
) -> tuple[tuple[str, float], ...]:
    order = np.argsort(-values if largest else values, kind="stable")
    return tuple((measured.names[i], float(values[i])) for i in order if failed[i])[:NAMED]
