"""Operators that move images: each against a closed form, or against another tool."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import center_of_mass

from natural_images import natural_image, to_pixels, to_tensor
from samplewise.errors import ConfigurationError
from studies.watermark.evaluation.measure import check_in_place
from studies.watermark.noise import parse_attack, parse_attacks, parse_noise
from studies.watermark.operators import shifted, shifted_pixels

Pixels = NDArray[np.uint8]


def attacked(spec: str, image: Pixels, *, seed: int = 0) -> Pixels:
    return parse_attack(spec)(image, np.random.default_rng(seed))


def numbered(height: int, width: int) -> NDArray[np.uint8]:
    """An image in which every pixel is another colour, so that one can see where it comes from."""
    places = np.arange(height * width, dtype=np.uint32).reshape(height, width)
    return np.stack([places >> 16, places >> 8 & 255, places & 255], axis=-1).astype(np.uint8)


def distance(first: Pixels, second: Pixels) -> float:
    return float(np.abs(first.astype(float) - second).mean())


@pytest.mark.parametrize("factor", [0.25, 0.5, 0.7, 0.99, 1.5, 2.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_resize_is_pillows_and_not_undone(factor: float, channels: int) -> None:
    image = natural_image(channels)
    found = attacked(f"resize({factor})", image)
    size = round(80 * factor), round(96 * factor)
    assert found.shape[:2] == size[::-1]
    np.testing.assert_array_equal(found, Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))


@given(share=st.floats(0.01, 1), seed=st.integers(0, 99), height=st.integers(1, 60), width=st.integers(1, 60))
def test_crop_keeps_a_rectangle_of_the_area_asked_for(share: float, seed: int, height: int, width: int) -> None:
    image = numbered(height, width)
    found = attacked(f"crop({share})", image, seed=seed)
    rows, columns = found.shape[:2]
    assert abs(rows - height * math.sqrt(share)) <= 0.5 or rows == 1
    assert abs(columns - width * math.sqrt(share)) <= 0.5 or columns == 1
    first = int(found[0, 0] @ np.array([1 << 16, 1 << 8, 1]))
    top, left = divmod(first, width)
    np.testing.assert_array_equal(found, image[top : top + rows, left : left + columns])


def test_crop_may_keep_any_place() -> None:
    image = numbered(20, 20)
    corners = {tuple(attacked("crop(0.25)", image, seed=seed)[0, 0]) for seed in range(60)}
    assert len(corners) > 30


def test_trim_takes_rows_above_and_columns_to_the_left() -> None:
    image = numbered(9, 7)
    np.testing.assert_array_equal(attacked("trim(1)", image), image[1:, 1:])
    np.testing.assert_array_equal(attacked("trim(0)", image), image)
    assert attacked("trim(50)", image).shape == (1, 1, 3)


@given(turns=st.integers(0, 3), coloured=st.booleans())
def test_flips_and_right_angles_lose_nothing(turns: int, coloured: bool) -> None:
    image = natural_image(3 if coloured else 1, height=20, width=30)
    np.testing.assert_array_equal(attacked("flip", image), image[:, ::-1])
    np.testing.assert_array_equal(attacked("flip + flip", image), image)
    found = attacked(f"rotate90({turns})", image)
    assert found.shape[:2] == ((30, 20) if turns % 2 else (20, 30))
    np.testing.assert_array_equal(attacked(f"rotate90({-turns % 4})", found), image)


@pytest.mark.parametrize("degrees", [90, 180, -90])
def test_rotation_by_right_angles_is_that_of_a_square(degrees: int) -> None:
    image = natural_image(height=40, width=40)
    np.testing.assert_array_equal(attacked(f"rotate({degrees})", image), np.rot90(image, degrees // 90))


@pytest.mark.parametrize("degrees", [1, 7, 30, 45, -60])
def test_rotation_moves_a_point_around_the_middle_and_leaves_black_corners(degrees: int) -> None:
    image = np.zeros((101, 121), np.uint8)
    image[48:53, 78:83] = 255  # 20 to the right of the middle
    row, column = center_of_mass(attacked(f"rotate({degrees})", image))
    angle = math.radians(degrees)
    assert (row, column) == pytest.approx((50 - 20 * math.sin(angle), 60 + 20 * math.cos(angle)), abs=0.1)
    turned = attacked(f"rotate({degrees})", np.full((101, 121), 200, np.uint8))
    assert turned.shape == (101, 121)
    assert turned[0, 0] == 0
    assert turned[50, 60] == 200


@given(share=st.floats(0, 1), seed=st.integers(0, 99), coloured=st.booleans())
def test_border_is_one_grey_around_the_image(share: float, seed: int, coloured: bool) -> None:
    image = natural_image(3 if coloured else 1, height=20, width=30)
    found = attacked(f"border({share})", image, seed=seed)
    width = round(20 * share)
    assert found.shape[:2] == (20 + 2 * width, 30 + 2 * width)
    inside = np.zeros(found.shape[:2], np.bool_)
    inside[width : width + 20, width : width + 30] = True
    np.testing.assert_array_equal(found[inside].reshape(image.shape), image)
    assert len(np.unique(found[~inside])) <= 1


def test_a_screenshot_is_smaller_framed_and_compressed() -> None:
    image = np.full((100, 200), 90, np.uint8)
    found = attacked("screenshot(80)", image)
    height, width = found.shape
    assert 0.4 * 100 < height < 100
    assert width == pytest.approx(2 * height, rel=0.1)
    assert abs(int(found[height // 2, width // 2]) - 90) <= 2
    assert abs(int(found[0, 0]) - 90) > 5


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_in_training_does_what_the_attack_does(channels: int) -> None:
    """Two tools, torch and SciPy, given the same shift, angle and scale."""
    image = natural_image(channels, height=60, width=45)
    drawn = 3.3, -2.6, 0.05, 0.02
    real = shifted_pixels(image, *drawn)
    ours = to_pixels(shifted(to_tensor(image), *(torch.tensor([value]) for value in drawn)))
    assert np.abs(ours.astype(int) - real).max() <= 1
    assert distance(real, image) > 5
    assert distance(attacked("jitter(4)", image, seed=1), attacked("jitter(4)", image, seed=2)) > 5


def test_jitter_reaches_as_far_as_it_says_and_no_farther() -> None:
    """Where a point near the middle ends is the shift; how two far apart lie is angle and scale."""
    torch.manual_seed(0)
    spots = torch.zeros(300, 1, 81, 81)
    for row, column in ((40, 20), (40, 60)):
        spots[:, 0, row - 1 : row + 2, column - 1 : column + 2] = 0.5
    found = parse_noise("jitter(2)")(spots, spots)[:, 0].numpy()
    left, right = (
        np.array([center_of_mass(one[:, part]) for one in found]) + np.array([0, part.start])
        for part in (slice(5, 36), slice(45, 76))
    )
    shift, apart = (left + right) / 2 - 40, right - left
    angle, length = np.degrees(np.arctan2(apart[:, 0], apart[:, 1])), np.hypot(*apart.T)
    for values, reach in ((shift[:, 0], 2), (shift[:, 1], 2), (angle, 0.5), (length / 40 - 1, 0.008)):
        assert 0.9 * reach < np.abs(values).max() < 1.05 * reach
        assert abs(values.mean()) < 0.15 * reach


def test_jitter_keeps_the_edge_beyond_the_edge() -> None:
    flat = torch.full((8, 1, 20, 30), 0.75)
    torch.testing.assert_close(parse_noise("jitter(8)")(flat, flat), flat)
    assert np.unique(attacked("jitter(8)", np.full((20, 30), 191, np.uint8))).tolist() == [191]


@pytest.mark.parametrize("power", [0.5, 1.0, 2.2])
def test_gamma_in_training_is_the_attacks_on_every_level(power: float) -> None:
    levels = np.arange(256, dtype=np.uint8)[None]
    exact = np.rint(255 * (levels / 255) ** power)
    np.testing.assert_array_equal(attacked(f"gamma({power})", levels), exact)
    np.testing.assert_array_equal(
        to_pixels(parse_noise(f"gamma({power})")(to_tensor(levels), to_tensor(levels))), exact
    )


def test_window_stretches_the_middle_of_the_range() -> None:
    levels = np.array([[0, 51, 102, 153, 204, 255]], np.uint8)
    assert attacked("window(0.6)", levels).tolist() == [[0, 0, 85, 170, 255, 255]]
    assert to_pixels(parse_noise("window(0.6)")(*[to_tensor(levels)] * 2)).tolist() == [[0, 0, 85, 170, 255, 255]]


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize_leaves_as_many_levels_as_its_bits(bits: int) -> None:
    levels = np.arange(256, dtype=np.uint8)[None]
    found = attacked(f"posterize({bits})", levels)
    assert len(np.unique(found)) == 2**bits
    assert np.abs(found.astype(int) - levels).max() <= math.ceil(255 / (2**bits - 1) / 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_median_drops_what_is_rare_and_keeps_edges(channels: int) -> None:
    image = np.zeros((20, 20, 3), np.uint8)[..., : 3 if channels == 3 else 1].squeeze()
    image[:, 10:] = 200
    speckled = image.copy()
    speckled[::5, ::5] = 255
    np.testing.assert_array_equal(attacked("median(3)", speckled), image)


def test_inversion_equalisation_and_a_label() -> None:
    image = natural_image()
    np.testing.assert_array_equal(attacked("invert", image), 255 - image)
    dark = (image // 4).astype(np.uint8)
    assert attacked("equalise", dark).max() == 255
    for seed in range(20):
        labelled = attacked("text", np.zeros((150, 400), np.uint8), seed=seed)
        assert 0 < (labelled > 0).mean() < 0.1
        assert labelled.max() > 150  # small letters are smoothed
    assert np.ptp(attacked("text", np.zeros((150, 400, 3), np.uint8)), axis=2).max() == 0


def test_a_network_by_itself_is_spared_what_moves_the_image() -> None:
    check_in_place(parse_attacks("identity, gamma(2) + jpeg(50), jitter(1), invert"))
    with pytest.raises(ConfigurationError, match=r"'flip \+ jpeg\(75\)'"):
        check_in_place(parse_attacks("jpeg(75), flip + jpeg(75)"))


def test_an_attack_that_has_moved_the_image_has_no_use_for_its_cover() -> None:
    image = natural_image()
    with pytest.raises(ConfigurationError, match="cover"):
        parse_attack("resize(0.5) + dropout(0.5)")(image, np.random.default_rng(0), image)
