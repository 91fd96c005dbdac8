"""One image file marked: what is certified is what lies on the disk."""

from __future__ import annotations

import hashlib
import math
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from floormark.api import OTHERS, Watermarker
from floormark.certificate import ImageCertificate, certificate_path
from floormark.errors import ConfigurationError, DataError, RefusedError
from floormark.files.messages import Messages
from floormark.imageio import ImageFile, check_free, naming, read, target_format
from floormark.payload import Payload
from floormark.strength import checked_floor

if TYPE_CHECKING:
    from floormark.signing import Signer  # who does not sign needs no cryptography

LOSSY_TRIES = 4
"""Strengths that are tried for a file that is compressed with loss, as its PSNR is known only afterwards."""
LEAST_ROOM = 1e-8
"""Mean square, of values in [0, 1]: less is no mark."""
LONGEST_NAME = 230
"""Bytes; the name of the certificate is longer, and file systems take 255."""
GRAMMAR = "x,y,width,height in pixels, such as 100,80,64,64, or the file of a mask that is not zero where to protect"
RECTANGLE = re.compile(r"\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*")


@dataclass(frozen=True, eq=False)
class Region:
    """Where no pixel may change."""

    text: str
    """As it was given: a rectangle ``x,y,w,h``, or the file of a mask."""
    drawn: NDArray[np.bool_] | None = None
    """The mask, True inside, shape ``(H, W)``."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``x,y,w,h``, or the mask in the file of that name."""
        if found := RECTANGLE.fullmatch(text):
            if not int(found[3]) or not int(found[4]):
                raise ConfigurationError(f"expected a region of at least one pixel, got {text!r}: {GRAMMAR}")
            return cls(text)
        try:
            there = Path(text).exists()
        except OSError:  # such as a name that is too long
            there = False
        if not there:
            raise ConfigurationError(f"expected a region as {GRAMMAR}; got {text!r}")
        pixels = read(text).pixels
        inside = pixels != 0 if pixels.ndim == 2 else (pixels != 0).any(2)
        if not inside.any():
            raise ConfigurationError(f"{text}: expected a mask that protects some pixels, got one of zeros")
        return cls(text, inside)

    @property
    def identity(self) -> str:
        """What tells this region from others: a file may have changed under its name."""
        return self.place if self.drawn is None else self.place[:16]

    @property
    def place(self) -> str:
        """How certificates name it: ``x,y,w,h``, or the SHA-256 of the mask."""
        if self.drawn is None:
            return ",".join(str(int(number)) for number in self.text.split(","))
        return hashlib.sha256(f"{self.drawn.shape}".encode() + np.packbits(self.drawn).tobytes()).hexdigest()

    def mask(self, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """True inside, for an image of ``shape`` ``(H, W)``."""
        height, width = shape
        if self.drawn is not None:
            if self.drawn.shape != (height, width):
                raise ConfigurationError(
                    f"{self.text}: expected a mask of {width} x {height} pixels, as the image, got "
                    f"{self.drawn.shape[1]} x {self.drawn.shape[0]}"
                )
            return self.drawn
        left, top, across, down = map(int, self.text.split(","))
        if left + across > width or top + down > height:
            raise ConfigurationError(f"expected a region inside of {width} x {height} pixels, got {self.text}")
        mask = np.zeros((height, width), np.bool_)
        mask[top : top + down, left : left + across] = True
        return mask


class _BelowFloor(RefusedError):
    """Compression took a file below its floor."""

    def __init__(self, message: str, reached: float) -> None:
        super().__init__(message)
        self.reached = reached


@dataclass(frozen=True)
class FileMarker:
    """Marks files, all with the same floor."""

    marker: Watermarker
    """The network and the key."""
    message: Payload | Messages
    """The same for all files, or one for each."""
    floor: float
    """PSNR in dB that every written file keeps."""
    protect: Region | None = None
    force: bool = False
    """Replace files that are there."""
    lossy: bool = False
    """Allow files that change the pixels (JPEG)."""
    signer: Signer | None = None
    """Signs the certificates."""
    max_difference: float | None = None
    """The most by which a stored value may change."""
    replace: bool = False
    """Write the message in the place of one that is there."""

    def __post_init__(self) -> None:
        # What is wrong for every image is said before one is read.
        checked_floor(self.floor)
        if self.max_difference is not None and not self.max_difference >= 1:
            raise ConfigurationError(f"expected a largest difference of at least 1, got {self.max_difference}")
        if isinstance(self.message, Payload):
            self.marker.codec.encode(self.message)

    @property
    def message_and_key(self) -> str:
        """What tells the messages and the key from others, without telling what they are."""
        if isinstance(self.message, Payload):
            hidden = self.marker.codec.encode(self.message).tobytes()
        else:
            hidden = self.marker.codec.encode(Payload.of(b"?")).tobytes() + self.message.identity.encode()
        return hashlib.sha256(hidden).hexdigest()[:16]

    def mark_file(
        self, source: Path, target: Path, *, name: str | None = None
    ) -> tuple[ImageCertificate, tuple[str, ...]]:
        """Write ``target``, the marked ``source``, with its certificate beside it; whole, or not at all.

        The certificate takes its name first: where there is an image, there is one. A file that is compressed with loss
        is marked so much weaker that it keeps the floor after that.

        Args:
            source: the image.
            target: the marked one.
            name: of the image among the messages for each file; that of the file if not given.

        Returns:
            The certificate, and notes: what was converted, and what could not be kept.

        Raises:
            RefusedError: the message cannot be read back at the floor, or would be taken for another image's.
            DataError, ConfigurationError, OutputError: as :func:`read` and :meth:`ImageFile.write`.
        """
        image = read(source)
        self._check_names(source, target)
        exact = target_format(image, target, lossy=self.lossy).exact
        if not exact and self.protect is not None:
            raise ConfigurationError(f"{target}: JPEG changes protected pixels too: write .png")
        payload = self._payload(image, name or source.name)
        with naming(source):
            protected = None if self.protect is None else self.protect.mask(image.pixels.shape[:2])
        floor, below = self.floor, None
        for _ in range(1 if exact else LOSSY_TRIES):
            try:
                return self._attempt(image, payload, target, protected, floor), image.notes
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

    def _payload(self, image: ImageFile, name: str) -> Payload:
        """The message of one file; one that cannot be hidden is bad input, and is not shown."""
        if isinstance(self.message, Payload):
            return self.message
        with naming(image.path):
            payload = self.message.for_file(image, name)
            self.marker.codec.encode(payload)
        return payload

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
        if os.path.lexists(beside):
            try:
                ImageCertificate.read(beside)  # left by a run that was killed before its image took its name
            except DataError as error:
                raise ConfigurationError(
                    f"{beside}: is there already, and no certificate that could be replaced: choose another name"
                ) from error

    def _attempt(
        self, image: ImageFile, payload: Payload, target: Path, protected: NDArray[np.bool_] | None, floor: float
    ) -> ImageCertificate:
        """Write the image marked at ``floor`` and certify what can be read from the disk, or keep nothing."""
        with naming(image.path):
            pixels, _ = self.marker.mark(
                image,
                payload,
                psnr=floor,
                protect=protected,
                max_difference=self.max_difference,
                replace=self.replace,
            )
        with image.writing(target, pixels, force=self.force, lossy=self.lossy) as written:
            found = self.marker.extract(written)
            if found.payload != payload:
                raise RefusedError(
                    f"{image.path}: the message cannot be read from the written file: lower the floor, or write .png"
                )
            if found.belongs is False:
                raise RefusedError(f"{image.path}: {OTHERS}, as written: raise the floor, or write .png")
            hashes, wrong = (image.sha256, written.sha256), found.corrected_errors
            certificate = self.marker.certify(image, written.pixels, wrong, hashes, self.floor, protected)
            if not certificate.satisfied:
                reached = min(certificate.fidelity.floors, default=math.inf)
                told = f"compressed with loss it has {reached:.2f} dB, below the floor of {self.floor:g}"
                raise _BelowFloor(f"{image.path}: {told}: lower the floor, or write .png", reached)
            certificate = self._completed(certificate)
            certificate.write(certificate_path(target))
        return certificate

    def _completed(self, certificate: ImageCertificate) -> ImageCertificate:
        """With what only files have: the region by its name, and the signature, which comes last."""
        if self.protect is not None:
            certificate = replace(certificate, protected=self.protect.place)
        return certificate if self.signer is None else self.signer.sign(certificate)
