"""Registration: where the tiles of a mark lie in a picture whose periods are known, and resampling it there.

The tiles are summed, and the pilot tells where they begin and their orientation. Then each tile is compared with all
others, which gives the exact affine map and, if the picture was bent, the shift of each block. Coordinates are rows and
columns in pixels; the centre of a pixel is half a pixel from its corner. SciPy is imported where it is needed: an image
that was not moved is read without it.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from PIL import Image

from floormark.filters import Picture, gaussian, resized, shrunk
from floormark.network import CELL, CELLS_ACROSS, TILE, Lattice, pilot_tiles
from floormark.periods import Matrix, climbed, whitened

Tiles = NDArray[np.float32]  # of 64 x 64 pixels, most often each as one row of 4,096

SHARP_SCALE = 1.15
"""Pixels of the image per pixel of the network, up to which resampling needs no smoothing."""
TILE_SIGMA = 1.2  # the network's pixels: smoother structure belongs to the picture and not to the mark
ORIENTATIONS = tuple((turns, mirrored) for mirrored in (False, True) for turns in range(4))
"""The eight orientations: rotations by 90 degrees, after mirroring or not."""
ORIENTATION_TRIALS = 8  # orientations and offsets within a cell for which a pilot is searched for
NOTHING_EXPLAINED, MESSAGE_EXPLAINED = 0.14, 0.18
"""Part of the energy of summed tiles that messages explain: up to the first no pilot is searched for, from the second
on there is a message. At most 0.17 in 14 X-rays that were not marked; at least 0.18 in crops to 12 % of the
area, marked at 45 dB, and 0.25 in those that were rotated, cut or shown on a page, marked at 50 dB."""
SURE_SCORE = 6.0  # standard deviations: the score of a pilot that chance does not reach
UNSURE_ALIGNMENTS = 2  # tried if no pilot is sure
MAX_SHIFT = 4  # largest initial error of a single tile, in the network's pixels
STEPS_PER_PIXEL = 8  # resolution of shifts: with linear interpolation all would be whole pixels
REFINEMENTS = 2
BLOCK = TILE // 2  # side of the blocks that are shifted one by one in a bent picture
BENDINGS = 3  # number of corrections of the shifts of blocks
MAX_BEND = 5  # largest shift of a block in one correction, in the network's pixels
STIFFNESS = 0.8  # standard deviation in blocks by which evidence of shifts is smoothed
REGISTERED_TILES = 64  # tiles that are used for registration


@dataclass(frozen=True, eq=False)
class Bend:
    """How far a picture was bent, block by block: the network's pixel ``p`` is found at ``p + shift``."""

    origin: NDArray[np.int64]  # the network's pixel at which the first block begins, whole blocks
    shifts: NDArray[np.float32]  # in the middle of each block, shape (2, rows, columns)

    def over(self, origin: NDArray[np.int64], shape: tuple[int, int]) -> NDArray[np.float32]:
        """The shift of each of the network's pixels from ``origin`` on, in whole blocks, ``(2, *shape)``."""
        first = (origin - self.origin) // BLOCK
        rows, columns = (
            np.clip(np.arange(length // BLOCK) + begin, 0, most - 1)
            for length, begin, most in zip(shape, first, self.shifts.shape[1:], strict=True)
        )
        there = self.shifts[:, rows[:, None], columns]
        return np.stack([resized(each, shape) for each in there])


@dataclass(frozen=True, eq=False)
class Alignment:
    """An affine map: the network's pixel ``p`` lies at ``matrix @ p + start`` in the image, where a tile begins."""

    matrix: NDArray[np.float64]  # shape (2, 2)
    start: NDArray[np.float64]  # shape (2,)
    inverted: bool = False  # whether grey levels are inverted
    pilot: int = 0  # index of the pilot found there
    score: float = 0.0  # of that pilot, in standard deviations
    explained: float = 0.0  # part of the energy of the tiles that a message of the network explains, whatever its key
    bend: Bend | None = None  # where the picture was bent as well

    def seen_from(self, top: int, left: int) -> "Alignment":
        """The same alignment in the coordinates of a part of the picture that begins there."""
        return replace(self, start=self.start - np.array([top, left]))

    @property
    def scale(self) -> float:
        """Pixels of the image per pixel of the network."""
        return float(np.sqrt(abs(np.linalg.det(self.matrix))))

    def covering(self, shape: tuple[int, ...], unit: int) -> tuple[NDArray[np.int64], tuple[int, int]]:
        """The first of the network's pixels and their number, in whole units, that cover an image."""
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
    small = shrunk(picture, factor) if factor > 1 else picture
    if (rest := alignment.scale / factor) > SHARP_SCALE:  # finer detail than the network's pixels would alias
        small = gaussian(small, 0.4 * np.sqrt(rest * rest - 1.0))
    at = np.indices(shape) + 0.5 + origin[:, None, None]
    if alignment.bend is not None:
        at += alignment.bend.over(origin, shape)
    at = (np.tensordot(alignment.matrix, at, 1) + alignment.start[:, None, None]) / factor
    height, width = small.shape
    inside: NDArray[np.bool_] = (at[0] > 0) & (at[0] < height) & (at[1] > 0) & (at[1] < width)
    if alignment.bend is not None:
        from scipy import ndimage

        return ndimage.map_coordinates(small, at - 0.5, order=3, mode="nearest"), inside
    # Edge values are repeated beyond the edges: Pillow would take black.
    beyond = [
        (max(0, math.ceil(-axis.min())) + 2, max(0, math.ceil(axis.max() - length)) + 2)
        for axis, length in zip(at, small.shape, strict=True)
    ]
    padded = Image.fromarray(np.pad(small, beyond, mode="edge"))
    # Pillow wants the source column and row of each output pixel's centre.
    matrix = alignment.matrix / factor
    start = matrix @ origin + alignment.start / factor + [beyond[0][0], beyond[1][0]]
    map_back = (matrix[1, 1], matrix[1, 0], start[1], matrix[0, 1], matrix[0, 0], start[0])
    sampled = padded.transform(shape[::-1], Image.Transform.AFFINE, map_back, Image.Resampling.BICUBIC)
    return np.asarray(sampled), inside


class Pilots:
    """The pilots of a key, one of which an image has, and the network's basis patterns that overlap it."""

    def __init__(self, network: Lattice, seeds: list[bytes]) -> None:
        self.network, self.seeds = network, seeds

    @cached_property
    def _first_cell(self) -> Tiles:
        """The basis patterns of the first cell, whitened, ``(4, 64, 64)``."""
        return _whitened_tiles(self.network.basis_tiles()).reshape(-1, TILE, TILE)

    @cached_property
    def _basis(self) -> Tiles:
        """The space of all messages, an orthonormal basis, ``(256, 4096)``."""
        # Whitened in the first cell: whitening commutes with shifts by a cell.
        tiles = np.concatenate([_rolled(tile, -CELL, CELLS_ACROSS) for tile in self._first_cell])
        return np.ascontiguousarray(np.linalg.qr(tiles.T)[0].T)

    @cached_property
    def _pilots(self) -> Tiles:
        """The component of the pilots that is orthogonal to all messages, ``(pilots, 4096)``."""
        return self._orthogonal(_whitened_tiles(pilot_tiles(self.seeds)))

    @cached_property
    def _cell(self) -> NDArray[np.complex64]:
        """The basis patterns of the first cell, orthonormal, as conjugate spectra ``(4, 64, 33)``."""
        from scipy import fft

        basis = np.linalg.qr(self._first_cell.reshape(-1, TILE * TILE).T)[0].T.reshape(-1, TILE, TILE)
        found: NDArray[np.complex64] = np.conj(fft.rfft2(basis))
        return found

    def _projected(self, tiles: Tiles) -> Tiles:
        """Tiles projected onto the space of all messages."""
        return np.asarray((tiles @ self._basis.T) @ self._basis, np.float32)

    def _orthogonal(self, tiles: Tiles) -> Tiles:
        """The component of tiles that is orthogonal to all messages, scaled to length 1."""
        rest: Tiles = tiles - self._projected(tiles)
        rest /= np.linalg.norm(rest, axis=1, keepdims=True) + np.float32(1e-12)
        return rest

    def likely(self, grey: Picture, inside: NDArray[np.bool_], origin: NDArray[np.int64], least: float) -> list[int]:
        """The pilots that score at least ``least`` in an image that was not moved, the likeliest first.

        Scores are in standard deviations. ``grey`` has the levels at the network's pixels, from ``origin`` on.
        """
        white = np.where(inside, whitened(grey, TILE_SIGMA), np.float32(0.0))
        begin = [(first % TILE, -(first + length) % TILE) for first, length in zip(origin, grey.shape, strict=True)]
        likeness = self._likeness(_tiles(np.pad(white, begin)).sum(0), 1)[0]
        order = np.argsort(-likeness)
        found: list[int] = order[likeness[order] > least].tolist()
        return found

    def oriented(self, picture: Picture, alignment: Alignment) -> list[Alignment]:
        """Orientations, offsets and pilots for tiles whose size and angle an alignment gives, the likeliest first.

        Only one if its pilot is sure; the unchanged alignment, without a score, if there is no sign of a message.
        """
        from scipy import fft

        folded = _tiles_at(picture, alignment)[0].sum(0).reshape(TILE, TILE)
        oriented = np.stack([np.rot90(folded.T if mirrored else folded, turns) for turns, mirrored in ORIENTATIONS])
        energy = np.square(fft.irfft2(fft.rfft2(oriented)[:, None] * self._cell, (TILE, TILE))).sum(1)
        explained = energy.reshape(len(ORIENTATIONS), CELLS_ACROSS, CELL, CELLS_ACROSS, CELL).sum((1, 3)).ravel()
        share = float(explained.max()) / (float(np.square(folded).sum()) + 1e-12)
        if share <= NOTHING_EXPLAINED:
            return [replace(alignment, explained=share)]
        found = []
        for number in np.argsort(-explained)[:ORIENTATION_TRIALS]:
            which, shift = int(number) // CELL**2, np.array(divmod(int(number) % CELL**2, CELL))
            turns, mirrored = ORIENTATIONS[which]
            cells, pilot, score = self._best_pilot(np.roll(oriented[which], -shift, (0, 1)), CELLS_ACROSS)
            # A pixel q of the rotated tile is pixel back @ (q - half) + half of the folded one.
            back, half = _orientation(turns, mirrored), np.full(2, TILE / 2.0)
            begin = back @ (shift + CELL * np.array(divmod(cells, CELLS_ACROSS)) - half) + half
            start = alignment.matrix @ begin + alignment.start
            found.append(Alignment(alignment.matrix @ back, start, score < 0, pilot, abs(score), share))
        found.sort(key=lambda each: -each.score)
        unsure = share > MESSAGE_EXPLAINED and found[0].score < SURE_SCORE
        return found[: UNSURE_ALIGNMENTS if unsure else 1]

    def _best_pilot(self, tile: Picture, cells: int) -> tuple[int, int, float]:
        """The cell, of the first ``cells`` x ``cells``, at which a tile begins, its pilot and the score of the two.

        The score is negative if grey levels are inverted.
        """
        likeness = self._likeness(tile, cells)
        cell, pilot = divmod(int(np.abs(likeness).argmax()), len(self._pilots))
        return cell, pilot, float(likeness[cell, pilot])

    def _likeness(self, tile: Picture, cells: int) -> Tiles:
        """The score in standard deviations of each pilot for a tile begun at each cell, ``(cells * cells, pilots)``."""
        rest = self._orthogonal(tile.reshape(1, -1)).reshape(TILE, TILE)  # a message shifted by a cell is a message
        likeness = _rolled(rest, CELL, cells) @ self._pilots.T
        found: Tiles = likeness / (likeness.std() + 1e-12)
        return found

    def refined(self, picture: Picture, alignment: Alignment) -> Alignment:
        """The nearby alignment at which the tiles agree best with each other in message and pilot."""
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

    def bent(self, picture: Picture, alignment: Alignment) -> Alignment:
        """The alignment with the shift of each block at which it agrees best with all tiles in message and pilot."""
        from scipy import fft, ndimage

        origin, shape = _middle(*alignment.covering(picture.shape, TILE))
        shifts = np.zeros((2, shape[0] // BLOCK, shape[1] // BLOCK), np.float32)
        fade = np.hanning(TILE + 2)[1:-1].astype(np.float32)
        pilot = self._pilots[alignment.pilot]
        for _ in range(BENDINGS):
            alignment = replace(alignment, bend=Bend(origin, shifts))
            resampled, inside = resample(picture, alignment, origin, shape)
            white = np.where(inside, whitened(resampled, TILE_SIGMA), np.float32(0.0))
            folded = _tiles(white).sum(0, keepdims=True)
            expected = (self._projected(folded) + (folded @ pilot)[:, None] * pilot).reshape(TILE, TILE)
            # Around the middle of each block a window as large as a tile; the tiles begin half a block further.
            windows = sliding_window_view(np.pad(white, BLOCK // 2), (TILE, TILE))[::BLOCK, ::BLOCK]
            down, across = windows.shape[:2]
            begun = BLOCK // 2 - BLOCK * np.indices((2, 2)).reshape(2, -1).T
            wanted = np.stack([np.roll(expected, shift, (0, 1)) for shift in begun])
            which = 2 * (np.arange(down) % 2)[:, None] + np.arange(across) % 2
            spectra = fft.rfft2(windows * np.outer(fade, fade)) * fft.rfft2(wanted).conj()[which]
            surfaces = np.roll(fft.irfft2(spectra, (TILE, TILE)), (MAX_BEND, MAX_BEND), (2, 3))
            near = surfaces[:, :, : 2 * MAX_BEND + 1, : 2 * MAX_BEND + 1]
            smooth = ndimage.gaussian_filter(near, (STIFFNESS, STIFFNESS, 0.7, 0.7), mode="nearest")
            shifts = shifts + _peaks(smooth)
        return replace(alignment, bend=Bend(origin, shifts))


def _peaks(surfaces: NDArray[np.float32]) -> NDArray[np.float32]:
    """Where each surface ``(rows, columns, n, n)`` is highest, from its middle, ``(2, rows, columns)``."""
    side = surfaces.shape[2]
    flat = surfaces.reshape(*surfaces.shape[:2], -1).argmax(2)
    down, across = np.divmod(flat, side)
    line = np.arange(3) - 1
    found = []
    for middle, lines in (
        (np.clip(down, 1, side - 2), np.take_along_axis(surfaces, across[..., None, None], 3)[..., 0]),
        (np.clip(across, 1, side - 2), np.take_along_axis(surfaces, down[..., None, None], 2)[..., 0, :]),
    ):
        # A parabola through the highest value and its two neighbours tells fractions of a pixel.
        before, here, after = np.moveaxis(np.take_along_axis(lines, middle[..., None] + line, 2), 2, 0)
        curve = np.minimum(before - 2 * here + after, -1e-9)
        found.append(middle + np.clip(0.5 * (before - after) / curve, -0.5, 0.5) - side // 2)
    return np.stack(found).astype(np.float32)


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


def _whitened_tiles(tiles: Tiles) -> Tiles:
    """Tiles ``(n, 64, 64)`` whitened as if they repeat, ``(n, 4096)``."""
    return (tiles - gaussian(tiles, TILE_SIGMA, truncate=3.0, mode="wrap")).reshape(len(tiles), -1)


def _tiles(picture: Picture) -> Tiles:
    """The whole tiles of a picture, ``(n, 4096)``."""
    down, across = picture.shape[0] // TILE, picture.shape[1] // TILE
    whole = picture[: down * TILE, : across * TILE]
    return whole.reshape(down, TILE, across, TILE).swapaxes(1, 2).reshape(-1, TILE * TILE)


def _rolled(tile: Picture, step: int, count: int) -> Tiles:
    """A tile rolled by ``count`` x ``count`` multiples of ``step`` pixels, ``(count * count, 4096)``."""
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
    smooth = ndimage.gaussian_filter(surfaces, (0.0, 0.7, 0.7))
    side = smooth.shape[1]
    finer = (STEPS_PER_PIXEL * (side - 1) + 1) / side
    fine = ndimage.zoom(smooth, (1.0, finer, finer), order=3)
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
    found = climbed(height, np.zeros((2, 3)), np.concatenate([single, whole]), step=1.0, least=0.03)
    linear = found[:, :2] / TILE
    return np.eye(2) + linear, found[:, 2] - linear @ centre
