"""Image data for the studies: idx files from a folder or a mirror, and the digits that ship with scikit-learn."""

from studies.data.images import ImageData, digits
from studies.data.mnist import FASHION_MNIST, MNIST, PublishedData, download, load_folder, published

__all__ = ["FASHION_MNIST", "MNIST", "ImageData", "PublishedData", "digits", "download", "load_folder", "published"]
