"""One image file marked: what is certified is what lies on the disk."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, DataError, RefusedError
from samplewise.watermark.certificate import Certificate, certificate_path
from samplewise.watermark.formats import ImageFile, check_free, naming, read
from samplewise.watermark.payload import Payload
from samplewise.watermark.region import Region
from samplewise.watermark.strength import checked_floor
from samplewise.watermark.watermarker import Watermarker

__all__ = ["FileMarker"]

LOSSY_TRIES = 4
"""Strengths that are tried for a file that is compressed with loss, as its PSNR is known only afterwards."""
LEAST_ROOM = 1e-8
"""Mean square, of values in [0, 1]: less is no mark."""
LONGEST_NAME = 230
"""Bytes; the name of the certificate is longer, and file systems take 255."""


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

    def mark_file(self, source: Path, target: Path) -> tuple[Certificate, tuple[str, ...]]:
        """Write ``target``, the marked ``source``, with its certificate beside it; whole, or not at all.

        The certificate takes its name first: where there is an image, there is one.

        Returns:
            The certificate, and notes: what was converted, and what could not be kept.

        Raises:
            RefusedError: the message cannot be read back at the floor.
            DataError, ConfigurationError, OutputError: as :func:`read` and :meth:`ImageFile.write`.
        """
        image = read(source)
        self._check_names(source, target)
        exact = image.target_format(target, lossy=self.lossy).exact
        if not exact and self.protect is not None:
            raise ConfigurationError(f"{target}: JPEG changes protected pixels too: write .png")
        with naming(source):
            protected = None if self.protect is None else self.protect.mask(image.pixels.shape[:2])
        write = self._attempt if exact else self._with_loss
        return write(image, target, protected, self.floor), image.notes

    def _check_names(self, source: Path, target: Path) -> None:
        """Refuse names that cannot be written to, before the work of marking."""
        beside = certificate_path(target)
        if len(os.fsencode(target.name)) > LONGEST_NAME:
            raise ConfigurationError(f"{target}: expected a name of at most {LONGEST_NAME} bytes: choose a shorter one")
        for path in (target, beside):
            if path.exists() and path.samefile(source):
                raise ConfigurationError(
                    f"{path}: is the image that is read: choose another name, to keep the original"
                )
        check_free(target, force=self.force)
        # A certificate without its image was left by a run that was killed before the image took its name.
        if os.path.lexists(beside) and not _is_certificate(beside):
            raise ConfigurationError(
                f"{beside}: is there already, and no certificate that could be replaced: choose another name"
            )

    def _attempt(
        self, image: ImageFile, target: Path, protected: NDArray[np.bool_] | None, floor: float
    ) -> Certificate:
        """Write the image marked at ``floor`` and certify what can be read from the disk, or keep nothing."""
        with naming(image.path):
            pixels, _ = self.marker.mark(image, self.payload, psnr=floor, protect=protected)
        certified: list[Certificate] = []

        def check(written: ImageFile) -> None:
            found = self.marker.read(written)
            if found is None or found.payload != self.payload:
                raise RefusedError(
                    f"{image.path}: the message cannot be read from the written file: lower the floor, or write .png"
                )
            hashes = image.sha256, written.sha256
            certificate = self.marker.certify(image, written.pixels, found.corrected, hashes, self.floor, protected)
            if not certificate.satisfied:
                reached = certificate.fidelity.psnr or math.inf
                told = f"compressed with loss it has {reached:.2f} dB, below the floor of {self.floor:g}"
                raise _BelowFloor(f"{image.path}: {told}: lower the floor, or write .png", reached)
            certificate.write(certificate_path(target))
            certified.append(certificate)

        image.write(target, pixels, force=self.force, lossy=self.lossy, check=check)
        return certified[0]

    def _with_loss(
        self, image: ImageFile, target: Path, protected: NDArray[np.bool_] | None, floor: float
    ) -> Certificate:
        """The same, but marked so much weaker that the file keeps the floor after its compression."""
        below: _BelowFloor | None = None
        for _ in range(LOSSY_TRIES):
            try:
                return self._attempt(image, target, protected, floor)
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


def _is_certificate(path: Path) -> bool:
    try:
        Certificate.read(path)
    except DataError:
        return False
    return True
