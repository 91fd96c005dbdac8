"""What holds for one marked image: measured on the stored integers of the two files, for people and machines."""

import dataclasses
import hashlib
import json
import math
import re
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from samplewise import measures
from samplewise.checkpoint import write_json
from samplewise.errors import DataError, OutputError, did_you_mean

__all__ = ["Certificate", "Fidelity", "fidelity", "sha256", "stored_psnr"]

FORMAT = "samplewise-watermark-certificate-1"
MAX_FILE = 1 << 20  # bytes; a certificate has less than one thousand
HASH = re.compile(r"[0-9a-f]{64}")
Kind = TypeVar("Kind", "Fidelity", "Certificate")


def sha256(path: Path | str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True)
class Fidelity:
    """How much marking changed the stored values of an image."""

    peak: int
    """The width of their range, ``2**BitsStored - 1``."""
    psnr: float | None
    """In dB, over all values and against :attr:`peak`; None if no pixel changed."""
    ssim: float | None
    """None if the image is smaller than the window of the measure."""
    max_difference: int
    changed_share: float
    """Of the pixels, in [0, 1]."""
    protected_pixels: int
    """How many were not to be touched."""
    protected_unchanged: bool

    def __post_init__(self) -> None:
        _check_types(self)
        if self.peak < 1 or min(self.max_difference, self.protected_pixels) < 0 or not 0 <= self.changed_share <= 1:
            raise DataError("expected a peak above 0, counts of at least 0 and a share of at most 1")
        if (self.psnr is None) != (self.max_difference == 0) or (self.changed_share == 0) != (self.max_difference == 0):
            raise DataError("expected psnr, max_difference and changed_share to agree on whether a pixel changed")

    def reaches(self, floor: float) -> bool:
        """Whether the PSNR is at least ``floor`` dB."""
        return self.psnr is None or self.psnr >= floor


def stored_psnr(original: NDArray[Any], marked: NDArray[Any], peak: float) -> float | None:
    """PSNR in dB over all stored integers of two images of one shape; None if they are the same."""
    difference = marked.astype(np.int32) - original.astype(np.int32)
    squares = int(np.square(difference, dtype=np.int64).sum())
    return 10.0 * math.log10(peak**2 * difference.size / squares) if squares else None


def fidelity(
    original: NDArray[Any], marked: NDArray[Any], *, peak: int, protected: NDArray[np.bool_] | None = None
) -> Fidelity:
    """Compare the stored values of an image before and after.

    Args:
        original: integers, shape ``(H, W)`` or ``(H, W, C)``.
        marked: the same shape and type.
        peak: the width of their range; at 8 bits 255.
        protected: True where nothing may change, shape ``(H, W)``.
    """
    same = original.shape == marked.shape and original.dtype == marked.dtype
    if not same or original.dtype.kind not in "iu" or original.ndim not in (2, 3) or not original.size:
        raise DataError(
            f"expected two images (H, W) or (H, W, C) of one integer type, got {original.shape} {original.dtype} and "
            f"{marked.shape} {marked.dtype}"
        )
    difference = np.abs(marked.astype(np.int32) - original.astype(np.int32))
    changed = np.atleast_3d(difference).max(axis=2) > 0
    kept = np.zeros(changed.shape, np.bool_) if protected is None else protected
    return Fidelity(
        peak=peak,
        psnr=stored_psnr(original, marked, peak),
        ssim=_ssim(original, marked, peak),
        max_difference=int(difference.max()),
        changed_share=float(changed.mean()),
        protected_pixels=int(kept.sum()),
        protected_unchanged=not changed[kept].any(),
    )


def _ssim(original: NDArray[Any], marked: NDArray[Any], peak: int) -> float | None:
    if min(original.shape[:2]) < measures.SSIM_WINDOW:
        return None
    lowest = -((peak + 1) // 2) if original.dtype.kind == "i" else 0
    # float32 in [0, 1]: right to five places, and ten times as quick as float64.
    first, second = (
        torch.from_numpy(np.atleast_3d((image - np.float32(lowest)) / np.float32(peak)).astype(np.float32))
        .permute(2, 0, 1)
        .unsqueeze(0)
        for image in (original, marked)
    )
    return float(measures.ssim(first, second))


@dataclass(frozen=True)
class Certificate:
    """The facts about one marked image, for the archive. No name of a file or of a patient is among them."""

    original_sha256: str
    result_sha256: str
    model: str
    """Which network marked it."""
    floor: float
    """The PSNR that was asked for, in dB."""
    bits: int
    """Length of the message."""
    bit_errors: int
    """How many of them are wrong when read from the result."""
    fidelity: Fidelity

    def __post_init__(self) -> None:
        _check_types(self)
        for digest in (self.original_sha256, self.result_sha256):
            if not HASH.fullmatch(digest):
                raise DataError(f"expected a SHA-256 of 64 hexadecimal digits, got {digest!r}")
        if not 0 <= self.bit_errors <= self.bits:
            raise DataError(f"expected 0 to {self.bits} bit errors, got {self.bit_errors}")

    @property
    def satisfied(self) -> bool:
        """Whether the floor is reached and nothing protected was touched."""
        return self.fidelity.reaches(self.floor) and self.fidelity.protected_unchanged

    def write(self, path: Path | str) -> None:
        """Write strict JSON, whole or not at all."""
        try:
            write_json(Path(path), {"format": FORMAT, "satisfied": self.satisfied, **dataclasses.asdict(self)})
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error

    @staticmethod
    def read(path: Path | str) -> "Certificate":
        """Read what :meth:`write` wrote.

        Raises:
            DataError: the file is torn, foreign, or has unknown, missing or impossible entries.
        """
        try:
            with Path(path).open("rb") as file:
                values = json.loads(file.read(MAX_FILE), parse_constant=_no_constant)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: torn or not a certificate: {error}") from error
        if not isinstance(values, dict) or values.pop("format", None) != FORMAT:
            raise DataError(f"{path}: is not a certificate of a marked image ({FORMAT})")
        told = values.pop("satisfied", None)
        try:
            inner = _build(Fidelity, values.get("fidelity"))
            certificate = _build(Certificate, values | {"fidelity": inner})
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        if told is not certificate.satisfied:
            raise DataError(f"{path}: expected satisfied to be {certificate.satisfied} by its numbers, got {told!r}")
        return certificate


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not strict JSON")


def _build(kind: type[Kind], values: Any) -> Kind:
    """The dataclass from exactly the entries it has."""
    if not isinstance(values, dict):
        raise DataError(f"expected the entries of {kind.__name__.lower()}, got {type(values).__name__}")
    names = [field.name for field in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            raise DataError(f"unknown entry {name!r}.{did_you_mean(name, names)}")
    missing = [name for name in names if name not in values]
    if missing:
        raise DataError(f"expected the entries {', '.join(missing)}, got none")
    return kind(**values)


def _check_types(value: Fidelity | Certificate) -> None:
    """Refuse what the annotations do not allow: a certificate is read from files that others may have written."""
    for name, kind in typing.get_type_hints(type(value)).items():
        kinds = typing.get_args(kind) or (kind,)
        entry = getattr(value, name)
        if type(entry) not in kinds or (isinstance(entry, float) and not math.isfinite(entry)):
            expected = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in kinds)
            raise DataError(f"expected {name} to be a finite {expected}, got {entry!r}")
