"""Binary BCH codes: hard decoding corrects any t wrong bits, soft decoding by reliabilities mostly more."""

import functools
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from operator import xor

import numpy as np
from numpy.typing import NDArray

from floormark.errors import ConfigurationError

# A primitive polynomial for each field GF(2^m) that a code of up to 2^m - 1 bits needs.
PRIMITIVE = {3: 0xB, 4: 0x13, 5: 0x25, 6: 0x43, 7: 0x89, 8: 0x11D, 9: 0x211}
MAX_BITS = (1 << max(PRIMITIVE)) - 1

Bits = NDArray[np.uint8]


def _exponent(bits: int) -> int:
    """The m of the smallest field whose codes are long enough."""
    if not min(PRIMITIVE) <= bits.bit_length() <= max(PRIMITIVE):
        raise ConfigurationError(f"expected a code of {1 << (min(PRIMITIVE) - 1)} to {MAX_BITS} bits, got {bits}")
    return bits.bit_length()


@functools.lru_cache
def _roots(exponent: int, correctable: int) -> frozenset[int]:
    """Exponents of the generator's roots: 1 to 2t, with the conjugates that make it binary."""
    order = (1 << exponent) - 1
    return frozenset((root << power) % order for root in range(1, 2 * correctable + 1) for power in range(exponent))


def parity_bits(bits: int, correctable: int) -> int:
    """Number of parity bits of a code of ``bits`` bits that corrects ``correctable`` errors."""
    return len(_roots(_exponent(bits), correctable))


@functools.lru_cache
def _field(exponent: int) -> tuple[list[int], dict[int, int]]:
    """The powers of a primitive element of GF(2^m) in their order, and which power each value is."""
    powers = [1]
    while len(powers) < (1 << exponent) - 1:
        doubled = powers[-1] << 1
        powers.append(doubled ^ PRIMITIVE[exponent] if doubled >> exponent else doubled)
    return powers, {value: power for power, value in enumerate(powers)}


@functools.lru_cache
def _generator(exponent: int, correctable: int) -> int:
    """The generator polynomial; bit i is the coefficient of x^i."""
    order, (powers, logarithm) = (1 << exponent) - 1, _field(exponent)
    coefficients = [1]  # lowest degree first, in GF(2^m) until all conjugates are in
    for root in sorted(_roots(exponent, correctable)):
        scaled = [powers[(logarithm[value] + root) % order] if value else 0 for value in coefficients]
        coefficients = [a ^ b for a, b in zip([*scaled, 0], [0, *coefficients], strict=True)]
    return sum(value << degree for degree, value in enumerate(coefficients))


class BchCode:
    """The BCH code of ``bits`` bits (shortened from ``2**m - 1``) that always corrects ``correctable`` wrong ones."""

    def __init__(self, bits: int, correctable: int) -> None:
        self.bits = bits
        self.correctable = correctable
        self.exponent = _exponent(bits)
        self.parity = parity_bits(bits, correctable)
        self.information = bits - self.parity
        if correctable < 1 or self.information < 1:
            raise ConfigurationError(f"no BCH code of {bits} bits corrects {correctable} errors")

    @functools.cached_property
    def generator(self) -> Bits:
        """Rows that span the code, ``(k, bits)``; the first k columns are the identity."""
        polynomial = _generator(self.exponent, self.correctable)
        remainder, rows = polynomial ^ (1 << self.parity), []  # of x^parity, the last row
        for _ in range(self.information):
            rows.append([remainder >> bit & 1 for bit in reversed(range(self.parity))])
            remainder <<= 1
            if remainder >> self.parity:
                remainder ^= polynomial
        return np.hstack([np.eye(self.information, dtype=np.uint8), np.array(rows[::-1], np.uint8)])

    def encode(self, information: Bits) -> Bits:
        """The codeword ``(bits,)`` that begins with ``information (k,)``."""
        word: Bits = information @ self.generator  # sums wrap at 256, which keeps their last bit
        return word & np.uint8(1)

    @functools.cached_property
    def checks(self) -> Bits:
        """Rows that every codeword is orthogonal to, ``(m t, bits)``; those of a weaker code are the first of them."""
        table, degrees = np.array(_field(self.exponent)[0]), np.arange(self.bits)[::-1]
        values = table[np.outer(np.arange(1, 2 * self.correctable, 2), degrees) % len(table)]
        rows: Bits = (values[:, None] >> np.arange(self.exponent)[:, None] & 1).astype(np.uint8)
        return rows.reshape(-1, self.bits)


def corrected(codes: Sequence[BchCode], word: Bits) -> Iterator[Bits | None]:
    """For each code the codeword at most ``correctable`` bits away from ``word (bits,)``, if there is one.

    The codes are of the same length, so each contains the stronger ones and they share the work.
    """
    strongest = max(codes, key=lambda code: code.correctable)
    powers, logarithm = _field(strongest.exponent)
    table, order, places = np.array(powers), len(powers), np.arange(strongest.bits)
    roots = np.arange(1, 2 * strongest.correctable + 1)
    degrees = strongest.bits - 1 - np.flatnonzero(word)
    syndromes = np.bitwise_xor.reduce(table[np.outer(roots, degrees) % order], axis=1)
    locators = _shortest_recurrences(syndromes.tolist(), powers, logarithm)
    for code in codes:
        locator, codeword = locators[2 * code.correctable - 1], None
        if len(locator) <= code.correctable + 1:
            # Bits are wrong where the locator is zero at the inverse of their power.
            terms = [table[(logarithm[value] - i * places) % order] for i, value in enumerate(locator) if value]
            wrong = np.flatnonzero(np.bitwise_xor.reduce(terms) == 0)
            if len(wrong) == len(locator) - 1:
                codeword = word.copy()
                codeword[code.bits - 1 - wrong] ^= 1
        yield codeword


def _shortest_recurrences(values: list[int], powers: list[int], logarithm: dict[int, int]) -> list[list[int]]:
    """The shortest linear recurrence over GF(2^m) that gives the first 1, 2, ... of ``values`` (Berlekamp and Massey).

    Coefficients have the lowest degree first.
    """
    order = len(powers)

    def times(a: int, b: int) -> int:
        return powers[(logarithm[a] + logarithm[b]) % order] if a and b else 0

    found, before, length, last, gap = [1], [1], 0, 1, 1
    recurrences = []
    for step in range(len(values)):
        wrong = functools.reduce(xor, (times(a, values[step - i]) for i, a in enumerate(found)))
        if wrong:
            factor = powers[(logarithm[wrong] - logarithm[last]) % order]
            change = [0] * gap + [times(factor, b) for b in before]
            better = [a ^ b for a, b in zip_longest(found, change, fillvalue=0)]
            if 2 * length <= step:
                before, length, last, gap = found, step + 1 - length, wrong, 0
            found = better
        gap += 1
        recurrences.append((found + [0] * length)[: length + 1])
    return recurrences


def nearest(codes: Sequence[BchCode], logits: NDArray[np.float64]) -> Iterator[Bits]:
    """For each code the codeword that contradicts ``logits (bits,)`` least, among those within two changes.

    Ordered statistics decoding of order 2 (Fossorier and Lin, 1995), near the best a linear code can do: the k most
    reliable independent bits determine a codeword. It and all that differ from it in one or two of these bits are
    compared by the sum of magnitudes they contradict.
    """
    order = np.argsort(-np.abs(logits), kind="stable")
    weight = np.abs(logits)[order]
    read = (logits > 0).astype(np.uint8)[order]
    for rows, reliable in _reliable_bases(codes, order):
        start: Bits = read[reliable] @ rows & np.uint8(1)
        agreement = 1.0 - 2.0 * (start ^ read)  # 1 where the start agrees with what was read, -1 where not
        signs = 1.0 - 2.0 * rows
        # Entry (i, j) is the agreement after adding rows i and j; the diagonal, where they cancel, is the start's.
        pairs = (signs * (agreement * weight)) @ signs.T
        singles = signs @ (agreement * weight)
        first, second = divmod(int(pairs.argmax()), len(rows))
        single = int(singles.argmax())
        best = start ^ rows[single] if singles[single] > pairs[first, second] else start ^ rows[first] ^ rows[second]
        codeword = np.empty_like(read)
        codeword[order] = best
        yield codeword


def _reliable_bases(codes: Sequence[BchCode], order: NDArray[np.intp]) -> Iterator[tuple[Bits, NDArray[np.intp]]]:
    """For each code rows that span it, bits in ``order``, and its first k independent bits: there they are unit rows.

    The parity checks of all codes are brought into reduced echelon form together, the last bits first: of each code
    the bits that lead no row are the independent ones.
    """
    strongest = max(codes, key=lambda code: code.correctable)
    packed = np.packbits(strongest.checks[:, order[::-1]], axis=1)
    reduced: dict[int, int] = {}  # rows as integers, by the number of their first bit
    forms = {}
    for number, check in enumerate(packed, start=1):
        row = int.from_bytes(check.tobytes())
        for lead, other in reduced.items():
            if row >> lead & 1:
                row ^= other
        if row:
            first = row.bit_length() - 1
            for lead, other in reduced.items():
                if other >> first & 1:
                    reduced[lead] = other ^ row
            reduced[first] = row
        if number % strongest.exponent == 0:
            forms[number // strongest.exponent] = dict(reduced)
    for code in codes:
        form = forms[code.correctable]
        content = b"".join(row.to_bytes(packed.shape[1]) for row in form.values())
        checks = np.unpackbits(np.frombuffer(content, np.uint8).reshape(len(form), -1), axis=1, count=code.bits)[
            :, ::-1
        ]
        led = code.bits - 8 * packed.shape[1] + np.array(list(form), np.intp)
        reliable = np.setdiff1d(np.arange(code.bits), led)
        rows = np.zeros((len(reliable), code.bits), np.uint8)
        rows[:, reliable] = np.eye(len(reliable), dtype=np.uint8)
        rows[:, led] = checks[:, reliable].T
        yield rows, reliable
