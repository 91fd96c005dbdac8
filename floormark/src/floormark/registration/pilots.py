"""Where tiles begin and which way round they are: told by the strokes of the message, and by a pilot in every tile."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import fft, ndimage
from torch.nn import functional

from floormark.network import ACROSS, CELL, TILE, Lattice, pilot_tile
from floormark.registration.place import Picture, Place, seen_at, whitened

Tiles = NDArray[np.float32]
"""Of 64 x 64 pixels, most often each as one row of 4,096."""
Matrix = NDArray[np.float64]

SMOOTH = 1.2
"""Network's pixels: what is smoother than that is the picture."""
WAYS = tuple((turns, mirrored) for mirrored in (False, True) for turns in range(4))
"""The eight ways round: quarter turns, after mirroring or not."""
LOOKS = 3
"""Ways round and beginnings of a cell for which a pilot is looked for."""
SHIFT = 4
"""Network's pixels by which single tiles may be off at first."""
FINE = 8
"""Steps in a pixel in which shifts are told apart: along straight lines between pixels, all would be whole ones."""
PASSES = 2
ENOUGH = 64
"""Tiles that are looked at."""


class Pilots:
    """The pilots of a key, of which an image has one, and the strokes of the network beside which it is seen."""

    def __init__(self, network: Lattice, seeds: list[bytes]) -> None:
        self.network = network
        self.seeds = seeds

    @cached_property
    def _strokes(self) -> Tiles:
        """What messages can be, an orthonormal basis, ``(256, 4096)``."""
        tiles = torch.from_numpy(_whitened_tiles(self.network.stroke_tiles().numpy()))
        basis: Tiles = torch.linalg.qr(tiles.T)[0].T.contiguous().numpy()
        return basis

    @cached_property
    def _pilots(self) -> Tiles:
        """What is no message in the pilots, ``(pilots, 4096)``."""
        return self._beside(_whitened_tiles(np.stack([pilot_tile(seed).numpy() for seed in self.seeds])))

    @cached_property
    def _cell(self) -> NDArray[np.complex64]:
        """The strokes of the first cell, of length 1 and at right angles; conjugate spectra ``(4, 64, 33)``."""
        first = _whitened_tiles(self.network.stroke_tiles()[:: ACROSS**2].numpy())
        basis = torch.linalg.qr(torch.from_numpy(first).T)[0].T.reshape(-1, TILE, TILE).numpy()
        return np.conj(fft.rfft2(basis))

    def _drawn(self, tiles: Tiles) -> Tiles:
        """What a message can be in tiles."""
        return _product(_product(tiles, self._strokes.T), self._strokes)

    def _beside(self, tiles: Tiles) -> Tiles:
        """What no message can be in tiles, of length 1 each."""
        rest = tiles - self._drawn(tiles)
        found: Tiles = rest / (np.linalg.norm(rest, axis=1, keepdims=True) + 1e-12)
        return found

    def unmoved(self, seen: Picture, least: float) -> list[int]:
        """The pilots that may be in what the network sees of an image that nobody moved, the likeliest first.

        Each is at least ``least`` standard deviations more like it than the others are.
        """
        likeness = self._likeness(_tiles(whitened(seen, SMOOTH)).sum(0), 1)[0]
        order = np.argsort(-likeness)
        found: list[int] = order[likeness[order] > least].tolist()
        return found

    def best(self, picture: Picture, place: Place) -> Place:
        """The pilot that an image has at a place whose tiles may begin anywhere and lie any way round."""
        origin, shape = _middle(*place.covering(picture.shape, TILE))
        seen, inside = seen_at(picture, place, origin, shape)
        folded = _tiles(np.where(inside, whitened(seen, SMOOTH), 0.0)).sum(0).reshape(TILE, TILE)
        ways = np.stack([np.rot90(folded.T if mirrored else folded, turns) for turns, mirrored in WAYS])
        drawn = np.square(fft.irfft2(fft.rfft2(ways)[:, None] * self._cell, (TILE, TILE))).sum(1)
        explained = drawn.reshape(len(WAYS), ACROSS, CELL, ACROSS, CELL).sum((1, 3)).ravel()
        found = Place(place.matrix, place.start)
        for number in np.argsort(-explained)[:LOOKS]:
            way, shift = int(number) // CELL**2, np.array(divmod(int(number) % CELL**2, CELL))
            turns, mirrored = WAYS[way]
            cells, pilot, sure = self._best_pilot(np.roll(ways[way], -shift, (0, 1)), ACROSS)
            if abs(sure) > found.sure:
                # A pixel q of the turned tile is pixel back @ (q - half) + half of the folded one.
                back, half = _way(turns, mirrored), np.full(2, TILE / 2.0)
                begin = back @ (shift + CELL * np.array(divmod(cells, ACROSS)) - half) + half
                start = place.matrix @ begin + place.start
                found = Place(place.matrix @ back, start, sure < 0, pilot, abs(sure))
        return found

    def _best_pilot(self, tile: Picture, cells: int) -> tuple[int, int, float]:
        """At which cell, of the first ``cells`` x ``cells``, a tile begins that has which pilot, and how sure that is.

        Below zero where black has become white.
        """
        likeness = self._likeness(tile, cells)
        cell, pilot = divmod(int(np.abs(likeness).argmax()), len(self._pilots))
        return cell, pilot, float(likeness[cell, pilot])

    def _likeness(self, tile: Picture, cells: int) -> Tiles:
        """Of a tile that begins at each cell to each pilot, in standard deviations, ``(cells * cells, pilots)``."""
        rest = self._beside(tile.reshape(1, -1)).reshape(TILE, TILE)  # strokes stay strokes, a cell further
        likeness = _product(_rolled(rest, CELL, cells), self._pilots.T)
        found: Tiles = likeness / (likeness.std() + 1e-12)
        return found

    def exact(self, picture: Picture, place: Place) -> Place:
        """The place nearby at which all tiles have the same message and pilot."""
        for _ in range(PASSES):
            origin, shape = _middle(*place.covering(picture.shape, TILE))
            seen, inside = seen_at(picture, place, origin, shape)
            tiles = _tiles(np.where(inside, whitened(seen, SMOOTH), 0.0))
            others = tiles.sum(0) - tiles  # so that no tile is compared with itself
            pilot = self._pilots[place.pilot]
            expected = self._drawn(others) + np.outer(others @ pilot, pilot)
            spectra = fft.rfft2(tiles.reshape(-1, TILE, TILE)) * fft.rfft2(expected.reshape(-1, TILE, TILE)).conj()
            surfaces = np.roll(fft.irfft2(spectra, (TILE, TILE)), (SHIFT, SHIFT), (1, 2))
            down, across = shape[0] // TILE, shape[1] // TILE
            rows, columns = np.divmod(np.arange(down * across), across)
            middles = TILE * np.stack([rows + 0.5, columns + 0.5], 1) + origin
            matrix, start = _fit(surfaces[:, : 2 * SHIFT + 1, : 2 * SHIFT + 1], middles)
            place = replace(place, matrix=place.matrix @ matrix, start=place.matrix @ start + place.start)
        return place


def _middle(origin: NDArray[np.int64], shape: tuple[int, int]) -> tuple[NDArray[np.int64], tuple[int, int]]:
    """The tiles in the middle, where there are many: an image has 16, and some more if it is oblong or has a border."""
    down, across = (length // TILE for length in shape)
    while down * across > ENOUGH:
        if down >= across:
            origin, down = origin + np.array([TILE * (down % 2), 0]), down - 1
        else:
            origin, across = origin + np.array([0, TILE * (across % 2)]), across - 1
    return origin, (TILE * down, TILE * across)


def _product(first: Tiles, second: Tiles) -> Tiles:
    """Of two matrices, by PyTorch: it keeps to the threads that a process was given."""
    found: Tiles = torch.mm(torch.from_numpy(first), torch.from_numpy(second)).numpy()
    return found


def _whitened_tiles(tiles: Tiles) -> Tiles:
    """Tiles ``(n, 64, 64)`` as whitening leaves them where they repeat, ``(n, 4096)``."""
    return np.stack(
        [tile - ndimage.gaussian_filter(tile, SMOOTH, truncate=3.0, mode="wrap") for tile in tiles]
    ).reshape(len(tiles), -1)


def _tiles(seen: Picture) -> Tiles:
    """The whole tiles of a picture, ``(n, 4096)``."""
    down, across = seen.shape[0] // TILE, seen.shape[1] // TILE
    whole = seen[: down * TILE, : across * TILE]
    return whole.reshape(down, TILE, across, TILE).swapaxes(1, 2).reshape(-1, TILE * TILE)


def _rolled(tile: Picture, step: int, count: int) -> Tiles:
    """A tile begun ``count`` x ``count`` multiples of ``step`` pixels further, ``(count * count, 4096)``."""
    at = (step * np.arange(count)[:, None] + np.arange(TILE)) % TILE
    found: Tiles = tile[at[:, None, :, None], at[None, :, None, :]].reshape(count * count, -1)
    return found


def _way(turns: int, mirrored: bool) -> Matrix:
    """The matrix that belongs to ``rot90(tile.T if mirrored else tile, turns)``: from there back to the tile."""
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])  # rot90's pixel (r, c) is pixel (c, -r) around the middle
    matrix = np.linalg.matrix_power(quarter, turns)
    return np.array([[0.0, 1.0], [1.0, 0.0]]) @ matrix if mirrored else matrix


def _fit(surfaces: Tiles, middles: Matrix) -> tuple[Matrix, Matrix]:
    """The affine map by which tiles fit best, of how well each fits at shifts of -4 to 4 pixels: matrix and start."""
    centre = middles.mean(0)
    apart = (middles - centre) / TILE
    smooth = torch.from_numpy(ndimage.gaussian_filter(surfaces, (0.0, 0.7, 0.7)))[:, None]
    size = (FINE * 2 * SHIFT + 1,) * 2
    fine = functional.interpolate(smooth, size, mode="bicubic", align_corners=True)[:, 0].numpy()
    tile = np.arange(len(fine))[:, None]

    def height(candidates: Matrix) -> Matrix:
        """Of maps ``(n, 2, 3)``: how shifts change from tile to tile, and that of the middle."""
        shifts = candidates[:, :, 2] + np.einsum("nij,tj->tni", candidates[:, :, :2], apart)
        at = FINE * np.clip(shifts + SHIFT, 0.0, 2.0 * SHIFT)
        which = np.broadcast_to(tile, at.shape[:2])
        found: Matrix = ndimage.map_coordinates(fine, [which, at[..., 0], at[..., 1]], order=1).sum(0)
        return found

    single = np.eye(6).reshape(-1, 2, 3)
    whole = np.array([[[1, 0, 0], [0, 1, 0]], [[0, -1, 0], [1, 0, 0]]], np.float64)  # larger, and turned
    directions = np.concatenate([single, -single, whole, -whole])
    found, step = np.zeros((2, 3)), 1.0
    while step > 0.03:
        tried = np.concatenate([found[None], found + step * directions])
        best = int(height(tried).argmax())
        found = tried[best]
        if best == 0:
            step /= 2
    linear = found[:, :2] / TILE
    return np.eye(2) + linear, found[:, 2] - linear @ centre
