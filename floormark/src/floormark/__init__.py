"""Image watermarking with a quality floor for every image (paper, section V-B)."""

from floormark.api import Embedded, Watermarker
from floormark.payload import Extracted, Key, Payload, read_key

__all__ = ["Embedded", "Extracted", "Key", "Payload", "Watermarker", "read_key"]
