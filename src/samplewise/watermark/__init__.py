"""Image watermarking with a quality floor for every image (paper, section V-B)."""

from samplewise.watermark.payload import Key, Payload, read_key
from samplewise.watermark.watermarker import Embedded, Extracted, Watermarker

__all__ = ["Embedded", "Extracted", "Key", "Payload", "Watermarker", "read_key"]
