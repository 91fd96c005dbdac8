"""What was measured, in a few numbers: quality against the floor, bit errors, and the bits they leave.

A summary is plain values, as ``report.json`` keeps them and figures, tables and pages read them.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.unseen import violation_rate_upper
from samplewise.watermark.judging.measure import Column, Measured

Summary = dict[str, Any]
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


def summarise(measured: Measured, floor: float | None, *, confidence: float = 0.95, compared: float = 1) -> Summary:
    """Summarise what was measured.

    Args:
        measured: the numbers of every image.
        floor: PSNR in dB that every image should reach; None without one.
        confidence: of the exact bounds. Those on messages hold for all ways and attacks at once.
        compared: for how many networks compared on these images the bounds are corrected; ``math.inf`` if the network
            was trained on them: then there are none.

    Returns:
        By way to take an image (grey, rgb, float) its ``quality`` and ``reading``; ``attacks`` with a reading each;
        ``below_floor`` and ``with_errors``, the images whose grey file fails, worst first, a hundred at most.
    """
    columns, bits = measured.columns, measured.bits
    psnr, error = columns["grey/psnr"], columns["grey/bit_error"]
    missed = np.zeros(len(psnr), np.bool_) if floor is None else psnr < floor
    together = compared * readings(measured)
    return {
        "floor": floor,
        "confidence": confidence,
        "compared": compared,
        "images": len(measured),
        "patients": len(set(measured.patients)),
        "quality": {way: _quality(measured, way, floor, confidence, compared) for way in measured.ways},
        "reading": {way: _reading(columns[f"{way}/bit_error"], bits, confidence, together) for way in measured.ways},
        "attacks": [
            {"way": way, "attack": attack, "reading": _reading(errors, bits, confidence, together)}
            for (way, attack), errors in measured.attacks.items()
        ],
        "below_floor": _worst(measured, "psnr", np.argsort(psnr, kind="stable"), missed),
        "with_errors": _worst(measured, "bit_error", np.argsort(-error, kind="stable"), error > 0),
    }


def share_of(held: Flags, confidence: float, together: float = 1) -> Summary:
    """How many of the samples ``(N,)`` hold, and the exact (Clopper-Pearson) lower bound among fresh ones like them.

    So many bounds hold ``together`` with that confidence; None stands for no bound, on images that were trained on.
    """
    samples, count = len(held), int(held.sum())
    bound = at_least(count, samples, confidence, together)
    return {"samples": samples, "held": count, "share": count / samples, "at_least": bound}


def at_least(held: int, samples: int, confidence: float, together: float) -> float | None:
    """What share of fresh samples holds, if so many of these do; None if these were trained on."""
    return None if together == math.inf else 1 - violation_rate_upper(samples - held, samples, confidence, together)


def readings(measured: Measured) -> int:
    """In how many ways messages were read: from files as written, and after each attack."""
    return len(measured.ways) + len(measured.attacks)


def _reading(errors: Column, bits: int, confidence: float, together: float) -> Summary:
    """How well messages were read, over the bit error of every image."""
    mean = float(errors.mean())
    return {
        "bit_error_mean": mean,
        "bit_error_median": float(np.median(errors)),
        "bit_error_worst": float(errors.max()),
        "bit_accuracy": 1 - mean,
        "error_free": share_of(errors == 0, confidence, together),
        "usable_bits": float(capacity(np.array(mean), bits)),
        # More than the other where images differ, and a little by chance.
        "usable_bits_by_image": float(capacity(errors, bits).mean()),
    }


def _quality(measured: Measured, way: str, floor: float | None, confidence: float, compared: float) -> Summary:
    """How near marked images are to their covers; no file, no SSIM, and without a floor none is met."""

    def number(name: str, reduce: Any) -> float | None:
        values = measured.columns.get(f"{way}/{name}")
        return None if values is None else float(reduce(values))

    satisfied = patients = None
    if floor is not None:
        held = measured.columns[f"{way}/psnr"] >= floor
        satisfied = share_of(held, confidence, compared)
        # Images of one patient are not independent, patients are.
        missed = {patient for patient, met in zip(measured.patients, held, strict=True) if not met}
        unmissed = np.array([one not in missed for one in dict.fromkeys(measured.patients)])
        patients = share_of(unmissed, confidence, compared)
    return {
        "psnr_mean": number("psnr", np.mean),
        "psnr_median": number("psnr", np.median),
        "psnr_min": number("psnr", np.min),
        "satisfied": satisfied,
        "patients_satisfied": patients,
        "ssim_mean": number("ssim", np.mean),
        "ssim_min": number("ssim", np.min),
        "max_difference": number("max_difference", np.max),
        "changed_mean": number("changed", np.mean),
    }


def _worst(measured: Measured, name: str, order: NDArray[np.intp], failed: Flags) -> list[Summary]:
    values = measured.columns[f"grey/{name}"]
    return [{"name": measured.names[i], name: float(values[i])} for i in order if failed[i]][:NAMED]
