"""The strongest marking that keeps every floor, on the stored integers."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from floormark.fidelity import fidelity
from floormark.imageio import StoredImage, Window
from floormark.options import ADVISED_FLOOR, EmbedOptions
from floormark.prepared import PreparedImage
from floormark.strength import Residual, fit_to_floor, highest_floor
from natural_images import natural_image


def fitted(
    image: StoredImage, residual: NDArray[Any], floor: float, limit: float, *, scale: float = 1.0, **options: Any
) -> NDArray[Any]:
    values = Residual(residual.astype(np.float32), (scale, scale), (0.0, 0.0))
    return fit_to_floor(PreparedImage(image), values, floor, limit=limit, **options)


def measured_psnr(before: NDArray[Any], after: NDArray[Any], peak: float) -> float:
    mse = float(np.mean((before.astype(np.float64) - after.astype(np.float64)) ** 2))
    return 10.0 * math.log10(peak**2 / mse) if mse else math.inf


def stored(kind: str, height: int, width: int, seed: int) -> StoredImage:
    """Of noise, a picture, a part of whose values is used, shown or padding, or of one value."""
    random = np.random.default_rng(seed)
    shape = natural_image(height=height, width=width, seed=seed)
    return {
        "noise": lambda: StoredImage(random.integers(0, 256, (height, width), np.uint8), 8),
        "grey": lambda: StoredImage(shape, 8),
        "colour": lambda: StoredImage(natural_image(3, height=height, width=width, seed=seed), 8),
        "deep": lambda: StoredImage(1000 + shape.astype(np.uint16) * 9, 16),
        "window": lambda: StoredImage(shape.astype(np.int16) * 16 - 2048, 12, window=Window(-500.0, 300.0, "HU")),
        "padding": lambda: StoredImage(shape, 8, padding_range=(0, 20)),
        "flat": lambda: StoredImage(np.full((height, width), seed % 256, np.uint8), 8),
    }[kind]()


@settings(max_examples=60)
@given(
    st.sampled_from(["noise", "grey", "colour", "deep", "window", "padding", "flat"]),
    st.integers(33, 130),
    st.integers(33, 130),
    st.integers(0, 999),
    st.floats(25.0, 60.0),
    st.floats(0.001, 0.3),
    st.sampled_from([1.0, 1.7]),
    st.sampled_from([None, 1.0, 3.0]),
    st.booleans(),
)
def test_floors_regions_and_the_largest_difference_are_kept(
    kind: str,
    height: int,
    width: int,
    seed: int,
    floor: float,
    size: float,
    scale: float,
    largest: float | None,
    protected: bool,
) -> None:
    image, random = stored(kind, height, width, seed), np.random.default_rng(seed)
    span = image.peak * size * 10.0 ** random.uniform(-2.0, 0.0, (math.ceil(height / scale), 1))  # not everywhere alike
    residual = span * random.standard_normal((len(span), math.ceil(width / scale)))
    mask = random.random((height, width)) < 0.3 if protected else None
    pixels = fitted(image, residual, floor, 8.0, scale=scale, protect=mask, max_difference=largest)
    found = fidelity(image, pixels, protected=mask)
    assert found.reaches(floor)
    assert found.protected_unchanged
    assert found.max_difference <= (largest or math.inf)
    padding = image.padding(image.pixels)
    np.testing.assert_array_equal(pixels[padding], image.pixels[padding])
    np.testing.assert_array_equal(image.padding(pixels), padding)


@given(st.integers(0, 2**32 - 1), st.sampled_from([np.uint8, np.uint16]), st.floats(25.0, 60.0), st.floats(0.001, 0.2))
@settings(max_examples=40)
def test_the_strongest_residual_keeps_the_floor_and_nearly_uses_it(
    seed: int, dtype: type[np.uint8 | np.uint16], floor: float, size: float
) -> None:
    random = np.random.default_rng(seed)
    peak = np.iinfo(dtype).max
    image = StoredImage(random.integers(0, peak + 1, (96, 64), dtype), np.iinfo(dtype).bits)
    residual = size * peak * random.standard_normal((96, 64))
    pixels = fitted(image, residual, floor, 1e6)
    used = fidelity(image, pixels).shown
    assert used is not None
    # All patches are alike, and one of 6,144 values more changed by one level moves the PSNR by less than 0.1 dB.
    assert floor <= measured_psnr(image.pixels, pixels, used) < floor + 1.0
    weak = fitted(image, residual, 25.0, 0.5)
    assert np.abs(weak.astype(np.int64) - image.pixels).max() <= 0.5 * np.abs(residual).max() + 0.5


def test_a_calm_patch_gets_less_and_the_others_what_is_left() -> None:
    random = np.random.default_rng(0)
    pixels = random.integers(60, 190, (96, 160), np.uint8)
    pixels[:, :32] = 127
    residual = random.standard_normal(pixels.shape)
    change = fitted(StoredImage(pixels, 8), residual, 40.0, 1e3).astype(np.float64) - pixels
    calm, lively = np.square(change[:, :32]).mean(), np.square(change[:, 96:]).mean()
    # Its floor is 18 dB above that of a mean patch, itself 3 below; theirs is not above the whole image's.
    assert calm <= 255.0**2 * 10.0 ** (-(40.0 + 15.0) / 10.0)
    assert 40.0 <= measured_psnr(pixels, pixels + change, 255) < 40.2
    assert lively > 10.0 * calm


def test_a_mark_as_coarse_as_the_patches_is_not_given_up() -> None:
    """In a very large image a pixel of the network is a whole patch, whose values all round to the next at once."""
    random, patches = np.random.default_rng(3), 40
    coarse = natural_image(height=2 * patches, width=2 * patches, seed=3)
    smooth = ndimage.zoom(coarse.astype(np.float64), 16, order=3)
    image = StoredImage((smooth + random.normal(0.0, 1.5, smooth.shape)).round().clip(0, 255).astype(np.uint8), 8)
    marked = fitted(image, random.normal(size=(patches, patches)), 50.0, 100.0, scale=32.0)
    assert (marked != image.pixels).mean() > 0.2
    assert min(fidelity(image, marked).floors) >= 50.0


@pytest.mark.parametrize("size", [0.0, 1e-9])
def test_nothing_to_add_changes_nothing(size: float) -> None:
    pixels = natural_image(height=80, width=90)
    found = fitted(StoredImage(pixels, 8), np.full(pixels.shape, size), 40.0, 8.0)
    np.testing.assert_array_equal(found, pixels)


def test_a_residual_is_enlarged_from_where_the_image_begins_in_it_in_bands_as_in_the_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    residual = Residual(values, (2.5, 2.0), (0.0, 3.0))
    whole = residual.rows(slice(0, 100), 54)
    expected = Image.fromarray(values).resize((54, 100), Image.Resampling.BICUBIC, box=(3.0, 0.0, 30.0, 40.0))
    np.testing.assert_allclose(whole, np.asarray(expected), atol=1e-6)
    parts = [residual.rows(slice(top, top + 32 if top < 96 else 100), 54) for top in range(0, 100, 32)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=1e-4)
    image = StoredImage(natural_image(height=100, width=75), 8)
    at_once = fitted(image, 20 * values, 38.0, 8.0, scale=2.5)
    monkeypatch.setattr("floormark.strength.TRIAL_BAND_VALUES", 32 * 75)
    monkeypatch.setattr("floormark.strength.KEPT_VALUES", 0)  # computed anew for each trial
    banded = fitted(image, 20 * values, 38.0, 8.0, scale=2.5)
    assert np.mean(banded != at_once) < 0.001  # another order of sums may round otherwise


@given(st.floats(25.0, 100.0), st.floats(20.0, 110.0))
def test_the_highest_floor_is_found_to_the_step(below: float, limit: float) -> None:
    found = highest_floor(lambda floor: floor <= limit, below)
    if limit < ADVISED_FLOOR or below <= ADVISED_FLOOR:  # none lower is advised
        assert found is None
    else:
        assert found is not None
        assert max(ADVISED_FLOOR, min(limit, below) - 0.5) <= found <= limit
        assert found < below
        assert EmbedOptions(psnr=found).psnr == found


@given(st.floats(39.0, 80.0))
def test_a_highest_floor_is_found_also_where_low_ones_do_not_work(limit: float) -> None:
    found = highest_floor(lambda floor: limit - 2.0 <= floor <= limit, 90.0)
    assert found is not None
    assert limit - 0.5 <= found <= limit
