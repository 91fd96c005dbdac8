"""MNIST's four idx files, and others like them: from a folder or the web, each checked before it is believed."""

import http.client
import io
import os
import sys
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from samplewise.data.idx import read_idx_file, unpack_idx
from samplewise.data.images import ImageData
from samplewise.disk import atomic
from samplewise.errors import ConfigurationError, DataError, OutputError, did_you_mean

__all__ = [
    "FASHION_MNIST",
    "FILES",
    "MNIST",
    "OWN",
    "PUBLISHED",
    "PublishedData",
    "cache_folder",
    "download",
    "load_folder",
    "published",
]

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""Training images and labels, test images and labels; published with .gz behind."""
LARGEST_DOWNLOAD = 64 << 20
CHUNK = 1 << 16

Report = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far and the bytes in all (None if the server does not say)."""


@dataclass(frozen=True)
class PublishedData:
    """One data set in MNIST's four files.

    Args:
        name: what it is called in commands.
        checksums: md5 of each file unpacked, by its name without .gz, so that the same data packed again is the same
            data; empty for data of one's own, whose md5 nobody knows.
        mirrors: folders on the web, tried in turn.
    """

    name: str
    checksums: Mapping[str, str]
    mirrors: tuple[str, ...]


def _sums(*sums: str) -> Mapping[str, str]:
    return MappingProxyType(dict(zip(FILES, sums, strict=True)))


MNIST = PublishedData(
    "mnist",
    _sums(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
    ),
)
FASHION_MNIST = PublishedData(
    "fashion-mnist",
    _sums(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
)
OWN = PublishedData("own", MappingProxyType({}), ())
"""Data of one's own in the same four files: everything is checked but the md5."""

PUBLISHED = (MNIST, FASHION_MNIST, OWN)


def published(name: str) -> PublishedData:
    """The data set of that name, or an error that lists the names."""
    for data in PUBLISHED:
        if data.name == name:
            return data
    names = [data.name for data in PUBLISHED]
    raise ConfigurationError(
        f"no data set is called {name!r}; expected one of {', '.join(names)}.{did_you_mean(name, names)}"
    )


def _find(folder: Path, name: str) -> Path | None:
    """The file ``name`` in ``folder``, plain or with .gz behind."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _dimensions(name: str) -> int:
    return 3 if "images" in name else 1


def load_folder(folder: Path | str, data: PublishedData = MNIST) -> ImageData:
    """Read the four idx files of ``data``, plain or .gz, from ``folder``.

    Raises:
        DataError: a file is missing, truncated, corrupted or not the published one, or lengths do not match.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder; expected one with {', '.join(FILES)} (plain or .gz)")
    found = {name: _find(folder, name) for name in FILES}
    missing = [name for name, path in found.items() if path is None]
    if missing:
        raise DataError(f"{folder}: {', '.join(missing)} (plain or .gz) not found; put the files of {data.name} there")
    tensors = [_load(path, name, data) for name, path in found.items() if path is not None]
    train, test = (tensors[0], tensors[1]), (tensors[2], tensors[3])
    for what, (images, labels) in (("training", train), ("test", test)):
        if len(images) != len(labels):
            raise DataError(
                f"{folder}: {len(images)} {what} images but {len(labels)} labels: the files do not belong together"
            )
    return ImageData.from_bytes(data.name, train, test)


def _load(path: Path, name: str, data: PublishedData) -> Tensor:
    values, md5 = read_idx_file(path, _dimensions(name))
    known = data.checksums.get(name)
    if known not in (None, md5):
        others = (other.name for other in PUBLISHED if other.checksums.get(name) == md5)
        raise DataError(
            f"{path}: not the published file of {data.name}: expected md5 {known} (decompressed), got {md5}; "
            f"download it again, or use --dataset {next(others, f'{OWN.name} for data of your own')}"
        )
    return values


def cache_folder() -> Path:
    """Where downloads are kept, by the custom of the operating system."""
    home = Path.home()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "samplewise"


def download(
    data: PublishedData, folder: Path | str | None = None, *, timeout: float = 20.0, report: Report | None = None
) -> Path:
    """Fetch the four files of ``data`` unless they are there already; each comes whole or not at all.

    Args:
        data: which data set.
        folder: where to keep them; a folder in the user's cache if not given.
        timeout: seconds a mirror may stay silent.
        report: called as bytes come in.

    Returns:
        The folder, for ``load_folder``.
    """
    if not data.mirrors:
        raise ConfigurationError(f"{data.name!r} data cannot be downloaded: give its folder")
    target = Path(folder) if folder is not None else cache_folder() / data.name
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror or error}") from error
    for name in FILES:
        path = _find(target, name)
        with suppress(DataError):  # torn or corrupted: fetched again
            if path is not None and read_idx_file(path, _dimensions(name)).md5 == data.checksums[name]:
                continue
        content = _fetch(data, name, target, timeout, report)
        with atomic(target / f"{name}.gz") as temporary:
            temporary.write_bytes(content)
    return target


def _fetch(data: PublishedData, name: str, target: Path, timeout: float, report: Report | None) -> bytearray:
    """The packed file from the first mirror that has the right one."""
    file = f"{name}.gz"
    failures = []
    for mirror in data.mirrors:
        try:
            content = _transfer(mirror, file, timeout, report)
            found = unpack_idx(io.BytesIO(content), len(content), Path(file), _dimensions(name))
            if found.md5 == data.checksums[name]:
                return content
            failures.append(f"{mirror}: the file has another md5 than {data.checksums[name]}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            failures.append(f"{mirror}: {getattr(error, 'reason', None) or error}")
    raise DataError(
        f"could not download {file} ({'; '.join(failures)}). Without a network, put "
        f"{', '.join(f'{name}.gz' for name in FILES)} into {target} and run again"
    )


def _transfer(mirror: str, file: str, timeout: float, report: Report | None) -> bytearray:
    request = urllib.request.Request(mirror + file, headers={"User-Agent": "samplewise"})
    content = bytearray()
    with urllib.request.urlopen(request, timeout=timeout) as response:
        length = response.headers.get("Content-Length")
        total = int(length) if length else None
        while (chunk := response.read(CHUNK)) and len(content) <= LARGEST_DOWNLOAD:
            content += chunk
            if report:
                report(file, len(content), total)
    if total is not None and len(content) < total:
        raise ConnectionError(f"broke off after {len(content)} of {total} bytes")
    return content
