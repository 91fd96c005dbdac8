"""A mark is kept below what is seen in each patch: by the structure of the image that hides it, in what is shown."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from floormark import Watermarker
from floormark.display_range import patch_sizes, patch_squares
from floormark.imageio import StoredImage, Window
from floormark.options import ADVISED_FLOOR
from floormark.patches import HIDDEN, MASKING_SIDE, UNSEEN, unseen_floors
from floormark.prepared import PreparedImage
from floormark.strength import Residual, fit_to_floor

RNG = np.random.default_rng(5)
MARKER = Watermarker.load()


def structured(deviation: float, side: int = 256) -> NDArray[np.float32]:
    """Grey levels around 128 that differ by that much within squares."""
    return (128 + deviation * RNG.choice([-1.0, 1.0], (side, side))).astype(np.float32)


def test_a_flat_area_takes_the_least_that_is_seen() -> None:
    found = unseen_floors(np.full((256, 256), 90, np.float32), (8, 8))
    np.testing.assert_allclose(found, 20 * math.log10(255 / UNSEEN), atol=0.01)


@pytest.mark.parametrize("deviation", [2.0, 6.0, 20.0])
def test_structure_hides_a_part_of_its_own_deviation(deviation: float) -> None:
    found = unseen_floors(structured(deviation), (8, 8))
    expected = 20 * math.log10(255 / math.hypot(UNSEEN, HIDDEN * deviation))
    np.testing.assert_allclose(found, expected, atol=1.0)  # squares of 16 pixels scatter


def test_an_edge_hides_nothing_beside_it() -> None:
    picture = np.full((256, 256), 60, np.float32)
    picture[:, 2 * MASKING_SIDE + 1 :] = 190
    edge, beside = unseen_floors(picture, (8, 8))[0, :2]
    assert beside == pytest.approx(20 * math.log10(255 / UNSEEN), abs=0.01)
    lonely = 20 * math.log10(255 / math.hypot(UNSEEN, HIDDEN * picture[:MASKING_SIDE, 8:12].std()))
    assert lonely + 6 < edge <= beside  # of the squares of this patch one in eight has the edge


@pytest.mark.parametrize("side", [128, 300, 700])
def test_the_pixels_keep_it_in_every_patch_whatever_the_size(side: int) -> None:
    coarse = np.kron(RNG.normal(size=(side // 3 + 1,) * 2), np.ones((3, 3)))[:side, :side]
    ramp = np.linspace(0.0, 6.0, side)  # calm on the left
    pixels = np.clip(np.rint(128 + ramp * coarse), 0, 255).astype(np.uint8)
    image = PreparedImage(StoredImage(pixels, 8))
    residual = Residual(RNG.normal(size=(side, side)).astype(np.float32), (1.0, 1.0), (0.0, 0.0))
    marked = fit_to_floor(image, residual, ADVISED_FLOOR)
    squares = patch_squares(pixels, marked) / patch_sizes(pixels.shape) / 255.0**2
    reached = -10.0 * np.log10(np.maximum(squares, 1e-12))
    assert (reached >= image.unseen_floors - 1e-9).all()
    assert (reached - image.unseen_floors).min() < 1.5  # it is no bound that nothing comes near
    below = fit_to_floor(image, residual, ADVISED_FLOOR - 1.0)  # as it was asked for
    assert patch_squares(pixels, below).sum() > 2 * patch_squares(pixels, marked).sum()


def test_it_is_about_what_is_shown() -> None:
    pixels = np.clip(np.rint(2000 + 40 * structured(1.0) - 40 * 128), 0, 4095).astype(np.uint16)
    wide, narrow = (
        PreparedImage(StoredImage(pixels, 12, window=Window(2000.0 - width, 2000.0 + width))) for width in (1500, 300)
    )
    # In a narrow window the structure has more contrast, and so hides a larger part of it.
    assert narrow.unseen_floors.mean() < wide.unseen_floors.mean() - 6


def test_a_calm_image_asked_for_forty_is_marked_as_at_more() -> None:
    rng = np.random.default_rng(2)
    smooth = np.cumsum(np.cumsum(rng.normal(size=(512, 512)), 0), 1)
    smooth = 100 + 60 * (smooth - smooth.min()) / np.ptp(smooth) + rng.normal(0, 2.5, smooth.shape)
    image = np.clip(np.rint(smooth), 0, 255).astype(np.uint8)
    first, second = (MARKER.embed(image, "patient 4711", psnr=psnr) for psnr in (36.0, 40.0))
    assert first.certificate.fidelity.shown_psnr is not None
    assert second.certificate.fidelity.shown_psnr is not None
    assert first.certificate.fidelity.shown_psnr < 38
    assert second.certificate.fidelity.shown_psnr > 43
    assert MARKER.extract(second.image).message == "patient 4711"
