"""The periods of a picture: where a mark may lie in it, at what size, angle and shear.

A mark is made of equal tiles, so the autocorrelation of a marked picture shows a lattice of peaks. Any two of its
shortest vectors that are not parallel are the sides of a tile, however the image was resized, rotated, sheared or
stretched since. Vectors are rows and columns in pixels. SciPy is imported where it is needed: an image that was not
moved is read without it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floormark.filters import Picture, gaussian, resized, uniform

Matrix = NDArray[np.float64]

WHITENED_RANGE = 2.5  # standard deviations at which whitened values are clipped: larger ones are edges of the picture
FLAT_VARIANCE = 0.1  # variance, in grey levels, below which whitening amplifies nothing
PERIOD_SIGMA = 1.5  # pixels: smoother structure belongs to the picture and not to the mark
SEARCHES = (1.0, 384, 0.92, 6.0), (0.5, 256, 0.5, 9.0), (0.25, 224, 0.5, 9.0)
"""The whole picture, then windows that overlap by half, as a marked image may be a small part of a page. For each: the
side relative to the picture's shorter one, the pixels it is reduced to, the longest period relative to it, and the
least score of periods. Chance reaches 6 in most pictures, and 8 in one of many windows. The pilot decides; the score
only saves pilot searches."""
SHORTEST_PART = 0.09  # shortest period relative to the side of a window; shorter ones are left to smaller windows
SHORTEST_PERIOD = 16  # pixels: tiles that small hold no message
PEAKS = 32  # of an autocorrelation, as candidates for the sides of a tile
MIN_PEAK = 3.2  # standard deviations
ENOUGH = 7.0
"""Standard deviations at which a peak is clipped: lines of text, which repeat in one direction only, have few high
peaks, a mark has many."""
MAX_STRETCH = 1.8  # ratio of the sides of a tile
MAX_COSINE = 0.5  # of the angle between them
FIRST_MULTIPLES = np.array([(1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (0, 2), (2, 1), (1, 2), (2, -1), (1, -2)])
"""Multiples of the two periods that make up a candidate's score."""
LAST_MULTIPLE = 3  # the highest multiple by which periods are refined
PERIODS_EACH = 2  # candidates of a window; the first is nearly always the mark's, if there is one
SQUARES_EACH = 2  # further candidates of a whole picture: without shear or stretch one period gives the other
MIN_SQUARE = 4.0  # score of such a candidate: as there are few, chance seldom reaches it
SAME_PERIODS = 0.08  # least difference of two candidates, relative to their length


@dataclass(frozen=True)
class Window:
    """A rectangle of a picture, in its pixels."""

    top: int
    left: int
    bottom: int
    right: int

    def of(self, picture: NDArray[np.float32]) -> NDArray[np.float32]:
        """The part of a picture inside the window."""
        return picture[self.top : self.bottom, self.left : self.right]

    @property
    def area(self) -> int:
        return max(0, self.bottom - self.top) * max(0, self.right - self.left)

    def common(self, other: "Window") -> "Window":
        """The intersection of two windows, perhaps empty."""
        return Window(
            max(self.top, other.top),
            max(self.left, other.left),
            min(self.bottom, other.bottom),
            min(self.right, other.right),
        )


@dataclass(frozen=True, eq=False)
class Periods:
    """Two periods with which a part of a picture may repeat."""

    matrix: Matrix  # the periods as columns, in pixels of the picture
    score: float  # standard deviations
    window: Window  # where they were found


def whitened(picture: Picture, sigma: float) -> Picture:
    """A picture of grey levels, high-pass filtered and scaled to local variance 1, where a mark stands out most."""
    rough = picture - gaussian(picture, sigma, truncate=3.0)
    variance = uniform(rough * rough, int(8 * sigma))
    white: Picture = np.clip(rough / np.sqrt(variance + FLAT_VARIANCE), -WHITENED_RANGE, WHITENED_RANGE)
    return white


def find_periods(picture: Picture, aspect: float = 1.0) -> Iterator[list[Periods]]:
    """Candidate periods of a picture, the likeliest first; then those of smaller and smaller windows.

    ``aspect`` is the height of a tile relative to its width, before the image was moved.
    """
    for share, pixels, longest, least in SEARCHES:
        side = share * min(picture.shape)
        factor = max(1.0, side / pixels)
        if side / factor * longest < SHORTEST_PERIOD:
            return
        height, width = (round(length / factor) for length in picture.shape)
        small = picture if factor == 1.0 else resized(picture, (height, width))
        white = whitened(small, PERIOD_SIGMA)
        found = []
        for window in _windows(white.shape, share):
            part = window.of(white)
            if part.any():
                edges = (window.top, window.left, window.bottom, window.right)
                place = Window(*(round(factor * edge) for edge in edges))
                for score, matrix in _periods_of(part, longest, least, aspect if share == 1.0 else None):
                    found.append(Periods(factor * matrix, score, place))
        yield sorted(found, key=lambda each: -each.score)


def _windows(shape: tuple[int, ...], share: float) -> Iterator[Window]:
    """The whole picture, or squares that cover it and overlap by half."""
    if share == 1.0:
        yield Window(0, 0, shape[0], shape[1])
        return
    side = round(share * min(shape))
    starts = [np.linspace(0, length - side, max(2, round(2 * length / side) - 1)).astype(int) for length in shape]
    for top in starts[0].tolist():
        yield from (Window(top, left, top + side, left + side) for left in starts[1].tolist())


def _periods_of(white: Picture, longest: float, least: float, aspect: float | None) -> list[tuple[float, Matrix]]:
    """The likeliest periods of a whitened picture, up to ``longest`` of its side, that score at least ``least``.

    With an ``aspect`` also periods of tiles that kept their shape, at a lower score: a tight crop shows little more.
    """
    from scipy import ndimage

    likeness = _autocorrelation(white, longest)
    reach, side = len(likeness) // 2, min(white.shape)
    shortest, longest = max(SHORTEST_PART * side, SHORTEST_PERIOD), longest * side
    # One of each peak and its mirror image: the rows above the middle hold the same peaks.
    half = likeness[reach:]
    highest = ndimage.maximum_filter(half, 5) == half
    rows, columns = np.nonzero(highest & (half > MIN_PEAK))
    columns -= reach
    length = np.hypot(rows, columns)
    kept = (length >= shortest) & (length <= longest) & ((rows > 0) | (columns > 0))
    peaks = np.stack([rows, columns], 1)[kept]
    peaks = peaks[np.argsort(-half[peaks[:, 0], peaks[:, 1] + reach], kind="stable")[:PEAKS]].astype(np.float64)
    found: list[tuple[float, Matrix]] = []
    if aspect is not None:
        squares = _squares(peaks, aspect)
        squares = squares[np.linalg.norm(squares, axis=1).max(1) <= longest]
        _add_best(found, likeness, squares, MIN_SQUARE, SQUARES_EACH, similar=True)
    first, second = np.triu_indices(len(peaks), 1)
    pairs = np.stack([peaks[first], peaks[second]], 2)  # (n, 2, 2), the periods as columns
    sizes = np.linalg.norm(pairs, axis=1)
    stretch = sizes.max(1, initial=1.0) / np.maximum(sizes.min(1, initial=np.inf), 1e-9)
    cosine = np.abs((pairs[:, :, 0] * pairs[:, :, 1]).sum(1)) / np.maximum(sizes.prod(1), 1e-9)
    pairs = pairs[(stretch <= MAX_STRETCH) & (cosine <= MAX_COSINE)]
    _add_best(found, likeness, pairs, least, len(found) + PERIODS_EACH, similar=False)
    return found


def _squares(peaks: Matrix, aspect: float) -> Matrix:
    """Periods ``(n, 2, 2)`` of tiles of that aspect, with each peak ``(n, 2)`` as the one or the other side."""
    across = np.stack([-peaks[:, 1], peaks[:, 0]], 1)
    found = [np.stack([peaks, across / aspect], 2)]
    if aspect != 1.0:
        found.append(np.stack([peaks, across * aspect], 2))
    return np.concatenate(found)


def _add_best(
    found: list[tuple[float, Matrix]], likeness: Picture, pairs: Matrix, least: float, most: int, *, similar: bool
) -> None:
    """Add the pairs of periods that score highest, refined, until ``most`` are found.

    For ``similar`` ones refinement keeps the angle between the two and their ratio.
    """
    if not len(pairs):
        return
    values, inside = _at_multiples(likeness, pairs, FIRST_MULTIPLES)
    scores = np.minimum(values, ENOUGH).sum(1) / np.sqrt(np.maximum(inside.sum(1), 1))
    for number in np.argsort(-scores, kind="stable"):
        if scores[number] < least or len(found) >= most:
            return
        matrix = _refined(likeness, _upright(pairs[number]), similar=similar)
        if all(np.abs(other - matrix).max() > SAME_PERIODS * np.abs(matrix).max() for _, other in found):
            found.append((float(scores[number]), matrix))


def _autocorrelation(white: Picture, longest: float) -> Picture:
    """The autocorrelation of a picture in standard deviations, a square with the shift of zero in its middle.

    Shifts reach at least as far as the ``longest`` period, relative to the shorter side.
    """
    from scipy import fft, ndimage

    shape = [fft.next_fast_len(int((1.0 + 0.95 * longest) * length), real=True) for length in white.shape]
    power = np.abs(fft.rfft2(white, shape)) ** 2
    # Repetition is narrow in frequency, image content is broad. The last term is for flat pictures.
    power /= ndimage.uniform_filter(power, 9, mode="wrap") + 1e-3 * power.mean() + 1e-20
    shifted = fft.fftshift(fft.irfft2(power, shape))
    middle = [length // 2 for length in shifted.shape]
    reach = min(*middle, int(max(0.9, longest) * max(white.shape))) - 1
    likeness = shifted[middle[0] - reach : middle[0] + reach + 1, middle[1] - reach : middle[1] + reach + 1]
    likeness = likeness - ndimage.uniform_filter(likeness, 15)
    likeness = likeness / np.sqrt(np.maximum(ndimage.uniform_filter(likeness * likeness, 41), 1e-20))
    smooth = ndimage.gaussian_filter(likeness, 0.8)
    found: Picture = smooth / (smooth.std() + 1e-20)
    return found


def _at_multiples(likeness: Picture, pairs: Matrix, multiples: NDArray[np.int64]) -> tuple[Matrix, NDArray[np.bool_]]:
    """The autocorrelation at multiples of pairs of periods ``(n, 2, 2)``, zero outside, and which lie inside."""
    from scipy import ndimage

    reach = len(likeness) // 2
    at = np.einsum("nij,pj->inp", pairs, multiples)
    inside: NDArray[np.bool_] = (np.abs(at) < reach - 2).all(0)
    return np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0), inside


def _upright(matrix: Matrix) -> Matrix:
    """The same lattice, with the periods whose matrix is nearest to that of an upright picture."""
    options = [matrix @ np.array(turn) for turn in ([[1, 0], [0, 1]], [[0, 1], [1, 0]])]
    options = [each * np.where(np.diag(each) < 0, -1.0, 1.0) for each in options]
    return max(options, key=lambda each: float(np.trace(each)))


def _refined(likeness: Picture, matrix: Matrix, *, similar: bool) -> Matrix:
    """The nearby periods that maximise the autocorrelation summed over their multiples."""
    last = LAST_MULTIPLE
    multiples = np.array([(i, j) for i in range(last + 1) for j in range(-last, last + 1) if i or j > 0])

    def height(candidates: Matrix) -> Matrix:
        found: Matrix = _at_multiples(likeness, candidates, multiples)[0].sum(1)
        return found

    length = float(np.linalg.norm(matrix[:, 0]))
    directions = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]]], np.float64) @ matrix / length  # resized, and rotated
    if not similar:
        directions = np.concatenate([np.eye(4).reshape(-1, 2, 2), directions])
    return climbed(height, matrix, directions, step=0.012 * length, least=0.02)


def climbed(
    height: Callable[[Matrix], Matrix], found: Matrix, directions: Matrix, *, step: float, least: float
) -> Matrix:
    """A local maximum of ``height`` near ``found``, by a pattern search: steps are halved down to ``least``."""
    while step > least:
        trials = np.concatenate([found[None], found + step * directions, found - step * directions])
        best = int(height(trials).argmax())
        found = trials[best]
        if best == 0:
            step /= 2
    return found
