"""The floors of patches, against closed forms and loops written by hand."""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from floormark import display_range
from floormark.display_range import patch_sizes, patch_squares, relative_floors, shown_range, used_range
from floormark.imageio import StoredImage, Window, bands
from floormark.patches import above_image, calmness
from natural_images import natural_image

sides = st.integers(1, 100)


def squares(image: NDArray[np.float64], side: int) -> Iterator[tuple[tuple[int, int], NDArray[np.float64]]]:
    """Each square of an image ``(H, W)`` and its row and column; those at the edges may be smaller."""
    for row in range(math.ceil(image.shape[0] / side)):
        for column in range(math.ceil(image.shape[1] / side)):
            yield (row, column), image[row * side : (row + 1) * side, column * side : (column + 1) * side]


def calm_by_hand(image: NDArray[np.float64]) -> NDArray[np.float64]:
    found = np.zeros((math.ceil(image.shape[0] / 32), math.ceil(image.shape[1] / 32)))
    for at, patch in squares(image, 32):
        found[at] = np.mean([-10.0 * math.log10(max(part.std(), 1e-4)) for _, part in squares(patch, 8)])
    return found


def above_by_hand(calm: NDArray[np.float64]) -> NDArray[np.float64]:
    typical = min(-10.0 * math.log10(np.mean(10.0 ** (-calm / 10.0))), 22.0)
    return np.clip(calm - typical, -6.0, 18.0) - 3.0


def test_a_constant_image_is_as_calm_as_can_be_everywhere_and_its_floors_are_the_highest() -> None:
    calm = calmness(np.full((70, 100), 0.25))
    np.testing.assert_allclose(calm, np.full((3, 4), 40.0))  # a spread of 1e-4
    np.testing.assert_allclose(above_image(calm), np.full((3, 4), 15.0))


def test_of_an_image_whose_one_half_is_noise_the_other_has_the_highest_floor() -> None:
    image = np.full((64, 64), 0.5)
    image[:, 32:] += 0.1 * (-1.0) ** np.arange(32)  # spread of 0.1: 10 dB, and 40 dB beside it
    calm = calmness(image)
    np.testing.assert_allclose(calm, [[40.0, 10.0], [40.0, 10.0]], atol=1e-3)
    # The mean patch has a spread of nearly half of 0.1, which is 13 dB.
    above = above_image(calm)
    livelier = 10.0 + 10.0 * math.log10((0.1 + 1e-4) / 2)
    np.testing.assert_allclose(above[:, 1], livelier - 3.0, atol=1e-3)
    np.testing.assert_allclose(above[:, 0], 18.0 - 3.0)  # 27 dB calmer, of which 18 count


def test_one_lively_patch_among_calm_ones_is_livelier_by_no_more_than_six() -> None:
    image = np.full((320, 32), 0.5)
    image[:32] += 0.1 * (-1.0) ** np.arange(32)
    above = above_image(calmness(image))[:, 0]
    np.testing.assert_allclose(above[0], -6.0 - 3.0)
    np.testing.assert_allclose(above[1:], 15.0)


@settings(max_examples=30)
@given(sides, sides, st.integers(0, 99))
def test_calmness_and_floors_are_those_of_loops(height: int, width: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    cover = random.random((height, width)) * random.random((height, 1))
    calm = calm_by_hand(cover)
    np.testing.assert_allclose(calmness(cover), calm, atol=1e-5)
    np.testing.assert_allclose(above_image(calmness(cover)), above_by_hand(calm), atol=1e-5)


def test_floors_are_the_same_whatever_band_an_image_is_looked_at_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for channels in (1, 3):
        image = StoredImage(natural_image(channels, height=203, width=90), 8)
        whole = relative_floors(image, shown_range(image))
        with monkeypatch.context() as patched:
            patched.setattr(display_range, "bands", partial(bands, values=32 * 90 * channels))
            np.testing.assert_allclose(relative_floors(image, shown_range(image)), whole, atol=1e-6)
        grey = np.atleast_3d(image.pixels).mean(2) / 255.0
        np.testing.assert_allclose(whole, above_by_hand(calm_by_hand(grey)), atol=1e-9)


@pytest.mark.parametrize(("bits", "dtype", "channels"), [(8, np.uint8, 1), (8, np.uint8, 3), (16, np.uint16, 1)])
def test_floors_are_exact_where_an_image_is_bright_and_calm(bits: int, dtype: type[Any], channels: int) -> None:
    random, peak = np.random.default_rng(bits + channels), 2**bits - 1
    shape = (96, 128) if channels == 1 else (96, 128, 3)
    pixels = peak - random.integers(0, peak // 200 + 1, shape)
    pixels[:, :32] = random.integers(0, peak, pixels[:, :32].shape)
    pixels[:32] = peak - 2
    image = StoredImage(pixels.astype(dtype), bits)
    low, span = shown_range(image)
    grey = np.clip((np.atleast_3d(pixels).astype(np.float64).mean(2) - low) / span, 0.0, 1.0)
    np.testing.assert_allclose(relative_floors(image, shown_range(image)), above_by_hand(calm_by_hand(grey)), atol=1e-7)


@settings(max_examples=30)
@given(sides, sides, st.sampled_from([1, 3]), st.integers(0, 99))
def test_sums_and_sizes_of_patches_are_those_of_loops(height: int, width: int, channels: int, seed: int) -> None:
    shape = (height, width) if channels == 1 else (height, width, channels)
    kind = (np.uint8, np.uint16)[seed % 2]
    random = np.random.default_rng(seed)
    before, after = (random.integers(0, np.iinfo(kind).max, shape, kind, endpoint=True) for _ in range(2))
    difference = after.astype(np.int64) - before
    sums, sizes = patch_squares(before, after), patch_sizes(shape)
    for at, part in squares(difference.astype(np.float64), 32):
        assert sums[at] == sum(int(value) ** 2 for value in part.flat)
        assert sizes[at] == part.size
    assert sizes.sum() == difference.size


def test_what_is_shown_is_the_window_or_what_is_used_of_many_bits() -> None:
    pixels = np.linspace(1000, 3000, 10_201).astype(np.uint16).reshape(101, 101)
    deep = StoredImage(pixels, 16)
    low, span = used_range(deep)
    assert low == pytest.approx(1010, abs=1)
    assert low + span == pytest.approx(2990, abs=1)
    assert shown_range(deep) == used_range(deep)
    assert shown_range(StoredImage(pixels, 16, window=Window(1200.0, 1600.0))) == (1200.0, 400.0)
    assert shown_range(StoredImage(np.zeros((4, 4), np.uint8), 8)) == (0, 255)
    assert used_range(StoredImage(np.full((4, 4), 77, np.int16), 12))[1] == 32  # no narrower than that
    padded = np.where(np.arange(101) < 30, 0, pixels).astype(np.uint16)
    inside = used_range(StoredImage(padded, 16, padding_range=(0, 0)))
    assert inside[0] >= 1000


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.sampled_from([(np.uint16, 16), (np.int16, 12)]))
def test_what_is_used_lies_between_the_percentiles_of_what_is_no_padding(
    seed: int, side: int, kind: tuple[type[np.uint16 | np.int16], int]
) -> None:
    random, (dtype, bits) = np.random.default_rng(seed), kind
    pixels = random.integers(0, random.integers(2, 2048), (side, side)).astype(dtype)
    padding = 3000 if dtype is np.int16 else 0  # outside of what 12 bits can hold, as real files have it
    pixels[random.random((side, side)) < 0.3] = padding
    low, span = used_range(StoredImage(pixels, bits, padding_range=(padding, padding)))
    used = pixels[pixels != padding]
    if used.size:
        ends = np.percentile(used, [0.5, 99.5])
        assert (low, span) == pytest.approx((ends[0], max(32.0, ends[1] - ends[0])))
    assert span >= 32
