"""Image data for the studies: idx files from a folder or a mirror, and the digits that ship with scikit-learn."""

from samplewise.data.digits import digits
from samplewise.data.download import cache_folder, download
from samplewise.data.folder import load_folder
from samplewise.data.idx import read_idx
from samplewise.data.images import ImageData
from samplewise.data.published import FASHION_MNIST, MNIST, PUBLISHED, PublishedData, published

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
