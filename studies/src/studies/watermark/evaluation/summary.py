"""A summary of what was measured: quality against the floor, bit errors, and the bits they leave.

A summary is plain values, as ``report.json`` keeps them and figures, tables and pages read them.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.watermark.evaluation.measure import Column, Flags, Measured

Summary = dict[str, Any]
MOST_NAMED = 100
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


def summarise(
    measured: Measured,
    floor: float | None,
    *,
    confidence: float = 0.95,
    n_comparisons: int = 1,
    refused: Mapping[str, str] | None = None,
) -> Summary:
    """Summarise what was measured.

    Args:
        measured: the numbers of every image; those that the network was trained on count in no bound.
        floor: PSNR in dB that every image should reach; None without one.
        confidence: of the exact bounds. Those on messages hold for all representations and attacks at once.
        n_comparisons: networks that were compared on these images, for which the bounds are corrected.
        refused: the images that the tool would not mark, and why; None for a network that was evaluated by itself.

    Returns:
        ``quality`` and ``reading`` of each representation, ``attacks`` with a reading each, and the images whose grey
        file fails, worst first, a hundred at most.
    """
    kinds, columns = measured.representations, measured.columns
    kept, error = kept_floor(measured, "grey"), columns["grey/bit_error"]
    missed = np.zeros(len(kept), np.bool_) if floor is None else kept < floor
    n_readings = n_comparisons * (len(kinds) + len(measured.attacks))
    written = None
    if refused is not None:
        samples = len(measured) + len(refused)
        written = {"samples": samples, "held": len(measured), "share": len(measured) / samples}
    return {
        "floor": floor,
        "confidence": confidence,
        "compared": n_comparisons,
        "evaluated_by": "network" if refused is None else "tool",
        "written": written,
        "refused": refused,
        "images": len(measured),
        "trained_on": int((~measured.fresh).sum()),
        "patients": len(set(measured.patients)),
        "quality": {kind: _quality(measured, kind, floor, confidence, n_comparisons) for kind in kinds},
        "reading": {kind: _reading(measured, kind, "", confidence, n_readings) for kind in kinds},
        "attacks": [
            {
                "representation": kind,
                "attack": attack,
                "reading": _reading(measured, kind, attack, confidence, n_readings),
            }
            for kind, attack in measured.attacks
        ],
        "below_floor": _worst(measured, "psnr", np.argsort(kept, kind="stable"), missed),
        "with_errors": _worst(measured, "bit_error", np.argsort(-error, kind="stable"), ~measured.reading("grey")[1]),
    }


def kept_floor(measured: Measured, kind: str) -> Column:
    """The floor in dB that each image keeps: its PSNR or, of files that the tool wrote, that of its worst patch."""
    columns = measured.columns
    return columns.get(f"{kind}/floor_kept", columns[f"{kind}/psnr"])


def share_of(held: Flags, confidence: float, n_comparisons: int = 1, fresh: Flags | None = None) -> Summary:
    """The share of the samples ``(N,)`` that hold, and its exact (Clopper-Pearson) lower bound for unseen ones.

    The bound is from the samples that are ``fresh``, all if not given, and None where there are none. As many bounds
    as ``n_comparisons`` says hold at once with that confidence (Bonferroni).
    """
    from scipy.stats import beta  # here, since importing it takes long

    samples, count = len(held), int(held.sum())
    unseen = held if fresh is None else held[fresh]
    kept, missed = int(unseen.sum()), int((~unseen).sum())
    bound = float(beta.ppf((1 - confidence) / n_comparisons, kept, missed + 1)) if kept else 0.0
    at_least = bound if len(unseen) else None
    return {"samples": samples, "held": count, "share": count / samples, "unseen": len(unseen), "at_least": at_least}


def _reading(measured: Measured, kind: str, attack: str, confidence: float, n_comparisons: int) -> Summary:
    """Bit errors, error-free messages and usable bits of one representation, after one attack or none."""
    errors, right, read = measured.reading(kind, attack)
    bits, mean = measured.bits, float(errors.mean())
    return {
        "bit_error_mean": mean,
        "bit_error_worst": float(errors.max()),
        "error_free": share_of(right, confidence, n_comparisons, measured.fresh[read]),
        "usable_bits": float(capacity(np.array(mean), bits)),
    }


def _quality(measured: Measured, kind: str, floor: float | None, confidence: float, n_comparisons: int) -> Summary:
    """PSNR, SSIM and the share at the floor of one representation; None for what it does not have."""

    def number(name: str, reduce: Any) -> float | None:
        values = measured.columns.get(f"{kind}/{name}")
        return None if values is None else float(reduce(values))

    satisfied = patients = None
    if floor is not None:
        held = kept_floor(measured, kind) >= floor
        satisfied = share_of(held, confidence, n_comparisons, measured.fresh)
        # Images of one patient are not independent, patients are.
        missed, trained = (
            {patient for patient, fine in zip(measured.patients, flags, strict=True) if not fine}
            for flags in (held, measured.fresh)
        )
        everybody = dict.fromkeys(measured.patients)
        unmissed, fresh = (np.array([one not in others for one in everybody]) for others in (missed, trained))
        patients = share_of(unmissed, confidence, n_comparisons, fresh)
    return {
        "psnr_mean": number("psnr", np.mean),
        "psnr_median": number("psnr", np.median),
        "psnr_min": number("psnr", np.min),
        "satisfied": satisfied,
        "patients_satisfied": patients,
        "ssim_mean": number("ssim", np.mean),
        "max_difference": number("max_difference", np.max),
    }


def _worst(measured: Measured, name: str, order: NDArray[np.intp], failed: Flags) -> list[Summary]:
    values = measured.columns[f"grey/{name}"]
    return [{"name": measured.names[i], name: float(values[i])} for i in order if failed[i]][:MOST_NAMED]
