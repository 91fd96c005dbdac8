"""Where a mark lies, found in pictures of tiles that were laid at known places."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import ndimage

from floormark.filters import Picture
from floormark.network import TILE, Lattice, pilot_tiles
from floormark.periods import find_periods
from floormark.registration import MESSAGE_EXPLAINED, Alignment, Pilots, _middle, resample
from natural_images import natural_image
from network_files import small_network

Matrix = NDArray[np.float64]
SEEDS = [bytes([number]) for number in range(64)]
SHAPE = 300, 340


@pytest.fixture(scope="module")
def network() -> Lattice:
    return small_network(64)


@pytest.fixture(scope="module")
def pilots(network: Lattice) -> Pilots:
    return Pilots(network, SEEDS)


def similarity(scale: float, degrees: float, *, mirrored: bool = False) -> Matrix:
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    matrix = scale * np.array([[cosine, -sine], [sine, cosine]])
    return matrix @ np.diag([1.0, -1.0]) if mirrored else matrix


@functools.cache
def message_tile(network: Lattice) -> Matrix:
    first = network.basis_tiles()
    basis = np.stack([np.roll(first, (8 * row, 8 * column), (1, 2)) for row in range(8) for column in range(8)], 1)
    basis = basis.reshape(-1, 64, 64)
    return np.asarray(np.tensordot(np.random.default_rng(1).choice([-1.0, 1.0], len(basis)), basis, 1))


def laid(network: Lattice, place: Alignment, *, noise: float = 1.0, shape: tuple[int, int] = SHAPE) -> Picture:
    """A random message and a pilot in tiles that lie at a place, with noise that is ``noise`` times as strong."""
    random = np.random.default_rng(0)
    tile = message_tile(network) + 0.5 * pilot_tiles([SEEDS[place.pilot]])[0]
    at = np.mgrid[: shape[0], : shape[1]] + 0.5 - place.start[:, None, None]
    there = np.einsum("ij,jhw->ihw", np.linalg.inv(place.matrix), at) - 0.5
    values = ndimage.map_coordinates(tile, there, order=3, mode="grid-wrap")
    values *= (-1.0 if place.inverted else 1.0) / values.std()
    return (128.0 + 8.0 * (values + noise * random.standard_normal(shape))).astype(np.float32)


def apart(one: Alignment, other: Alignment, shape: tuple[int, int] = SHAPE) -> float:
    """How many of the network's pixels two places are apart in a picture at most, whole tiles not counted."""
    corners = np.array([(row, column) for row in (0, shape[0]) for column in (0, shape[1])], np.float64)
    at = [np.linalg.solve(place.matrix, (corners - place.start).T) for place in (one, other)]
    off = at[0] - at[1]
    return float(np.abs(off - TILE * np.round(off.mean(1, keepdims=True) / TILE)).max())


def nearest(picture: Picture, matrix: Matrix) -> float:
    """How far the periods that are found first are from those of the tiles, relative to them."""
    found = next(find_periods(picture))
    scores = [each.score for each in found]
    assert scores == sorted(scores, reverse=True)
    # The same lattice has the two periods in either order and direction.
    same = [np.array(each) for each in ([[1, 0], [0, 1]], [[-1, 0], [0, 1]], [[1, 0], [0, -1]], [[-1, 0], [0, -1]])]
    same += [each[:, ::-1] for each in same]
    off = min(float(np.abs(each.matrix @ turn - TILE * matrix).max()) for each in found for turn in same)
    return off / TILE / Alignment(matrix, np.zeros(2)).scale


@pytest.mark.parametrize(("scale", "degrees"), [(1.0, 0.0), (0.8, 12.0), (1.37, 45.0), (1.8, 81.5)])
def test_the_periods_of_what_repeats_are_among_those_found(network: Lattice, scale: float, degrees: float) -> None:
    matrix = similarity(scale, degrees)
    assert nearest(laid(network, Alignment(matrix, np.array([3.0, -7.0])), noise=2.0), matrix) < 0.005


@pytest.mark.parametrize(
    "change",
    [[[1.25, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.25]], [[1.0, 0.1], [0.0, 1.0]], [[1.1, 0.0], [-0.1, 0.9]]],
)
def test_tiles_that_were_stretched_or_sheared_are_found(network: Lattice, change: list[list[float]]) -> None:
    matrix = np.array(change) @ similarity(1.1, 3.0)
    assert nearest(laid(network, Alignment(matrix, np.zeros(2)), noise=2.0), matrix) < 0.005


def test_periods_scale_with_the_picture(network: Lattice) -> None:
    matrix = similarity(5.0, 20.0)
    assert nearest(laid(network, Alignment(matrix, np.zeros(2)), shape=(1000, 1100)), matrix) < 0.005


def test_a_small_marked_image_in_a_large_picture_is_found_with_its_window(network: Lattice) -> None:
    picture = np.full((1000, 1200), 128.0, np.float32)
    picture[100:400, 700:1000] = laid(network, Alignment(np.eye(2), np.zeros(2)), noise=1.0, shape=(300, 300))
    found = [each for size in find_periods(picture) for each in size]
    near = [each for each in found if np.abs(np.abs(each.matrix) - TILE * np.eye(2)).max() < 0.5]
    assert near
    assert all(each.window.top <= 400 and each.window.bottom >= 100 for each in near)
    assert all(each.window.left <= 1000 and each.window.right >= 700 for each in near)


@pytest.mark.parametrize("size", [0.5, 1.0])
def test_where_a_picture_was_bent_each_block_is_found(network: Lattice, pilots: Pilots, size: float) -> None:
    shape = (384, 384)
    true = Alignment(np.eye(2), np.zeros(2), pilot=3)
    rows, columns = np.mgrid[: shape[0], : shape[1]] + 0.5
    bend = size * np.stack([np.sin(columns / 60.0), np.cos(rows / 75.0)])
    picture = ndimage.map_coordinates(
        laid(network, true, shape=shape), np.stack([rows, columns]) - 0.5 - bend, order=3, mode="nearest"
    )
    guess = pilots.refined(picture, Alignment(np.eye(2), np.zeros(2), pilot=3))
    found = pilots.bent(picture, guess)
    assert found.bend is not None
    # What lies at p came from p less the bend, so the network's pixel q is found at about q plus the bend at q.
    origin, inner = np.full(2, 64), (256, 256)
    at = np.indices(inner) + 0.5 + origin[:, None, None]
    there = np.tensordot(found.matrix, at + found.bend.over(origin, inner), 1) + found.start[:, None, None]
    off = there - at - bend[:, 64:320, 64:320]
    straight = np.tensordot(guess.matrix, at, 1) + guess.start[:, None, None] - at - bend[:, 64:320, 64:320]
    remaining, before = (
        float(np.square(each - each.mean((1, 2), keepdims=True)).mean()) ** 0.5 for each in (off, straight)
    )
    assert remaining < 0.1
    assert before > 3 * remaining


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("quarters", range(4))
def test_each_way_round_is_found(network: Lattice, pilots: Pilots, quarters: int, mirrored: bool) -> None:
    inverted = quarters in (1, 2)  # with and without mirroring, and each beside a plain one
    true = Alignment(similarity(1.3, 90 * quarters + 6, mirrored=mirrored), np.array([31.4, -15.9]), inverted, 11)
    picture = laid(network, true, noise=2.0)
    found = pilots.oriented(picture, Alignment(similarity(1.3, 6), np.zeros(2)))[0]
    assert (found.inverted, found.pilot) == (inverted, 11)
    assert found.score > 8
    np.testing.assert_allclose(found.matrix, true.matrix, atol=1e-12)
    assert apart(found, true) <= 0.75  # found in whole pixels
    exact = pilots.refined(picture, found)
    assert apart(exact, true) < 0.25
    assert (exact.inverted, exact.pilot, exact.score) == (found.inverted, found.pilot, found.score)


@pytest.mark.parametrize("seed", range(4))
def test_a_place_that_is_nearly_right_becomes_exact(network: Lattice, pilots: Pilots, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = similarity(random.uniform(1.0, 1.8), random.uniform(-40, 40))
    true = Alignment(matrix, random.uniform(-30, 30, 2), pilot=3)
    picture = laid(network, true, noise=2.0)
    bent = matrix @ (np.eye(2) + random.normal(0.0, 0.003, (2, 2)))  # periods are known as well as that
    (guess,) = pilots.oriented(picture, Alignment(bent, np.zeros(2)))
    assert guess.pilot == 3
    assert apart(guess, true) > 0.4
    assert apart(pilots.refined(picture, guess), true) < 0.25


@given(st.integers(1, 40), st.integers(1, 40))
def test_of_many_tiles_those_in_the_middle_are_looked_at(down: int, across: int) -> None:
    origin, shape = _middle(np.array([-128, 64]), (64 * down, 64 * across))
    rows, columns = shape[0] // 64, shape[1] // 64
    assert (rows, columns) == (down, across) if down * across <= 64 else 56 < rows * columns <= 64
    for first, kept, all_of_them in zip((origin - [-128, 64]) // 64, (rows, columns), (down, across), strict=True):
        assert 0 <= first <= all_of_them - kept
        assert abs(2 * first + kept - all_of_them) <= 1  # as many before as after


def test_what_is_not_marked_has_no_pilot(pilots: Pilots) -> None:
    for seed in range(3):
        picture = natural_image(height=300, width=300, seed=seed).astype(np.float32)
        assert not pilots.likely(picture, np.ones(picture.shape, np.bool_), np.zeros(2, np.int64), 4.5)
        (found,) = pilots.oriented(picture, Alignment(np.eye(2), np.zeros(2)))
        assert found.score < 4.8
        assert found.explained < MESSAGE_EXPLAINED  # or no pilot would have been looked for


def test_the_pilot_of_what_nobody_moved_is_found_at_once(network: Lattice, pilots: Pilots) -> None:
    for pilot in (0, 7, 15):
        seen = laid(network, Alignment(np.eye(2), np.zeros(2), pilot=pilot), noise=3.0)
        whole, corner = np.ones(seen.shape, np.bool_), np.zeros(2, np.int64)
        assert pilots.likely(seen, whole, corner, 7.0) == [pilot]  # of 64, one can stand out by 8
        assert sorted(pilots.likely(seen, whole, corner, -9.0)) == list(range(64))
        assert pilots.likely(seen[24:, 40:], whole[24:, 40:], np.array([24, 40]), 7.0) == [pilot]


@pytest.mark.parametrize(("scale", "degrees", "mirrored"), [(1.0, 0.0, False), (1.05, 14.0, True), (0.6, 200.0, False)])
def test_a_picture_is_seen_as_scipy_sees_it(scale: float, degrees: float, mirrored: bool) -> None:
    picture = ndimage.gaussian_filter(natural_image(height=120, width=150).astype(np.float32), 2.0)
    place = Alignment(similarity(scale, degrees, mirrored=mirrored), np.array([60.25, 70.5]))
    origin, shape = np.array([-24, -16]), (48, 40)
    seen, inside = resample(picture, place, origin, shape)
    # A pixel's index is that of its centre less a half, in both.
    offset = place.matrix @ (origin + 0.5) + place.start - 0.5
    expected = ndimage.affine_transform(picture, place.matrix, offset, output_shape=shape, order=3, mode="nearest")
    lies = ndimage.affine_transform(np.ones_like(picture), place.matrix, offset, output_shape=shape, order=0)
    assert inside.mean() > 0.8
    np.testing.assert_array_equal(inside, lies > 0.5)
    # Cubic curves of two kinds: less apart than if one had moved by a tenth of a pixel.
    np.testing.assert_allclose(seen[inside], expected[inside], atol=1.5)
    assert np.abs(seen - expected)[inside].mean() < 0.5
    moved = ndimage.affine_transform(picture, place.matrix, offset + 0.1, output_shape=shape, order=3, mode="nearest")
    assert np.abs(seen - expected)[inside].mean() < 0.8 * np.abs(moved - expected)[inside].mean()


def test_large_pictures_are_seen_as_means_of_their_squares() -> None:
    picture = natural_image(height=192, width=256).astype(np.float32)
    seen, inside = resample(picture, Alignment(4.0 * np.eye(2), np.zeros(2)), np.zeros(2, np.int64), (48, 64))
    np.testing.assert_allclose(seen, picture.reshape(48, 4, 64, 4).mean((1, 3)), atol=1e-3)
    assert inside.all()


@settings(max_examples=100)
@given(
    st.floats(0.3, 8.0),
    st.floats(0.0, 360.0),
    st.booleans(),
    st.tuples(st.floats(-500, 500), st.floats(-500, 500)),
    st.tuples(st.integers(1, 900), st.integers(1, 900)),
    st.sampled_from([8, 64]),
)
def test_an_image_is_covered_by_whole_units_and_by_no_more(
    scale: float, degrees: float, mirrored: bool, start: tuple[float, float], shape: tuple[int, int], unit: int
) -> None:
    place = Alignment(similarity(scale, degrees, mirrored=mirrored), np.array(start))
    assert place.scale == pytest.approx(scale)
    first, counts = place.covering(shape, unit)
    assert not np.any(first % unit)
    assert not np.any(np.array(counts) % unit)
    corners = np.array([(row, column) for row in (0, shape[0]) for column in (0, shape[1])], np.float64)
    at = np.linalg.solve(place.matrix, (corners - place.start).T).T
    slack = 1e-5 * unit
    assert (at >= first - slack).all()
    assert (at <= first + counts + slack).all()
    # The first and the last unit hold something of it.
    assert (at.min(0) < first + unit + slack).all()
    assert (at.max(0) > first + np.array(counts) - unit - slack).all()


def test_an_image_that_nobody_moved_is_covered_from_its_corner() -> None:
    first, counts = Alignment(2.0 * np.eye(2), np.zeros(2)).covering((512, 560), 8)
    assert (first.tolist(), counts) == ([0, 0], (256, 280))
