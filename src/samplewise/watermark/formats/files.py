"""Which format a file has, told by its first bytes and not by its name."""

import hashlib
from dataclasses import replace
from pathlib import Path

from samplewise.errors import DataError
from samplewise.watermark.formats.picture import Picture, one_line

__all__ = ["is_dicom", "read"]

MAX_FILE = 1 << 30  # bytes
SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "png",
    b"II*\0": "tiff",
    b"MM\0*": "tiff",
    b"II+\0": "tiff",
    b"MM\0+": "tiff",
    b"BM": "bmp",
    b"\xff\xd8\xff": "jpeg",
}
DICOM_PREAMBLE = 128  # bytes before the signature


def read(path: Path | str) -> Picture:
    """Read one image: PNG, TIFF, BMP, JPEG or DICOM.

    Raises:
        DataError: the file cannot be read, is torn, too large, or holds what cannot be marked: several frames, 16-bit
            colour in PNG or TIFF, floating point, CMYK.
    """
    path = Path(path)
    content = _content(path)
    return replace(_decoded(path, content), sha256=hashlib.sha256(content).hexdigest())


def is_dicom(path: Path) -> bool:
    """Whether a file that can be read begins as DICOM does."""
    try:
        if path.is_file():  # waits for no pipe
            with path.open("rb") as file:
                return _begins_as_dicom(file.read(DICOM_PREAMBLE + 4))
    except OSError:
        pass
    return False


def _begins_as_dicom(content: bytes) -> bool:
    return content[DICOM_PREAMBLE : DICOM_PREAMBLE + 4] == b"DICM"


def _decoded(path: Path, content: bytes) -> Picture:
    if _begins_as_dicom(content):
        from samplewise.watermark.formats.dicom import read_dicom

        return read_dicom(path, content)
    for signature, kind in SIGNATURES.items():
        if content.startswith(signature):
            from samplewise.watermark.formats.raster import read_raster

            return read_raster(path, content, kind)
    got = "something else" if content else "an empty file"
    raise DataError(f"{path}: expected a PNG, TIFF, BMP, JPEG or DICOM (with preamble) file, got {got}")


def _content(path: Path) -> bytes:
    try:
        size = path.stat().st_size
        if path.is_file() and size <= MAX_FILE:  # waits for no pipe
            return path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for a name that no file can have
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or one_line(error)}") from error
    if path.is_file():
        raise DataError(f"{path}: expected a file of at most {MAX_FILE >> 20} MB, got {size >> 20} MB")
    raise DataError(f"{path}: expected an image file, got a {'folder' if path.is_dir() else 'device or pipe'}")
