"""Picture files of less than 5 MB that were made to take gigabytes or minutes: none may."""

import io
import json
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hostile_files import FILES, TAKEN, write
from limits import MOST_BYTES, MOST_SECONDS
from studies.pictures.decode import decode

FULL = 8192


def progressive(mode: str, side: int) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, "JPEG", quality=30, progressive=True)
    return file.getvalue()


def bmp(width: int, height: int, packed: bytes) -> bytes:
    """A BMP file in runs."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(packed), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 1024 + len(packed), 0, 0, 54 + 1024) + head + bytes(1024) + packed


def tile() -> bytes:
    """A TIFF file of 64 x 64 pixels in one tile of 40,000 x 40,000."""
    data = zlib.compress(bytes(1 << 20))
    tags = {256: 64, 257: 64, 258: 8, 259: 8, 262: 1, 277: 1, 322: 40_000, 323: 40_000, 324: 134, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + data


REFUSED: dict[str, Callable[[], bytes]] = {
    **FILES,
    "runs.bmp": lambda: bmp(FULL * FULL, 1, b"\1\0\0\0"),
    "rows.bmp": lambda: bmp(FULL, FULL, b"\1\0\0\0" * FULL),
    "cmyk.jpg": lambda: progressive("CMYK", 8000),
    "grey.jpg": lambda: progressive("L", 8000),
    "tile.tif": tile,
    "long.png": TAKEN["long.png"],  # which the tool takes: to resize it takes memory by its length
}
LARGEST = {name: make for name, make in TAKEN.items() if name != "long.png"}
DECODE = """
import json, sys, time, warnings
from collections.abc import Callable
from pathlib import Path
from studies.pictures.decode import decode
from samplewise.errors import DataError
warnings.simplefilter("ignore")
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    began = time.process_time()
    try:
        decode(path, 1024)
        why = ""
    except DataError as error:
        why = str(error)
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    found[path.name] = (time.process_time() - began, peak, why)
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say what a process held")
@pytest.mark.parametrize(("files", "refused"), [(REFUSED, True), (LARGEST, False)], ids=["refused", "taken"])
def test_no_small_file_takes_a_gigabyte_or_ten_seconds(
    tmp_path: Path, files: dict[str, Callable[[], bytes]], refused: bool
) -> None:
    write(tmp_path / "files", files)
    started = [sys.executable, "-c", DECODE, str(tmp_path / "files")]
    found = json.loads(subprocess.run(started, capture_output=True, text=True, check=True).stdout)
    for name, (seconds, peak, why) in found.items():
        assert peak < MOST_BYTES, f"{name}: {peak / 1e6:.0f} MB"  # the most so far, so at least what this one takes
        assert seconds < MOST_SECONDS, f"{name}: {seconds:.1f} s"
        assert bool(why) == refused, name


def test_runs_within_the_limit_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.bmp").write_bytes(bmp(64, 64, (b"\x40\x07\0\0") * 64 + b"\0\1"))
    pixels, _ = decode(tmp_path / "x.bmp", 8)
    assert not np.any(pixels)  # the palette is black


@pytest.mark.parametrize("kind", ["L", "RGB"])
def test_ordinary_progressive_files_are_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "x.jpg").write_bytes(progressive(kind, 300))
    assert decode(tmp_path / "x.jpg", 16)[1] == kind
