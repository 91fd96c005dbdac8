"""One image file marked, read or verified: what is certified is what lies on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, DataError, RefusedError
from samplewise.watermark.certificate import Certificate, Fidelity, fidelity, sha256
from samplewise.watermark.formats import Picture, read
from samplewise.watermark.payload import Payload
from samplewise.watermark.region import Region
from samplewise.watermark.watermarker import Extracted, Watermarker

if TYPE_CHECKING:
    from samplewise.watermark.formats import StoredImage

__all__ = ["FileMarker", "Verification", "certificate_path", "verify_files"]


def certificate_path(image: Path) -> Path:
    """Where the certificate of an image lies: beside it."""
    return image.with_name(f"{image.name}.json")


@dataclass(frozen=True)
class FileMarker:
    """Marks files, all with the same message and floor.

    Args:
        marker: the network and the key.
        payload: to hide.
        floor: PSNR in dB that every written file keeps.
        protect: where no pixel may change.
        force: replace files that are there.
        lossy: allow files that change the pixels (JPEG).
    """

    marker: Watermarker
    payload: Payload
    floor: float
    protect: Region | None = None
    force: bool = False
    lossy: bool = False

    def embed(self, source: Path, target: Path) -> Certificate:
        """Write ``target``, the marked ``source``, with its certificate beside it; whole, or not at all.

        The certificate takes its name first: where there is an image, there is one.

        Raises:
            RefusedError: the file that was written does not keep the floor, or its message cannot be read.
            DataError, ConfigurationError, OutputError: as :func:`read` and :meth:`Picture.write`.
        """
        picture = read(source)
        beside = certificate_path(target)
        picture.check_target(target, force=self.force, lossy=self.lossy)
        if beside.exists() and not self.force and not _orphan(beside, target):
            raise ConfigurationError(f"{beside}: is there already; choose another name or force")
        protected = None if self.protect is None else self.protect.mask(picture.pixels.shape[:2])
        try:
            marking = self.marker.mark(picture, self.payload, psnr=self.floor, protect=protected)
        except (RefusedError, DataError) as error:
            raise type(error)(f"{source}: {error}") from error
        certified: list[Certificate] = []

        def check(found: Picture) -> None:
            certificate = self._certificate(source, picture, found, protected)
            certificate.write(beside)
            certified.append(certificate)

        picture.write(target, marking.pixels, force=self.force, lossy=self.lossy, check=check)
        return certified[0]

    def _certificate(
        self, source: Path, original: Picture, written: Picture, protected: NDArray[np.bool_] | None
    ) -> Certificate:
        """What holds for the file that was just written under a temporary name."""
        reading = self.marker.read(written)
        if reading is None or reading.payload != self.payload:
            raise RefusedError(f"{source}: the message cannot be read from the written file: lower the floor")
        certificate = Certificate(
            original_sha256=sha256(source),
            result_sha256=sha256(written.path),
            model=self.marker.model,
            floor=self.floor,
            bits=self.marker.network.bits,
            bit_errors=reading.corrected,
            fidelity=_fidelity(original, written, protected),
        )
        if not certificate.satisfied:
            raise RefusedError(
                f"{source}: written with loss it has {certificate.fidelity.psnr:.2f} dB, below the floor of "
                f"{self.floor:g}, or a protected pixel changed: write it without loss"
            )
        return certificate


def _orphan(certificate: Path, image: Path) -> bool:
    """Whether a certificate was left behind by a run that was killed before its image took its name."""
    try:
        Certificate.read(certificate)
    except DataError:
        return False
    return not image.exists()


def _fidelity(original: StoredImage, marked: StoredImage, protected: NDArray[np.bool_] | None) -> Fidelity:
    mask = None
    if protected is not None:
        mask = np.broadcast_to(protected if original.pixels.ndim == 2 else protected[..., None], original.pixels.shape)
    return fidelity(original.pixels, marked.pixels, peak=original.peak, protected=mask)


@dataclass(frozen=True)
class Verification:
    """What two files show, recomputed from nothing but them."""

    original_sha256: str
    result_sha256: str
    model: str
    floor: float | None
    """In dB; None if neither asked for nor certified."""
    bits: int
    fidelity: Fidelity
    extracted: Extracted
    problems: tuple[str, ...]
    """What is not as it should be, in words; empty if all is well."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        from dataclasses import asdict

        message = self.extracted.message
        return {
            "satisfied": not self.problems,
            "problems": list(self.problems),
            "message": message.hex() if isinstance(message, bytes) else message,
            "kind": self.extracted.payload.kind.name.lower() if self.extracted.payload else None,
            "confidence": self.extracted.confidence,
            "bit_errors": self.extracted.corrected_errors if self.extracted else None,
            "original_sha256": self.original_sha256,
            "result_sha256": self.result_sha256,
            "model": self.model,
            "floor": self.floor,
            "bits": self.bits,
            "fidelity": asdict(self.fidelity),
        }


def verify_files(
    marker: Watermarker, original: Path, marked: Path, *, floor: float | None = None, protect: Region | None = None
) -> Verification:
    """Measure ``marked`` against ``original``, read its message, and compare with the certificate beside it, if any.

    Args:
        marker: the network and the key.
        original: the file before.
        marked: the file after.
        floor: PSNR in dB; that of the certificate if not given.
        protect: where no pixel may have changed.

    Raises:
        DataError: a file cannot be read, or the two are not the same kind of image.
    """
    before, after = read(original), read(marked)
    if before.pixels.shape != after.pixels.shape or before.pixels.dtype != after.pixels.dtype:
        raise DataError(
            f"{marked}: expected an image like {original}, {before.pixels.shape} of {before.pixels.dtype}, got "
            f"{after.pixels.shape} of {after.pixels.dtype}"
        )
    protected = None if protect is None else protect.mask(before.pixels.shape[:2])
    beside = certificate_path(marked)
    told = Certificate.read(beside) if beside.exists() else None
    found = Verification(
        original_sha256=sha256(original),
        result_sha256=sha256(marked),
        model=marker.model,
        floor=told.floor if floor is None and told is not None else floor,
        bits=marker.network.bits,
        fidelity=_fidelity(before, after, protected),
        extracted=marker.extract(after),
        problems=(),
    )
    return Verification(**{**vars(found), "problems": tuple(_problems(found, told, protect is not None))})


def _problems(found: Verification, told: Certificate | None, protecting: bool) -> list[str]:
    measured = found.fidelity
    problems = []
    if found.floor is not None and not measured.reaches(found.floor):
        problems.append(f"PSNR of {measured.psnr:.3f} dB, below the floor of {found.floor:g}")
    if not measured.protected_unchanged:
        problems.append("pixels changed in the protected region")
    if not found.extracted:
        problems.append("no readable watermark with this network and key")
    if told is not None:
        pairs = {
            "original_sha256": (told.original_sha256, found.original_sha256),
            "result_sha256": (told.result_sha256, found.result_sha256),
            "model": (told.model, found.model),
            "psnr": (told.fidelity.psnr, measured.psnr),
            "max_difference": (told.fidelity.max_difference, measured.max_difference),
            "changed_share": (told.fidelity.changed_share, measured.changed_share),
        }
        if protecting:
            pairs["protected_pixels"] = (told.fidelity.protected_pixels, measured.protected_pixels)
        problems += [f"the certificate says {name} {a}, found {b}" for name, (a, b) in pairs.items() if a != b]
    return problems
