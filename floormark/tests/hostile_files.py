"""Small files that ask for much: each made by a function, to be written to a folder."""

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from pydicom import uid
from pydicom.dataset import Dataset, FileMetaDataset
from pydicom.encaps import encapsulate

from floormark.imageio.streams import ENCODERS

MEGABYTE = 1 << 20


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(
    width: int, height: int, colour: int = 0, depth: int = 8, *, extra: bytes = b"", rows: int | None = None
) -> bytes:
    """An image of zeros, with chunks ``extra`` before the pixels; only ``rows`` of it are there, if given."""
    row = bytes(1 + width * {0: 1, 2: 3, 6: 4}[colour] * depth // 8)
    packed = zlib.compressobj(1)
    data = b"".join(packed.compress(row) for _ in range(height if rows is None else rows)) + packed.flush()
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def inflating(name: bytes, head: bytes) -> bytes:
    """A PNG file with a compressed text or profile of 100 MB."""
    return png(256, 256, extra=chunk(name, head + zlib.compress(bytes(100 * MEGABYTE), 1)))


def tiff(pages: int, *, side: int = 256) -> bytes:
    """A grey image and a chain of empty pages after it."""
    kind = 3 if side < 1 << 16 else 4
    entries = [(256, kind, 1, side), (257, kind, 1, side), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1)]
    entries += [(273, 4, 1, 0), (277, 3, 1, 1), (278, 3, 1, 256), (279, 4, 1, 65536)]
    chain = 8 + 2 + 12 * len(entries) + 4
    entries = [entry if entry[0] != 273 else (273, 4, 1, chain + 6 * pages) for entry in entries]
    first = struct.pack("<H", len(entries)) + b"".join(struct.pack("<HHII", *entry) for entry in entries)
    first += struct.pack("<I", chain if pages else 0)
    links = (struct.pack("<HI", 0, chain + 6 * (page + 1) if page < pages - 1 else 0) for page in range(pages))
    return b"II*\0" + struct.pack("<I", 8) + first + b"".join(links) + bytes(65536)


def jpeg_of_scans(scans: int, side: int) -> bytes:
    """A progressive JPEG image whose last scan is repeated."""
    file = io.BytesIO()
    Image.new("L", (side, side)).save(file, "JPEG", quality=30, progressive=True)
    content = file.getvalue()
    begins = [place for place in range(len(content) - 1) if content[place : place + 2] == b"\xff\xda"]
    tables = content.rfind(b"\xff\xc4", 0, begins[-1])
    last = content[tables if tables > begins[-2] else begins[-1] : -2]
    return content[:-2] + last * (scans - len(begins)) + b"\xff\xd9"


def dicom(
    rows: int = 256, columns: int = 256, pixels: bytes | None = None, syntax: str = uid.ExplicitVRLittleEndian
) -> bytes:
    dataset, file = Dataset(), io.BytesIO()
    dataset.SOPClassUID, dataset.SOPInstanceUID = "1.2.840.10008.5.1.4.1.1.7", uid.generate_uid()
    dataset.Rows, dataset.Columns, dataset.PhotometricInterpretation = rows, columns, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 8, 8, 7
    dataset.PixelRepresentation, dataset.SamplesPerPixel = 0, 1
    dataset.PixelData = bytes(rows * columns) if pixels is None else pixels
    dataset["PixelData"].VR = "OB"
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    dataset.file_meta.TransferSyntaxUID = uid.UID(syntax)
    dataset.save_as(file, enforce_file_format=True)
    return file.getvalue()


def nested(depth: int) -> bytes:
    """Sequences in sequences, before the attributes of the image."""
    begin = b"\x08\x00\x15\x11SQ\0\0\xff\xff\xff\xff\xfe\xff\x00\xe0\xff\xff\xff\xff"
    end = b"\xfe\xff\x0d\xe0\0\0\0\0\xfe\xff\xdd\xe0\0\0\0\0"
    content = dicom()
    place = content.index(b"\x28\x00\x02\x00US")
    return content[:place] + begin * depth + end * depth + content[place:]


def deflated(megabytes: int, length: int | None) -> bytes:
    """A deflated DICOM file with an attribute of zeros; ``length`` is what it says of its head, None says nothing."""

    def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
        value += bytes(len(value) % 2)
        return struct.pack("<HH", group, number) + kind + struct.pack("<H", len(value)) + value

    plain = dicom()
    body = plain[plain.index(b"\x08\x00\x16\x00UI") :]
    place = body.index(b"\x28\x00\x02\x00US")
    packed = zlib.compressobj(1, zlib.DEFLATED, -15)
    parts = [packed.compress(body[:place] + b"\x09\x00\x10\x10OB\0\0" + struct.pack("<I", megabytes * MEGABYTE))]
    parts += [packed.compress(bytes(MEGABYTE)) for _ in range(megabytes)]
    parts += [packed.compress(body[place:]), packed.flush()]
    meta = element(2, 2, b"UI", b"1.2.840.10008.5.1.4.1.1.7") + element(2, 3, b"UI", b"1.2.3")
    meta += element(2, 0x10, b"UI", b"1.2.840.10008.1.2.1.99")
    if length is not None:
        meta = element(2, 0, b"UL", struct.pack("<I", length or len(meta))) + meta
    return bytes(128) + b"DICM" + meta + b"".join(parts)


def large_jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("L", (9000, 9000)).save(file, "JPEG", quality=1)
    return file.getvalue()


def compressed(syntax: str, side: int, *, said: int | None = None) -> bytes:
    """A DICOM file with a stream of zeros, ``side`` pixels wide and high; ``said`` is what its header says instead."""
    stream = ENCODERS[syntax](np.zeros((side, side), np.uint8), 8)
    return dicom(said or side, said or side, encapsulate([stream]), syntax)


def tiles(side: int) -> bytes:
    """A JPEG 2000 stream that says that it has a tile for each pixel."""
    content = bytearray(compressed(uid.JPEG2000Lossless, side))
    place = content.index(b"\xff\x4f\xff\x51") + 24
    content[place : place + 8] = struct.pack(">II", 1, 1)
    return bytes(content)


def bmp() -> bytes:
    head = struct.pack("<IiiHHIIiiII", 40, 8192, 8192, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 100, 0, 0, 54) + head + bytes(50)


def webp() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.zeros((3400, 3400, 3), np.uint8)).save(file, "WEBP", lossless=True, quality=0, method=0)
    return file.getvalue()


FILES: dict[str, Callable[[], bytes]] = {
    "grey.png": lambda: png(6000, 6000),
    "alpha.png": lambda: png(6000, 6000, 6),
    "deep.png": lambda: png(6000, 6000, 0, 16),
    "billions.png": lambda: png(60_000, 60_000, rows=1),
    "thin.png": lambda: png(64, 1 << 20),
    "thinner.png": lambda: png(64, 1 << 18),
    "text.png": lambda: inflating(b"zTXt", b"k\0\0"),
    "international.png": lambda: inflating(b"iTXt", b"k\0\1\0\0\0"),
    "profile.png": lambda: inflating(b"iCCP", b"k\0\0"),
    "chunks.png": lambda: png(256, 256, extra=chunk(b"prVt", b"") * 400_000),
    "filled.png": lambda: png(6000, 6000, 2, extra=chunk(b"prVt", bytes(4 * MEGABYTE))),
    "pages.tif": lambda: tiff(60_000),
    "huge.tif": lambda: tiff(0, side=2**31 - 1),
    "large.bmp": bmp,
    "large.webp": webp,
    "scans.jpg": lambda: jpeg_of_scans(400, 4000),
    "large.dcm": lambda: dicom(8192, 8192, bytes(100)),
    "nested.dcm": lambda: nested(50_000),
    "unnamed.dcm": lambda: deflated(400, None),
    "named.dcm": lambda: deflated(100, 0),
    "misnamed.dcm": lambda: deflated(100, 4),
    "runs.dcm": lambda: dicom(
        8192, 8192, encapsulate([struct.pack("<16I", 1, 64, *[0] * 14) + b"\x81\0" * 600]), uid.RLELossless
    ),
    "jpeg.dcm": lambda: dicom(256, 256, encapsulate([large_jpeg()]), uid.JPEGBaseline8Bit),
    "extended.dcm": lambda: dicom(256, 256, encapsulate([large_jpeg()]), uid.JPEGExtended12Bit),
    "lossless.dcm": lambda: compressed(uid.JPEGLosslessSV1, 4096, said=256),
    "less.dcm": lambda: compressed(uid.JPEGLSLossless, 9000, said=256),
    "wavelets.dcm": lambda: compressed(uid.JPEG2000Lossless, 9000, said=256),
    "tiles.dcm": lambda: tiles(256),
    "frames.dcm": lambda: dicom(
        5000,
        5000,
        encapsulate([ENCODERS[uid.JPEGLSLossless](np.zeros((5000, 5000), np.uint8), 8)] * 100),
        uid.JPEGLSLossless,
    ),
}
"""Refused, each by its own rule."""
TAKEN: dict[str, Callable[[], bytes]] = {
    "deep.png": lambda: png(4096, 4096, 0, 16),
    "grey.png": lambda: png(5792, 5792),
    "scans.jpg": lambda: jpeg_of_scans(60, 4096),
    "long.png": lambda: png(64, 1 << 16),
    "less.dcm": lambda: compressed(uid.JPEGLSLossless, 5792),
    "wavelets.dcm": lambda: compressed(uid.JPEG2000Lossless, 5792),
}
"""The largest that are not."""


def write(folder: Path, files: dict[str, Callable[[], bytes]]) -> list[Path]:
    """Write them; none has 5 MB."""
    folder.mkdir()
    for name, make in files.items():
        content = make()
        assert len(content) < 5_000_000, name
        (folder / name).write_bytes(content)
    return sorted(folder.iterdir())
