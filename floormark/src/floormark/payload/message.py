"""The payload of a watermark, its key, and the result of reading one."""

import enum
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from floormark.disk import read_secret
from floormark.errors import ConfigurationError, prefix_path

MIN_KEY_BYTES = 16  # shorter ones can be found by brute force
MAX_KEY_BYTES = 4096  # a file above is not a key: most likely the wrong path
KEY_ADVICE = "make one with: openssl rand -hex 32"


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
        """A payload from text or bytes; a payload is returned unchanged."""
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

    @property
    def shown(self) -> str:
        """:attr:`value` as text: bytes as hexadecimal digits."""
        value = self.value
        return value.hex() if isinstance(value, bytes) else value


@dataclass(frozen=True)
class Extracted:
    """What was read from an image: exactly what was embedded, or nothing."""

    payload: Payload | None = None
    """None: there is no watermark, or none that can be read (with this key)."""
    corrected_errors: int = 0
    """Number of bits that were read wrong and corrected."""
    chance: float = 1.0
    """The probability that random bits read as some payload with so few corrections, in all trials; an upper bound."""
    belongs: bool | None = None
    """Whether the message was written into this image; False if into another, None if that cannot be said."""
    content_code: tuple[int, ...] = field(default=(), repr=False)
    """The content code that binds the message to its image, as it was read."""
    box: tuple[int, int, int, int] | None = None
    """Where the marked image lies: left, top, width and height in pixels."""
    key: str = ""
    """The fingerprint of the key that it was read with; empty without one."""
    partial: bool = False
    """Whether parts of the image were left unmarked on purpose; then no part counts as foreign."""
    other_key: bool = False
    """Whether there is a mark of another key, or of one where none was given; its message cannot be read."""
    parts: tuple[str, ...] = field(default=(), repr=False)
    """A map of the marked image: ``+`` where the message is, ``-`` where it is missing, ``.`` if nothing is known."""

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
            "message": self.payload.shown if self.payload else None,
            "kind": self.payload.kind.name.lower() if self.payload else None,
            "confidence": self.confidence,
            "corrected_errors": self.corrected_errors,
            "belongs": self.belongs,
            "box": self.box,
            "parts": list(self.parts),
            "partial": self.partial,
            "other_key": self.other_key,
            "key": self.key or None,
        }


@dataclass(frozen=True)
class Key:
    """A secret that masks and permutes the bits of a payload and signs them.

    Without it nobody can read a message, or write one of their choice, even with the network. It is not encryption in
    the strict sense: mask and order are one of 256, so who knows the payloads of very many images can work them out and
    read others. Writing stays hard: the checksum is a keyed BLAKE2b. A watermark can be copied to another image;
    :attr:`Extracted.belongs` detects that. Put an identifier into the payload, not the secret itself.
    """

    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.secret) < MIN_KEY_BYTES:  # the error shows neither the key nor its length
            raise ConfigurationError(f"expected a key of at least {MIN_KEY_BYTES} bytes; {KEY_ADVICE}")

    @property
    def fingerprint(self) -> str:
        """An identifier of the key, from which the key cannot be computed."""
        return derived(self, "fingerprint", 8).hex()


def read_key(file: Path | str | None = None, *, variable: str | None = None) -> Key | None:
    """The key from a file or from an environment variable; None if neither is named.

    There is no way to give it on a command line, where every user of the machine could read it.
    """
    place = variable if file is None else file
    if place is None:
        return None
    secret = read_secret("key", file, variable=variable, most=MAX_KEY_BYTES)
    with prefix_path(place):
        return Key(secret)


def derived(key: Key | None, purpose: str, size: int) -> bytes:
    """Bytes for one purpose. Without a key they are public, but still independent of unmarked images."""
    secret = b"" if key is None else key.secret
    master = hashlib.blake2b(secret, person=b"samplewise key 1").digest()
    return hashlib.shake_256(master + purpose.encode()).digest(size)


def mask(key: Key | None, bits: int, salt: str = "") -> NDArray[np.uint8]:
    """Zeros and ones to add to a frame, ``(bits,)``; others for each salt."""
    stream = np.frombuffer(derived(key, f"mask {bits}{salt}", -(-bits // 8)), np.uint8)
    return np.unpackbits(stream)[:bits]


def permutation(key: Key | None, bits: int, salt: str = "") -> NDArray[np.intp]:
    """The order in which a frame's bits are hidden, ``(bits,)``; another for each salt."""
    stream = np.frombuffer(derived(key, f"order {bits}{salt}", 8 * bits), "<u8")
    return np.argsort(stream, kind="stable")


def checksum_bits(key: Key | None, content: bytes, size: int) -> NDArray[np.uint8]:
    """The first ``size`` bits of the keyed BLAKE2b of ``content``."""
    digest = hashlib.blake2b(content, key=derived(key, "checksum", hashlib.blake2b.MAX_KEY_SIZE)).digest()
    return np.unpackbits(np.frombuffer(digest, np.uint8))[:size]
