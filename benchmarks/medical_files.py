"""DICOM images of all kinds: how many are marked within their window, and read back, and why the others are refused.

    python benchmarks/medical_files.py --files pydicom/data pydicom-data pylibjpeg-data

Files with pixel data are found below the folders that are named; of those with equal pixels in one transfer syntax, one
is taken. A file counts as read back if its message is read from every frame of what was written, and the certificate
agrees with both files.
"""

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydicom
from common import ROOT, begin, keep, options, table
from pydicom import dcmread

from floormark import Payload, Watermarker
from floormark.errors import FloormarkError, RefusedError
from floormark.files.marking import FileMarker
from floormark.imageio import frames_sha256, looks_like_image, read
from floormark.options import EmbedOptions
from floormark.verify import verify_files

MESSAGE = "patient 4711"
FLOORS = (40.0, 45.0)
REASONS = {
    "below 64 pixels": r"at least 64",
    "kind of pixels": r"expected (8 or 16 bits|MONOCHROME|\d+ to \d+ bits)",
    "big endian": r"big endian",
    "damaged": r"torn|cannot be decoded|frames|bits a pixel|expected|names its",
    "marked already": r"marked already",
    "taken for another": r"taken for another",
    "a lower floor would do": r"the highest floor that works",
    "small": r"the image is small",
    "no floor would do": r"no floor from",
}
"""Why a file is refused, by what the tool says; the first that fits."""
LOWEST_ADVICE = 38.0  # dB
NAMES = {"modality": "Modality", "syntax": "Transfer syntax"}


def files(places: list[Path]) -> Iterator[Path]:
    """The DICOM files below some folders."""
    for place in places:
        for path in sorted(place.rglob("*")):
            if path.is_file() and (path.suffix == ".dcm" or (not path.suffix and looks_like_image(path))):
                yield path


def described(path: Path) -> tuple[str, str] | None:
    """The modality and the transfer syntax of a file; None if it is no image."""
    try:
        said = dcmread(path, defer_size=1 << 10)
        syntax = said.file_meta.TransferSyntaxUID
        return (str(said.get("Modality") or "none"), syntax.name) if "PixelData" in said else None
    except Exception:  # whatever a damaged file makes pydicom stumble over
        return "damaged", "damaged"


def content(path: Path) -> str | None:
    """What tells the pixels of a file from those of others; None if they cannot be read."""
    try:
        return frames_sha256([frame.pixels_sha256 for frame in read(path).frames()])
    except FloormarkError:
        return None


def reason(error: FloormarkError) -> str:
    return next((name for name, pattern in REASONS.items() if re.search(pattern, str(error))), "other")


def tried(marker: Watermarker, path: Path, floor: float, folder: Path) -> dict[str, Any]:
    """What becomes of one file at one floor."""
    target = folder / "marked.dcm"
    settings = FileMarker(marker, Payload.of(MESSAGE), EmbedOptions(psnr=floor), force=True, to_rgb=True)
    try:
        certificate, _ = settings.mark_file(path, target)
    except FloormarkError as error:
        told = re.search(r"floor that works is ([\d.]+) dB", str(error))
        advice = None if told is None else float(told[1])
        return {"marked": False, "refused": isinstance(error, RefusedError), "why": reason(error), "advice": advice}
    found = verify_files(marker, path, target)
    return {
        "marked": True,
        "read": not found.problems and found.extracted.message == MESSAGE,
        "problems": found.problems,
        "frames": certificate.frames,
        "shown_psnr": certificate.fidelity.shown_psnr,
        "patch_psnr": certificate.fidelity.min_adjusted_patch_psnr,
        "largest_change": certificate.fidelity.largest_change,
        "unit": certificate.fidelity.unit,
    }


def page(rows: list[dict[str, Any]]) -> list[str]:
    """Both tables: by modality and by transfer syntax."""
    lines = ["# DICOM images of all kinds", ""]
    for floor in FLOORS:
        named = f"{floor:g}"
        tries = [row[named] for row in rows]
        marked = [one for one in tries if one["marked"]]
        back = sum(one["read"] for one in marked)
        lines += [
            f"**At {named} dB** {len(marked)} of {len(rows)} images were marked, and {back} of these read back; "
            f"the other {len(rows) - len(marked)} were refused, and nothing was written.",
            "",
        ]
        for field in ("modality", "syntax"):
            head = [NAMES[field], "Images", "Can be read", "Marked", "Read back", "Refused because"]
            lines += [*table(head, _lines(rows, named, field)), ""]
    return lines


def _lines(rows: list[dict[str, Any]], floor: str, field: str) -> Iterator[tuple[object, ...]]:
    for value in sorted({row[field] for row in rows}):
        some = [row for row in rows if row[field] == value]
        tries = [row[floor] for row in some]
        marked = [one for one in tries if one["marked"]]
        why = Counter(one["why"] for one in tries if not one["marked"]).most_common()
        told = ", ".join(f"{name} {count}" for name, count in why)
        able = sum(row["image"] for row in some)
        yield value, len(some), able, len(marked), sum(one["read"] for one in marked), told


def main() -> None:
    parser = options(__doc__)
    parser.set_defaults(out=ROOT / "results" / "watermark")
    own = Path(pydicom.__file__).parent
    parser.add_argument("--files", type=Path, nargs="+", default=[own], help="folders of files (those of pydicom)")
    chosen = begin(parser)
    marker = Watermarker.load()
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the files have faults
        for path in files(chosen.files):
            if (kind := described(path)) is None:
                continue
            pixels, (modality, syntax) = content(path), kind
            if pixels is not None:
                if f"{pixels} {syntax}" in seen:
                    continue
                seen.add(f"{pixels} {syntax}")
            row = {"file": path.name, "modality": modality, "syntax": syntax, "image": pixels is not None}
            for floor in FLOORS:
                row[f"{floor:g}"] = tried(marker, path, floor, Path(folder))
            rows.append(row)
    advised = [one["advice"] for row in rows for one in row.values() if isinstance(one, dict) and one.get("advice")]
    assert min(advised, default=LOWEST_ADVICE) >= LOWEST_ADVICE, min(advised)
    told = {"files": rows, "lowest_advice": min(advised, default=None)}
    keep(__file__, chosen, told, page(rows), packages=["pydicom"])


if __name__ == "__main__":
    main()
