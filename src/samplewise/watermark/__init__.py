"""Image watermarking with a quality floor for every image (paper, section V-B)."""

from samplewise.watermark.payload import Extracted, Key, Payload, read_key
from samplewise.watermark.watermarker import Embedded, Watermarker

__all__ = ["Embedded", "Extracted", "Key", "Payload", "Watermarker", "read_key"]
