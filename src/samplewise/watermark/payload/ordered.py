"""Ordered statistics decoding: near the best a linear code can do, from how sure the reader is of each bit."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["nearest_codeword"]


def nearest_codeword(generator: NDArray[np.uint8], logits: NDArray[np.float64]) -> NDArray[np.uint8]:
    """The codeword that contradicts ``logits`` least, among those that up to two changes make.

    The k most reliable independent bits determine a codeword. It and all that differ from it in one or two of these
    bits are compared by the sum of magnitudes they contradict (Fossorier and Lin, 1995, order 2).

    Args:
        generator: rows that span the code, shape ``(k, n)``, of rank k.
        logits: above zero reads as 1, shape ``(n,)``.

    Returns:
        Zeros and ones, shape ``(n,)``.
    """
    order = np.argsort(-np.abs(logits), kind="stable")
    weight = np.abs(logits)[order]
    read = (logits > 0).astype(np.uint8)[order]
    rows, pivots = _reduced(generator[:, order])

    start: NDArray[np.uint8] = read[pivots] @ rows & np.uint8(1)
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


def _reduced(matrix: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], list[int]]:
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
