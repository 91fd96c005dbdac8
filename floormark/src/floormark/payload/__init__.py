"""Text or bytes to the bits that a network hides, and back: exactly what was encoded, or nothing."""

from floormark.payload.codec import Codec
from floormark.payload.message import Extracted, Key, Kind, Payload, derived, read_key

__all__ = ["Codec", "Extracted", "Key", "Kind", "Payload", "derived", "read_key"]
