"""One image file marked or verified: what is certified is what lies on the disk."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, DataError, RefusedError, finite_number
from samplewise.watermark.certificate import Certificate, Fidelity, fidelity
from samplewise.watermark.formats import Picture, read
from samplewise.watermark.payload import Payload
from samplewise.watermark.region import Region
from samplewise.watermark.strength import checked_floor
from samplewise.watermark.watermarker import Extracted, Marking, Watermarker

__all__ = ["FileMarker", "Verification", "Written", "certificate_path", "verify_files"]

LOSSY_TRIES = 4
"""Strengths that are tried for a file that is compressed with loss, as its PSNR is known only afterwards."""
LEAST_ROOM = 1e-8
"""Mean square, of values in [0, 1]: less is no mark."""
LONGEST_NAME = 230
"""Bytes; temporary names and that of the certificate are longer, and file systems take 255."""
SLACK = {"psnr": 1e-6, "ssim": 1e-3, "bit_errors": 2}
"""How far a certificate may be from what another processor finds: it rounds otherwise."""


def certificate_path(image: Path) -> Path:
    """Where the certificate of an image lies: beside it."""
    return image.with_name(f"{image.name}.json")


@dataclass(frozen=True)
class Written:
    """A marked file that was written."""

    certificate: Certificate
    notes: tuple[str, ...]
    """What was converted, and what could not be kept."""


class _BelowFloor(RefusedError):
    """Compression took a file below its floor."""

    def __init__(self, message: str, reached: float) -> None:
        super().__init__(message)
        self.reached = reached


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

    def __post_init__(self) -> None:
        # What is wrong for every image is said before one is read.
        checked_floor(self.floor)
        self.marker.codec.encode(self.payload)

    def embed(self, source: Path, target: Path) -> Written:
        """Write ``target``, the marked ``source``, with its certificate beside it; whole, or not at all.

        The certificate takes its name first: where there is an image, there is one.

        Raises:
            RefusedError: the message cannot be read back at the floor.
            DataError, ConfigurationError, OutputError: as :func:`read` and :meth:`Picture.write`.
        """
        picture = read(source)
        exact = self._check_names(picture, target)
        with _naming(source):
            protected = None if self.protect is None else self.protect.mask(picture.pixels.shape[:2])
        write = self._attempt if exact else self._with_loss
        return Written(write(picture, target, protected, self.floor), picture.notes)

    def _check_names(self, picture: Picture, target: Path) -> bool:
        """Refuse names that cannot be written to; returns whether the format holds every pixel exactly."""
        beside = certificate_path(target)
        if len(os.fsencode(target.name)) > LONGEST_NAME:
            raise ConfigurationError(f"{target}: expected a name of at most {LONGEST_NAME} bytes: choose a shorter one")
        for path in (target, beside):
            if _same_file(path, picture.path):
                raise ConfigurationError(
                    f"{path}: is the image that is read: choose another name, to keep the original"
                )
        exact = picture.check_target(target, force=self.force, lossy=self.lossy)
        if os.path.lexists(beside):
            if not _is_certificate(beside):
                raise ConfigurationError(
                    f"{beside}: is there already, and no certificate that could be replaced: choose another name"
                )
            # One without its image was left by a run that was killed before the image took its name.
            if os.path.lexists(target) and not self.force:
                raise ConfigurationError(f"{beside}: is there already; choose another name or force")
        if not exact and self.protect is not None:
            raise ConfigurationError(f"{target}: JPEG changes protected pixels too: write .png")
        return exact

    def _attempt(
        self, picture: Picture, target: Path, protected: NDArray[np.bool_] | None, floor: float
    ) -> Certificate:
        """Write the picture marked at ``floor`` and certify what can be read from the disk, or keep nothing."""
        with _naming(picture.path):
            marking = self.marker.mark(picture, self.payload, psnr=floor, protect=protected)
        certified: list[Certificate] = []

        def check(written: Picture) -> None:
            reading = self.marker.read(written)
            if reading is None or reading.payload != self.payload:
                raise RefusedError(
                    f"{picture.path}: the message cannot be read from the written file: lower the floor, or write .png"
                )
            hashes = picture.sha256, written.sha256
            found = Marking(written.pixels, reading.corrected)
            certificate = self.marker.certify(picture, found, hashes, floor=self.floor, protect=protected)
            if not certificate.satisfied:
                reached = certificate.fidelity.psnr or math.inf
                told = f"compressed with loss it has {reached:.2f} dB, below the floor of {self.floor:g}"
                raise _BelowFloor(f"{picture.path}: {told}: lower the floor, or write .png", reached)
            certificate.write(certificate_path(target))
            certified.append(certificate)

        picture.write(target, marking.pixels, force=self.force, lossy=self.lossy, check=check)
        return certified[0]

    def _with_loss(
        self, picture: Picture, target: Path, protected: NDArray[np.bool_] | None, floor: float
    ) -> Certificate:
        """The same, but marked so much weaker that the file keeps the floor after its compression."""
        below: _BelowFloor | None = None
        for _ in range(LOSSY_TRIES):
            try:
                return self._attempt(picture, target, protected, floor)
            except _BelowFloor as error:
                below = error
            except RefusedError:
                if below is None:
                    raise
                break  # too weak to be read: what it had before tells more
            wanted, marked, written = (10.0 ** (-psnr / 10.0) for psnr in (self.floor, floor, below.reached))
            left = wanted - (written - marked)  # squared errors add up: what compression leaves for the mark
            if left < LEAST_ROOM:
                break
            floor = 0.05 - 10.0 * math.log10(left)
        assert below is not None
        raise below


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Say in an error which file it is about."""
    try:
        yield
    except (RefusedError, DataError, ConfigurationError) as error:
        raise type(error)(f"{path}: {error}") from error


def _is_certificate(path: Path) -> bool:
    try:
        Certificate.read(path)
    except DataError:
        return False
    return True


def _same_file(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:  # one is not there
        return False


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
    certificate: Certificate | None
    """That beside the marked file."""
    problems: tuple[str, ...] = ()
    """What is not as it should be, in words; empty if all is well."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "satisfied": not self.problems,
            "problems": list(self.problems),
            **self.extracted.to_dict(),
            "original_sha256": self.original_sha256,
            "result_sha256": self.result_sha256,
            "model": self.model,
            "floor": self.floor,
            "bits": self.bits,
            "fidelity": asdict(self.fidelity),
            "certificate": None if self.certificate is None else asdict(self.certificate),
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
    if _kind(before) != _kind(after):
        raise DataError(f"{marked}: expected an image as {original}, {_kind(before)}, got {_kind(after)}")
    beside = certificate_path(marked)
    told = Certificate.read(beside) if beside.exists() else None
    if floor is not None:
        floor = finite_number(floor, "the PSNR floor")
    protected = None if protect is None else protect.mask(before.pixels.shape[:2])
    found = Verification(
        original_sha256=before.sha256,
        result_sha256=after.sha256,
        model=marker.model,
        floor=told.floor if floor is None and told is not None else floor,
        bits=marker.network.bits,
        fidelity=fidelity(before.pixels, after.pixels, peak=before.peak, protected=protected),
        extracted=marker.extract(after),
        certificate=told,
    )
    return replace(found, problems=tuple(_problems(found, protecting=protect is not None)))


def _kind(picture: Picture) -> str:
    height, width = picture.pixels.shape[:2]
    colour = "colour" if picture.pixels.ndim == 3 else "grey"
    return f"{width} x {height}, {colour}, {picture.bits} bits{' signed' if picture.lowest else ''}"


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
    pairs: dict[str, tuple[Any, Any]] = {
        name: (getattr(told, name), getattr(found, name))
        for name in ("original_sha256", "result_sha256", "model", "bits")
    }
    if found.extracted:
        pairs["bit_errors"] = (told.bit_errors, found.extracted.corrected_errors)
    compared = asdict(told.fidelity)
    if not protecting:  # where the region was is not in the certificate
        del compared["protected_pixels"], compared["protected_unchanged"]
    pairs |= {name: (value, getattr(measured, name)) for name, value in compared.items()}
    return problems + [
        f"the certificate says {name} {said}, found {seen}"
        for name, (said, seen) in pairs.items()
        if not _agree(said, seen, SLACK.get(name, 0))
    ]


def _agree(said: Any, seen: Any, slack: float) -> bool:
    return bool(said == seen or (slack and None not in (said, seen) and abs(said - seen) <= slack))
