"""Small data sets in MNIST's four files, made by hand, byte by byte."""

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np

from studies.data import FILES, PublishedData

SIDE = 4


def idx(values: np.ndarray) -> bytes:
    """The idx file of an array of bytes."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def contents(train: int = 12, test: int = 6) -> dict[str, bytes]:
    """Four plain files with random images of 4 x 4 pixels, by name."""
    rng = np.random.default_rng(0)
    arrays = []
    for samples in (train, test):
        arrays.append(rng.integers(0, 256, (samples, SIDE, SIDE), np.uint8))
        arrays.append(np.arange(samples, dtype=np.uint8) % 3)
    return {name: idx(array) for name, array in zip(FILES, arrays, strict=True)}


def write_folder(folder: Path, files: dict[str, bytes], *, compressed: bool = False) -> Path:
    """Write the files, plain or .gz."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = folder / (f"{name}.gz" if compressed else name)
        path.write_bytes(gzip.compress(content, mtime=0) if compressed else content)
    return folder


def described(files: dict[str, bytes], mirrors: tuple[str, ...] = ()) -> PublishedData:
    """The files as a published data set, with their md5."""
    sums = {name: hashlib.md5(content).hexdigest() for name, content in files.items()}
    return PublishedData("small", sums, mirrors)
