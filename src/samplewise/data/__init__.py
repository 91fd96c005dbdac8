"""Image data for the studies: idx files from a folder or a mirror, and the digits that ship with scikit-learn."""

from samplewise.data.idx import read_idx
from samplewise.data.images import ImageData, digits
from samplewise.data.mnist import (
    FASHION_MNIST,
    MNIST,
    PUBLISHED,
    PublishedData,
    cache_folder,
    download,
    load_folder,
    published,
)

__all__ = [
    "FASHION_MNIST",
    "MNIST",
    "PUBLISHED",
    "ImageData",
    "PublishedData",
    "cache_folder",
    "digits",
    "download",
    "load_folder",
    "published",
    "read_idx",
]
