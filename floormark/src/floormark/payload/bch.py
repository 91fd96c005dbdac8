"""Binary BCH codes: they correct any t wrong bits, and more where the reader says which bits it doubts."""

import functools
from itertools import zip_longest
from operator import xor

import numpy as np
import torch
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
    """How many of ``bits`` a code that corrects ``correctable`` errors spends on parity."""
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

    def syndromes(self, word: Bits) -> NDArray[np.int64]:
        """The values of ``word (bits,)``, as a polynomial, at the roots of the code: zeros if it is a codeword."""
        table = np.array(_field(self.exponent)[0])
        degrees = self.bits - 1 - np.flatnonzero(word)
        roots = np.arange(1, 2 * self.correctable + 1)
        found: NDArray[np.int64] = np.bitwise_xor.reduce(table[np.outer(roots, degrees) % len(table)], axis=1)
        return found

    def decode(self, word: Bits) -> Bits | None:
        """The codeword at most ``correctable`` bits away from ``word (bits,)``, if there is one."""
        powers, logarithm = _field(self.exponent)
        table, order = np.array(powers), len(powers)
        locator = _shortest_recurrence(self.syndromes(word).tolist(), powers, logarithm)
        if len(locator) > self.correctable + 1:
            return None
        # Bits are wrong where the locator is zero at the inverse of their power.
        places = np.arange(self.bits)
        terms = [table[(logarithm[value] - i * places) % order] for i, value in enumerate(locator) if value]
        wrong = np.flatnonzero(np.bitwise_xor.reduce(terms) == 0)
        if len(wrong) != len(locator) - 1:
            return None
        codeword = word.copy()
        codeword[self.bits - 1 - wrong] ^= 1
        return codeword


def _shortest_recurrence(values: list[int], powers: list[int], logarithm: dict[int, int]) -> list[int]:
    """The shortest linear recurrence over GF(2^m) that gives ``values``, lowest degree first (Berlekamp and Massey)."""
    order = len(powers)

    def times(a: int, b: int) -> int:
        return powers[(logarithm[a] + logarithm[b]) % order] if a and b else 0

    found, before, length, last, gap = [1], [1], 0, 1, 1
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
    return (found + [0] * length)[: length + 1]


def nearest_codeword(generator: Bits, logits: NDArray[np.float64]) -> Bits:
    """The codeword that contradicts ``logits (n,)`` least, among those that up to two changes make.

    Ordered statistics decoding of order 2 (Fossorier and Lin, 1995), near the best a linear code can do: the k most
    reliable independent bits determine a codeword. It and all that differ from it in one or two of these bits are
    compared by the sum of magnitudes they contradict. The rows of ``generator (k, n)`` span the code.
    """
    order = np.argsort(-np.abs(logits), kind="stable")
    weight = np.abs(logits)[order]
    read = (logits > 0).astype(np.uint8)[order]
    rows, pivots = _reduced(generator[:, order])

    start: Bits = read[pivots] @ rows & np.uint8(1)
    agreement = 1.0 - 2.0 * (start ^ read)  # 1 where the start agrees with what was read, -1 where not
    signs = 1.0 - 2.0 * rows
    # Entry (i, j) is the agreement after adding rows i and j; the diagonal, where they cancel, is the start's.
    # By PyTorch, which keeps to the threads that a process was given.
    pairs = torch.mm(torch.from_numpy(signs * (agreement * weight)), torch.from_numpy(signs.T)).numpy()
    singles = signs @ (agreement * weight)
    first, second = divmod(int(pairs.argmax()), len(rows))
    single = int(singles.argmax())
    best = start ^ rows[single] if singles[single] > pairs[first, second] else start ^ rows[first] ^ rows[second]

    codeword = np.empty_like(read)
    codeword[order] = best
    return codeword


def _reduced(matrix: Bits) -> tuple[Bits, list[int]]:
    """The reduced row echelon form over GF(2), and its pivot columns."""
    height, width = matrix.shape
    packed = np.zeros((height, -(-width // 64) * 8), np.uint8)  # eight columns in a byte
    packed[:, : -(-width // 8)] = np.packbits(matrix, axis=1)
    rows = packed.view(np.uint64)  # the same memory, in words, which are added quicker
    pivots: list[int] = []
    for column in range(width):
        row = len(pivots)
        if row == height:
            break
        ones = (packed[:, column >> 3] & (128 >> (column & 7))).nonzero()[0]
        place = ones.searchsorted(row)
        if place == len(ones):
            continue
        pivot = rows[ones[place]].copy()
        rows[ones] ^= pivot  # all of them: the pivot's own place is taken by the row that makes room for it
        rows[ones[place]] = rows[row]
        rows[row] = pivot
        pivots.append(column)
    return np.unpackbits(packed, axis=1, count=width), pivots
