"""Labelled images in memory: MNIST's four idx files and others like them, and the digits that come with scikit-learn.

Files come from a folder or the web, and each is checked before it is believed.
"""

import gzip
import hashlib
import http.client
import io
import math
import os
import struct
import urllib.request
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from samplewise.errors import ConfigurationError, DataError, did_you_mean
from samplewise.storage import atomic, ensure_writable, open_regular

DIGITS_WHITE = 16.0  # the brightest pixel of the digits, which count inked dots in blocks of 4 x 4
FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
"""Training images and labels, test images and labels; published with .gz behind."""
UNSIGNED_BYTE = 0x08  # the only element type that the MNIST family uses
MOST_UNPACKED = 1 << 28
"""Bytes that a gzip file may unpack to (MNIST: 47 million)."""
LARGEST_DOWNLOAD = 64 << 20


@dataclass(frozen=True)
class ImageData:
    """Images and labels in memory: ``TensorDataset(images (N, D) float32 in [0, 1], labels (N,) int64)`` twice."""

    name: str
    shape: tuple[int, int]
    """Height and width of one image; ``D`` is their product."""
    train: TensorDataset
    test: TensorDataset
    held_out: str = "test"
    """What :attr:`test` is: the published test set, or a validation part of the training set."""

    @classmethod
    def from_bytes(cls, name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> Self:
        """From images of uint8, shape ``(N, H, W)``, and labels ``(N,)``, for train and test."""
        if train[0].shape[1:] != test[0].shape[1:]:
            raise DataError(
                f"{name}: expected images of one size, got {tuple(train[0].shape[1:])} for training and "
                f"{tuple(test[0].shape[1:])} for test"
            )
        height, width = train[0].shape[1:]
        return cls(name, (height, width), _dataset(*train), _dataset(*test))

    @property
    def pixels(self) -> int:
        """D, the number of pixels of one image."""
        return self.shape[0] * self.shape[1]

    @property
    def classes(self) -> int:
        """The number of classes, by the largest label."""
        return 1 + int(max(self.train.tensors[1].max(), self.test.tensors[1].max()))

    @property
    def shared(self) -> int:
        """The number of test images that are training images too, pixel by pixel: they say nothing of unseen ones."""
        seen = {hash(image.tobytes()) for image in self.train.tensors[0].numpy()}
        return sum(hash(image.tobytes()) in seen for image in self.test.tensors[0].numpy())

    def with_validation(self, samples: int, seed: int = 0) -> Self:
        """The training set split in two: ``samples`` of it, drawn by the seed, take the place of the test set."""
        total = len(self.train)
        if not 0 < samples < total:
            raise ConfigurationError(f"expected a validation part of 1 to {total - 1} samples, got {samples}")
        order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
        kept, held = order[:-samples].sort().values, order[-samples:].sort().values
        images, labels = self.train.tensors
        return replace(
            self,
            train=TensorDataset(images[kept], labels[kept]),
            test=TensorDataset(images[held], labels[held]),
            held_out="validation",
        )

    def fingerprint(self) -> str:
        """A short hash of all images and labels: two runs with one fingerprint saw the same data."""
        digest = hashlib.sha256()
        for tensor in (*self.train.tensors, *self.test.tensors):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]


def _dataset(images: Tensor, labels: Tensor) -> TensorDataset:
    return TensorDataset(images.flatten(1).to(torch.float32).div_(255.0), labels.to(torch.int64))


def digits(*, test_fraction: float = 0.2, seed: int = 0) -> ImageData:
    """The 1,797 handwritten digits of 8 x 8 pixels; ``test_fraction`` of each class, drawn by the seed, is held out."""
    if not 0 < test_fraction < 1:
        raise ConfigurationError(f"expected a test fraction between 0 and 1, got {test_fraction}")
    from sklearn.datasets import load_digits  # takes seconds

    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        held[rng.permutation(members)[: max(1, round(test_fraction * len(members)))]] = True
    pixels = torch.from_numpy(images / DIGITS_WHITE * 255.0).reshape(-1, 8, 8)
    classes = torch.from_numpy(labels)
    mask = torch.from_numpy(held)
    return ImageData.from_bytes("digits", (pixels[~mask], classes[~mask]), (pixels[mask], classes[mask]))


@dataclass(frozen=True)
class PublishedData:
    """One data set in MNIST's four files."""

    name: str
    checksums: Mapping[str, str]
    """md5 of each file unpacked, by its name without .gz; empty for data of one's own."""
    mirrors: tuple[str, ...]
    """Folders on the web, tried in turn."""


MNIST_MD5 = (
    "6bbc9ace898e44ae57da46a324031adb",
    "a25bea736e30d166cdddb491f175f624",
    "2646ac647ad5339dbf082846283269ea",
    "27ae3e4e09519cfbb04c329615203637",
)
FASHION_MD5 = (
    "f4a8712d7a061bf5bd6d2ca38dc4d50a",
    "9018921c3c673c538a1fc5bad174d6f9",
    "8181f5470baa50b63fa0f6fddb340f0a",
    "15d484375f8d13e6eb1aabb0c3f46965",
)
MNIST = PublishedData(
    "mnist",
    dict(zip(FILES, MNIST_MD5, strict=True)),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)
FASHION_MNIST = PublishedData(
    "fashion-mnist",
    dict(zip(FILES, FASHION_MD5, strict=True)),
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
)
OWN = PublishedData("own", {}, ())
"""Data of one's own in the same four files: everything is checked but the md5."""

PUBLISHED = (MNIST, FASHION_MNIST, OWN)


def published(name: str) -> PublishedData:
    """The data set of that name, or an error that lists the names."""
    named = {data.name: data for data in PUBLISHED}
    if name not in named:
        raise ConfigurationError(
            f"no data set is called {name!r}; expected one of {', '.join(named)}.{did_you_mean(name, named)}"
        )
    return named[name]


def load_folder(folder: Path | str, data: PublishedData = MNIST) -> ImageData:
    """Read the four idx files of ``data``, plain or .gz, from ``folder``.

    Raises:
        DataError: a file is missing, truncated, corrupted or not the published one, or lengths do not match.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one with {', '.join(FILES)} (plain or .gz)")
    found = {name: _find(folder, name) for name in FILES}
    if missing := [name for name, path in found.items() if path is None]:
        raise DataError(f"{folder}: {', '.join(missing)} (plain or .gz) not found; put the files of {data.name} there")
    tensors = [_load(path, name, data) for name, path in found.items() if path is not None]
    train, test = (tensors[0], tensors[1]), (tensors[2], tensors[3])
    for what, (images, labels) in (("training", train), ("test", test)):
        if len(images) != len(labels):
            raise DataError(
                f"{folder}: {len(images)} {what} images but {len(labels)} labels: the files do not belong together"
            )
    return ImageData.from_bytes(data.name, train, test)


def _find(folder: Path, name: str) -> Path | None:
    """The file ``name`` in ``folder``, plain or with .gz behind."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _dimensions(name: str) -> int:
    return 3 if "images" in name else 1


def _load(path: Path, name: str, data: PublishedData) -> Tensor:
    values, md5 = read_idx(path, _dimensions(name))
    known = data.checksums.get(name)
    if known not in (None, md5):
        others = (other.name for other in PUBLISHED if other.checksums.get(name) == md5)
        raise DataError(
            f"{path}: not the published file of {data.name}: expected md5 {known} (decompressed), got {md5}; "
            f"download it again, or use --dataset {next(others, f'{OWN.name} for data of your own')}"
        )
    return values


def read_idx(path: Path, dimensions: int, content: bytes | None = None) -> tuple[Tensor, str]:
    """Read one idx file, plain or gzip-compressed: a magic number, the sizes, then the bytes.

    Args:
        path: the file.
        dimensions: 3 for images ``(N, H, W)``, 1 for labels ``(N,)``.
        content: what it holds, if it is not on disk yet.

    Returns:
        The values, uint8, and the md5 of the unpacked file.
    """
    try:
        with open_regular(path) if content is None else io.BytesIO(content) as stored:
            packed, _ = stored.read(2) == b"\x1f\x8b", stored.seek(0)
            if path.suffix == ".gz" and not packed:
                raise DataError(f"{path}: is not a gzip file, though its name ends in .gz; download it again")
            return _parse(gzip.open(stored) if packed else stored, path, dimensions)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: truncated or corrupted gzip file ({error}); download it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(file: IO[bytes] | gzip.GzipFile, path: Path, dimensions: int) -> tuple[Tensor, str]:
    """Tensor and md5 of a file, unpacked as it is read."""
    header = 4 + 4 * dimensions
    content = bytearray(file.read(header))
    expected = bytes((0, 0, UNSIGNED_BYTE, dimensions))
    if content[:4] != expected:
        raise DataError(
            f"{path}: wrong magic number: expected {expected.hex()} (idx, unsigned bytes, {dimensions} dimensions), "
            f"got {content[:4].hex() or 'an empty file'}; is this the right file?"
        )
    if len(content) < header:
        raise DataError(f"{path}: truncated: the header needs {header} bytes, the file has {len(content)}")
    sizes = struct.unpack(f">{dimensions}I", content[4:])
    size = math.prod(sizes)
    announced = f"the header announces {' x '.join(map(str, sizes))} = {size} bytes"
    packed = isinstance(file, gzip.GzipFile)
    if packed and size > MOST_UNPACKED:
        raise DataError(f"{path}: {announced}, more than {MOST_UNPACKED}; unpack it and give the plain file")
    # Of a gzip file one byte more than there should be: its own checksum is compared where it ends.
    content += file.read(size + 1 if packed else -1)
    found = len(content) - header
    if found != size:
        state, least = ("truncated", "") if found < size else ("too long", "at least ")
        raise DataError(f"{path}: {state}: {announced}, {least}{found} follow; download it again")
    if not size:
        raise DataError(f"{path}: holds no samples")
    values = torch.frombuffer(content, dtype=torch.uint8, offset=header).reshape(sizes)
    return values, hashlib.md5(content, usedforsecurity=False).hexdigest()


def cache_folder() -> Path:
    """The folder of downloads, beside those of PyTorch."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "samplewise"


def download(data: PublishedData, folder: Path | str | None = None, *, timeout: float = 20.0) -> Path:
    """Fetch the four files of ``data`` unless they are there already; each comes whole or not at all.

    Returns the folder, one in the user's cache if none is given. A mirror may be silent for ``timeout`` seconds.
    """
    if not data.mirrors:
        raise ConfigurationError(f"{data.name!r} data cannot be downloaded: give its folder")
    target = Path(folder) if folder is not None else cache_folder() / data.name
    ensure_writable(target)
    for name in FILES:
        path = _find(target, name)
        with suppress(DataError):  # torn or corrupted: fetched again
            if path is not None and read_idx(path, _dimensions(name))[1] == data.checksums[name]:
                continue
        content = _fetch(data, name, target, timeout)
        with atomic(target / f"{name}.gz") as temporary:
            temporary.write_bytes(content)
    return target


def _fetch(data: PublishedData, name: str, target: Path, timeout: float) -> bytes:
    """The packed file from the first mirror that has the right one."""
    file, failures = f"{name}.gz", []
    for mirror in data.mirrors:
        request = urllib.request.Request(mirror + file, headers={"User-Agent": "samplewise"})
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                content: bytes = response.read(LARGEST_DOWNLOAD)
                total = int(response.headers.get("Content-Length") or 0)
            if len(content) < total:
                raise ConnectionError(f"broke off after {len(content)} of {total} bytes")
            if read_idx(Path(file), _dimensions(name), content)[1] == data.checksums[name]:
                return content
            failures.append(f"{mirror}: the file has another md5 than {data.checksums[name]}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{mirror}: {getattr(error, 'reason', None) or error}")
    raise DataError(
        f"could not download {file} ({'; '.join(failures)}). Without a network, put "
        f"{', '.join(f'{name}.gz' for name in FILES)} into {target} and run again"
    )
