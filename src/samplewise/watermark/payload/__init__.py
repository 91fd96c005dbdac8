"""Text or bytes to the bits that a network hides, and back: exactly what was encoded, or nothing."""

from samplewise.watermark.payload.codec import Codec
from samplewise.watermark.payload.message import Extracted, Key, Kind, Payload, derived, read_key

__all__ = ["Codec", "Extracted", "Key", "Kind", "Payload", "derived", "read_key"]
