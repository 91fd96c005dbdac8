"""Mark one image file; the certificate is about the file on the disk."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from floormark.api import TAKEN_FOR_ANOTHER, Watermarker
from floormark.certificate import Fidelity, ImageCertificate, certificate_path
from floormark.errors import ConfigurationError, DataError, RefusedError, prefix_path
from floormark.files.messages import Messages
from floormark.imageio import ImageFile, Pixels, check_free, frames_sha256, read, target_format
from floormark.options import EmbedOptions
from floormark.payload import Kind, Payload
from floormark.prepared import PreparedImage

if TYPE_CHECKING:
    from floormark.content_credentials import Credentials
    from floormark.register import Entry, Register  # SQLite is needed for recording only
    from floormark.signing import Signer  # cryptography is needed for signing only

LOSSY_TRIALS = 4
"""Trials of the strength for a file that is compressed with loss, as its PSNR is known only afterwards."""
MIN_MARK_SQUARE = 1e-8  # least mean square of a mark, of values in [0, 1]
MAX_NAME_BYTES = 230  # of a file; the certificate's name is longer, and file systems allow 255


Notes = tuple[str, ...]


class _BelowFloor(RefusedError):
    """Compression took a file below its floor."""

    def __init__(self, message: str, reached: float) -> None:
        super().__init__(message)
        self.reached = reached


@dataclass(frozen=True)
class FileMarker:
    """Marks files, all with the same options."""

    marker: Watermarker
    """The network and the key."""
    message: Payload | Messages | None = None
    """The same for all files, or one for each; with a register, there may be none."""
    options: EmbedOptions = dataclasses.field(default_factory=EmbedOptions)
    """The floor that every written file keeps, and the other options of the embedding."""
    force: bool = False
    """Replace files that are there."""
    lossy: bool = False
    """Allow files that change the pixels (JPEG)."""
    to_rgb: bool = False
    """Convert DICOM images with a palette, which no marked image can keep, to RGB of 8 bits; else they are refused."""
    keep_series: bool = False
    """Keep DICOM images in the series of their originals, instead of a new series for each of these."""
    signer: Signer | None = None
    """Signs the certificates."""
    register: Register | None = None
    """Records each file: the image gets a random identifier, and the register keeps the message."""
    credentials: Credentials | None = None
    """Sign a manifest of C2PA inside each file."""

    def __post_init__(self) -> None:
        if self.register is not None:
            self.register.check_signer()
        if self.credentials is not None and self.register is None and self.marker.scheme.key is not None:
            raise ConfigurationError(
                "a manifest shows everybody what the mark says, which the key is to hide: add a register, so that the "
                "mark is an identifier, or leave out the key"
            )
        if self.message is None and self.register is None:
            raise ConfigurationError("expected a message, or a register that gives each image an identifier")
        if isinstance(self.message, Payload) and self.register is None:
            self.marker.codec.encode(self.message)  # a message too long for any image is an error before one is read

    @property
    def message_and_key(self) -> str:
        """A fingerprint of the messages and the key that does not reveal them."""
        if isinstance(self.message, Payload) and self.register is None:
            hidden = self.marker.codec.encode(self.message).tobytes()
        else:
            said = self.message.shown if isinstance(self.message, Payload) else getattr(self.message, "identity", "")
            hidden = self.marker.codec.encode(b"?").tobytes() + said.encode()
        return hashlib.sha256(hidden).hexdigest()[:16]

    def mark_file(self, source: Path, target: Path, *, name: str | None = None) -> tuple[ImageCertificate, Notes]:
        """Write ``target``, the marked ``source``, with its certificate beside it; whole, or not at all.

        The certificate gets its name first, so every marked image has one. A file that is compressed with loss is
        marked more weakly, so that it still keeps the floor. ``name`` selects the message of a file, if each has its
        own; the file's name if not given.

        Returns:
            The certificate, and notes: what was converted, and what could not be kept.

        Raises:
            RefusedError: the message cannot be read back at the floor, or would be taken for another image's.
            DataError, ConfigurationError, OutputError: as :func:`read` and :meth:`ImageFile.writing`.
        """
        image = dataclasses.replace(read(source), keep_series=self.keep_series)
        if self.register is not None:
            self.register.settle_pending(target)  # of a run that was killed
        self._check_names(source, target)
        kind = target_format(image, target, lossy=self.lossy)
        exact = kind.exact
        if self.credentials is not None:
            self.credentials.check(image.format, kind)
        if not exact and self.options.protect is not None:
            raise ConfigurationError(f"{target}: JPEG changes protected pixels too: write .png")
        if image.had_palette and not self.to_rgb:
            raise DataError(f"{source}: has a palette, which no marked image can keep: allow RGB with --to-rgb")
        name = name or source.name
        payload = self._payload(image, name)
        entry = None if self.register is None else self._entry(image, name, payload, target)
        prepared, asked, below = PreparedImage(image), self.options.psnr, None
        floor = asked
        for _ in range(1 if exact else LOSSY_TRIALS):
            try:
                return self._attempt(image, prepared, payload, entry, target, floor, exact=exact), image.notes
            except _BelowFloor as error:
                below = error
            except RefusedError:
                if below is None:
                    raise
                break  # too weak to be read: the error of the trial before says more
            wanted, marked, written = (10.0 ** (-psnr / 10.0) for psnr in (asked, floor, below.reached))
            left = wanted - (written - marked)  # squared errors add up: the rest is left for the mark
            if left < MIN_MARK_SQUARE:
                break
            floor = 0.05 - 10.0 * math.log10(left)
        assert below is not None
        raise below

    def _payload(self, image: ImageFile, name: str) -> Payload:
        """The payload of one file; a message that cannot be embedded is bad input and is not shown."""
        if self.register is not None:
            return Payload(Kind.HEX, self.register.new_identifier())
        assert self.message is not None
        if isinstance(self.message, Payload):
            return self.message
        with prefix_path(image.path):
            payload = Payload.from_text(self.message.text(image, name))
            self.marker.codec.encode(payload)
        return payload

    def _entry(self, image: ImageFile, name: str, payload: Payload, target: Path) -> partial[Entry]:
        """The register's entry for one file, as far as it is known before marking."""
        from floormark.register import Entry

        owner, key = "", self.marker.scheme.key
        if isinstance(self.message, Payload):
            owner = self.message.shown
        elif self.message is not None:
            with prefix_path(image.path):
                owner = self.message.text(image, name)
        return partial(
            Entry,
            identifier=payload.content,
            owner=owner,
            source=name,
            target=str(target.absolute()),
            old_uid=instance_uid(image),
            key="" if key is None else key.fingerprint,
        )

    def _check_names(self, source: Path, target: Path) -> None:
        """Refuse names that cannot be written to, before the work of marking."""
        beside = certificate_path(target)
        if len(os.fsencode(target.name)) > MAX_NAME_BYTES:
            raise ConfigurationError(f"{target}: expected a name of at most {MAX_NAME_BYTES} bytes")
        for path in (target, beside):
            if path.exists() and path.samefile(source):
                raise ConfigurationError(f"{path}: is the image that is read: choose another name")
        check_free(target, force=self.force)
        if os.path.lexists(beside):
            try:
                ImageCertificate.read(beside)  # left by a run that was killed before its image took its name
            except DataError as error:
                told = f"{beside}: is there already, and no certificate that could be replaced: choose another name"
                raise ConfigurationError(told) from error

    def _attempt(
        self,
        image: ImageFile,
        prepared: PreparedImage,
        payload: Payload,
        entry: partial[Entry] | None,
        target: Path,
        floor: float,
        *,
        exact: bool,
    ) -> ImageCertificate:
        """Write the image marked at ``floor`` and certify what can be read from the disk, or keep nothing."""
        frames: list[ImageCertificate] = []
        marked = self._frames(image, prepared, payload, floor, frames)
        first = next(marked)  # if it is refused, not even a folder is made
        with image.writing(target, chain([first], marked), force=self.force, lossy=self.lossy) as written:
            # An exact file, which writing has checked, decodes as the pixels did.
            if not exact:
                frames = [self._read_back(image, prepared, payload, written)]
            if self.credentials is not None:
                written = self.credentials.add(image, written, payload, self.marker.model)
            certificate = dataclasses.replace(
                frames[0],
                original_sha256=image.sha256,
                result_sha256=written.sha256,
                original_pixels_sha256=frames_sha256([each.original_pixels_sha256 for each in frames]),
                result_pixels_sha256=frames_sha256([each.result_pixels_sha256 for each in frames]),
                bit_errors=max(each.bit_errors for each in frames),
                fidelity=Fidelity.worst([each.fidelity for each in frames]),
                frames=len(frames),
            )
            if not certificate.satisfied:
                reached = min(certificate.fidelity.floors, default=math.inf)
                told = f"compressed with loss it has {reached:.2f} dB, below the floor of {self.options.psnr:g}"
                raise _BelowFloor(f"{image.path}: {told}: lower the floor, or write .png", reached)
            if self.signer is not None:
                certificate = self.signer.sign(certificate)
            certificate.write(certificate_path(target))
            if self.register is not None and entry is not None:
                self.register.intend(entry(certificate=certificate, new_uid=instance_uid(written)))
        if self.register is not None:
            self.register.settle(payload.content)
        return certificate

    def _frames(
        self, image: ImageFile, first: PreparedImage, payload: Payload, floor: float, into: list[ImageCertificate]
    ) -> Iterator[Pixels]:
        """The pixels of each frame, marked at ``floor``, one at a time; certificates are appended to ``into``."""
        for number, frame in enumerate(image.frames(), 1):
            with prefix_path(image.path if image.frame_count == 1 else f"{image.path}: frame {number}"):
                prepared = first if number == 1 else PreparedImage(frame)
                marked = self.marker.mark(prepared, payload, dataclasses.replace(self.options, psnr=floor))
            assert marked.found is not None  # else it is refused
            errors = marked.found.corrected_errors
            into.append(self.marker.certify(prepared, marked.pixels, self.options, bit_errors=errors))
            yield marked.pixels

    def _read_back(
        self, image: ImageFile, prepared: PreparedImage, payload: Payload, written: ImageFile
    ) -> ImageCertificate:
        """The certificate of a file that was compressed with loss."""
        found = self.marker.extract(written)
        if found.payload != payload:
            told = "the message cannot be read from the written file: lower the floor, or write .png"
            raise RefusedError(f"{image.path}: {told}")
        if found.belongs is False:
            raise RefusedError(f"{image.path}: {TAKEN_FOR_ANOTHER}, as written: raise the floor, or write .png")
        return self.marker.certify(prepared, written.pixels, self.options, bit_errors=found.corrected_errors)


def instance_uid(image: ImageFile) -> str:
    """The SOP Instance UID of a DICOM file; empty of others."""
    if image.format.name != "dicom":
        return ""
    from pydicom import dcmread

    return str(
        dcmread(io.BytesIO(image.kept), stop_before_pixels=True, specific_tags=["SOPInstanceUID"]).SOPInstanceUID
    )
