"""Binary BCH codes: they correct any t wrong bits, and more where the reader says which bits it doubts."""

import functools
import threading

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, needed_for

# A primitive polynomial for each field GF(2^m) that a code of up to 2^m - 1 bits needs.
PRIMITIVE = {3: 0xB, 4: 0x13, 5: 0x25, 6: 0x43, 7: 0x89, 8: 0x11D, 9: 0x211}
MAX_BITS = (1 << max(PRIMITIVE)) - 1

_reedsolo_lock = threading.Lock()  # reedsolo keeps the field that was made last in globals, so it is made each time

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
def _generator(exponent: int, correctable: int) -> int:
    """The generator polynomial; bit i is the coefficient of x^i."""
    order, reduced = (1 << exponent) - 1, PRIMITIVE[exponent]
    powers = [1]
    while len(powers) < order:
        doubled = powers[-1] << 1
        powers.append(doubled ^ reduced if doubled >> exponent else doubled)
    logarithm = {value: power for power, value in enumerate(powers)}
    coefficients = [1]  # lowest degree first, in GF(2^m) until all conjugates are in
    for root in sorted(_roots(exponent, correctable)):
        scaled = [powers[(logarithm[value] + root) % order] if value else 0 for value in coefficients]
        coefficients = [a ^ b for a, b in zip([*scaled, 0], [0, *coefficients], strict=True)]
    return sum(value << degree for degree, value in enumerate(coefficients))


class BchCode:
    """The BCH code of ``bits`` bits (shortened from ``2**m - 1``) that always corrects ``correctable`` wrong ones.

    Its words are also words of a Reed-Solomon code over GF(2^m) with the same roots, so reedsolo's decoder finds the
    errors; a correction that is not binary is a failure.
    """

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

    def decode(self, word: Bits) -> Bits | None:
        """The codeword at most ``correctable`` bits away from ``word (bits,)``, if there is one."""
        with needed_for("reading payloads", "watermark"):
            import reedsolo  # type: ignore[import-untyped]  # ships no types
        parity, field = 2 * self.correctable, self.exponent
        with _reedsolo_lock:
            try:
                solver = reedsolo.RSCodec(parity, nsize=(1 << field) - 1, fcr=1, prim=PRIMITIVE[field], c_exp=field)
                found = solver.decode(word.tolist())[1]
            except reedsolo.ReedSolomonError:
                return None
        codeword = np.array(list(found))
        if codeword.max() > 1 or np.count_nonzero(codeword != word) > self.correctable:
            return None
        return codeword.astype(np.uint8)


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
    pairs = (signs * (agreement * weight)) @ signs.T
    singles = signs @ (agreement * weight)
    first, second = divmod(int(pairs.argmax()), len(rows))
    single = int(singles.argmax())
    best = start ^ rows[single] if singles[single] > pairs[first, second] else start ^ rows[first] ^ rows[second]

    codeword = np.empty_like(read)
    codeword[order] = best
    return codeword


def _reduced(matrix: Bits) -> tuple[Bits, list[int]]:
    """The reduced row echelon form over GF(2), and its pivot columns."""
    matrix = matrix.copy()
    pivots: list[int] = []
    for column in range(matrix.shape[1]):
        row = len(pivots)
        if row == len(matrix):
            break
        candidates = np.flatnonzero(matrix[row:, column])
        if not candidates.size:
            continue
        matrix[[row, row + candidates[0]]] = matrix[[row + candidates[0], row]]
        others = np.flatnonzero(matrix[:, column])
        matrix[others[others != row]] ^= matrix[row]
        pivots.append(column)
    return matrix, pivots
