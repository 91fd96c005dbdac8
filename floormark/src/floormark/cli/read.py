"""``floormark extract`` and ``floormark verify``: read marked images, and check them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floormark.cli.keys import add_marker_options, load_marker, positive
from floormark.cli.output import FAILED, SUCCEEDED, decibels, emit, emit_json, largest_change, note
from floormark.errors import DataError, printable

if TYPE_CHECKING:
    from floormark.payload import Extracted
    from floormark.verify import Verification

MAX_SHOWN_CONFIDENCE = 0.9999999999  # largest confidence that is printed
BELONGS = {
    True: "it belongs to this image",
    False: "it belongs to another image and was copied",
    None: "whether it belongs to this image cannot be said",
}
EXTRACT_EXAMPLES = """example:  floormark extract marked.png
with key: floormark extract marked --key env:WATERMARK_KEY --json"""
VERIFY_EXAMPLES = """example:  floormark verify xray.png marked.png
a region: floormark verify xray.png marked.png --protect 100,80,64,64
signed:   floormark verify xray.png marked.png --public-key hospital.pub"""


def add_extract_options(parser: ArgumentParser) -> None:
    """The options of :func:`extract`."""
    parser.add_argument("source", metavar="IMAGE", type=Path, help="an image, or a folder of images")
    add_marker_options(parser, several=True)
    parser.add_argument("--workers", type=positive, default=1, help="processes for a folder; 1 if not given")


def extract(given: Namespace) -> int:
    """Read the message of an image: exactly what was embedded, or that there is none.

    An image that was cropped, scaled, stretched, rotated, mirrored or inverted is searched for it, and so is a page or
    a screenshot that shows one or several.
    The exit code is 1 without a message, and for one that was copied from another image.
    """
    source: Path = given.source
    from floormark.files.folder import extract_file, extract_files, image_files

    marker = load_marker(given)
    if not source.is_dir():
        found = extract_file(marker, source)
        result = _result(found)
        if given.json:
            emit_json(result)
        else:
            for one in found:
                about = _about(one, alone=len(found) == 1, keys=len(marker.readers))
                emit({}, _message_text(one), about, as_json=False)
        return FAILED if _failed(result) else SUCCEEDED
    results: dict[str, dict[str, Any]] = {}
    images, _ = image_files(source)
    each = extract_files(marker, images, workers=min(given.workers, len(images)))
    for path, read in zip(images, each, strict=True):
        name = str(path.relative_to(source))
        if isinstance(read, DataError):
            results[name] = {"message": None, "error": str(read)}
            shown = f"bad input: {printable(str(read))}"
        else:
            results[name] = _result(read)
            told = (_message_text(one) + (f" ({BELONGS[False]})" if one.belongs is False else "") for one in read)
            shown = "; ".join(told)
        if not given.json:
            print(f"{printable(name)}: {shown}", flush=True)
    if given.json:
        emit_json(results)
    return FAILED if any(map(_failed, results.values())) else SUCCEEDED


def _result(found: list[Extracted]) -> dict[str, Any]:
    """The result for JSON: the first message of an image, and those of other marked images in it."""
    first, *others = (one.to_dict() for one in found)
    return {**first, "others": others}


def _failed(result: dict[str, Any]) -> bool:
    """Whether an image has no message, or one that was copied."""
    images = [result, *result.get("others", [])]
    return any(image["message"] is None or image["belongs"] is False for image in images)


def _about(found: Extracted, *, alone: bool, keys: int) -> str:
    """The confidence of a message and whether it belongs; with several images the place, with several keys the key."""
    if not found:
        return ""
    said = f"{_confidence(found)}, {found.corrected_errors} bits corrected; {BELONGS[found.belongs]}"
    if keys > 1:
        said += f"; by the key {found.key}"
    if alone or found.box is None:
        return said
    left, top, width, height = found.box
    return f"{said}; {width} x {height} pixels at {left},{top}"


def add_verify_options(parser: ArgumentParser) -> None:
    """The options of :func:`verify`."""
    parser.add_argument("original", metavar="ORIGINAL", type=Path, help="the image before")
    parser.add_argument("marked", metavar="MARKED", type=Path, help="the image after")
    parser.add_argument("--psnr", type=float, help="floor in dB to check beside that of the certificate of MARKED")
    parser.add_argument("--protect", help="region that must be unchanged: x,y,w,h, or the file of a mask")
    parser.add_argument("--public-key", type=Path, help="the key that the certificate must be signed with")
    parser.add_argument("--certificate", type=Path, help="the certificate; that beside MARKED if not given")
    add_marker_options(parser, several=True)


def verify(given: Namespace) -> int:
    """Measure a marked image against its original, read its message, and compare with the certificate beside it.

    The exit code is 1 if there is a problem, such as no certificate.
    """
    from floormark.options import Region
    from floormark.signing import read_public_key
    from floormark.verify import verify_files

    found = verify_files(
        protect=None if given.protect is None else Region.parse(given.protect),
        public_key=None if given.public_key is None else read_public_key(given.public_key),
        marker=load_marker(given),
        original=given.original,
        marked=given.marked,
        floor=given.psnr,
        certificate=given.certificate,
    )
    facts = _facts(found, given.psnr)
    emit(found.to_dict(), "\n".join(f"{name:<16}{value}" for name, value in facts.items()), as_json=given.json)
    if not given.json:
        if found.unmeasured:
            note("the certificate names a mask that was not measured here; to check it, give the same --protect")
        for which in found.re_encoded:
            note(f"the {which} is not the certified file: its pixels are the same, all else in it may differ")
        for problem in found.problems:
            note(f"problem: {problem}")
    return FAILED if found.problems else SUCCEEDED


def _facts(found: Verification, asked: float | None) -> dict[str, str]:
    """The facts that were found, line by line."""
    measured, floor = found.fidelity, found.floor
    whose = "asked for" if floor == asked else "of the certificate"
    facts = {
        "PSNR": decibels(measured.shown_psnr) + ("" if floor is None else f", floor {floor:g} dB {whose}"),
        "SSIM": "not defined" if measured.ssim is None else f"{measured.ssim:.5f}",
        "max difference": largest_change(measured),
        "changed pixels": f"{100 * measured.changed_share:.1f}%",
    }
    if measured.min_adjusted_patch_psnr is not None:
        worst = decibels(measured.min_adjusted_patch_psnr)
        facts["worst patch"] = f"{worst} by its own floor, at {measured.worst_patch}"
    if measured.protected_pixels:
        kept = "unchanged" if measured.protected_unchanged else "CHANGED"
        facts["protected"] = f"{measured.protected_pixels:,} pixels, {kept}"
    elif found.unmeasured:
        facts["protected"] = f"NOT MEASURED; the certificate says: {', '.join(found.unmeasured)}"
    facts["message"] = _message_text(found.extracted)
    if found.extracted:
        facts["belongs"] = BELONGS[found.extracted.belongs]
    if any("-" in row for row in found.extracted.parts):
        facts["not marked"] = f"\n{'':<16}".join(("the parts with -", *found.extracted.parts))
    facts["certificate"] = "none beside the image" if found.certificate is None else "compared with the image"
    if found.certificate is not None:
        facts["signature"] = _signature_text(found)
    return facts


def _signature_text(found: Verification) -> str:
    """Who signed the certificate, and whether it is the expected key."""
    if found.certificate is None or found.certificate.signature is None:
        return "none: whoever can write the files can write the certificate"
    if found.signed_by is None:
        return "NOT VALID"
    vouched = "the key that was given" if found.trusted else "a key for which nobody vouched: give --public-key"
    return f"by {found.signed_by}, {vouched}"


def _message_text(found: Extracted) -> str:
    """The message, safe for a terminal, or that there is none."""
    if found.payload is None:
        return "no readable watermark" + (": a mark of another key is there" if found.other_key else "")
    return printable(found.payload.shown)


def _confidence(found: Extracted) -> str:
    """The confidence that this is a message, never printed as 100 %."""
    over = "over " if found.confidence > MAX_SHOWN_CONFIDENCE else ""
    return f"confidence {over}{min(found.confidence, MAX_SHOWN_CONFIDENCE):.8%}"
