"""The idx format of the MNIST files: a magic number, the sizes, then the bytes."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samplewise.errors import DataError

__all__ = ["parse_idx", "read_bytes", "read_idx"]

UNSIGNED_BYTE = 0x08  # the only element type that the MNIST family uses


def read_bytes(path: Path) -> bytes:
    """The content of ``path``, decompressed if it is a gzip file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not content.startswith(b"\x1f\x8b"):
        if path.suffix == ".gz":
            raise DataError(f"{path}: is not a gzip file, though its name ends in .gz; download it again")
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: truncated or corrupted gzip file ({error}); download it again") from error


def parse_idx(content: bytes, path: Path, dimensions: int) -> Tensor:
    """The tensor of uint8 that the bytes of an idx file describe.

    Args:
        content: the decompressed bytes.
        path: where they came from, for messages.
        dimensions: 3 for images, 1 for labels.
    """
    header = 4 + 4 * dimensions
    expected = (0, 0, UNSIGNED_BYTE, dimensions)
    if len(content) < 4 or tuple(content[:4]) != expected:
        raise DataError(
            f"{path}: wrong magic number: expected {bytes(expected).hex()} (idx, unsigned bytes, {dimensions} "
            f"dimension{'s' if dimensions > 1 else ''}), got {content[:4].hex() or 'an empty file'}; "
            "is this the right file?"
        )
    if len(content) < header:
        raise DataError(f"{path}: truncated: the header needs {header} bytes, the file has {len(content)}")
    sizes = struct.unpack(f">{dimensions}I", content[4:header])
    size = int(np.prod(sizes, dtype=np.int64))
    if len(content) - header != size:
        state = "truncated" if len(content) - header < size else "too long"
        raise DataError(
            f"{path}: {state}: the header announces {' x '.join(map(str, sizes))} = {size} bytes, "
            f"{len(content) - header} follow; download it again"
        )
    if not size:
        raise DataError(f"{path}: holds no samples")
    # A copy, because a tensor must not share memory with immutable bytes.
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=header).reshape(sizes).copy())


def read_idx(path: Path | str, dimensions: int) -> Tensor:
    """Read one idx file, plain or gzip-compressed.

    Args:
        path: the file.
        dimensions: 3 for images ``(N, H, W)``, 1 for labels ``(N,)``.

    Returns:
        uint8, with as many dimensions.
    """
    path = Path(path)
    return parse_idx(read_bytes(path), path, dimensions)
