"""``floormark verify``: a marked image against its original and its certificate."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from floormark.cli.marker import add_options as add_marker_options
from floormark.cli.marker import load_marker
from floormark.cli.outcome import FAILED, SUCCEEDED, begin, emit, note
from floormark.cli.words import BELONGS, decibels, largest_change, message_text, signature_text

if TYPE_CHECKING:
    from floormark.verify import Verification

EXAMPLES = """example:  floormark verify xray.png marked.png
a region: floormark verify xray.png marked.png --protect 100,80,64,64
signed:   floormark verify xray.png marked.png --public-key hospital.pub"""


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`verify`."""
    parser.add_argument("original", metavar="ORIGINAL", type=Path, help="the image before")
    parser.add_argument("marked", metavar="MARKED", type=Path, help="the image after")
    parser.add_argument("--psnr", type=float, help="floor in dB to check beside that of the certificate of MARKED")
    parser.add_argument("--protect", help="region that must be unchanged: x,y,w,h, or the file of a mask")
    parser.add_argument("--public-key", type=Path, help="the key that the certificate must be signed with")
    add_marker_options(parser)


def verify(
    original: Path,
    marked: Path,
    psnr: float | None,
    protect: str | None,
    public_key: Path | None,
    key: str | None,
    model: Path | None,
    as_json: bool,
) -> int:
    """Measure a marked image against its original, read its message, and compare with the certificate beside it.

    The exit code is 1 if not all is well, or if there is no certificate.
    """
    begin(f"verify: comparing {marked} with {original}")
    from floormark.region import Region
    from floormark.signing import read_public_key
    from floormark.verify import verify_files

    region = None if protect is None else Region.parse(protect)
    expected = None if public_key is None else read_public_key(public_key)
    marker = load_marker(model, key)
    found = verify_files(marker, original, marked, floor=psnr, protect=region, public_key=expected)
    facts = _facts(found, psnr)
    emit(found.to_dict(), "\n".join(f"{name:<16}{value}" for name, value in facts.items()), as_json=as_json)
    if not as_json:
        if found.unmeasured:
            note("the certificate speaks of a mask that only it has measured; to check it, give the same --protect")
        for problem in found.problems:
            note(f"not well: {problem}")
    return FAILED if found.problems else SUCCEEDED


def _facts(found: Verification, asked: float | None) -> dict[str, str]:
    """What was found, line by line."""
    measured, certificate, floor = found.fidelity, found.certificate, found.floor
    whose = "asked for" if floor == asked else "of the certificate"
    facts = {
        "PSNR": decibels(measured.shown_psnr) + ("" if floor is None else f", floor {floor:g} dB {whose}"),
        "SSIM": "not defined" if measured.ssim is None else f"{measured.ssim:.5f}",
        "max difference": largest_change(measured),
        "changed pixels": f"{100 * measured.changed_share:.1f}%",
    }
    if measured.min_adjusted_patch_psnr is not None:
        facts["worst patch"] = (
            f"{decibels(measured.min_adjusted_patch_psnr)} by its own floor, at {measured.worst_patch}"
        )
    if measured.protected_pixels:
        kept = "unchanged" if measured.protected_unchanged else "CHANGED"
        facts["protected"] = f"{measured.protected_pixels:,} pixels, {kept}"
    elif found.unmeasured:
        facts["protected"] = f"NOT MEASURED; the certificate says: {', '.join(found.unmeasured)}"
    facts["message"] = message_text(found.extracted)
    if found.extracted:
        facts["belongs"] = BELONGS[found.extracted.belongs]
    facts["certificate"] = "none beside the image" if certificate is None else "compared with the image"
    if certificate is not None:
        facts["signature"] = signature_text(found)
    return facts
