"""Our filters against those of SciPy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from floormark.filters import block_means, filled, gaussian, local_maximum, minimum_3x3, uniform

sizes = st.integers(1, 70)


@given(sizes, sizes, st.floats(0.2, 9.0), st.sampled_from([2.0, 3.0, 4.0]), st.booleans())
@settings(max_examples=40)
def test_gaussian(height: int, width: int, sigma: float, truncate: float, wrap: bool) -> None:
    picture = np.random.default_rng(height).uniform(0, 255, (height, width)).astype(np.float32)
    found = gaussian(picture, sigma, truncate=truncate, mode="wrap" if wrap else "symmetric")
    expected = ndimage.gaussian_filter(picture, sigma, truncate=truncate, mode="wrap" if wrap else "reflect")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@given(sizes, sizes, st.integers(1, 20))
@settings(max_examples=40)
def test_uniform(height: int, width: int, size: int) -> None:
    picture = np.random.default_rng(height).uniform(0, 255, (height, width)).astype(np.float32)
    np.testing.assert_allclose(uniform(picture, size), ndimage.uniform_filter(picture, size), rtol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (7, 4)])
def test_minimum(shape: tuple[int, int]) -> None:
    values = np.random.default_rng(0).random(shape)
    np.testing.assert_array_equal(minimum_3x3(values), ndimage.minimum_filter(values, 3, mode="nearest"))


def test_a_stack_of_tiles_is_filtered_tile_by_tile() -> None:
    tiles = np.random.default_rng(0).random((3, 9, 8)).astype(np.float32)
    for tile, found in zip(tiles, gaussian(tiles, 1.2), strict=True):
        np.testing.assert_array_equal(gaussian(tile, 1.2), found)


@given(sizes, sizes, st.sampled_from([(7, 7), (3, 21), (21, 3), (1, 5)]))
@settings(max_examples=40)
def test_the_highest_value_around(height: int, width: int, shape: tuple[int, int]) -> None:
    picture = np.random.default_rng(height).uniform(0, 255, (height, width)).astype(np.float32)
    np.testing.assert_array_equal(local_maximum(picture, shape), ndimage.maximum_filter(picture, shape, mode="nearest"))


@given(sizes, sizes, st.integers(1, 9))
@settings(max_examples=40)
def test_means_of_blocks(height: int, width: int, side: int) -> None:
    values = np.random.default_rng(height).random((height, width))
    labels = (np.arange(height) // side)[:, None] * width + np.arange(width) // side
    expected = ndimage.mean(values, labels, np.unique(labels))
    np.testing.assert_allclose(block_means(values, side).ravel(), expected, rtol=1e-12)


@given(sizes, sizes, st.integers(0, 9))
@settings(max_examples=40)
def test_what_is_missing_is_filled_with_values_between_those_that_are_there(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    picture = random.uniform(10, 20, (height, width)).astype(np.float32)
    missing = random.random((height, width)) < seed / 10
    found = filled(np.where(missing, np.float32(1e6), picture), missing)
    np.testing.assert_array_equal(found[~missing], picture[~missing])
    if not missing.all():
        assert found.min() >= picture[~missing].min() - 1e-3
        assert found.max() <= picture[~missing].max() + 1e-3
