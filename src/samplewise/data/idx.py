"""The idx format of the MNIST files: a magic number, the sizes, then the bytes; packed by gzip or not."""

import gzip
import hashlib
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO, NamedTuple

import torch
from torch import Tensor

from samplewise.errors import DataError

__all__ = ["IdxFile", "read_idx", "read_idx_file", "unpack_idx"]

UNSIGNED_BYTE = 0x08  # the only element type that the MNIST family uses
FREE_BYTES, EXPANSION = 16 << 20, 20
"""What a gzip file may unpack to: this much and, beyond it, so many times its length (MNIST: 5 times)."""


class IdxFile(NamedTuple):
    """What an idx file holds, and the md5 of it all, unpacked."""

    values: Tensor
    md5: str


def read_idx(path: Path | str, dimensions: int) -> Tensor:
    """Read one idx file, plain or gzip-compressed.

    Args:
        path: the file.
        dimensions: 3 for images ``(N, H, W)``, 1 for labels ``(N,)``.

    Returns:
        uint8, with as many dimensions.
    """
    return read_idx_file(Path(path), dimensions).values


def read_idx_file(path: Path, dimensions: int) -> IdxFile:
    """The same with the md5 of the file."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: cannot be read: not a regular file")
        with path.open("rb") as file:
            return unpack_idx(file, os.fstat(file.fileno()).st_size, path, dimensions)
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def unpack_idx(file: IO[bytes], length: int, path: Path, dimensions: int) -> IdxFile:
    """An idx file of that length, packed or not."""
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not packed:
        if path.suffix == ".gz":
            raise DataError(f"{path}: is not a gzip file, though its name ends in .gz; download it again")
        return _take(file, path, dimensions, length)
    try:
        with gzip.open(file) as unpacked:
            return _take(unpacked, path, dimensions, FREE_BYTES + EXPANSION * length)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or corrupted gzip file ({error}); download it again") from error


def _take(file: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int, limit: int) -> IdxFile:
    """The values that the header announces, if just as many follow and they are within the limit."""
    header = 4 + 4 * dimensions
    content = bytearray(file.read(header))
    expected = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if content[:4] != expected:
        raise DataError(
            f"{path}: wrong magic number: expected {expected.hex()} (idx, unsigned bytes, {dimensions} "
            f"dimension{'s' if dimensions > 1 else ''}), got {content[:4].hex() or 'an empty file'}; "
            "is this the right file?"
        )
    if len(content) < header:
        raise DataError(f"{path}: truncated: the header needs {header} bytes, the file has {len(content)}")
    sizes = struct.unpack(f">{dimensions}I", content[4:])
    size = math.prod(sizes)
    announced = f"the header announces {' x '.join(map(str, sizes))} = {size} bytes"
    if size > limit and isinstance(file, gzip.GzipFile):
        raise DataError(
            f"{path}: {announced}, more than a gzip file of this length should unpack to ({limit}); if that is right, "
            "unpack it and give the plain file"
        )
    # One byte more than there should be: a gzip file's own checksum is compared where it ends.
    content += file.read(min(size, limit) + 1)
    found = len(content) - header
    if found != size:
        state = "truncated" if found < size else "too long"
        raise DataError(
            f"{path}: {state}: {announced}, {'at least ' * (found > size)}{found} follow; download it again"
        )
    if not size:
        raise DataError(f"{path}: holds no samples")
    values = torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(sizes)
    return IdxFile(values, hashlib.md5(content, usedforsecurity=False).hexdigest())
