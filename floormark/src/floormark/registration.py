"""Where a mark lies in an image that was cropped, resized, rotated, mirrored or inverted, without the original.

The mark repeats: the autocorrelation of the image shows its period and angle. Then its tiles are laid on top of each
other, and the pilot tells where they begin and how they are oriented. Coordinates are rows and columns in pixels; a
pixel's centre lies half a pixel inside of it. SciPy is imported where it is needed: reading an image that nobody moved
does without it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from floormark.filters import Picture, gaussian, uniform
from floormark.network import CELL, CELLS_ACROSS, TILE, Lattice, pilot_tiles

Tiles = NDArray[np.float32]  # of 64 x 64 pixels, most often each as one row of 4,096
Matrix = NDArray[np.float64]

WHITENED_RANGE = 2.5  # standard deviations beyond which whitened values are clipped: they are edges of the picture
FLAT_VARIANCE = 0.1  # variance, in grey levels, below which whitening amplifies nothing
SHARP_SCALE = 1.15
"""Pixels of the image for one of the network's, up to which no smoothing is needed before resampling."""
SEARCHED_SIDE = 384  # pixels of the shorter side at which periods are searched for; larger images are reduced first
PERIOD_SIGMA = 1.5  # pixels: what is smoother than that belongs to the picture and not to the mark
PERIOD_RANGE = 0.1, 0.62  # shortest and longest period, relative to the shorter side
PERIOD_STEP, ANGLE_STEP = 0.008, np.deg2rad(0.5)
SAME_STEPS = 5  # steps within which two candidates are one
FIRST_MULTIPLES = ((1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (0, 2), (2, 1), (1, 2), (2, -1), (1, -2))
"""Multiples of the two periods that make up a candidate's score."""
LAST_MULTIPLE = 3  # the highest multiple by which a period is refined
CANDIDATES = 2  # periods that are tried: where there is one, it is nearly always the first
MIN_PERIOD_SCORE = 4.2
"""Standard deviations. Chance reaches more in most images: the pilot decides, this saves searching for it."""
TILE_SIGMA = 1.2  # the network's pixels: what is smoother than that belongs to the picture and not to the mark
ORIENTATIONS = tuple((turns, mirrored) for mirrored in (False, True) for turns in range(4))
"""The eight orientations: rotations by 90 degrees, after mirroring or not."""
ORIENTATION_TRIALS = 3  # orientations and beginnings of a cell for which a pilot is searched for
MAX_SHIFT = 4  # the network's pixels by which single tiles may be off at first
STEPS_PER_PIXEL = 8  # in which shifts are told apart: by linear interpolation between pixels, all would be whole ones
REFINEMENTS = 2
REGISTERED_TILES = 64  # tiles that are used for registration


@dataclass(frozen=True, eq=False)
class Alignment:
    """An affine map: the network's pixel ``p`` lies at ``matrix @ p + start`` in the image, where a tile begins."""

    matrix: NDArray[np.float64]  # shape (2, 2)
    start: NDArray[np.float64]  # shape (2,)
    inverted: bool = False  # whether black has become white
    pilot: int = 0  # which of the pilots was found there
    score: float = 0.0  # by how many standard deviations

    @property
    def scale(self) -> float:
        """Pixels of the image for one of the network's."""
        return float(np.sqrt(abs(np.linalg.det(self.matrix))))

    def covering(self, shape: tuple[int, ...], unit: int) -> tuple[NDArray[np.int64], tuple[int, int]]:
        """The first of the network's pixels and how many there are, in whole units, such that an image is covered."""
        corners = np.array([(row, column) for row in (0, shape[0]) for column in (0, shape[1])], np.float64)
        at = np.linalg.solve(self.matrix, (corners - self.start).T)
        first = np.floor(at.min(1) / unit + 1e-6).astype(np.int64)
        last = np.ceil(at.max(1) / unit - 1e-6).astype(np.int64)
        rows, columns = (unit * np.maximum(last - first, 1)).tolist()
        return unit * first, (rows, columns)


def resample(
    picture: Picture, alignment: Alignment, origin: NDArray[np.int64], shape: tuple[int, int]
) -> tuple[Picture, NDArray[np.bool_]]:
    """The picture at the network's pixels, from its pixel ``origin`` on, and which of these lie inside."""
    factor = max(1, int(alignment.scale + 0.05))
    small = np.ascontiguousarray(picture)
    if factor > 1:
        small = functional.avg_pool2d(torch.from_numpy(small)[None, None], factor)[0, 0].numpy()
    if (rest := alignment.scale / factor) > SHARP_SCALE:  # what is finer than the network's pixels would alias
        small = gaussian(small, 0.4 * np.sqrt(rest * rest - 1.0))
    rows, columns = (np.arange(length) + 0.5 + first for length, first in zip(shape, origin, strict=True))
    at = alignment.matrix[:, 0, None, None] * rows[:, None] + alignment.matrix[:, 1, None, None] * columns
    at = (at + alignment.start[:, None, None]) / factor
    height, width = small.shape
    inside: NDArray[np.bool_] = (at[0] > 0) & (at[0] < height) & (at[1] > 0) & (at[1] < width)
    where = np.stack([2.0 * at[1] / width - 1.0, 2.0 * at[0] / height - 1.0], axis=-1).astype(np.float32)
    resampled = functional.grid_sample(
        torch.from_numpy(small)[None, None],
        torch.from_numpy(where)[None],
        mode="bicubic",
        padding_mode="border",
        align_corners=False,
    )
    return resampled[0, 0].numpy(), inside


def whitened(picture: Picture, sigma: float) -> Picture:
    """A picture of grey levels, high-pass filtered and scaled to local variance 1: there a mark stands out most."""
    rough = picture - gaussian(picture, sigma, truncate=3.0)
    variance = uniform(rough * rough, int(8 * sigma))
    white: Picture = np.clip(rough / np.sqrt(variance + FLAT_VARIANCE), -WHITENED_RANGE, WHITENED_RANGE)
    return white


def periods(picture: Picture) -> list[tuple[float, Matrix]]:
    """Pairs of periods, as columns, with which a picture may repeat, and their scores; the likeliest first."""
    from scipy import ndimage

    factor = max(1.0, min(picture.shape) / SEARCHED_SIDE)
    small = picture
    if factor > 1.0:
        size = [round(length / factor) for length in picture.shape]
        shrunk = functional.interpolate(torch.from_numpy(picture)[None, None], size, mode="bilinear", antialias=True)
        small = shrunk[0, 0].numpy()
    likeness = _autocorrelation(whitened(small, PERIOD_SIGMA))
    reach = len(likeness) // 2
    shortest, longest = (part * min(small.shape) for part in PERIOD_RANGE)
    lengths = np.exp(np.arange(np.log(shortest), np.log(longest), PERIOD_STEP))
    angles = np.arange(0.0, np.pi / 2, ANGLE_STEP)
    rows, columns = np.outer(lengths, np.cos(angles)), np.outer(lengths, np.sin(angles))
    score, counted = np.zeros_like(rows), np.zeros_like(rows)
    for i, j in FIRST_MULTIPLES:
        at = np.stack([i * rows - j * columns, i * columns + j * rows])
        inside = (np.abs(at) < reach - 2).all(0)
        score += np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0)
        counted += inside
    score /= np.sqrt(np.maximum(counted, 1.0))
    found = []
    for _ in range(CANDIDATES):
        length, angle = np.unravel_index(int(score.argmax()), score.shape)
        if (height := float(score[length, angle])) < MIN_PERIOD_SCORE:
            break
        row, column = rows[length, angle], columns[length, angle]
        found.append((height, factor * _refined_periods(likeness, np.array([[row, -column], [column, row]]))))
        distance = np.abs(np.arange(len(angles)) - angle)
        near = np.minimum(distance, len(angles) - distance) <= SAME_STEPS  # a rotation by 90 degrees is the same
        score[max(0, length - SAME_STEPS) : length + SAME_STEPS + 1, near] = 0.0
    return found


def _autocorrelation(white: Picture) -> Picture:
    """The autocorrelation of a picture in standard deviations, a square with the shift of zero in its middle."""
    from scipy import fft, ndimage

    shape = [fft.next_fast_len(int(1.8 * length), real=True) for length in white.shape]
    power = np.abs(fft.rfft2(white, shape)) ** 2
    # What repeats is narrow in frequency; what a picture has most of is broad. The last term is for flat pictures.
    power /= ndimage.uniform_filter(power, 9, mode="wrap") + 1e-3 * power.mean() + 1e-20
    shifted = fft.fftshift(fft.irfft2(power, shape))
    middle = [length // 2 for length in shifted.shape]
    reach = min(*middle, int(0.9 * max(white.shape))) - 1
    likeness = shifted[middle[0] - reach : middle[0] + reach + 1, middle[1] - reach : middle[1] + reach + 1]
    likeness = likeness - ndimage.uniform_filter(likeness, 15)
    likeness = likeness / np.sqrt(ndimage.uniform_filter(likeness * likeness, 41) + 1e-20)
    smooth = ndimage.gaussian_filter(likeness, 0.8)
    found: Picture = smooth / (smooth.std() + 1e-20)
    return found


def _refined_periods(likeness: Picture, matrix: Matrix) -> Matrix:
    """The periods nearby at which the autocorrelation, summed over their multiples, is highest."""
    from scipy import ndimage

    reach, last = len(likeness) // 2, LAST_MULTIPLE
    points = np.array([(i, j) for i in range(last + 1) for j in range(-last, last + 1) if i or j > 0], np.float64)

    def height(candidates: Matrix) -> Matrix:
        at = np.einsum("nij,pj->inp", candidates, points)
        inside = (np.abs(at) < reach - 2).all(0)
        found: Matrix = np.where(inside, ndimage.map_coordinates(likeness, reach + at, order=1), 0.0).sum(1)
        return found

    length = float(np.linalg.norm(matrix[:, 0]))
    single = np.eye(4).reshape(-1, 2, 2)
    whole = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]]], np.float64) @ matrix / length  # resized, and rotated
    return _climbed(height, matrix, np.concatenate([single, whole]), step=0.012 * length, least=0.02)


def _climbed(
    height: Callable[[Matrix], Matrix], found: Matrix, directions: Matrix, *, step: float, least: float
) -> Matrix:
    """The matrix of greatest height near ``found``, by a pattern search: steps are halved down to ``least``."""
    while step > least:
        trials = np.concatenate([found[None], found + step * directions, found - step * directions])
        best = int(height(trials).argmax())
        found = trials[best]
        if best == 0:
            step /= 2
    return found


class Pilots:
    """The pilots of a key, of which an image has one, and the basis patterns of the network that lie over it."""

    def __init__(self, network: Lattice, seeds: list[bytes]) -> None:
        self.network, self.seeds = network, seeds

    @cached_property
    def _first_cell(self) -> Tiles:
        """The basis patterns of the first cell, whitened, ``(4, 64, 64)``."""
        return _whitened_tiles(self.network.basis_tiles().numpy()).reshape(-1, TILE, TILE)

    @cached_property
    def _basis(self) -> Tiles:
        """The space of all messages, an orthonormal basis, ``(256, 4096)``."""
        # Whitened in the first cell: what is the same a cell further stays so.
        tiles = np.concatenate([_rolled(tile, -CELL, CELLS_ACROSS) for tile in self._first_cell])
        basis: Tiles = torch.linalg.qr(torch.from_numpy(tiles).T)[0].T.contiguous().numpy()
        return basis

    @cached_property
    def _pilots(self) -> Tiles:
        """The component of the pilots that is orthogonal to all messages, ``(pilots, 4096)``."""
        return self._orthogonal(_whitened_tiles(pilot_tiles(self.seeds).numpy()))

    @cached_property
    def _cell(self) -> NDArray[np.complex64]:
        """The basis patterns of the first cell, orthonormal, as conjugate spectra ``(4, 64, 33)``."""
        from scipy import fft

        first = torch.from_numpy(self._first_cell.reshape(-1, TILE * TILE))
        basis = torch.linalg.qr(first.T)[0].T.reshape(-1, TILE, TILE).numpy()
        return np.conj(fft.rfft2(basis))

    def _projected(self, tiles: Tiles) -> Tiles:
        """Tiles projected onto the space of all messages."""
        return _product(_product(tiles, self._basis.T), self._basis)

    def _orthogonal(self, tiles: Tiles) -> Tiles:
        """The component of tiles that is orthogonal to all messages, scaled to length 1."""
        rest = tiles - self._projected(tiles)
        found: Tiles = rest / (np.linalg.norm(rest, axis=1, keepdims=True) + 1e-12)
        return found

    def likely(self, aligned: Picture, least: float) -> list[int]:
        """The pilots that fit an image that nobody moved by ``least`` standard deviations, the likeliest first.

        ``aligned`` is what the network is given of the image, in grey levels.
        """
        likeness = self._likeness(_tiles(whitened(aligned, TILE_SIGMA)).sum(0), 1)[0]
        order = np.argsort(-likeness)
        found: list[int] = order[likeness[order] > least].tolist()
        return found

    def oriented(self, picture: Picture, alignment: Alignment) -> Alignment:
        """The best orientation, beginning and pilot for tiles whose size and angle an alignment gives."""
        from scipy import fft

        folded = _tiles_at(picture, alignment)[0].sum(0).reshape(TILE, TILE)
        oriented = np.stack([np.rot90(folded.T if mirrored else folded, turns) for turns, mirrored in ORIENTATIONS])
        energy = np.square(fft.irfft2(fft.rfft2(oriented)[:, None] * self._cell, (TILE, TILE))).sum(1)
        explained = energy.reshape(len(ORIENTATIONS), CELLS_ACROSS, CELL, CELLS_ACROSS, CELL).sum((1, 3)).ravel()
        found = Alignment(alignment.matrix, alignment.start)
        for number in np.argsort(-explained)[:ORIENTATION_TRIALS]:
            which, shift = int(number) // CELL**2, np.array(divmod(int(number) % CELL**2, CELL))
            turns, mirrored = ORIENTATIONS[which]
            cells, pilot, score = self._best_pilot(np.roll(oriented[which], -shift, (0, 1)), CELLS_ACROSS)
            if abs(score) > found.score:
                # A pixel q of the rotated tile is pixel back @ (q - half) + half of the folded one.
                back, half = _orientation(turns, mirrored), np.full(2, TILE / 2.0)
                begin = back @ (shift + CELL * np.array(divmod(cells, CELLS_ACROSS)) - half) + half
                start = alignment.matrix @ begin + alignment.start
                found = Alignment(alignment.matrix @ back, start, score < 0, pilot, abs(score))
        return found

    def _best_pilot(self, tile: Picture, cells: int) -> tuple[int, int, float]:
        """The cell, of the first ``cells`` x ``cells``, at which a tile begins, its pilot and the score of the two.

        The score is negative where black has become white.
        """
        likeness = self._likeness(tile, cells)
        cell, pilot = divmod(int(np.abs(likeness).argmax()), len(self._pilots))
        return cell, pilot, float(likeness[cell, pilot])

    def _likeness(self, tile: Picture, cells: int) -> Tiles:
        """How well each pilot fits a tile begun at each cell, in standard deviations, ``(cells * cells, pilots)``."""
        rest = self._orthogonal(tile.reshape(1, -1)).reshape(TILE, TILE)  # a message stays one, a cell further
        likeness = _product(_rolled(rest, CELL, cells), self._pilots.T)
        found: Tiles = likeness / (likeness.std() + 1e-12)
        return found

    def refined(self, picture: Picture, alignment: Alignment) -> Alignment:
        """The alignment nearby at which the tiles agree best with each other in message and pilot."""
        from scipy import fft

        for _ in range(REFINEMENTS):
            tiles, middles = _tiles_at(picture, alignment)
            others = tiles.sum(0) - tiles  # so that no tile is compared with itself
            pilot = self._pilots[alignment.pilot]
            expected = self._projected(others) + np.outer(others @ pilot, pilot)
            found, wanted = (fft.rfft2(each.reshape(-1, TILE, TILE)) for each in (tiles, expected))
            surfaces = np.roll(fft.irfft2(found * wanted.conj(), (TILE, TILE)), (MAX_SHIFT, MAX_SHIFT), (1, 2))
            matrix, start = _fit(surfaces[:, : 2 * MAX_SHIFT + 1, : 2 * MAX_SHIFT + 1], middles)
            moved = alignment.matrix @ start + alignment.start
            alignment = replace(alignment, matrix=alignment.matrix @ matrix, start=moved)
        return alignment


def _tiles_at(picture: Picture, alignment: Alignment) -> tuple[Tiles, Matrix]:
    """The tiles in the middle of a picture, whitened, ``(n, 4096)``, and their middles in the network's pixels."""
    origin, shape = _middle(*alignment.covering(picture.shape, TILE))
    resampled, inside = resample(picture, alignment, origin, shape)
    tiles = _tiles(np.where(inside, whitened(resampled, TILE_SIGMA), 0.0))
    rows, columns = np.divmod(np.arange(len(tiles)), shape[1] // TILE)
    return tiles, TILE * np.stack([rows + 0.5, columns + 0.5], 1) + origin


def _middle(origin: NDArray[np.int64], shape: tuple[int, int]) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """At most 64 tiles, those in the middle: an image has 16, and more if it is oblong or has a border."""
    down, across = (length // TILE for length in shape)
    while down * across > REGISTERED_TILES:
        if down >= across:
            origin, down = origin + np.array([TILE * (down % 2), 0]), down - 1
        else:
            origin, across = origin + np.array([0, TILE * (across % 2)]), across - 1
    return origin, (TILE * down, TILE * across)


def _product(first: Tiles, second: Tiles) -> Tiles:
    """The product of two matrices, by PyTorch: it keeps to the threads that a process was given."""
    found: Tiles = torch.mm(torch.from_numpy(first), torch.from_numpy(second)).numpy()
    return found


def _whitened_tiles(tiles: Tiles) -> Tiles:
    """Tiles ``(n, 64, 64)`` as whitening leaves them where they repeat, ``(n, 4096)``."""
    return (tiles - gaussian(tiles, TILE_SIGMA, truncate=3.0, mode="wrap")).reshape(len(tiles), -1)


def _tiles(picture: Picture) -> Tiles:
    """The whole tiles of a picture, ``(n, 4096)``."""
    down, across = picture.shape[0] // TILE, picture.shape[1] // TILE
    whole = picture[: down * TILE, : across * TILE]
    return whole.reshape(down, TILE, across, TILE).swapaxes(1, 2).reshape(-1, TILE * TILE)


def _rolled(tile: Picture, step: int, count: int) -> Tiles:
    """A tile begun ``count`` x ``count`` multiples of ``step`` pixels further, ``(count * count, 4096)``."""
    at = (step * np.arange(count)[:, None] + np.arange(TILE)) % TILE
    found: Tiles = tile[at[:, None, :, None], at[None, :, None, :]].reshape(count * count, -1)
    return found


def _orientation(turns: int, mirrored: bool) -> Matrix:
    """The matrix that belongs to ``rot90(tile.T if mirrored else tile, turns)``: from there back to the tile."""
    quarter_turn = np.array([[0.0, 1.0], [-1.0, 0.0]])  # rot90's pixel (r, c) is pixel (c, -r) around the middle
    matrix = np.linalg.matrix_power(quarter_turn, turns)
    return np.array([[0.0, 1.0], [1.0, 0.0]]) @ matrix if mirrored else matrix


def _fit(surfaces: Tiles, middles: Matrix) -> tuple[Matrix, Matrix]:
    """The affine map by which all tiles, at ``middles``, fit best; ``surfaces`` tell of shifts of -4 to 4 pixels."""
    from scipy import ndimage

    centre = middles.mean(0)
    offsets = (middles - centre) / TILE
    smooth = torch.from_numpy(ndimage.gaussian_filter(surfaces, (0.0, 0.7, 0.7)))[:, None]
    size = (STEPS_PER_PIXEL * 2 * MAX_SHIFT + 1,) * 2
    fine = functional.interpolate(smooth, size, mode="bicubic", align_corners=True)[:, 0].numpy()
    tile = np.arange(len(fine))[:, None]

    def height(candidates: Matrix) -> Matrix:
        """How well tiles fit by maps ``(n, 2, 3)``: the change of the shift per tile, and the middle shift."""
        shifts = candidates[:, :, 2] + np.einsum("nij,tj->tni", candidates[:, :, :2], offsets)
        at = STEPS_PER_PIXEL * np.clip(shifts + MAX_SHIFT, 0.0, 2.0 * MAX_SHIFT)
        which = np.broadcast_to(tile, at.shape[:2])
        found: Matrix = ndimage.map_coordinates(fine, [which, at[..., 0], at[..., 1]], order=1).sum(0)
        return found

    single = np.eye(6).reshape(-1, 2, 3)
    whole = np.array([[[1, 0, 0], [0, 1, 0]], [[0, -1, 0], [1, 0, 0]]], np.float64)  # resized, and rotated
    found = _climbed(height, np.zeros((2, 3)), np.concatenate([single, whole]), step=1.0, least=0.03)
    linear = found[:, :2] / TILE
    return np.eye(2) + linear, found[:, 2] - linear @ centre
