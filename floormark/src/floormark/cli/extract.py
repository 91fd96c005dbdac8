"""``floormark extract``: the message of an image file, or of each in a folder."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from floormark.cli.marker import add_options as add_marker_options
from floormark.cli.marker import load_marker, positive
from floormark.cli.outcome import FAILED, SUCCEEDED, begin, emit, emit_json
from floormark.cli.words import BELONGS, confidence, message_text
from floormark.errors import DataError, printable

EXAMPLES = """example:  floormark extract marked.png
with key: floormark extract marked --key env:WATERMARK_KEY --json"""


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`extract`."""
    parser.add_argument("source", metavar="IMAGE", type=Path, help="an image, or a folder of images")
    add_marker_options(parser)
    parser.add_argument("--workers", type=positive, default=1, help="processes for a folder; 1 if not given")


def extract(source: Path, key: str | None, model: Path | None, workers: int, as_json: bool) -> int:
    """Read the message of an image: exactly what was embedded, or that there is none.

    An image that was cropped, scaled, rotated, mirrored or inverted is searched for it.
    The exit code is 1 without a message, and for one that was copied from another image.
    """
    begin(f"extract: loading the network for {source}")
    from floormark.files.folder import extract_file, extract_files, image_files

    marker = load_marker(model, key)
    if not source.is_dir():
        found = extract_file(marker, source)
        about = f"{confidence(found)}, {found.corrected_errors} bits corrected; {BELONGS[found.belongs]}"
        emit(found.to_dict(), message_text(found), about if found else "", as_json=as_json)
        return SUCCEEDED if found and found.belongs is not False else FAILED
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
    failed = any(result["message"] is None or result["belongs"] is False for result in results.values())
    return FAILED if failed else SUCCEEDED
