"""MNIST's four idx files from a folder, each checked before it is believed."""

import hashlib
from pathlib import Path

from torch import Tensor

from samplewise.data.idx import parse_idx, read_bytes
from samplewise.data.images import ImageData
from samplewise.data.published import FILES, MNIST, OWN, PUBLISHED, PublishedData
from samplewise.errors import DataError

__all__ = ["find", "load_folder"]


def find(folder: Path, name: str) -> Path | None:
    """The file ``name`` in ``folder``, plain or with .gz behind."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def load_folder(folder: Path | str, data: PublishedData = MNIST) -> ImageData:
    """Read the four idx files of ``data``, plain or .gz, from ``folder``.

    Raises:
        DataError: a file is missing, truncated, corrupted or not the published one, or lengths do not match.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one with {', '.join(FILES)} (plain or .gz)")
    found = [find(folder, name) for name in FILES]
    missing = [name for name, path in zip(FILES, found, strict=True) if path is None]
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} (plain or .gz) not found; put the files of {data.name} there")
    tensors = [_load(path, name, data) for name, path in zip(FILES, found, strict=True) if path is not None]
    train, test = (tensors[0], tensors[1]), (tensors[2], tensors[3])
    for what, (images, labels) in (("training", train), ("test", test)):
        if len(images) != len(labels):
            raise DataError(
                f"{folder}: {len(images)} {what} images but {len(labels)} labels: the files do not belong together"
            )
    return ImageData.from_bytes(data.name, train, test)


def _load(path: Path, name: str, data: PublishedData) -> Tensor:
    content = read_bytes(path)
    tensor = parse_idx(content, path, 3 if "images" in name else 1)
    known = data.checksums.get(name)
    if known is not None:
        # Of the decompressed bytes: the same data compressed again is the same data.
        md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if md5 != known.plain:
            raise DataError(
                f"{path}: not the published file of {data.name}: expected md5 {known.plain} "
                f"(decompressed), got {md5}; download it again, or use --dataset {_other(data, name, md5)}"
            )
    return tensor


def _other(data: PublishedData, name: str, md5: str) -> str:
    """The data set that the file does belong to, so that a message can name it."""
    for other in PUBLISHED:
        if other is not data and name in other.checksums and other.checksums[name].plain == md5:
            return other.name
    return f"{OWN.name} for data of your own"
