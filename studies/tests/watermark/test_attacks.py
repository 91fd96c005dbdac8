import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from natural_images import natural_image
from samplewise.errors import ConfigurationError, DataError
from studies.watermark.noise import STANDARD_ATTACKS, parse_attack, parse_attacks
from studies.watermark.operators import OPERATORS

EVERY = {
    name: f"{name}({min(1, operator.limits.highest)})" if operator.limits else name
    for name, operator in OPERATORS.items()
}
IN_PLACE = [spec for name, spec in EVERY.items() if not OPERATORS[name].geometric]


def attacked(
    spec: str, image: NDArray[np.uint8], cover: NDArray[np.uint8] | None = None, *, seed: int = 0
) -> NDArray[np.uint8]:
    return parse_attack(spec)(image, np.random.default_rng(seed), cover)


@pytest.mark.parametrize("attack", [*STANDARD_ATTACKS, *map(parse_attack, EVERY.values())], ids=str)
@pytest.mark.parametrize("shape", [(37, 22), (37, 22, 3), (1, 1)])
def test_keeps_type_and_channels_and_leaves_its_arguments_alone(attack: object, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    image, cover = rng.integers(256, size=(2, *shape), dtype=np.uint8)
    before = image.copy(), cover.copy()
    found = parse_attack(str(attack))(image, np.random.default_rng(1), cover)
    again = parse_attack(str(attack))(image, np.random.default_rng(1), cover)
    assert found.dtype == np.uint8
    assert found.shape[2:] == shape[2:]
    if str(attack) in IN_PLACE:
        assert found.shape == shape
    np.testing.assert_array_equal(found, again)
    found[:] = 0  # its own memory, and writable
    np.testing.assert_array_equal(image, before[0])
    np.testing.assert_array_equal(cover, before[1])


def test_the_standard_attacks_are_the_agreed_ones_and_bite() -> None:
    assert [str(attack) for attack in STANDARD_ATTACKS] == [
        *(
            "identity",
            "jpeg(95)",
            "jpeg(90)",
            "jpeg(75)",
            "jpeg(50)",
            "resize_back(0.5)",
            "resize_back(0.75)",
            "resize_back(1.25)",
        ),
        *("gaussian(0.01)", "gaussian(0.02)", "blur(0.5)", "blur(1)", "crop_zero_fill(0.9)", "crop_zero_fill(0.7)"),
        *("dropout(0.1)", "dropout(0.3)", "brightness(0.9)", "brightness(1.1)"),
    ]
    image = natural_image()
    changed = [not np.array_equal(a(image, np.random.default_rng(0), 255 - image), image) for a in STANDARD_ATTACKS]
    assert changed == [False] + [True] * 17


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_is_a_real_file_with_the_quality_asked_for(channels: int) -> None:
    image = natural_image(channels)
    found = attacked("jpeg(75)", image)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=75, subsampling=2 if channels == 3 else -1)
    np.testing.assert_array_equal(found, np.asarray(Image.open(file)))
    assert (found != attacked("jpeg(74)", image)).any()


@pytest.mark.parametrize("channels", [1, 3])
def test_webp_is_a_real_file_with_the_quality_asked_for(channels: int) -> None:
    image = natural_image(channels)
    file = io.BytesIO()
    Image.fromarray(image).save(file, "WEBP", quality=75)
    coded = Image.open(file).convert("RGB" if channels == 3 else "L")
    np.testing.assert_array_equal(attacked("webp(75)", image), np.asarray(coded))
    assert (attacked("webp(20)", image) != attacked("webp(75)", image)).any()


def test_resize_keeps_what_a_coarse_grid_can_hold() -> None:
    ramp = np.repeat(np.arange(0, 128, dtype=np.uint8)[None], 64, axis=0)
    stripes = np.tile(np.array([0, 255], dtype=np.uint8), (64, 64))
    inside = np.s_[:, 4:-4]
    assert np.abs(attacked("resize_back(0.5)", ramp).astype(int) - ramp)[inside].max() <= 1
    assert np.abs(attacked("resize_back(0.5)", stripes).astype(int) - 127.5)[inside].max() < 2


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur_has_the_width_it_says(sigma: float) -> None:
    image = natural_image()
    ours, exact = attacked(f"blur({sigma})", image), gaussian_filter(image.astype(float), sigma, mode="nearest")
    # Pillow approximates with three box filters and rounds after each.
    assert np.std(ours - exact) < 0.4 * np.std(image - exact)


def test_gaussian_has_the_standard_deviation_it_says_and_does_not_wrap() -> None:
    grey = np.full((200, 200), 128, dtype=np.uint8)
    assert (attacked("gaussian(0.02)", grey).astype(float) - 128).std() == pytest.approx(255 * 0.02, rel=0.03)
    white = np.full((50, 50), 255, dtype=np.uint8)
    assert attacked("gaussian(0.02)", white).min() > 200


def test_brightness_and_contrast_scale() -> None:
    image = np.array([[50, 150]], dtype=np.uint8)
    assert attacked("brightness(1.1)", image).tolist() == [[55, 165]]
    assert attacked("brightness(2)", image).tolist() == [[100, 255]]
    assert attacked("contrast(0.8)", image).tolist() == [[60, 140]]


@given(share=st.sampled_from([0.05, 0.3, 0.7, 0.9, 1.0]), seed=st.integers(0, 1000), coloured=st.booleans())
def test_crop_keeps_one_rectangle_in_its_place(share: float, seed: int, coloured: bool) -> None:
    rng = np.random.default_rng(seed)
    image = rng.integers(1, 256, size=(20, 30, 3) if coloured else (20, 30), dtype=np.uint8)
    found = attacked(f"crop_zero_fill({share})", image, seed=seed)
    kept = (found != 0).any(-1) if coloured else found != 0
    rows, columns = kept.any(1), kept.any(0)
    assert (rows.sum(), columns.sum()) == (max(1, round(20 * share)), max(1, round(30 * share)))
    assert np.abs(np.diff(rows.astype(int))).sum() <= 2  # one run
    assert np.abs(np.diff(columns.astype(int))).sum() <= 2
    np.testing.assert_array_equal(kept, rows[:, None] & columns)
    np.testing.assert_array_equal(found[kept], image[kept])


def test_dropout_puts_whole_pixels_of_the_cover_back() -> None:
    image, cover = np.full((100, 100, 3), 9, dtype=np.uint8), np.full((100, 100, 3), 7, dtype=np.uint8)
    found = attacked("dropout(0.3)", image, cover)
    assert np.unique(found).tolist() == [7, 9]
    assert (found == found[..., :1]).all()
    assert (found == 7).mean() == pytest.approx(0.3, abs=0.02)
    with pytest.raises(ConfigurationError, match="dropout"):
        attacked("dropout(0.3)", image)


def test_a_chain_is_its_steps_in_order() -> None:
    image = np.full((8, 8), 200, dtype=np.uint8)
    assert np.unique(attacked("brightness(2) + brightness(0.5)", image)).tolist() == [127]
    assert np.unique(attacked("brightness(0.5) + brightness(2)", image)).tolist() == [200]


def test_reads_one_attack_or_several() -> None:
    assert str(parse_attack("crop_zero_fill(.90)+jpeg(75)")) == "crop_zero_fill(0.9) + jpeg(75)"
    assert parse_attacks("jpeg(75), blur(1)") == (parse_attack("jpeg(75)"), parse_attack("blur(1)"))
    with pytest.raises(ConfigurationError, match=r"one attack, got 2"):
        parse_attack("jpeg(75), blur(1)")
    with pytest.raises(ConfigurationError, match=r"no weight"):
        parse_attack("jpeg(50..95)")


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((8, 8), np.float32), ((8, 8), np.uint16), ((8, 8, 4), np.uint8), ((0, 8), np.uint8), ((8,), np.uint8)],
)
def test_refuses_what_is_no_image(shape: tuple[int, ...], kind: type[np.generic]) -> None:
    with pytest.raises(DataError, match=r"uint8"):
        attacked("identity", np.zeros(shape, dtype=kind))


def test_refuses_a_cover_of_another_size() -> None:
    with pytest.raises(DataError, match=r"\(4, 4\)"):
        attacked("dropout(0.1)", np.zeros((8, 8), dtype=np.uint8), np.zeros((4, 4), dtype=np.uint8))
