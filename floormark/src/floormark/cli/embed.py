"""``floormark embed``: a message into image files."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floormark.cli.keys import PASSPHRASE, add_marker_options, load_marker, open_signer, positive
from floormark.cli.output import FAILED, SUCCEEDED, decibels, emit, largest_change, note, progress
from floormark.cli.register import add_register_option, open_register
from floormark.errors import ConfigurationError, printable
from floormark.options import EmbedOptions

if TYPE_CHECKING:
    from floormark.content_credentials import Credentials
    from floormark.files.folder import FileResult
    from floormark.files.marking import FileMarker
    from floormark.files.messages import Messages
    from floormark.payload import Payload

EXAMPLES = """example:      floormark embed xray.png marked.png --text "patient 4711"
a folder:     floormark embed xrays marked --text "St. Elsewhere" --psnr 45 --workers 2
go on:        the same command with --resume
each its own: floormark embed scans marked --message-from "{PatientID}"
with key:     floormark embed xray.dcm marked.dcm --hex 00ff17 --key key.txt
signed:       floormark embed xray.png marked.png --text "patient 4711" --sign hospital
recorded:     floormark embed scans marked --message-from "{PatientID}" --register register.db"""
NAMED_FILES = 10  # of one kind in a summary


def add_options(parser: ArgumentParser) -> None:
    """The options of :func:`embed`."""
    add = parser.add_argument
    add("source", metavar="IN", type=Path, help="an image, or a folder of images")
    add("target", metavar="OUT", type=Path, help="the marked image, the folder for it, or a new one for many")
    add("--messages", type=Path, help="a message for each file of a folder: CSV with a header, file,text")
    add_marking_options(parser)
    add("--workers", type=positive, help="processes for a folder; one for each core if not given")
    add("--resume", action="store_true", help="go on with a folder, with the same options")
    add("--force", action="store_true", help="replace an image that is there")
    add("--c2pa", nargs=2, metavar=("CERT", "KEY"), type=Path, help="sign a C2PA manifest inside PNG, JPEG or TIFF")
    add("--lossy", action="store_true", help="allow OUT as JPEG; otherwise JPEG becomes PNG")


def add_marking_options(parser: ArgumentParser) -> None:
    """The options of :func:`file_marker`."""
    add = parser.add_argument
    add("--text", help="message as text, with the shipped network of up to 16 bytes")
    add("--hex", help="message as hexadecimal digits")
    add("--bits", help="message as zeros and ones")
    add("--message-from", help="message from each DICOM file's own attributes, such as '{PatientID}'")
    for option in fields(EmbedOptions):
        kind: dict[str, Any] = {} if option.metadata["parse"] else {"action": "store_true"}
        add(f"--{option.name.replace('_', '-')}", help=option.metadata["help"], **kind)
    add_marker_options(parser)
    add_register_option(parser, "SQLite file that gives each image a random identifier, and keeps the message itself")
    add("--sign", type=Path, help="private key of floormark keygen, to sign the certificates with")
    add("--passphrase", help=PASSPHRASE)
    add("--keep-series", action="store_true", help="leave DICOM images in the series of their originals")
    add("--to-rgb", action="store_true", help="turn DICOM images with a palette into RGB, as they cannot keep it")


def file_marker(
    given: Namespace, *, force: bool = False, lossy: bool = False, credentials: Credentials | None = None
) -> FileMarker:
    """What marks files as the options say."""
    from floormark.files.marking import FileMarker

    signer = open_signer(given)
    return FileMarker(
        message=_message(given),
        options=EmbedOptions.parsed(vars(given)),
        signer=signer,
        register=open_register(given, signer),
        marker=load_marker(given),
        credentials=credentials,
        force=force,
        lossy=lossy,
        to_rgb=given.to_rgb,
        keep_series=given.keep_series,
    )


def embed(given: Namespace) -> int:
    """Hide a message in an image, or in a folder of them: PNG, TIFF, BMP, JPEG, WebP or DICOM.

    Every file that is written keeps the PSNR floor in all that is shown of it and in every patch, was read back,
    and has a certificate beside it, OUT.json. Images that cannot carry the message at the floor, and those that are
    marked already, are refused (exit code 1).
    """
    source, target = given.source, given.target
    from floormark.files.folder import marked_name

    files = file_marker(given, force=given.force, lossy=given.lossy, credentials=_credentials(given))
    if source.is_dir():
        if given.force:
            raise ConfigurationError("--force replaces single images; for a folder choose a new OUT, or use --resume")
        return _embed_folder(files, given)
    if given.resume:
        raise ConfigurationError("--resume is for folders; a single image is written whole or not at all")
    if target.is_dir():
        target /= marked_name(Path(source.name), lossy=given.lossy)
    certificate, notes = files.mark_file(source, target)
    measured = certificate.fidelity
    record = None
    if files.register is not None:
        record = files.register.find_hash(certificate.result_sha256)[-1].row
    emit(
        {
            "image": str(target),
            "identifier": None if record is None else record.identifier,
            "certificate": {"satisfied": certificate.satisfied, **asdict(certificate)},
            "notes": notes,
        },
        f"{printable(str(target))}: PSNR {decibels(measured.shown_psnr)} (floor {certificate.floor:g}), "
        f"largest difference {largest_change(measured)}, "
        f"{certificate.bit_errors} of {certificate.bits} bits corrected on reading"
        + ("" if files.signer is None else f", signed by {files.signer.public.fingerprint}")
        + ("" if record is None else f", identifier {record.identifier}"),
        as_json=given.json,
    )
    for each in () if given.json else notes:
        note(f"note: {each}")
    return SUCCEEDED


def _credentials(given: Namespace) -> Credentials | None:
    """Who signs manifests, if they were asked for."""
    if given.c2pa is None:
        return None
    from floormark.content_credentials import Credentials

    return Credentials.read(*given.c2pa)


def _message(given: Namespace) -> Payload | Messages | None:
    """The message that the options name, or the messages; with a register, there may be none."""
    from floormark.files.messages import MessageTable, MessageTemplate
    from floormark.payload import Payload

    makers: dict[str, Callable[[Any], Payload | Messages]] = {
        "text": Payload.from_text,
        "hex": Payload.from_hex,
        "bits": Payload.from_bits,
        "messages": MessageTable.read,
        "message_from": MessageTemplate,
    }
    offered = [name for name in makers if hasattr(given, name)]
    chosen = [name for name in offered if getattr(given, name) is not None]
    if not chosen and given.register is not None:
        return None
    if len(chosen) != 1:
        names = [f"--{name.replace('_', '-')}" for name in offered]
        raise ConfigurationError(
            f"expected one of {', '.join(names[:-1])} and {names[-1]} as the message, got {len(chosen)} of them; "
            "--register does without"
        )
    if "messages" in chosen and not given.source.is_dir():
        raise ConfigurationError("--messages is for folders; give a single image its message with --text")
    return makers[chosen[0]](getattr(given, chosen[0]))


def _embed_folder(files: FileMarker, given: Namespace) -> int:
    from floormark.files.folder import Status, image_files, mark_folder, tasks
    from floormark.processes import cores

    images, others = image_files(given.source)
    found = tasks(given.source, images, given.target, lossy=files.lossy)
    left = [str(path.relative_to(given.source)) for path in others]
    counts: Counter[Status] = Counter()
    notes: Counter[str] = Counter()
    reached: list[float] = []
    failed: list[FileResult] = []
    with progress("marking", len(found)) as tell:
        workers = min(given.workers or cores(), len(found))
        marked = mark_folder(files, found, given.target, workers=workers, resume=given.resume)
        for done, one in enumerate(marked, start=1):
            counts[one.status] += 1
            notes.update(one.notes)
            if one.certificate is not None and one.certificate.fidelity.psnr is not None:
                reached.append(one.certificate.fidelity.psnr)
            if one.reason:
                failed.append(one)
            tell(done)
    told = ", ".join(f"{counts[status]:,} {status.value}" for status in Status if counts[status])
    emit(
        {
            **{status.name.lower(): counts[status] for status in Status},
            "left_alone": left,
            "lowest_psnr": min(reached, default=None),
            "notes": notes,
            "signed_by": None if files.signer is None else files.signer.public.fingerprint,
            "failed": [{"file": one.name, "status": one.status.value, "reason": one.reason} for one in failed],
            "out": str(given.target),
        },
        told + (f"; lowest PSNR {min(reached):.2f} dB" if reached else ""),
        as_json=given.json,
    )
    if not given.json:
        if left:
            named = ", ".join(left[:NAMED_FILES]) + (" ..." if len(left) > NAMED_FILES else "")
            note(f"{len(left):,} left alone, as links, hidden and other files are: {named}")
        for text, count in notes.most_common(NAMED_FILES):
            note(f"note: {text} ({count:,} images)")
        for one in failed[:NAMED_FILES]:
            note(f"{one.status.value}: {one.reason}")
        if len(failed) > NAMED_FILES:
            note(f"and {len(failed) - NAMED_FILES:,} more; --json names all")
    return FAILED if failed else SUCCEEDED
