"""What the page asks for: what an image says and whether it is true, and an image marked."""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from floormark.api import Watermarker
from floormark.certificate import ImageCertificate, certificate_path, read_entries
from floormark.disk import cannot_write
from floormark.errors import ConfigurationError, FloormarkError
from floormark.files.folder import marked_name
from floormark.files.marking import FileMarker, instance_uid
from floormark.imageio import ImageFile, read
from floormark.network import CELL
from floormark.options import EmbedOptions
from floormark.parts import OTHER, PART
from floormark.payload import Extracted, Kind, Payload
from floormark.prepared import PreparedImage
from floormark.register import Entry, Record, Register
from floormark.signing import PublicKey, Signer, signed_by
from floormark.verify import verify_files

MEMORY = "/dev/shm"  # a file system that is never written to a disk, where there is one
SHOWN_SIDE = 1600  # pixels of the longer side of what the browser is given
MAX_SHOWN_NAME = 100  # characters of the name of a file
UNNAMEABLE = re.compile(r"[^\w.() -]|^[.\s]+")

Facts = dict[str, Any]


@dataclass(frozen=True)
class Upload:
    """One file, as the browser sent it."""

    name: str
    content: bytes

    @property
    def safe_name(self) -> str:
        """Its name, without what could lead elsewhere."""
        return UNNAMEABLE.sub("", Path(self.name).name)[-MAX_SHOWN_NAME:] or "image"


@dataclass(frozen=True)
class Desk:
    """Does the work of the page, with one network, its keys and, if there is one, a register."""

    marker: Watermarker
    register: Register | None = None
    signer: Signer | None = None
    public_key: PublicKey | None = None

    def inspect(self, uploads: Mapping[str, Upload]) -> tuple[Facts, list[bytes]]:
        """What ``image`` says; against ``original`` and ``certificate`` too, if they are there. And pixels to show."""
        with _laid_out(uploads) as paths:
            image = read(paths["image"])
            found = self.marker.extract_all(image)
            marks = [self._mark(each, image) for each in found if each.payload is not None]
            facts: Facts = {"name": uploads["image"].safe_name, "format": image.format.name, "marks": marks}
            facts["records"] = [] if marks or self.register is None else self._by_hash(self.register, image)
            facts["registered"] = self.register is not None
            facts["other_key"] = any(each.other_key for each in found)
            images = [image]
            if "original" in paths:
                images.append(original := read(paths["original"]))
                facts["verdict"], facts["measured"] = self._compared(paths)
                if original.pixels.shape != image.pixels.shape:  # which comparing has refused
                    raise ConfigurationError("the original is not of the size of the image")
            elif "certificate" in paths:
                facts["verdict"] = self._certified(paths["certificate"], image)
            shown = [_shown(each) for each in images]
            facts["pictures"] = [picture for picture, _ in shown]
            return facts, [pixels for _, pixels in shown]

    def mark(self, uploads: Mapping[str, Upload], message: str, psnr: float) -> tuple[Facts, list[bytes]]:
        """``image`` marked, and its certificate; with a register, which keeps the message, by an identifier."""
        if self.register is not None:
            self.register.check_signer()
        identifier = None if self.register is None else self.register.new_identifier()
        payload = Payload.from_text(message) if identifier is None else Payload(Kind.HEX, identifier)
        files = FileMarker(self.marker, payload, EmbedOptions(psnr=psnr), signer=self.signer)
        with _laid_out(uploads) as paths:
            source = paths["image"]
            target = source.parent.with_name("marked") / marked_name(Path(source.name), lossy=False)
            certificate, notes = files.mark_file(source, target)
            if self.register is not None and identifier is not None:
                self._record(self.register, identifier, message, source, target, certificate)
            facts = {"name": target.name, "notes": notes, "identifier": identifier and identifier.hex()}
            return facts, [target.read_bytes(), certificate_path(target).read_bytes()]

    def _record(
        self,
        register: Register,
        identifier: bytes,
        owner: str,
        source: Path,
        target: Path,
        certificate: ImageCertificate,
    ) -> None:
        key = self.marker.scheme.key
        uids = instance_uid(read(source)), instance_uid(read(target))
        entry = Entry(
            identifier, certificate, owner, source.name, "", *uids, key="" if key is None else key.fingerprint
        )
        register.intend(entry)
        register.settle(identifier)

    def _mark(self, found: Extracted, image: ImageFile) -> Facts:
        """What one mark says, where it is, and whose the image is."""
        record = None
        if self.register is not None and found.payload is not None:
            record = self.register.find(found.payload.content.hex())
        return {
            **found.to_dict(),
            "record": None if record is None else _record_facts(record),
            "missing": "".join(found.parts).count(OTHER),
            "grid": self._grid(found, PreparedImage(image)),
        }

    def _grid(self, found: Extracted, image: PreparedImage) -> Facts | None:
        """Where the first part begins, and the size of each, as fractions of height and width.

        None where somebody moved the image, as in a crop.
        """
        (reader,) = (each for each in self.marker.readers if (each.key.fingerprint if each.key else "") == found.key)
        aligned = reader.decode_aligned(image).found
        if aligned is None or aligned.payload != found.payload:
            return None
        given = image.network_input(reader.layout)
        sides = np.array(image.pixels.shape[:2]) / image.factor
        start = (given.alignment.matrix @ given.origin + given.alignment.start) / sides
        step = CELL * PART * np.diag(given.alignment.matrix) / sides
        return {"top": start[0], "left": start[1], "height": step[0], "width": step[1]}

    def _by_hash(self, register: Register, image: ImageFile) -> list[Facts]:
        found = register.find_hash(image.sha256) or register.find_hash(image.pixels_sha256)
        return [_record_facts(each) for each in found]

    def _compared(self, paths: Mapping[str, Path]) -> tuple[list[Facts], Facts]:
        """What comparing with the original, and with the certificate if there is one, has shown."""
        told = paths.get("certificate", paths["image"].with_name("no certificate"))
        found = verify_files(
            self.marker, paths["original"], paths["image"], public_key=self.public_key, certificate=told
        )
        problems = [each for each in found.problems if "certificate" in paths or not each.startswith("no certificate")]
        verdict = [_line(False, each) for each in problems]
        if found.certificate is not None and not problems:
            verdict.append(_line(True, "all that the certificate says was measured again and holds"))
        if found.certificate is not None and found.certificate.signature is not None and found.signed_by is not None:
            verdict.append(self._vouched(found.signed_by, found.trusted))
        if found.certificate is None:
            verdict.append(_line(None, "no certificate was given to compare with"))
        return verdict, {**dataclasses.asdict(found.fidelity), "floor": found.floor}

    def _certified(self, path: Path, image: ImageFile) -> list[Facts]:
        """What a certificate alone tells of the image it should be of."""
        told, entries = read_entries(path)
        if told.result_sha256 == image.sha256:
            verdict = [_line(True, "the certificate is of this file")]
        elif told.result_pixels_sha256 == image.pixels_sha256:
            verdict = [_line(True, "the certificate is of these pixels, in another file")]
        else:
            verdict = [_line(False, "the certificate is of another image")]
        if not told.satisfied:
            verdict.append(_line(False, "the certificate says of itself that it is not satisfied"))
        verdict.append(_line(None, f"it claims a floor of {told.floor:g} dB; give the original to measure that again"))
        signer = signed_by(entries, told.signature)
        if told.signature is None:
            verdict.append(_line(None, "it is not signed: whoever can write the files can write it"))
        elif signer is None:
            verdict.append(_line(False, "its signature is not valid"))
        else:
            verdict.append(self._vouched(signer.fingerprint, signer == self.public_key))
        return verdict

    def _vouched(self, fingerprint: str, trusted: bool) -> Facts:
        if trusted:
            return _line(True, f"signed by the key {fingerprint}, which was given")
        if self.public_key is not None:
            return _line(False, f"signed by the key {fingerprint}, and not by the one that was given")
        return _line(None, f"signed by the key {fingerprint}, for which nobody vouched")


def _line(good: bool | None, text: str) -> Facts:
    return {"good": good, "text": text}


def _record_facts(record: Record) -> Facts:
    row = record.row
    names = ("identifier", "owner", "source", "time", "old_uid", "new_uid")
    return {"state": record.state, **{name: getattr(row, name) for name in names}}


@contextmanager
def _laid_out(uploads: Mapping[str, Upload]) -> Iterator[dict[str, Path]]:
    """Files for as long as they are worked on, in memory where the system has such a place."""
    if "image" not in uploads:
        raise ConfigurationError("expected an image, got none")
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="floormark-", dir=place) as name:
        paths = {}
        try:
            for role, upload in uploads.items():
                paths[role] = Path(name, role, upload.safe_name)
                paths[role].parent.mkdir()
                paths[role].write_bytes(upload.content)
            yield paths
        except FloormarkError as error:
            error.args = (re.sub(re.escape(name) + r"/\w+/", "", str(error)),)  # names as the browser has them
            raise
        except OSError as error:
            raise cannot_write(Path(name), error) from error


def _shown(image: ImageFile) -> tuple[Facts, bytes]:
    """Stored values from 0 on, of every n-th pixel, for the browser to draw, and what it needs for that."""
    height, width = image.pixels.shape[:2]
    step = -(-max(height, width) // SHOWN_SIDE)
    pixels = image.pixels[::step, ::step].astype(np.int32) - image.lowest
    stored = pixels.clip(0, image.peak).astype("u1" if image.peak < 256 else "<u2")
    low, span = PreparedImage(image).shown
    facts = {
        "width": stored.shape[1],
        "height": stored.shape[0],
        "channels": 3 if stored.ndim == 3 else 1,
        "bytes": stored.itemsize,
        "step": step,
        "full": [width, height],
        "lowest": image.lowest,
        "peak": image.peak,
        "low": low - image.lowest,
        "high": low + span - image.lowest,
        "inverted": image.inverted,
    }
    return facts, stored.tobytes()
