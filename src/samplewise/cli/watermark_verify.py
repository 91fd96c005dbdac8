"""``samplewise watermark verify``: a marked file measured against its original and its certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli.options import JsonFlag
from samplewise.cli.outcome import FAILED, begin, emit, note
from samplewise.cli.watermark_keys import PublicKeyOption
from samplewise.cli.watermark_tool import (
    KeyOption,
    ModelOption,
    ProtectOption,
    decibels,
    largest_change,
    open_marker,
    shown_message,
)

if TYPE_CHECKING:
    from samplewise.watermark.verification import Verification

VERIFY = (
    "\b\nExample: samplewise watermark verify xray.png marked.png\n"
    "A region: samplewise watermark verify xray.png marked.png --protect 100,80,64,64\n"
    "Signed:   samplewise watermark verify xray.png marked.png --public-key hospital.pub"
)


def verify(
    original: Annotated[Path, typer.Argument(metavar="ORIGINAL", help="The image before.")],
    marked: Annotated[Path, typer.Argument(metavar="MARKED", help="The image after.")],
    psnr: Annotated[
        float | None, typer.Option(help="Floor in dB to check beside that of the certificate of MARKED.")
    ] = None,
    key: KeyOption = None,
    protect: ProtectOption = None,
    model: ModelOption = None,
    public_key: PublicKeyOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a marked image against its original, read its message, and compare with the certificate beside it.

    The exit code is 1 if not all is well, or if there is no certificate.
    """
    begin(f"watermark verify: comparing {marked} with {original}")
    from samplewise.watermark.marking import Region
    from samplewise.watermark.signing import read_public_key
    from samplewise.watermark.verification import verify_files

    region = None if protect is None else Region.parse(protect)
    expected = None if public_key is None else read_public_key(public_key)
    marker = open_marker(model, key)
    found = verify_files(marker, original, marked, floor=psnr, protect=region, public_key=expected)
    measured, certificate = found.fidelity, found.certificate
    facts = {
        "PSNR": decibels(measured.shown_psnr or measured.psnr)
        + ("" if found.floor is None else f", floor {found.floor:g} dB"),
        "SSIM": "not defined" if measured.ssim is None else f"{measured.ssim:.5f}",
        "max difference": largest_change(measured),
        "changed pixels": f"{100 * measured.changed_share:.1f}%",
    }
    if measured.patch_psnr is not None:
        facts["worst patch"] = f"{decibels(measured.patch_psnr)} by its own floor, at {measured.worst_patch}"
    if measured.protected_pixels:
        kept = "unchanged" if measured.protected_unchanged else "CHANGED"
        facts["protected"] = f"{measured.protected_pixels:,} pixels, {kept}"
    facts["message"] = shown_message(found.extracted)
    facts["certificate"] = "none beside the image" if certificate is None else "compared with the image"
    if certificate is not None:
        facts["signature"] = _signature(found)
    emit(found.to_dict(), "\n".join(f"{name:<16}{value}" for name, value in facts.items()), as_json=as_json)
    if not as_json:
        if certificate is not None and certificate.fidelity.protected_pixels and not measured.protected_pixels:
            note("the certificate speaks of a protected region; to check it, give the same --protect")
        for problem in found.problems:
            note(f"not well: {problem}")
    if found.problems:
        raise typer.Exit(FAILED)


def _signature(found: Verification) -> str:
    if found.certificate is None or found.certificate.signature is None:
        return "none: whoever can write the files can write the certificate"
    if found.signed_by is None:
        return "NOT VALID"
    return f"by {found.signed_by}, " + (
        "the key that was given" if found.trusted else "a key for which nobody vouched: give --public-key"
    )
