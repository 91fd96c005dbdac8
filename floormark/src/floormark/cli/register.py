"""``floormark register``: whose an image is, and whether the register is as it was written."""

from __future__ import annotations

import csv
import re
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floormark.cli.keys import add_marker_options, load_marker
from floormark.cli.output import FAILED, SUCCEEDED, emit, emit_json, note
from floormark.errors import DataError, printable

if TYPE_CHECKING:
    from floormark.register import Record, Register
    from floormark.signing import Signer

LOOKUP_EXAMPLES = """example: floormark register lookup found.png --register register.db
or:      floormark register lookup 00c0ffee00c0ffee --register register.db"""
CHECK_EXAMPLES = """example:     floormark register check --register register.db --public-key hospital.pub
since then:  floormark register check --register register.db --head 17:0a3f..."""
IDENTIFIER = re.compile("[0-9a-fA-F]{16}")
FACTS = ("owner", "source", "target", "time", "old_uid", "new_uid", "key")
"""Columns that :func:`lookup` shows beside the identifier; ``time`` is that of writing."""


def add_register_option(parser: ArgumentParser, help: str, *, required: bool = False) -> None:
    """The option of :func:`open_register`."""
    parser.add_argument("--register", metavar="FILE", type=Path, help=help, required=required)


def open_register(given: Namespace, signer: Signer | None = None, *, create: bool = True) -> Register | None:
    """The register that was asked for."""
    if given.register is None:
        return None
    from floormark.register import Register

    return Register.open(given.register, signer, create=create)


def add_options(parser: ArgumentParser) -> None:
    """The options of :func:`export` and :func:`settle`."""
    add_register_option(parser, "the register", required=True)


def add_lookup_options(parser: ArgumentParser) -> None:
    """The options of :func:`lookup`."""
    parser.add_argument("wanted", metavar="IMAGE|IDENTIFIER", help="an image, or what floormark extract reads of one")
    add_options(parser)
    add_marker_options(parser, several=True)


def lookup(given: Namespace) -> int:
    """Say whose an image is: by its mark, or by the hashes of its file and its pixels if it has none.

    The exit code is 1 if nothing is found, and for a mark that was copied from another image.
    """
    from floormark.register import Register

    register = Register.open(given.register, create=False)
    path = Path(given.wanted)
    if not path.exists():
        if not IDENTIFIER.fullmatch(given.wanted):
            told = "expected an image, or an identifier of 16 hexadecimal digits"
            raise DataError(f"{told}, got {given.wanted!r}, which is no file either")
        record = register.find(given.wanted.lower())
        return _tell([] if record is None else [record], "by the identifier", given)
    from floormark.files.folder import extract_file
    from floormark.imageio import read

    known: list[Record] = []
    copied = ""
    for found in extract_file(load_marker(given), path):
        if found.payload is None:
            continue
        if (record := register.find(found.payload.content.hex())) is None:
            note(f"the image says {found.payload.shown}, which this register does not know")
            continue
        known.append(record)
        if found.belongs is False:
            copied = "; but the mark was copied here from another image"
    if known:
        return _tell(known, f"by its mark{copied}", given, copied=bool(copied))
    image = read(path)
    for told, digest in (("file", image.sha256), ("pixels", image.pixels_sha256)):
        if records := register.find_hash(digest):
            original = digest in (records[0].row.original_sha256, records[0].row.original_pixels_sha256)
            which = "the original, before marking" if original else "the marked image"
            return _tell(records, f"by the hash of its {told}, as {which}", given)
    return _tell([], "by its mark, its file or its pixels", given)


def _tell(records: list[Record], how: str, given: Namespace, *, copied: bool = False) -> int:
    result = [{"identifier": each.row.identifier, "state": each.state, **_facts(each)} for each in records]
    text = "\n\n".join("\n".join(f"{name:<12}{value}" for name, value in each.items() if value) for each in result)
    found = {"found": how if records else None, "copied": copied, "records": result}
    emit(found, text or f"not found {how}", f"found {how}" if records else "", as_json=given.json)
    return SUCCEEDED if records and not copied else FAILED


def _facts(record: Record) -> dict[str, Any]:
    return {name: printable(getattr(record.row, name)) for name in FACTS}


def export(given: Namespace) -> int:
    """Print all images of a register as CSV, or as JSON."""
    from floormark.register import COLUMNS, Register

    columns = ["state", *(name for name in COLUMNS if name != "kind")]
    records = Register.open(given.register, create=False).records()
    told = ({"state": each.state, **asdict(each.row)} for each in records)
    if given.json:
        emit_json([{name: each[name] for name in columns} for each in told])
        return SUCCEEDED
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([printable(str(each[name])) for name in columns] for each in told)
    return SUCCEEDED


def add_check_options(parser: ArgumentParser) -> None:
    """The options of :func:`check`."""
    add_options(parser)
    told = "key that may have signed rows; once for each"
    parser.add_argument("--public-key", type=Path, action="append", default=[], help=told)
    parser.add_argument("--head", help="NUMBER:HASH of an earlier check, to find out whether rows are missing since")


def check(given: Namespace) -> int:
    """Check whether rows of a register were changed, removed or put in.

    Rows that are missing at its end are detected only by the head of an earlier check. The exit code is 1 if there is
    a problem.
    """
    from floormark.register import Register
    from floormark.signing import read_public_key

    keys = [read_public_key(path) for path in given.public_key]
    found = Register.open(given.register, create=False).check(keys=keys, head=given.head)
    verdict = "PROBLEMS" if found.problems else "no problem"
    signed = f"signed by {', '.join(found.signed_by)}" if found.signed_by else "not signed"
    emit(
        {"satisfied": not found.problems, **asdict(found)},
        f"{verdict} in {found.rows:,} rows, images: {found.images:,}, {signed}\nhead {found.head}",
        as_json=given.json,
    )
    if not given.json:
        if found.signed_by and not keys:
            note("nobody vouches for these keys: give --public-key")
        if found.pending:
            note(f"{len(found.pending):,} files are not settled, as after a kill: floormark register settle does it")
        for problem in found.problems:
            note(f"problem: {problem}")
    return FAILED if found.problems else SUCCEEDED


def settle(given: Namespace) -> int:
    """Settle what a kill left open, by checking whether the files are there."""
    from floormark.register import Register

    count = Register.open(given.register, create=False).settle_pending()
    emit({"settled": count}, f"{count:,} settled", as_json=given.json)
    return SUCCEEDED
