"""Picture files of less than 5 MB that were made to take gigabytes or minutes: none may."""

import io
import json
import struct
import subprocess
import sys
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from limits import MOST_BYTES, MOST_SECONDS

FULL, THIN = 8192, 1 << 20


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, colour: int, depth: int = 8, *, extra: bytes = b"", rows: int = 0) -> bytes:
    """A black PNG file; ``extra`` stands behind its header, and it may hold fewer rows than it announces."""
    channels = {0: 1, 6: 4}[colour]
    packer = zlib.compressobj(1)
    row = bytes(1 + width * channels * depth // 8)
    packed = b"".join(packer.compress(row) for _ in range(rows or height)) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + extra + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


@cache
def jpeg(mode: str, side: int, *, scans: int = 0) -> bytes:
    """A progressive JPEG file; its last scan stands there ``scans`` more times."""
    if scans:
        content = jpeg(mode, side)
    else:
        file = io.BytesIO()
        Image.new(mode, (side, side)).save(file, "JPEG", quality=30, progressive=True)
        return file.getvalue()
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * scans + b"\xff\xd9"


def bmp(width: int, height: int, packed: bytes) -> bytes:
    """A BMP file in runs."""
    head = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(packed), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", 54 + 1024 + len(packed), 0, 0, 54 + 1024) + head + bytes(1024) + packed


def tiff(tags: dict[int, tuple[int, int]], data: bytes, *, chain: int = 0) -> bytes:
    """A TIFF file of one image, its pixels at the end, followed by as many empty images."""
    after = 8 + 2 + 12 * (len(tags) + 1) + 4
    entries = {**tags, (324 if 322 in tags else 273): (4, after + 6 * chain)}
    listed = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, (kind, value) in sorted(entries.items()))
    links = (struct.pack("<HI", 0, after + 6 * (i + 1) if i < chain - 1 else 0) for i in range(chain))
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries))
    return head + listed + struct.pack("<I", after if chain else 0) + b"".join(links) + data


def grey(width: int, height: int) -> dict[int, tuple[int, int]]:
    return {256: (4, width), 257: (4, height), 258: (3, 8), 259: (3, 1), 262: (3, 1), 277: (3, 1)}


def corpus() -> dict[str, bytes]:
    """Every file, by its name."""
    bomb = zlib.compress(bytes(1 << 28), 1)
    tile = zlib.compress(bytes(1 << 20))
    return {
        "grey.png": png(FULL, FULL, 0),
        "clear.png": png(FULL, FULL, 6),
        "deep.png": png(FULL, FULL, 0, 16),
        "thin.png": png(64, THIN, 0),
        "flat.png": png(THIN, 64, 0),
        "text.png": png(64, 64, 0, extra=chunk(b"zTXt", b"k\0\0" + bomb)),
        "profile.png": png(64, 64, 0, extra=chunk(b"iCCP", b"k\0\0" + bomb)),
        "words.png": png(64, 64, 0, extra=chunk(b"iTXt", b"k\0\1\0\0\0" + bomb)),
        "chunks.png": png(64, 64, 0, extra=chunk(b"prVt", b"") * 400_000),
        "announced.png": png(60000, 60000, 0, rows=1),
        "scans.jpg": jpeg("L", 8000, scans=400),
        "cmyk.jpg": jpeg("CMYK", 8000),
        "grey.jpg": jpeg("L", 8000),
        "runs.bmp": bmp(FULL * FULL, 1, b"\1\0\0\0"),
        "rows.bmp": bmp(FULL, FULL, b"\1\0\0\0" * FULL),
        "chain.tif": tiff({**grey(64, 64), 278: (4, 64), 279: (4, 4096)}, bytes(4096), chain=60_000),
        "announced.tif": tiff({**grey(2**31 - 1, 2**31 - 1), 278: (4, 64), 279: (4, 4096)}, bytes(4096)),
        "tile.tif": tiff({**grey(64, 64), 259: (3, 8), 322: (4, 40000), 323: (4, 40000), 325: (4, len(tile))}, tile),
    }


DECODE = """
import json, sys, time, warnings
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
def test_no_small_file_takes_a_gigabyte_or_ten_seconds(tmp_path: Path) -> None:
    for name, content in corpus().items():
        assert len(content) < 5_000_000, name
        (tmp_path / name).write_bytes(content)
    ran = subprocess.run([sys.executable, "-c", DECODE, str(tmp_path)], capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    for name, (seconds, peak, why) in found.items():
        assert peak < MOST_BYTES, f"{name}: {peak / 1e6:.0f} MB"  # the most so far, so at least what this one takes
        assert seconds < MOST_SECONDS, f"{name}: {seconds:.1f} s"
        assert why, name


def test_runs_within_the_limit_are_quick(tmp_path: Path) -> None:
    from studies.pictures.decode import decode

    (tmp_path / "x.bmp").write_bytes(bmp(64, 64, (b"\x40\x07\0\0") * 64 + b"\0\1"))
    pixels, _ = decode(tmp_path / "x.bmp", 8)
    assert not np.any(pixels)  # the palette is black


@pytest.mark.parametrize("kind", ["L", "RGB"])
def test_ordinary_progressive_files_are_read(tmp_path: Path, kind: str) -> None:
    from studies.pictures.decode import decode

    (tmp_path / "x.jpg").write_bytes(jpeg(kind, 300))
    assert decode(tmp_path / "x.jpg", 16)[1] == kind
