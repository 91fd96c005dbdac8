"""A marked file measured against its original, and compared with the certificate beside it."""

import math
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from floormark.api import Watermarker
from floormark.certificate import HASHES, PLACE, Fidelity, ImageCertificate, certificate_path, read_entries
from floormark.errors import DataError, finite_number, prefix_path
from floormark.fidelity import fidelity
from floormark.imageio import ImageFile, frames_sha256, read, shown_alike
from floormark.options import Region
from floormark.payload import Extracted
from floormark.signing import PublicKey, signed_by

TOLERANCES = {"psnr": 1e-6, "shown_psnr": 1e-6, "min_adjusted_patch_psnr": 1e-6, "ssim": 1e-3, "bit_errors": 2}
"""Largest differences of a certificate from measurement: another processor rounds differently."""


@dataclass(frozen=True)
class Verification:
    """The facts about two files, recomputed from these files only.

    Two entries are taken from the certificate: the floor, which may raise the requested one, and the protected
    rectangle. Its entries about a mask that was not given cannot be measured; :attr:`unmeasured` names them.
    """

    original_sha256: str
    result_sha256: str
    original_pixels_sha256: str
    result_pixels_sha256: str
    model: str
    floor: float | None
    """In dB, the higher of the requested and the certified one; None if there is neither."""
    bits: int
    fidelity: Fidelity
    extracted: Extracted
    """Of several frames, the weakest result."""
    certificate: ImageCertificate | None
    """The certificate beside the marked file."""
    frames: int = 1
    signed_by: str | None = None
    """Fingerprint of the key whose signature the certificate has; None without a valid one."""
    trusted: bool = False
    """Whether that is the requested key: anybody can sign with a key of their own."""
    unmeasured: tuple[str, ...] = ()
    """What the certificate says of a mask that was not given, in words."""
    re_encoded: tuple[str, ...] = ()
    """Which of original and result differs from the certified file but has the same pixels. Everything else in it may
    differ, such as the name of the patient."""
    problems: tuple[str, ...] = ()
    """What is wrong, in words; empty if nothing is."""

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "satisfied": not self.problems,
            "problems": list(self.problems),
            **self.extracted.to_dict(),
            **{name: value for name, value in asdict(self).items() if name not in ("extracted", "problems")},
        }


def verify_files(
    marker: Watermarker,
    original: Path,
    marked: Path,
    *,
    floor: float | None = None,
    protect: Region | None = None,
    public_key: PublicKey | None = None,
    certificate: Path | None = None,
) -> Verification:
    """Measure ``marked`` against ``original``, read its message, and compare with the certificate beside it.

    A missing certificate is a problem like any other. A ``floor`` in dB is checked in addition to the certificate's, in
    the shown range and in every patch. No pixel may have changed in ``protect``, or in the rectangle that the
    certificate names. The certificate must be signed by ``public_key``, if given. A file that was re-encoded without
    loss passes for the certified one if the certificate has a valid signature. ``certificate`` is the file to compare
    with, instead of the one beside ``marked``: a re-encoded file may have another name.

    Raises:
        DataError: a file cannot be read, or the two are not the same kind of image.
    """
    before, after = read(original), read(marked)
    if _kind(before) != _kind(after):
        raise DataError(f"{marked}: expected an image as {original}, {_kind(before)}, got {_kind(after)}")
    beside = certificate_path(marked) if certificate is None else certificate
    told, entries = read_entries(beside) if os.path.lexists(beside) else (None, {})
    signer = None if told is None else signed_by(entries, told.signature)
    floors = [] if told is None else [told.floor]
    floors += [] if floor is None else [finite_number(floor, "the PSNR floor")]
    certified = None
    if told is not None and told.protected is not None and PLACE.fullmatch(told.protected):
        with prefix_path(beside):
            certified = Region.parse(told.protected).mask(before.pixels.shape[:2])
    protected = certified if protect is None else protect.mask(before.pixels.shape[:2])
    frames = []
    for first, second in zip(before.frames(), after.frames(), strict=True):
        with prefix_path(marked):
            frames.append(_Frame.of(marker, first, second, protected))
    said = {frame.extracted.payload for frame in frames}
    found = Verification(
        original_sha256=before.sha256,
        result_sha256=after.sha256,
        original_pixels_sha256=frames_sha256([frame.pixels_sha256[0] for frame in frames]),
        result_pixels_sha256=frames_sha256([frame.pixels_sha256[1] for frame in frames]),
        model=marker.model,
        floor=max(floors, default=None),
        bits=marker.network.bits,
        fidelity=Fidelity.worst([frame.fidelity for frame in frames]),
        extracted=min((frame.extracted for frame in frames), key=_trust),
        frames=len(frames),
        certificate=told,
        signed_by=None if signer is None else signer.fingerprint,
        trusted=signer is not None and signer == public_key,
    )
    found = replace(found, re_encoded=_re_encoded(found))
    problems = _problems(found)
    if len(said) > 1:
        problems.append("the frames do not all say the same")
    if not all(frame.shown_alike for frame in frames):
        problems.append("shown otherwise than the original: its window, polarity, padding or transparency is another")
    if told is not None and told.protected is not None:
        if protected is None:  # of a mask, a certificate has the hash only
            claimed, height, width = told.fidelity.protected_pixels, *before.pixels.shape[:2]
            found = replace(found, unmeasured=(f"{claimed:,} protected pixels of a mask are unchanged",))
            same = round((1.0 - found.fidelity.changed_share) * height * width)
            if not 0 < claimed <= same:
                problems.append(f"the certificate says protected_pixels {claimed}, found {same} that did not change")
        # Compared as drawn: a rectangle may be given as a mask.
        elif Region("", protected).place != (told.protected if certified is None else Region("", certified).place):
            problems.append(f"the certificate is about another protected region, {told.protected}")
    problems += [*_disagreements(found), *_unsigned(found, public_key)]
    return replace(found, problems=tuple(problems))


@dataclass(frozen=True)
class _Frame:
    """The facts about one frame of two files; formats other than DICOM have one frame."""

    pixels_sha256: tuple[str, str]
    fidelity: Fidelity
    extracted: Extracted
    shown_alike: bool

    @classmethod
    def of(cls, marker: Watermarker, before: ImageFile, after: ImageFile, protected: NDArray[np.bool_] | None) -> Self:
        hashes, measured = (
            (before.pixels_sha256, after.pixels_sha256),
            fidelity(before, after.pixels, protected=protected),
        )
        return cls(hashes, measured, marker.extract(after), shown_alike(before, after))


def _trust(found: Extracted) -> tuple[bool, bool, int]:
    """A sort key: lowest for the frame with the weakest result."""
    return bool(found), found.belongs is not False, -found.corrected_errors


def _kind(image: ImageFile) -> str:
    height, width = image.pixels.shape[:2]
    colour = "colour" if image.pixels.ndim == 3 else "grey"
    frames = "" if image.frame_count == 1 else f"{image.frame_count} frames of "
    return f"{frames}{width} x {height}, {colour}, {image.bits} bits{' signed' if image.lowest else ''}"


def _problems(found: Verification) -> list[str]:
    """What is wrong with the files themselves."""
    measured, floor = found.fidelity, -math.inf if found.floor is None else found.floor
    reached = min(measured.floors, default=math.inf)
    problems = {
        f"PSNR of {reached:.3f} dB, below the floor of {floor:g}": reached < floor,
        "pixels changed in the protected region": not measured.protected_unchanged,
        "no readable watermark with this network and key": not found.extracted,
        "the message belongs to another image and was copied": found.extracted.belongs is False,
        "no certificate beside the image, so nothing says what should hold for it": found.certificate is None,
    }
    return [problem for problem, there in problems.items() if there]


def _disagreements(found: Verification) -> list[str]:
    """Where the certificate differs from the files, or says itself that it is not satisfied."""
    told = found.certificate
    if told is None:
        return []
    said = {name: getattr(told, name) for name in (*HASHES, "model", "bits", "bit_errors", "frames")}
    for which in found.re_encoded:
        del said[f"{which}_sha256"]
    said |= asdict(told.fidelity)
    measured = {**vars(found), **asdict(found.fidelity), "bit_errors": found.extracted.corrected_errors}
    if not found.extracted:
        del said["bit_errors"]
    if found.unmeasured:
        del said["protected_pixels"], said["protected_unchanged"]
    wrong = [] if told.satisfied else ["the certificate says of itself that it is not satisfied"]
    return wrong + [
        f"the certificate says {name} {value}, found {measured[name]}"
        for name, value in said.items()
        if not _agree(value, measured[name], TOLERANCES.get(name, 0))
    ]


def _re_encoded(found: Verification) -> tuple[str, ...]:
    """Which files differ from the certified ones in their encoding only, by a signed certificate.

    In an unsigned one the hash of the file may be wrong as well.
    """
    told = found.certificate
    if told is None or found.signed_by is None:
        return ()

    def differs(name: str) -> bool:
        return bool(getattr(told, name) != getattr(found, name))

    return tuple(
        which
        for which in ("original", "result")
        if differs(f"{which}_sha256") and not differs(f"{which}_pixels_sha256")
    )


def _unsigned(found: Verification, expected: PublicKey | None) -> list[str]:
    """What is wrong with the signature of a certificate, if there is one."""
    told = found.certificate
    if told is None:
        return []
    if told.signature is not None and found.signed_by is None:
        return ["the signature does not fit the certificate: an entry was changed, or it is of another certificate"]
    if expected is None or found.trusted:
        return []
    got = "no signature" if found.signed_by is None else f"one by {found.signed_by}"
    return [f"expected a certificate signed by the key {expected.fingerprint}, got {got}"]


def _agree(said: Any, measured: Any, tolerance: float) -> bool:
    return bool(said == measured or (tolerance and None not in (said, measured) and abs(said - measured) <= tolerance))
