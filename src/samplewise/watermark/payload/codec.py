"""The codec: payload to bits, and logits back to the payload, or to nothing."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from samplewise.errors import ConfigurationError, DataError
from samplewise.watermark.payload.frame import HEADER, Layout, chance, layouts
from samplewise.watermark.payload.key import Key, checksum_bits, mask, permutation

__all__ = ["Codec", "Decoded", "Kind", "Payload"]

VERSION = 0  # of four; the header keeps two bits for it

Bits = NDArray[np.uint8]


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
class Decoded:
    """A payload that was read, and how surely."""

    payload: Payload
    corrected: int
    """How many bits were read wrong and put right."""
    bits: int
    """Of the whole frame."""
    chance: float
    """The probability that random bits read as some payload with so few corrections; an upper bound."""

    @property
    def confidence(self) -> float:
        """The probability that random bits would not have read so."""
        return 1.0 - self.chance


class Codec:
    """Payloads to ``bits`` bits and back.

    Which code: at 200 bits and 8 bytes of payload there is room to correct 6 symbols by Reed-Solomon over GF(2^8), 7
    over GF(2^6), or 12 bits by a binary BCH code. A network's errors are single bits in random places, of which the
    last corrects the most, as a wrong bit costs the others a whole symbol. Where it fails, the magnitudes of the logits
    are used too.

    Decoding tries each payload length. What comes out was encoded with this key, except for the rate that
    :func:`false_positive_rate` gives.

    Args:
        bits: L, what the network hides.
        key: masks, permutes and signs; see :class:`Key` for what that protects from. Without one anybody can read
            and write.
    """

    def __init__(self, bits: int, key: Key | None = None) -> None:
        self.bits = bits
        self.key = key
        self.layouts = layouts(bits)
        self._mask = mask(key, bits)
        self._order = permutation(key, bits)

    @property
    def max_bytes(self) -> int:
        """The longest payload."""
        return self.layouts[-1].length

    def correctable(self, length: int) -> int:
        """How many wrong bits are always corrected in a payload of ``length`` bytes."""
        return self._layout(length).code.correctable

    def _layout(self, length: int) -> Layout:
        if not 1 <= length <= self.max_bytes:
            raise ConfigurationError(
                f"expected a payload of 1 to {self.max_bytes} bytes, as {self.bits} bits can hold, got {length} "
                "(text counts in UTF-8 bytes, bits with one more before them): shorten it, or hide an identifier and "
                "keep the rest elsewhere"
            )
        return self.layouts[length - 1]

    def encode(self, payload: Payload | str | bytes) -> Bits:
        """The bits to hide, zeros and ones, shape ``(bits,)``."""
        payload = Payload.of(payload)
        layout = self._layout(len(payload.content))
        body = _body(VERSION << 2 | payload.kind.value, payload.content)
        frame = layout.code.encode(np.concatenate([body, self._checksum(layout, body)]))
        return (frame ^ self._mask)[self._order]

    def decode(self, logits: ArrayLike) -> Decoded | None:
        """The payload that was encoded, or None: no readable watermark.

        Args:
            logits: what the network read, shape ``(bits,)``. Above zero reads as 1; the larger, the surer.

        Raises:
            DataError: not finite or not ``bits`` logits, or a watermark whose format only a newer version knows.
        """
        values = np.asarray(logits, np.float64)
        if values.shape != (self.bits,) or not np.isfinite(values).all():
            raise DataError(f"expected {self.bits} finite logits to decode, got an array of shape {values.shape}")
        frame = np.empty_like(values)
        frame[self._order] = values
        frame *= 1.0 - 2.0 * self._mask
        read = (frame > 0).astype(np.uint8)
        for layout, codeword in self._candidates(frame, read):
            information = codeword[: layout.code.information]
            body, checksum = np.split(information, [HEADER + 8 * layout.length])
            if np.array_equal(checksum, self._checksum(layout, body)):
                corrected = int(np.count_nonzero(codeword != read))
                return Decoded(_payload(body), corrected, self.bits, chance(self.layouts, corrected))
        return None

    def _candidates(self, frame: NDArray[np.float64], read: Bits) -> Iterator[tuple[Layout, Bits]]:
        """A codeword for each layout: where no bit is wrong at once, then by counting errors, then by weighing them."""
        for layout in self.layouts:
            if np.array_equal(layout.code.encode(read[: layout.code.information]), read):
                yield layout, read
        for layout in self.layouts:
            codeword = layout.code.decode(read)
            if codeword is not None:
                yield layout, codeword
        for layout in self.layouts:
            yield layout, layout.code.decode_soft(frame)

    def _checksum(self, layout: Layout, body: Bits) -> Bits:
        """Of the header and the payload; the number of bits is in it, so that no frame passes for another size."""
        content = f"{self.bits} {layout.length} ".encode() + np.packbits(body).tobytes()
        return checksum_bits(self.key, content, layout.checksum)


def _body(header: int, content: bytes) -> Bits:
    bits = np.unpackbits(np.frombuffer(bytes([header]) + content, np.uint8))
    return bits[8 - HEADER :]


def _payload(body: Bits) -> Payload:
    header = int(np.packbits(body[:HEADER])[0]) >> (8 - HEADER)
    version, kind = header >> 2, header & 3
    content = np.packbits(body[HEADER:]).tobytes()
    try:
        if version == VERSION:
            return Payload(Kind(kind), content)
    except ValueError:  # an unknown kind, or text that is none
        pass
    raise DataError(f"the watermark has the format {version}.{kind}, made by another version: update samplewise")
