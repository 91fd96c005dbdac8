"""``samplewise watermark embed``, ``extract`` and ``verify``: messages in image files, in and out."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from floormark.cli.keys import PassphraseOption, PublicKeyOption, SignOption, open_signer
from floormark.cli.messages import MessageFromOption, MessagesOption, chosen_message
from floormark.cli.words import confidence, decibels, largest_change, message_text, signature_text
from samplewise.cli.outcome import FAILED, begin, emit, emit_json, note
from samplewise.errors import ConfigurationError, DataError, printable
from studies.commands.options import JsonFlag
from studies.commands.progress import progress

if TYPE_CHECKING:
    from floormark.api import Watermarker
    from floormark.files.folder import FileResult
    from floormark.files.marking import FileMarker

EMBED = (
    '\b\nExample: samplewise watermark embed xray.png marked.png --text "patient 4711"\n'
    'A folder: samplewise watermark embed xrays marked --text "St. Elsewhere" --psnr 45 --workers 2\n'
    "Go on:    the same command with --resume\n"
    'Each its own: samplewise watermark embed scans marked --message-from "{PatientID}"\n'
    "With key: samplewise watermark embed xray.dcm marked.dcm --hex 00ff17 --key key.txt\n"
    'Signed:   samplewise watermark embed xray.png marked.png --text "patient 4711" --sign hospital'
)
EXTRACT = (
    "\b\nExample: samplewise watermark extract marked.png\n"
    "With key: samplewise watermark extract marked --key env:WATERMARK_KEY --json"
)
VERIFY = (
    "\b\nExample: samplewise watermark verify xray.png marked.png\n"
    "A region: samplewise watermark verify xray.png marked.png --protect 100,80,64,64\n"
    "Signed:   samplewise watermark verify xray.png marked.png --public-key hospital.pub"
)
BELONGS = {
    True: "it belongs to this image",
    False: "it belongs to another image and was copied",
    None: "whether it belongs to this image cannot be said",
}
SHOWN = 10
"""Files of one kind that are named in a summary."""

KeyOption = Annotated[
    str | None, typer.Option("--key", help="File that holds the key, or env:NAME for an environment variable.")
]
ModelOption = Annotated[
    Path | None, typer.Option("--model", help="Run of watermark train, or its weights; the shipped ones if not given.")
]
ProtectOption = Annotated[
    str | None, typer.Option("--protect", help="Region that stays bit-exact: x,y,w,h, or the file of a mask.")
]


def embed(
    source: Annotated[Path, typer.Argument(metavar="IN", help="An image, or a folder of images.")],
    target: Annotated[
        Path, typer.Argument(metavar="OUT", help="The marked image, the folder for it, or a new one for many.")
    ],
    text: Annotated[
        str | None, typer.Option(help="Message as text, with the shipped network of up to 16 bytes.")
    ] = None,
    hexadecimal: Annotated[str | None, typer.Option("--hex", help="Message as hexadecimal digits.")] = None,
    bits: Annotated[str | None, typer.Option(help="Message as zeros and ones.")] = None,
    messages: MessagesOption = None,
    message_from: MessageFromOption = None,
    psnr: Annotated[float, typer.Option(help="PSNR in dB that every written file keeps.")] = 45.0,
    key: KeyOption = None,
    protect: ProtectOption = None,
    model: ModelOption = None,
    sign: SignOption = None,
    passphrase: PassphraseOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes for a folder; one for each core if not given.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a folder, with the same options.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an image that is there.")] = False,
    lossy: Annotated[bool, typer.Option("--lossy", help="Allow OUT as JPEG; otherwise JPEG becomes PNG.")] = False,
    max_difference: Annotated[
        int | None, typer.Option(min=1, help="The most by which any stored value may change.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Write in the place of a message that is there already.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Hide a message in an image, or in a folder of them: PNG, TIFF, BMP, JPEG, WebP or DICOM.

    Every file that is written keeps the PSNR floor in all that is shown of it and in every patch, was read back, and
    has a certificate beside it, OUT.json. Images that cannot carry the message at the floor, and those that are marked
    already, are refused (exit code 1).
    """
    begin(f"watermark embed: loading the network for {source}")
    from floormark.files.folder import marked_name
    from floormark.files.marking import FileMarker, Region
    from floormark.processes import cores

    message = chosen_message(source, text, hexadecimal, bits, messages, message_from)
    region = None if protect is None else Region.parse(protect)
    signer = open_signer(sign, passphrase)
    files = FileMarker(
        _marker(model, key),
        message,
        psnr,
        region,
        force=force,
        lossy=lossy,
        signer=signer,
        max_difference=max_difference,
        replace=replace,
    )
    if source.is_dir():
        if force:
            raise ConfigurationError("--force replaces single images; for a folder choose a new OUT, or use --resume")
        _embed_folder(files, source, target, workers or cores(), resume=resume, as_json=as_json)
        return
    if resume:
        raise ConfigurationError("--resume is for folders; a single image is written whole or not at all")
    if target.is_dir():
        target /= marked_name(Path(source.name), lossy=lossy)
    certificate, notes = files.mark_file(source, target)
    measured = certificate.fidelity
    emit(
        {
            "image": str(target),
            "certificate": {"satisfied": certificate.satisfied, **asdict(certificate)},
            "notes": notes,
        },
        f"{printable(str(target))}: PSNR {decibels(measured.shown_psnr)} (floor {certificate.floor:g}), "
        f"largest difference {largest_change(measured)}, "
        f"{certificate.bit_errors} of {certificate.bits} bits corrected on reading"
        + ("" if signer is None else f", signed by {signer.public.fingerprint}"),
        as_json=as_json,
    )
    for each in () if as_json else notes:
        note(f"note: {each}")


def extract(
    source: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image, or a folder of images.")],
    key: KeyOption = None,
    model: ModelOption = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes for a folder.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Read the message of an image: exactly what was embedded, or that there is none.

    An image that was cropped, scaled, turned, mirrored or inverted is searched for it. The exit code is 1 without a
    message, and for one that was copied from another image.
    """
    begin(f"watermark extract: loading the network for {source}")
    from floormark.files.folder import extract_file, extract_files, image_files

    marker = _marker(model, key)
    if not source.is_dir():
        found = extract_file(marker, source)
        about = f"{confidence(found)}, {found.corrected_errors} bits corrected; {BELONGS[found.belongs]}"
        emit(found.to_dict(), message_text(found), about if found else "", as_json=as_json)
        if not found or found.belongs is False:
            raise typer.Exit(FAILED)
        return
    results: dict[str, dict[str, Any]] = {}
    images, _ = image_files(source)
    each = extract_files(marker, images, workers=min(workers, len(images)))
    for path, one in zip(images, each, strict=True):
        name = str(path.relative_to(source))
        if isinstance(one, DataError):
            results[name] = {"message": None, "error": str(one)}
            shown = f"bad input: {printable(str(one))}"
        else:
            results[name] = one.to_dict()
            shown = message_text(one) + (f" ({BELONGS[False]})" if one.belongs is False else "")
        if not as_json:
            print(f"{printable(name)}: {shown}", flush=True)
    if as_json:
        emit_json(results)
    if any(result["message"] is None or result["belongs"] is False for result in results.values()):
        raise typer.Exit(FAILED)


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
    from floormark.files.marking import Region
    from floormark.signing import read_public_key
    from floormark.verify import verify_files

    region = None if protect is None else Region.parse(protect)
    expected = None if public_key is None else read_public_key(public_key)
    marker = _marker(model, key)
    found = verify_files(marker, original, marked, floor=psnr, protect=region, public_key=expected)
    measured, certificate, floor = found.fidelity, found.certificate, found.floor
    whose = "asked for" if floor == psnr else "of the certificate"
    facts = {
        "PSNR": decibels(measured.shown_psnr) + ("" if floor is None else f", floor {floor:g} dB {whose}"),
        "SSIM": "not defined" if measured.ssim is None else f"{measured.ssim:.5f}",
        "max difference": largest_change(measured),
        "changed pixels": f"{100 * measured.changed_share:.1f}%",
    }
    if measured.patch_psnr is not None:
        facts["worst patch"] = f"{decibels(measured.patch_psnr)} by its own floor, at {measured.worst_patch}"
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
    emit(found.to_dict(), "\n".join(f"{name:<16}{value}" for name, value in facts.items()), as_json=as_json)
    if not as_json:
        if found.unmeasured:
            note("the certificate speaks of a mask that only it has measured; to check it, give the same --protect")
        for problem in found.problems:
            note(f"not well: {problem}")
    if found.problems:
        raise typer.Exit(FAILED)


def _embed_folder(files: FileMarker, source: Path, target: Path, workers: int, *, resume: bool, as_json: bool) -> None:
    from floormark.files.folder import Status, image_files, mark_folder, tasks

    images, others = image_files(source)
    found = tasks(source, images, target, lossy=files.lossy)
    left = [str(path.relative_to(source)) for path in others]
    counts: Counter[Status] = Counter()
    notes: Counter[str] = Counter()
    reached: list[float] = []
    failed: list[FileResult] = []
    with progress("marking") as tell:
        marked = mark_folder(files, found, target, workers=min(workers, len(found)), resume=resume)
        for done, one in enumerate(marked, start=1):
            counts[one.status] += 1
            notes.update(one.notes)
            if one.certificate is not None and one.certificate.fidelity.psnr is not None:
                reached.append(one.certificate.fidelity.psnr)
            if one.reason:
                failed.append(one)
            tell(done, len(found))
    told = ", ".join(f"{counts[status]:,} {status.value}" for status in Status if counts[status])
    emit(
        {
            **{status.name.lower(): counts[status] for status in Status},
            "left_alone": left,
            "lowest_psnr": min(reached, default=None),
            "notes": notes,
            "signed_by": None if files.signer is None else files.signer.public.fingerprint,
            "failed": [{"file": one.name, "status": one.status.value, "reason": one.reason} for one in failed],
            "out": str(target),
        },
        told + (f"; lowest PSNR {min(reached):.2f} dB" if reached else ""),
        as_json=as_json,
    )
    if not as_json:
        if left:
            named = ", ".join(left[:SHOWN]) + (" ..." if len(left) > SHOWN else "")
            note(f"{len(left):,} left alone, as links, hidden and other files are: {named}")
        for text, count in notes.most_common(SHOWN):
            note(f"note: {text} ({count:,} images)")
        for one in failed[:SHOWN]:
            note(f"{one.status.value}: {one.reason}")
        if len(failed) > SHOWN:
            note(f"and {len(failed) - SHOWN:,} more; --json names all")
    if failed:
        raise typer.Exit(FAILED)


def _marker(model: Path | None, key: str | None) -> Watermarker:
    from floormark.api import Watermarker
    from floormark.payload import read_key
    from floormark.tiling import limits

    secret = read_key(variable=key[4:]) if key is not None and key.startswith("env:") else read_key(key)
    marker = Watermarker.load(model, key=secret)
    if limited := limits(marker.network):
        note(f"{model} holds {limited}")
    return marker
