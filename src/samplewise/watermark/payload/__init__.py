"""Text or bytes to the bits that a network hides, and back: exactly what was encoded, or nothing."""

from samplewise.watermark.payload.codec import Codec, Decoded, Kind, Payload
from samplewise.watermark.payload.frame import false_positive_rate, max_bytes
from samplewise.watermark.payload.key import Key, read_key

__all__ = ["Codec", "Decoded", "Key", "Kind", "Payload", "false_positive_rate", "max_bytes", "read_key"]
