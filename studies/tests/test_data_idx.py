import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from idx_files import idx
from limits import cost
from samplewise.errors import DataError
from studies.data import read_idx

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.mark.parametrize("compressed", [False, True])
def test_images_are_read_as_written(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / ("images.gz" if compressed else "images")
    path.write_bytes(gzip.compress(idx(IMAGES)) if compressed else idx(IMAGES))
    assert torch.equal(read_idx(path, 3)[0], torch.from_numpy(IMAGES))


def test_labels_have_one_dimension(tmp_path: Path) -> None:
    path = tmp_path / "labels"
    path.write_bytes(idx(np.array([3, 1, 2], np.uint8)))
    assert read_idx(path, 1)[0].tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\0\0\x0d\x03" + idx(IMAGES)[4:], "00000d03"),
        (idx(np.zeros(5, np.uint8)), "wrong magic number"),
        (idx(IMAGES)[:10], "truncated"),
        (idx(IMAGES)[:-1], "truncated.*24 bytes, 23"),
        (idx(IMAGES) + b"x", "too long.*25 follow"),
        (idx(np.zeros((0, 3, 4), np.uint8)), "holds no samples"),
        (b"\0\0\x08\x03" + b"\xff" * 12 + b"x", "truncated.* 1 follow"),
        (gzip.compress(idx(IMAGES), mtime=0)[:-9], "truncated or corrupted gzip"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(path, 3)


def test_a_flipped_bit_in_a_gzip_file_is_found(tmp_path: Path) -> None:
    content = bytearray(gzip.compress(idx(IMAGES)))
    content[20] ^= 0xFF
    path = tmp_path / "images.gz"
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"images\.gz: truncated"):
        read_idx(path, 3)


def test_a_page_saved_under_the_name_of_a_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "images.gz"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match=r"not a gzip file"):
        read_idx(path, 3)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        read_idx(tmp_path / "nowhere", 3)


READ = "import sys; from pathlib import Path; from studies.data import read_idx; read_idx(Path(sys.argv[1]), 3)"


@pytest.mark.parametrize("announced", [(1 << 32) + (1 << 24), 28 * 28])
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, announced: int) -> None:
    path = tmp_path / "images.gz"
    header = bytes([0, 0, 8, 3]) + struct.pack(">3I", announced // (28 * 28), 28, 28)
    path.write_bytes(gzip.compress(header) + 257 * gzip.compress(bytes(1 << 24)))  # 4.3 GB of zeros
    assert path.stat().st_size < 5_000_000
    found = cost("-c", READ, str(path))
    found.check()
    assert found.code == 1
    assert ("unpack it and give the plain file" if announced > 28 * 28 else "too long") in found.errors


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "images")
    with pytest.raises(DataError, match="regular file"):
        read_idx(tmp_path / "images", 3)
