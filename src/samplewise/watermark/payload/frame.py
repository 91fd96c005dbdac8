"""How L bits are divided: each payload length has its own code, so that what a short payload leaves becomes parity."""

import functools
import math
from dataclasses import dataclass

from samplewise.errors import ConfigurationError
from samplewise.watermark.payload.bch import MAX_BITS, BchCode, parity_bits

__all__ = ["HEADER", "Layout", "chance", "false_positive_rate", "layouts", "max_bytes"]

HEADER = 4  # bits: two of version, two of kind
WRONG_SHARE = 0.02  # of the bits: this many errors are corrected at least, whatever the payload's length


@dataclass(frozen=True)
class Layout:
    """The frame for payloads of one length: header, payload, checksum, parity.

    The length itself is stored nowhere: the layout whose checksum fits tells it.
    """

    bits: int
    length: int
    """Bytes of the payload."""
    checksum: int
    """Bits of the checksum."""
    code: BchCode

    @property
    def false_positive_rate(self) -> float:
        """The probability that uniform random bits pass as a frame of this layout; an upper bound.

        The soft decoder always finds a codeword, any one as likely as any other; the checksum fits for one in
        ``2**checksum``. The hard decoder finds one only within t errors and adds that share.
        """
        within_reach = _ball(self.bits, self.code.correctable) / (1 << self.code.parity)
        return (1.0 + within_reach) / (1 << self.checksum)


def _ball(bits: int, radius: int) -> int:
    """How many words differ from one in at most ``radius`` bits."""
    return sum(math.comb(bits, wrong) for wrong in range(radius + 1))


@functools.lru_cache
def layouts(bits: int, *, checksum: int | None = None) -> tuple[Layout, ...]:
    """The layouts of a frame of ``bits`` bits, for 1, 2, ... bytes.

    Args:
        bits: L, what the network hides.
        checksum: bits of it at least. By default 28 and the bits that count to L: as there are fewer than L/8 layouts
            to try, the rate of false positives stays below 2^-30 for every L. At 200 bits that is 36, the longest
            that leaves room for 16 bytes, a UUID.
    """
    if isinstance(bits, bool) or not isinstance(bits, int) or bits < 1:
        raise ConfigurationError(f"expected a whole number of bits above 0, got {bits!r}")
    least = 28 + bits.bit_length() if checksum is None else checksum
    found: list[Layout] = []
    while bits <= MAX_BITS:
        length = len(found) + 1
        spare = bits - HEADER - 8 * length - least
        correctable = _strongest(bits, spare)
        if correctable < WRONG_SHARE * bits:
            break
        code = BchCode(bits, correctable)
        # The checksum takes what the code's steps leave.
        found.append(Layout(bits, length, least + spare - code.parity, code))
    if not found:
        raise ConfigurationError(
            f"expected a network of 58 to {MAX_BITS} bits to carry a payload with checksum and parity, got {bits} bits"
        )
    return tuple(found)


def _strongest(bits: int, spare: int) -> int:
    """How many errors can be corrected with ``spare`` bits of parity."""
    correctable = 0
    while parity_bits(bits, correctable + 1) <= spare:
        correctable += 1
    return correctable


def max_bytes(bits: int) -> int:
    """The longest payload, in bytes, that a frame of ``bits`` bits holds.

    Example:
        >>> max_bytes(200)
        16
    """
    return layouts(bits)[-1].length


def false_positive_rate(bits: int) -> float:
    """The probability that random bits read as a payload, with or without a key; an upper bound.

    For bits that are uniform and independent of how sure the reader is of them. What a network reads from an unmarked
    image need not be so; then it is the rate over keys, as mask and order are as good as random to the network.

    Example:
        >>> print(f"{false_positive_rate(200):.1e}")
        8.3e-11
    """
    return sum(layout.false_positive_rate for layout in layouts(bits))


def chance(frame_layouts: tuple[Layout, ...], corrected: int) -> float:
    """The probability that random bits read as some payload with at most ``corrected`` errors; an upper bound."""
    ball = _ball(frame_layouts[0].bits, corrected)
    frames = sum(1 << (HEADER + 8 * layout.length) for layout in frame_layouts)
    near = ball * frames / (1 << frame_layouts[0].bits)
    return min(near, sum(layout.false_positive_rate for layout in frame_layouts))
