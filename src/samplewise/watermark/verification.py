"""A marked file measured against its original, and compared with the certificate beside it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from samplewise.errors import DataError, finite_number
from samplewise.watermark.certificate import Fidelity, ImageCertificate, certificate_path, fidelity
from samplewise.watermark.formats import ImageFile, naming, read
from samplewise.watermark.marking import Region
from samplewise.watermark.payload import Extracted
from samplewise.watermark.watermarker import Watermarker

SLACK = {"psnr": 1e-6, "ssim": 1e-3, "bit_errors": 2}
"""How far a certificate may be from what another processor finds: it rounds otherwise."""


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
    certificate: ImageCertificate | None
    """That beside the marked file."""
    problems: tuple[str, ...] = ()
    """What is not as it should be, in words; empty if all is well."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "satisfied": not self.problems,
            "problems": list(self.problems),
            **self.extracted.to_dict(),
            **{name: value for name, value in asdict(self).items() if name not in ("extracted", "problems")},
        }


def verify_files(
    marker: Watermarker, original: Path, marked: Path, *, floor: float | None = None, protect: Region | None = None
) -> Verification:
    """Measure ``marked`` against ``original``, read its message, and compare with the certificate beside it, if any.

    The floor, in dB, is that of the certificate if none is given; in ``protect`` no pixel may have changed.

    Raises:
        DataError: a file cannot be read, or the two are not the same kind of image.
    """
    before, after = read(original), read(marked)
    if _kind(before) != _kind(after):
        raise DataError(f"{marked}: expected an image as {original}, {_kind(before)}, got {_kind(after)}")
    beside = certificate_path(marked)
    told = ImageCertificate.read(beside) if beside.exists() else None
    if told is not None and told.model == marker.formerly:
        told = replace(told, model=marker.model)
    if floor is not None:
        floor = finite_number(floor, "the PSNR floor")
    protected = None if protect is None else protect.mask(before.pixels.shape[:2])
    with naming(marked):
        extracted = marker.extract(after)
    found = Verification(
        original_sha256=before.sha256,
        result_sha256=after.sha256,
        model=marker.model,
        floor=told.floor if floor is None and told is not None else floor,
        bits=marker.network.bits,
        fidelity=fidelity(before.pixels, after.pixels, peak=before.peak, protected=protected),
        extracted=extracted,
        certificate=told,
    )
    return replace(found, problems=tuple(_problems(found, protecting=protect is not None)))


def _kind(image: ImageFile) -> str:
    height, width = image.pixels.shape[:2]
    colour = "colour" if image.pixels.ndim == 3 else "grey"
    return f"{width} x {height}, {colour}, {image.bits} bits{' signed' if image.lowest else ''}"


def _problems(found: Verification, *, protecting: bool) -> list[str]:
    measured, told = found.fidelity, found.certificate
    problems = []
    if found.floor is not None and not measured.reaches(found.floor):
        problems.append(f"PSNR of {measured.psnr:.3f} dB, below the floor of {found.floor:g}")
    if not measured.protected_unchanged:
        problems.append("pixels changed in the protected region")
    if not found.extracted:
        problems.append("no readable watermark with this network and key")
    if told is None:
        return problems
    said = {name: getattr(told, name) for name in ("original_sha256", "result_sha256", "model", "bits", "bit_errors")}
    said |= asdict(told.fidelity)
    seen = {**vars(found), **asdict(measured), "bit_errors": found.extracted.corrected_errors}
    if not found.extracted:
        del said["bit_errors"]
    if not protecting:  # where the region was is not in the certificate
        del said["protected_pixels"], said["protected_unchanged"]
    return problems + [
        f"the certificate says {name} {value}, found {seen[name]}"
        for name, value in said.items()
        if not _agree(value, seen[name], SLACK.get(name, 0))
    ]


def _agree(said: Any, seen: Any, slack: float) -> bool:
    return bool(said == seen or (slack and None not in (said, seen) and abs(said - seen) <= slack))
