"""The published files of MNIST and Fashion-MNIST: names, md5 and mirrors."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from samplewise.errors import ConfigurationError, did_you_mean

__all__ = ["FASHION_MNIST", "FILES", "MNIST", "OWN", "PUBLISHED", "Checksums", "PublishedData", "published"]

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
"""Training images and labels, test images and labels; published with .gz behind."""


@dataclass(frozen=True)
class Checksums:
    """The md5 of one file, as published (.gz) and decompressed."""

    compressed: str
    plain: str


@dataclass(frozen=True)
class PublishedData:
    """One data set in MNIST's four files.

    Args:
        name: what it is called in commands.
        checksums: by file name without .gz; empty for data of one's own, whose md5 nobody knows.
        mirrors: folders on the web, tried in turn.
    """

    name: str
    checksums: Mapping[str, Checksums]
    mirrors: tuple[str, ...]


def _sums(*pairs: tuple[str, str]) -> Mapping[str, Checksums]:
    return MappingProxyType({name: Checksums(*pair) for name, pair in zip(FILES, pairs, strict=True)})


MNIST = PublishedData(
    "mnist",
    _sums(
        ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "6bbc9ace898e44ae57da46a324031adb"),
        ("d53e105ee54ea40749a09fcbcd1e9432", "a25bea736e30d166cdddb491f175f624"),
        ("9fb629c4189551a2d022fa330f9573f3", "2646ac647ad5339dbf082846283269ea"),
        ("ec29112dd5afa0611ce80d1b7f02629c", "27ae3e4e09519cfbb04c329615203637"),
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
        ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "f4a8712d7a061bf5bd6d2ca38dc4d50a"),
        ("25c81989df183df01b3e8a0aad5dffbe", "9018921c3c673c538a1fc5bad174d6f9"),
        ("bef4ecab320f06d8554ea6380940ec79", "8181f5470baa50b63fa0f6fddb340f0a"),
        ("bb300cfdad3c16e7a12a480ee83cd310", "15d484375f8d13e6eb1aabb0c3f46965"),
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
