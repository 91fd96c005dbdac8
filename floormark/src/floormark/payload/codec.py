"""The codec: payload to bits, and logits back to the payload, or to nothing."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from floormark.errors import ConfigurationError, DataError
from floormark.payload.bch import MAX_BITS, BchCode, corrected, nearest, parity_bits
from floormark.payload.message import Extracted, Key, Kind, Payload, checksum_bits, mask, permutation

HEADER = 4  # bits: two of version, two of kind
VERSION, BOUND_VERSION, PARTIAL_VERSION = 0, 1, 2
"""Without a content code, with one, and with one in an image of which parts were left unmarked on purpose."""
BOUND_CHECKSUM = 32
"""Bits of the shortest checksum of a frame with a content code: they leave room for 16 bytes, and the search makes few
trials."""
WRONG_SHARE = 0.02  # of the bits: at least so many errors are corrected, whatever the payload's length

Bits = NDArray[np.uint8]


@dataclass(frozen=True)
class Layout:
    """The frame for payloads of one length: header, payload, content code, checksum, parity.

    The length itself is not stored: the layout whose checksum fits determines it.
    """

    length: int  # bytes of the payload
    checksum: int  # bits of the checksum
    code: BchCode

    @property
    def false_positive_rate(self) -> float:
        """The probability that uniform random bits pass as a frame of this layout; an upper bound.

        The soft decoder always finds a codeword, whose checksum fits for one in ``2**checksum``. The hard decoder finds
        one only within t errors and adds that fraction.
        """
        within_reach = _ball(self.code.bits, self.code.correctable) / (1 << self.code.parity)
        return (1.0 + within_reach) / (1 << self.checksum)


def _ball(bits: int, radius: int) -> int:
    """Number of words within Hamming distance ``radius`` of one."""
    return sum(math.comb(bits, wrong) for wrong in range(radius + 1))


@functools.lru_cache(typed=True)  # 200.0 is not 200
def layouts(bits: int, *, content_bits: int = 0, checksum: int | None = None) -> tuple[Layout, ...]:
    """The layouts of a frame of ``bits`` bits, for 1, 2, ... bytes: a shorter payload leaves more bits for parity.

    The checksum has at least 32 bits beside a content code, and otherwise 28 and those that count to L: as there are
    fewer than L/8 layouts to try, the rate of false positives stays below 2^-30 for every L.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < 1:
        raise ConfigurationError(f"expected a whole number of bits above 0, got {bits!r}")
    if checksum is None:
        checksum = BOUND_CHECKSUM if content_bits else 28 + bits.bit_length()
    least = checksum + content_bits
    found: list[Layout] = []
    while bits <= MAX_BITS:
        length, correctable = len(found) + 1, 0
        spare = bits - HEADER - 8 * length - least
        while parity_bits(bits, correctable + 1) <= spare:
            correctable += 1
        if correctable < WRONG_SHARE * bits:
            break
        code = BchCode(bits, correctable)
        # The checksum takes the bits that the code's step sizes leave.
        found.append(Layout(length, checksum + spare - code.parity, code))
    if not found:
        raise ConfigurationError(
            f"expected a network of {58 + content_bits} to {MAX_BITS} bits to carry a payload with checksum and "
            f"parity, got {bits} bits"
        )
    return tuple(found)


class Codec:
    """Payloads to ``bits`` bits and back, by binary BCH codes: a network's errors are single bits in random places.

    Decoding tries each payload length. What comes out was encoded with this key, except for a rate of
    :attr:`false_positive_rate`.

    Args:
        bits: L, what the network hides.
        key: masks, permutes and signs; see :class:`Key` for what that protects from. Without one anybody can read
            and write.
        content_bits: length of the content code, which says to which image a payload belongs; frames with one are of
            another version.
    """

    def __init__(self, bits: int, key: Key | None = None, *, content_bits: int = 0) -> None:
        self.bits, self.key, self.content_bits = bits, key, content_bits
        self.versions = (BOUND_VERSION, PARTIAL_VERSION) if content_bits else (VERSION,)
        self.layouts = layouts(bits, content_bits=content_bits)

    @property
    def max_bytes(self) -> int:
        """The longest payload."""
        return self.layouts[-1].length

    @property
    def false_positive_rate(self) -> float:
        """The probability that random bits read as a payload; an upper bound.

        What a network reads from an unmarked image need not be random; then it is the rate over keys, as mask and order
        are random to the network.

        Example:
            >>> print(f"{Codec(200).false_positive_rate:.1e}")
            8.3e-11
        """
        return sum(layout.false_positive_rate for layout in self.layouts)

    def correctable(self, length: int) -> int:
        """Number of wrong bits that are always corrected in a payload of ``length`` bytes."""
        return self._layout(length).code.correctable

    def _layout(self, length: int) -> Layout:
        if not 1 <= length <= self.max_bytes:
            raise ConfigurationError(
                f"expected a payload of 1 to {self.max_bytes} bytes, as {self.bits} bits can hold, got {length} "
                "(of text in UTF-8): shorten it, or hide an identifier and keep the rest elsewhere"
            )
        return self.layouts[length - 1]

    def encode(
        self, payload: Payload | str | bytes, content_code: Sequence[int] = (), salt: str = "", *, partial: bool = False
    ) -> Bits:
        """The bits to hide, zeros and ones, shape ``(bits,)``; mask and order are others for each ``salt``.

        The content code is that of the image; zeros if not given. ``partial`` says that parts of it are left unmarked
        on purpose, which only a frame with a content code can tell.
        """
        payload = Payload.of(payload)
        layout = self._layout(len(payload.content))
        content_code = content_code or (0,) * self.content_bits
        if len(content_code) != self.content_bits:
            raise ConfigurationError(f"expected a content code of {self.content_bits} bits, got {len(content_code)}")
        header = self.versions[-1 if partial else 0] << 2 | payload.kind.value
        said = np.unpackbits(np.frombuffer(bytes([header]) + payload.content, np.uint8))[8 - HEADER :]
        body = np.concatenate([said, np.array(content_code, np.uint8)])
        frame = layout.code.encode(np.concatenate([body, self._checksum(layout, body)]))
        return (frame ^ mask(self.key, self.bits, salt))[permutation(self.key, self.bits, salt)]

    def decode(self, logits: ArrayLike, salt: str = "") -> Extracted | None:
        """The payload that was encoded, or None: no readable watermark.

        Args:
            logits: what the network read, shape ``(bits,)``. Above zero reads as 1; the larger, the surer.
            salt: the one that it was encoded with.

        Raises:
            DataError: not finite or not ``bits`` logits, or a watermark whose format only a newer version knows.
        """
        values = np.asarray(logits, np.float64)
        if values.shape != (self.bits,) or not np.isfinite(values).all():
            raise DataError(f"expected {self.bits} finite logits to decode, got an array of shape {values.shape}")
        frame = np.empty_like(values)
        frame[permutation(self.key, self.bits, salt)] = values
        frame *= 1.0 - 2.0 * mask(self.key, self.bits, salt)
        read = (frame > 0).astype(np.uint8)
        for layout, codeword in self._candidates(frame, read):
            information = codeword[: layout.code.information]
            ends = np.cumsum([HEADER + 8 * layout.length, self.content_bits])
            said, code, checksum = np.split(information, ends)
            if np.array_equal(checksum, self._checksum(layout, np.concatenate([said, code]))):
                corrected = int(np.count_nonzero(codeword != read))
                version, payload = self._payload(said)
                return Extracted(
                    payload,
                    corrected,
                    self._chance(corrected),
                    content_code=tuple(code.tolist()),
                    partial=version == PARTIAL_VERSION,
                )
        return None

    def _candidates(self, frame: NDArray[np.float64], read: Bits) -> Iterator[tuple[Layout, Bits]]:
        """Codewords of the layouts: first those of hard decoding, then those of soft decoding."""
        codes = [layout.code for layout in self.layouts]
        for codewords in (corrected(codes, read), nearest(codes, frame)):
            for layout, codeword in zip(self.layouts, codewords, strict=True):
                if codeword is not None:
                    yield layout, codeword

    def _chance(self, corrected: int) -> float:
        """The probability that random bits read as some payload with at most so many errors; an upper bound."""
        frames = sum(1 << (HEADER + 8 * layout.length + self.content_bits) for layout in self.layouts)
        return min(_ball(self.bits, corrected) * frames / (1 << self.bits), self.false_positive_rate)

    def _checksum(self, layout: Layout, body: Bits) -> Bits:
        """The checksum of a frame's body and its sizes, so that no frame passes for one of another size."""
        content = f"{self.bits} {layout.length} " + (f"{self.content_bits} " if self.content_bits else "")
        return checksum_bits(self.key, content.encode() + np.packbits(body).tobytes(), layout.checksum)

    def _payload(self, said: Bits) -> tuple[int, Payload]:
        """The version of a frame, and its payload."""
        header = int(np.packbits(said[:HEADER])[0]) >> (8 - HEADER)
        version, kind = header >> 2, header & 3
        content = np.packbits(said[HEADER:]).tobytes()
        try:
            if version in self.versions:
                return version, Payload(Kind(kind), content)
        except ValueError:  # an unknown kind, or invalid UTF-8
            pass
        raise DataError(f"the watermark has the format {version}.{kind}, made by another version: update floormark")
