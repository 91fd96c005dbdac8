"""Image files with their native bit depth: read, and written back whole with all that the format can keep."""

from samplewise.watermark.formats.registry import FORMATS, NAMES, SUFFIXES, looks_like_image, read, suffix_format
from samplewise.watermark.formats.stored import Format, ImageFile, StoredImage, check_free, naming

__all__ = [
    "FORMATS",
    "NAMES",
    "SUFFIXES",
    "Format",
    "ImageFile",
    "StoredImage",
    "check_free",
    "looks_like_image",
    "naming",
    "read",
    "suffix_format",
]
