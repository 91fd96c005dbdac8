"""Text or bytes to the bits that a network hides, and back: exactly what was encoded, or nothing."""

from samplewise.watermark.payload.codec import Codec
from samplewise.watermark.payload.key import Key, read_key
from samplewise.watermark.payload.message import Extracted, Kind, Payload

__all__ = ["Codec", "Extracted", "Key", "Kind", "Payload", "read_key"]
