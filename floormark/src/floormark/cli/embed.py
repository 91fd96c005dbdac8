"""``floormark embed``: a message into image files."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floormark.cli.keys import PASSPHRASE, open_signer
from floormark.cli.marker import add_options as add_marker_options
from floormark.cli.marker import load_marker, positive
from floormark.cli.outcome import FAILED, SUCCEEDED, begin, emit, note
from floormark.cli.progress import progress
from floormark.cli.words import decibels, largest_change
from floormark.errors import ConfigurationError, printable
from floormark.options import EmbedOptions

if TYPE_CHECKING:
    from floormark.files.folder import FileResult
    from floormark.files.marking import FileMarker
    from floormark.files.messages import Messages
    from floormark.payload import Payload

EXAMPLES = """example:      floormark embed xray.png marked.png --text "patient 4711"
a folder:     floormark embed xrays marked --text "St. Elsewhere" --psnr 45 --workers 2
go on:        the same command with --resume
each its own: floormark embed scans marked --message-from "{PatientID}"
with key:     floormark embed xray.dcm marked.dcm --hex 00ff17 --key key.txt
signed:       floormark embed xray.png marked.png --text "patient 4711" --sign hospital"""
NAMED_FILES = 10
"""Files of one kind that are named in a summary."""


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`embed`."""
    add = parser.add_argument
    add("source", metavar="IN", type=Path, help="an image, or a folder of images")
    add("target", metavar="OUT", type=Path, help="the marked image, the folder for it, or a new one for many")
    add("--text", help="message as text, with the shipped network of up to 16 bytes")
    add("--hex", dest="hexadecimal", help="message as hexadecimal digits")
    add("--bits", help="message as zeros and ones")
    add("--messages", type=Path, help="a message for each file of a folder: CSV with a header, file,text")
    add("--message-from", help="message from each DICOM file's own attributes, such as '{PatientID}'")
    for option in fields(EmbedOptions):
        kind: dict[str, Any] = {} if option.metadata["parse"] else {"action": "store_true"}
        add(f"--{option.name.replace('_', '-')}", help=option.metadata["help"], **kind)
    add_marker_options(parser)
    add("--sign", type=Path, help="private key of floormark keygen, to sign the certificates with")
    add("--passphrase", help=PASSPHRASE)
    add("--workers", type=positive, help="processes for a folder; one for each core if not given")
    add("--resume", action="store_true", help="go on with a folder, with the same options")
    add("--force", action="store_true", help="replace an image that is there")
    add("--lossy", action="store_true", help="allow OUT as JPEG; otherwise JPEG becomes PNG")


def embed(
    source: Path,
    target: Path,
    text: str | None,
    hexadecimal: str | None,
    bits: str | None,
    messages: Path | None,
    message_from: str | None,
    key: str | None,
    model: Path | None,
    sign: Path | None,
    passphrase: str | None,
    workers: int | None,
    resume: bool,
    force: bool,
    lossy: bool,
    as_json: bool,
    **embedding: Any,
) -> int:
    """Hide a message in an image, or in a folder of them: PNG, TIFF, BMP, JPEG, WebP or DICOM.

    Every file that is written keeps the PSNR floor in all that is shown of it and in every patch, was read back,
    and has a certificate beside it, OUT.json. Images that cannot carry the message at the floor, and those that are
    marked already, are refused (exit code 1).
    """
    begin(f"embed: loading the network for {source}")
    from floormark.files.folder import marked_name
    from floormark.files.marking import FileMarker
    from floormark.processes import cores

    message = chosen_message(source, text, hexadecimal, bits, messages, message_from)
    options = EmbedOptions.parsed(**embedding)
    signer = open_signer(sign, passphrase)
    files = FileMarker(load_marker(model, key), message, options, force=force, lossy=lossy, signer=signer)
    if source.is_dir():
        if force:
            raise ConfigurationError("--force replaces single images; for a folder choose a new OUT, or use --resume")
        return _embed_folder(files, source, target, workers or cores(), resume=resume, as_json=as_json)
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
    return SUCCEEDED


def chosen_message(
    source: Path,
    text: str | None,
    hexadecimal: str | None,
    bits: str | None,
    messages: Path | None,
    message_from: str | None,
) -> Payload | Messages:
    """The one that the options of ``embed`` name."""
    from floormark.files.messages import MessageTable, MessageTemplate
    from floormark.payload import Payload

    given = [each for each in (text, hexadecimal, bits, messages, message_from) if each is not None]
    if len(given) != 1:
        raise ConfigurationError(
            "expected one of --text, --hex, --bits, --messages and --message-from as the message, "
            f"got {len(given)} of them"
        )
    if messages is not None:
        if not source.is_dir():
            raise ConfigurationError("--messages is for folders; give a single image its message with --text")
        return MessageTable.read(messages)
    if message_from is not None:
        return MessageTemplate(message_from)
    makers = ((text, Payload.from_text), (hexadecimal, Payload.from_hex), (bits, Payload.from_bits))
    return next(make(value) for value, make in makers if value is not None)


def _embed_folder(files: FileMarker, source: Path, target: Path, workers: int, *, resume: bool, as_json: bool) -> int:
    from floormark.files.folder import Status, image_files, mark_folder, tasks

    images, others = image_files(source)
    found = tasks(source, images, target, lossy=files.lossy)
    left = [str(path.relative_to(source)) for path in others]
    counts: Counter[Status] = Counter()
    notes: Counter[str] = Counter()
    reached: list[float] = []
    failed: list[FileResult] = []
    with progress("marking", len(found)) as tell:
        marked = mark_folder(files, found, target, workers=min(workers, len(found)), resume=resume)
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
            "out": str(target),
        },
        told + (f"; lowest PSNR {min(reached):.2f} dB" if reached else ""),
        as_json=as_json,
    )
    if not as_json:
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
