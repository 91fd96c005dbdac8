"""The certificate of one marked image: measured on the stored integers of the original and the marked file."""

import dataclasses
import hashlib
import math
import re
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from floormark.disk import decoding, open_regular, read_json, write_json
from floormark.errors import DataError, did_you_mean, prefix_path
from floormark.options import HIGHEST_FLOOR, LOWEST_FLOOR

CERTIFICATE_FORMAT = "floormark-certificate-4"
ALGORITHM = "ed25519"
MAX_CERTIFICATE_BYTES = 1 << 20  # bytes; a certificate has about one thousand
MAX_COUNT, MAX_TEXT = 1 << 32, 200  # bounds on every number and every text of a certificate
SHOWN_CHARACTERS = 60  # characters of a wrong entry that an error quotes
SHA256 = re.compile(r"[0-9a-f]{64}")
PLACE = re.compile(r"[0-9]{1,9}(,[0-9]{1,9}){3}")
HASHES = ("original_sha256", "result_sha256", "original_pixels_sha256", "result_pixels_sha256")
Kind = TypeVar("Kind", "Fidelity", "Signature", "ImageCertificate")


def sha256(path: Path | str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with decoding(Path(path), "a file"), open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def certificate_path(image: Path) -> Path:
    """The path of an image's certificate: beside the image."""
    return image.with_name(f"{image.name}.json")


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
    """Number of pixels that may not change."""
    protected_unchanged: bool
    shown: float
    """The width of the shown range: the display window of a DICOM file, or the range in use above 8 bits."""
    shown_psnr: float | None
    """In dB, over all values and against :attr:`shown`; None if no pixel changed."""
    largest_change: float
    """:attr:`max_difference` in the unit of the modality."""
    unit: str
    """Such as HU; empty if there is none."""
    min_adjusted_patch_psnr: float | None
    """The floor that every patch keeps: the least of their PSNRs, each minus the dB of its floor above the image's."""
    worst_patch: str | None
    """Where that patch is: ``x,y,width,height``."""

    def __post_init__(self) -> None:
        counts = self.max_difference, self.protected_pixels, self.largest_change
        if min(self.peak, self.shown) <= 0 or min(counts) < 0 or not 0 <= self.changed_share <= 1:
            raise DataError("expected peak and shown above 0, counts of at least 0, and changed_share in [0, 1]")
        unchanged = {
            one is None for one in (self.psnr, self.shown_psnr, self.min_adjusted_patch_psnr, self.worst_patch)
        }
        if unchanged | {self.changed_share == 0} != {self.max_difference == 0}:
            raise DataError(
                "expected PSNR, worst_patch, max_difference and changed_share to agree on whether a pixel changed"
            )
        if self.worst_patch is not None and not PLACE.fullmatch(self.worst_patch):
            raise DataError(f"expected x,y,w,h as the worst patch, got {self.worst_patch!r}")
        if self.ssim is not None and not -1 <= self.ssim <= 1 + 1e-9:
            raise DataError(f"expected an SSIM of -1 to 1, got {self.ssim}")

    @property
    def floors(self) -> tuple[float, ...]:
        """The PSNR values that a floor bounds: of the image, of its shown range, and of the worst patch."""
        return tuple(one for one in (self.psnr, self.shown_psnr, self.min_adjusted_patch_psnr) if one is not None)

    def reaches(self, floor: float) -> bool:
        """Whether the image and its patches keep a floor in dB."""
        return all(one >= floor for one in self.floors)

    @staticmethod
    def worst(frames: Sequence["Fidelity"]) -> "Fidelity":
        """The worst of each measure over the frames of a file; the worst patch is of the frame that has it."""

        def least(name: str) -> Any:
            return min((one for each in frames if (one := getattr(each, name)) is not None), default=None)

        patch = min(frames, key=lambda one: math.inf if (worst := one.min_adjusted_patch_psnr) is None else worst)
        return dataclasses.replace(
            patch,
            **{name: least(name) for name in ("psnr", "ssim", "shown", "shown_psnr")},
            **{name: max(getattr(one, name) for one in frames) for name in ("max_difference", "changed_share")},
            largest_change=max(one.largest_change for one in frames),
            protected_unchanged=all(one.protected_unchanged for one in frames),
        )


@dataclass(frozen=True)
class Signature:
    """The signature over the other entries of a certificate; :mod:`floormark.signing` makes and checks it."""

    algorithm: str
    public_key: str
    """32 bytes, in hexadecimal digits."""
    value: str
    """64 bytes, in hexadecimal digits."""

    def __post_init__(self) -> None:
        if self.algorithm != ALGORITHM:
            raise DataError(f"expected a signature of the algorithm {ALGORITHM}, got {self.algorithm!r}")
        if not SHA256.fullmatch(self.public_key) or not re.fullmatch("[0-9a-f]{128}", self.value):
            raise DataError("expected a public key of 64 hexadecimal digits and a signature of 128")


@dataclass(frozen=True)
class ImageCertificate:
    """The facts about one marked image, for the archive. No name of a file or of a patient is among them."""

    original_sha256: str
    """Of the files, or of the pixels of images that are in none."""
    result_sha256: str
    original_pixels_sha256: str
    """Of pixels and geometry (``StoredImage.pixels_sha256``); lossless re-encoding keeps it."""
    result_pixels_sha256: str
    model: str
    """Which network marked it."""
    floor: float
    """The PSNR that was asked for, in dB."""
    bits: int
    """Length of the message."""
    bit_errors: int
    """Number of bits that are decoded wrong from the result."""
    fidelity: Fidelity
    """Of several frames, the worst of each measure."""
    protected: str | None = None
    """The region that may not change: a rectangle ``x,y,w,h``, or the SHA-256 of a mask."""
    signature: Signature | None = None
    frames: int = 1
    """How many images the files hold."""

    def __post_init__(self) -> None:
        if not all(SHA256.fullmatch(getattr(self, name)) for name in HASHES):
            raise DataError(f"expected a SHA-256 of 64 hexadecimal digits as each of {', '.join(HASHES)}")
        if not LOWEST_FLOOR <= self.floor <= HIGHEST_FLOOR:
            raise DataError(f"expected a floor of {LOWEST_FLOOR:g} to {HIGHEST_FLOOR:g} dB, got {self.floor:g}")
        if self.frames < 1:
            raise DataError(f"expected at least one frame, got {self.frames}")
        if not 0 <= self.bit_errors <= self.bits:
            raise DataError(f"expected 0 to {self.bits} bit errors, got {self.bit_errors}")
        if self.protected is not None and not (PLACE.fullmatch(self.protected) or SHA256.fullmatch(self.protected)):
            raise DataError(f"expected x,y,w,h or a SHA-256 as the protected region, got {self.protected!r}")

    @property
    def satisfied(self) -> bool:
        """Whether the floor is reached and nothing protected was touched."""
        return self.fidelity.reaches(self.floor) and self.fidelity.protected_unchanged

    def entries(self) -> dict[str, Any]:
        """The entries to write, by name."""
        return {"format": CERTIFICATE_FORMAT, "satisfied": self.satisfied, **dataclasses.asdict(self)}

    def write(self, path: Path | str) -> None:
        """Write strict JSON, whole or not at all."""
        write_json(Path(path), self.entries())

    @staticmethod
    def read(path: Path | str) -> "ImageCertificate":
        """Read what :meth:`write` wrote; signatures are not verified.

        Raises:
            DataError: the file is torn, foreign, or has unknown, missing or impossible entries.
        """
        return read_entries(path)[0]


def read_entries(path: Path | str) -> tuple[ImageCertificate, dict[str, Any]]:
    """A certificate, and the unchanged entries of its file, which a signature covers.

    The file must have all entries of its format, each in its valid range. Whether they are true, only images tell.
    """
    entries = read_json(Path(path), "a certificate of a marked image", largest=MAX_CERTIFICATE_BYTES)
    values = dict(entries)
    if values.pop("format", None) != CERTIFICATE_FORMAT:
        raise DataError(
            f"{path}: expected a certificate of the format {CERTIFICATE_FORMAT}, of this version: mark the image again"
        )
    told = values.pop("satisfied", None)
    with prefix_path(Path(path)):
        values["fidelity"] = _build(Fidelity, values.get("fidelity"))
        if values.get("signature") is not None:
            values["signature"] = _build(Signature, values["signature"])
        certificate = _build(ImageCertificate, values)
        if told is not certificate.satisfied:
            raise DataError(f"expected satisfied to be {certificate.satisfied} by its numbers, got {told!r}")
    return certificate, entries


def _build(kind: type[Kind], values: Any) -> Kind:
    """The dataclass from exactly its entries, each of its type: the file may come from others."""
    if not isinstance(values, dict):
        raise DataError(f"expected the entries of {kind.__name__.lower()}, got {type(values).__name__}")
    hints = typing.get_type_hints(kind)
    if unknown := [name for name in values if name not in hints]:
        raise DataError(f"unknown entry {unknown[0][:SHOWN_CHARACTERS]!r}.{did_you_mean(unknown[0], list(hints))}")
    # Also entries with a default: removing one must not weaken the comparison.
    if missing := [name for name in hints if name not in values]:
        raise DataError(f"expected the entries {', '.join(missing)}, got none")
    for name, entry in values.items():
        hint = hints[name]
        kinds = typing.get_args(hint) or (hint,)
        if type(entry) not in kinds or (isinstance(entry, float) and not math.isfinite(entry)):
            expected = " or ".join("null" if kind is types.NoneType else kind.__name__ for kind in kinds)
            got = type(entry).__name__ if isinstance(entry, dict | list) else repr(entry)[:SHOWN_CHARACTERS]
            raise DataError(f"expected {name} to be a finite {expected}, got {got}")
        if (type(entry) is int and entry > MAX_COUNT) or (type(entry) is str and len(entry) > MAX_TEXT):
            raise DataError(f"expected {name} to be a number or a text of usual size, got a longer one")
    return kind(**values)
