"""What a watermark says, and what was read of one."""

import enum
from dataclasses import dataclass
from typing import Any, Self

from samplewise.errors import ConfigurationError

__all__ = ["Extracted", "Kind", "Payload"]


class Kind(enum.Enum):
    """What the bytes of a payload are; the value stands in the header."""

    TEXT = 0
    BYTES = 1
    HEX = 2
    BITS = 3


@dataclass(frozen=True)
class Payload:
    """What a watermark says: bytes, and how to show them."""

    kind: Kind
    content: bytes

    def __post_init__(self) -> None:
        if not self.content:
            raise ConfigurationError("expected a payload of at least one byte, got an empty one")
        if self.kind is Kind.TEXT:
            try:
                self.content.decode()
            except UnicodeDecodeError as error:
                raise ConfigurationError(f"expected text in UTF-8 as payload: {error.reason}") from error
        if self.kind is Kind.BITS and self.content[0] == 0:
            raise ConfigurationError("expected a one before the bits of a payload, got zeros: use from_bits")

    @classmethod
    def of(cls, message: "Payload | str | bytes") -> "Payload":
        """Text, bytes, or what is a payload already."""
        if isinstance(message, Payload):
            return message
        if isinstance(message, str):
            return cls.from_text(message)
        if not isinstance(message, bytes | bytearray):
            raise ConfigurationError(f"expected text or bytes as payload, got {type(message).__name__}")
        return cls(Kind.BYTES, bytes(message))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Text, stored as UTF-8."""
        try:
            return cls(Kind.TEXT, text.encode())
        except UnicodeEncodeError as error:
            raise ConfigurationError(f"expected text that UTF-8 can hold: {error.reason}") from error

    @classmethod
    def from_hex(cls, digits: str) -> Self:
        """Bytes written as hexadecimal digits, two for each."""
        try:
            return cls(Kind.HEX, bytes.fromhex(digits))
        except ValueError as error:
            raise ConfigurationError(f"expected pairs of hexadecimal digits as payload: {error}") from error

    @classmethod
    def from_bits(cls, digits: str) -> Self:
        """Bits written as zeros and ones; a one before them tells where they begin."""
        if not digits or set(digits) - {"0", "1"}:
            raise ConfigurationError(f"expected zeros and ones as payload, got {digits!r}")
        return cls(Kind.BITS, int("1" + digits, 2).to_bytes(len(digits) // 8 + 1))

    @property
    def value(self) -> str | bytes:
        """The text, the bytes, the hexadecimal digits or the zeros and ones."""
        if self.kind is Kind.TEXT:
            return self.content.decode()
        if self.kind is Kind.BITS:
            return f"{int.from_bytes(self.content):b}"[1:]
        return self.content if self.kind is Kind.BYTES else self.content.hex()


@dataclass(frozen=True)
class Extracted:
    """What was read from an image: exactly what was embedded, or nothing."""

    payload: Payload | None = None
    """None: there is no watermark, or none that can be read (with this key)."""
    corrected_errors: int = 0
    """How many bits were read wrong and put right."""
    chance: float = 1.0
    """The probability that random bits read as some payload with so few corrections; an upper bound."""

    def __bool__(self) -> bool:
        return self.payload is not None

    @property
    def message(self) -> str | bytes | None:
        """The text, the bytes, the hexadecimal digits or the zeros and ones that were embedded."""
        return None if self.payload is None else self.payload.value

    @property
    def confidence(self) -> float:
        """The probability that an unmarked image would not have read as any message; 0 without a message."""
        return 1.0 - self.chance

    def to_dict(self) -> dict[str, Any]:
        """For JSON, where bytes are hexadecimal digits."""
        return {
            "message": self.message.hex() if isinstance(self.message, bytes) else self.message,
            "kind": self.payload.kind.name.lower() if self.payload else None,
            "confidence": self.confidence,
            "corrected_errors": self.corrected_errors,
        }
