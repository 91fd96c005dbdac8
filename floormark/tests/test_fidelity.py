"""How much marking changed an image, against loops written by hand and against torchmetrics."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import ndimage

from floormark.certificate import Fidelity
from floormark.display_range import relative_floors, shown_range
from floormark.errors import DataError
from floormark.fidelity import fidelity, ssim
from floormark.imageio import StoredImage, Window
from natural_images import natural_image


def noisy(image: NDArray[Any], bits: int, size: int, *, seed: int = 0) -> NDArray[Any]:
    """The image with whole numbers up to ``size`` added, within its bits."""
    lowest = StoredImage(image, bits).lowest
    change = np.random.default_rng(seed).integers(-size, size + 1, image.shape)
    found: NDArray[Any] = np.clip(image.astype(np.int64) + change, lowest, lowest + (1 << bits) - 1)
    return found.astype(image.dtype)


@given(
    arrays(np.uint16, (4, 3, 3), elements=st.integers(0, 4095)),
    arrays(np.uint16, (4, 3, 3), elements=st.integers(0, 4095)),
)
def test_numbers_are_those_of_plain_loops(original: NDArray[np.uint16], marked: NDArray[np.uint16]) -> None:
    pairs = [(int(a), int(b)) for a, b in zip(original.flat, marked.flat, strict=True)]
    found = fidelity(StoredImage(original, 12, window=Window(100.0, 500.0, "HU", 0.5)), marked)
    mse = sum((a - b) ** 2 for a, b in pairs) / len(pairs)
    assert found.psnr == (pytest.approx(10 * math.log10(4095**2 / mse)) if mse else None)
    assert found.shown == 400.0
    assert found.shown_psnr == (pytest.approx(10 * math.log10(400**2 / mse)) if mse else None)
    assert found.max_difference == max(abs(a - b) for a, b in pairs)
    assert (found.largest_change, found.unit) == (0.5 * found.max_difference, "HU")
    touched = [any(original[y, x] != marked[y, x]) for y in range(4) for x in range(3)]
    assert found.changed_share == pytest.approx(sum(touched) / 12)
    assert found.ssim is None  # too small for its window


def test_extreme_differences_do_not_wrap_around() -> None:
    for dtype, bits in ((np.uint8, 8), (np.uint16, 16), (np.int16, 16)):
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        found = fidelity(StoredImage(np.full((2, 2), low, dtype), bits), np.full((2, 2), high, dtype))
        assert (found.max_difference, found.psnr) == ((1 << bits) - 1, 0.0)


@settings(max_examples=20)
@given(st.integers(2, 100), st.integers(2, 100), st.sampled_from([1, 3]), st.booleans(), st.integers(0, 99))
def test_the_worst_patch_is_that_of_a_loop(height: int, width: int, channels: int, windowed: bool, seed: int) -> None:
    pixels = natural_image(channels, height=height, width=width, seed=seed)
    image = StoredImage(pixels, 8, window=Window(50.0, 150.0) if windowed else None)
    marked = noisy(pixels, 8, 2, seed=seed)
    found, above = fidelity(image, marked), relative_floors(image, shown_range(image))
    rooms = {}
    for row in range(math.ceil(height / 32)):
        for column in range(math.ceil(width / 32)):
            part = np.s_[32 * row : 32 * row + 32, 32 * column : 32 * column + 32]
            before, after = pixels[part].astype(np.float64), marked[part].astype(np.float64)
            if (mse := np.square(before - after).mean()) > 0:
                place = f"{32 * column},{32 * row},{before.shape[1]},{before.shape[0]}"
                rooms[place] = 10 * math.log10((100 if windowed else 255) ** 2 / mse) - above[row, column]
    if not rooms:
        assert (found.min_adjusted_patch_psnr, found.worst_patch) == (None, None)
        return
    assert found.min_adjusted_patch_psnr == pytest.approx(min(rooms.values()))
    assert found.worst_patch is not None
    assert rooms[found.worst_patch] == pytest.approx(min(rooms.values()))
    assert found.floors == (found.psnr, found.shown_psnr, found.min_adjusted_patch_psnr)
    assert found.reaches(min(found.floors))
    assert not found.reaches(min(found.floors) + 1e-6)


@pytest.mark.parametrize(
    ("image", "bits", "size"),
    [
        (np.random.default_rng(0).integers(0, 256, (11, 11), np.uint8), 8, 20),
        (natural_image(3, height=40, width=60), 8, 3),
        (natural_image(height=420, width=410), 8, 1),
        (natural_image(height=120, width=90), 8, 20),
        (np.full((120, 90), 200, np.uint8), 8, 1),  # bright and flat, where single precision is 1e-4 off
        (natural_image(height=90, width=120).astype(np.uint16) * 8 + 40_000, 16, 4),
        (natural_image(height=90, width=120).astype(np.int16) * 4 - 512, 12, 2),
    ],
)
def test_ssim_is_that_of_its_definition(image: NDArray[Any], bits: int, size: int) -> None:
    stored, marked = StoredImage(image, bits), noisy(image, bits, size)
    first, second = ((np.atleast_3d(each).astype(np.float64) - stored.lowest) / stored.peak for each in (image, marked))

    def mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(ndimage.gaussian_filter(values, (1.5, 1.5, 0), radius=(5, 5, 0), mode="mirror"))

    low, high = 0.01**2, 0.03**2
    spread = mean(first * first) - mean(first) ** 2 + mean(second * second) - mean(second) ** 2
    together = mean(first * second) - mean(first) * mean(second)
    found = (2 * mean(first) * mean(second) + low) * (2 * together + high)
    found /= (mean(first) ** 2 + mean(second) ** 2 + low) * (spread + high)
    assert ssim(stored, marked) == pytest.approx(found.mean(), abs=1e-9, rel=0.0)


def test_ssim_is_that_of_a_loop() -> None:
    image = natural_image(height=14, width=13)
    marked = noisy(image, 8, 9)
    first, second = (np.pad(each / 255.0, 5, mode="reflect") for each in (image, marked))
    offsets = np.arange(11) - 5
    weights = np.exp(-(offsets[:, None] ** 2 + offsets**2) / (2 * 1.5**2))
    weights /= weights.sum()
    values = []
    for row in range(14):
        for column in range(13):
            a, b = (each[row : row + 11, column : column + 11] for each in (first, second))
            mean_a, mean_b = (weights * a).sum(), (weights * b).sum()
            variance = (weights * (a - mean_a) ** 2).sum() + (weights * (b - mean_b) ** 2).sum()
            covariance = (weights * (a - mean_a) * (b - mean_b)).sum()
            light = (2 * mean_a * mean_b + 1e-4) / (mean_a**2 + mean_b**2 + 1e-4)
            values.append(light * (2 * covariance + 9e-4) / (variance + 9e-4))
    assert ssim(StoredImage(image, 8), marked) == pytest.approx(np.mean(values), abs=1e-9)


def test_ssim_is_one_for_equal_images_falls_with_noise_and_ignores_the_sign() -> None:
    random = np.random.default_rng(0)
    original = random.integers(0, 4096, (32, 32)).astype(np.int16)
    changed = (original + random.integers(-300, 301, original.shape)).astype(np.int16)
    assert ssim(StoredImage(original, 16), original) == 1.0
    plain = ssim(StoredImage(original, 16), changed)
    unsigned = ssim(StoredImage(original.astype(np.uint16) + 32768, 16), changed.astype(np.uint16) + 32768)
    assert plain is not None
    assert plain < 0.999
    assert plain == pytest.approx(unsigned, abs=1e-12)


def test_protected_pixels_are_watched() -> None:
    original = np.arange(9, dtype=np.uint8).reshape(3, 3)
    marked, protected = original.copy(), original < 3
    marked[2] += 1
    found = fidelity(StoredImage(original, 8), marked, protected=protected)
    assert (found.protected_pixels, found.protected_unchanged) == (3, True)
    marked[0, 1] += 1
    assert not fidelity(StoredImage(original, 8), marked, protected=protected).protected_unchanged


def test_an_image_that_did_not_change_reaches_every_floor() -> None:
    same = np.zeros((40, 40), np.uint8)
    found = fidelity(StoredImage(same, 8), same)
    assert (found.psnr, found.shown_psnr, found.min_adjusted_patch_psnr, found.floors) == (None, None, None, ())
    assert found.reaches(300.0)


def test_each_floor_decides() -> None:
    high = Fidelity(255, 50.0, None, 1, 0.5, 0, True, 255.0, 50.0, 1.0, "", 50.0, "0,0,32,32")
    for found in (
        replace(high, psnr=40.0),
        replace(high, shown_psnr=40.0),
        replace(high, min_adjusted_patch_psnr=40.0),
    ):
        assert found.reaches(40.0)
        assert not found.reaches(40.01)


@pytest.mark.parametrize(
    ("original", "marked"),
    [
        (np.zeros((2, 2), np.uint8), np.zeros((2, 3), np.uint8)),
        (np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint16)),
        (np.zeros((2, 2)), np.zeros((2, 2))),
        (np.zeros(4, np.uint8), np.zeros(4, np.uint8)),
        (np.zeros((0, 2), np.uint8), np.zeros((0, 2), np.uint8)),
    ],
)
def test_images_that_cannot_be_compared_are_refused(original: NDArray[Any], marked: NDArray[Any]) -> None:
    with pytest.raises(DataError, match="expected two images"):
        fidelity(StoredImage(original, 8), marked)
