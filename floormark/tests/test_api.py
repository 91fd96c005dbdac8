"""Messages in images in memory: the floor on the stored integers, and the exact message or nothing."""

import contextlib
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from floormark import Key, Payload, Watermarker
from floormark.errors import ConfigurationError, DataError, RefusedError
from natural_images import natural_image

KEY, OTHER = Key(b"an example of a key"), Key(b"another example here")
MARKER = Watermarker.load()
MARKERS = {key: Watermarker(MARKER.network, key=key) for key in (None, KEY)}
IMAGE = natural_image(height=256, width=264)


def deep_image(low: int, span: int, *, seed: int = 0, height: int = 256, width: int = 264) -> NDArray[np.uint16]:
    """16 bits of which only the values from ``low`` to ``low + span`` are used."""
    shape = natural_image(height=height, width=width, seed=seed) / 255.0
    fine = np.random.default_rng(seed).normal(0.0, 1 / 300, shape.shape)
    return (low + np.rint(np.clip(shape + fine, 0.0, 1.0) * span)).astype(np.uint16)


def measured_psnr(before: NDArray[Any], after: NDArray[Any], peak: float) -> float:
    """Straight from the definition, in float64."""
    mse = float(np.mean((before.astype(np.float64) - after.astype(np.float64)) ** 2))
    return 10.0 * math.log10(peak**2 / mse) if mse else math.inf


images = st.builds(
    lambda colour, deep, height, width, seed, low, span: (
        deep_image(low, span, seed=seed, height=height, width=width)
        if deep
        else natural_image(3 if colour else 1, height=height, width=width, seed=seed)
    ),
    st.booleans(),
    st.booleans(),
    st.integers(90, 330),
    st.integers(90, 330),
    st.integers(0, 99),
    st.integers(0, 2000),
    st.integers(1, 60000),
)
messages = st.binary(min_size=1, max_size=16) | st.text("aä漢\x1b", min_size=1, max_size=5)


@given(images, messages, st.floats(30.0, 50.0), st.sampled_from([None, KEY]))
@settings(max_examples=12)
def test_the_floor_holds_on_the_stored_integers_and_the_message_is_exact(
    image: NDArray[Any], message: str | bytes, floor: float, key: Key | None
) -> None:
    marker, before = MARKERS[key], image.copy()
    try:
        found = marker.embed(image, message, psnr=floor)
    except RefusedError:
        return  # whether the highest floor that is named works is tested below
    finally:
        np.testing.assert_array_equal(image, before)
    assert found.image.dtype == image.dtype
    assert measured_psnr(image, found.image, 255 if image.dtype == np.uint8 else 65535) >= floor
    assert found.certificate.satisfied
    assert marker.extract(found.image).message == message


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("floor", [30.0, 40.0, 45.0])
def test_images_with_room_are_marked_close_to_the_floor(channels: int, floor: float) -> None:
    image = natural_image(channels, height=300, width=256)
    found = MARKER.embed(image, "patient 4711", psnr=floor)
    assert floor <= measured_psnr(image, found.image, 255) < floor + 0.1
    assert found.certificate.fidelity.psnr == pytest.approx(measured_psnr(image, found.image, 255))
    read = MARKER.extract(found.image)
    assert (read.message, read.corrected_errors) == ("patient 4711", found.certificate.bit_errors)
    assert read.confidence > 1 - 1e-9


@pytest.mark.parametrize("size", [(600, 520), (256, 1400), (519, 1100)])
def test_large_and_oblong_images_are_marked(size: tuple[int, int]) -> None:
    image = natural_image(height=size[0], width=size[1])
    found = MARKER.embed(image, "large", psnr=42)
    assert MARKER.extract(found.image).message == "large"


@pytest.mark.parametrize(("low", "span"), [(0, 65535), (1000, 4000), (200, 90), (65000, 500)])
def test_sixteen_bits_keep_the_floor_against_the_range_in_use(low: int, span: int) -> None:
    image = deep_image(low, span)
    found = MARKER.embed(image, b"\x00\xff", psnr=40)
    assert MARKER.extract(found.image).message == b"\x00\xff"
    assert measured_psnr(image, found.image, 65535) >= 40
    used = float(np.percentile(image, 99.5) - np.percentile(image, 0.5))
    assert measured_psnr(image, found.image, used) >= 40
    assert MARKER.extract(image).message is None


def test_reading_an_image_imports_only_what_it_needs(tmp_path: Path) -> None:
    Image.fromarray(MARKER.embed(IMAGE, "quick", psnr=40).image).save(tmp_path / "a.png")
    code = (
        "import sys, floormark.cli;"
        f"assert floormark.cli.main(['extract', {str(tmp_path / 'a.png')!r}]) == 0;"
        "print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    heavy = [
        "torch",
        "scipy",
        "pydicom",
        "imagecodecs",
        "cryptography",
        "rich",
        "typer",
        "matplotlib",
        "pandas",
    ]
    done = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert done.stdout == "quick\n[]\n"


def test_refused_images_name_the_highest_floor_and_it_works() -> None:
    for image in (IMAGE, natural_image(3, height=256, width=256, seed=1), deep_image(1000, 60), IMAGE // 64 + 100):
        with pytest.raises(
            RefusedError, match=r"bits are wrong when read back at 72 dB: the floor is too high"
        ) as told:
            MARKER.embed(image, "x", psnr=72)
        highest = float(re.findall(r"the highest floor that works is ([\d.]+) dB$", str(told.value))[0])
        found = MARKER.embed(image, "x", psnr=highest)
        assert MARKER.extract(found.image).message == "x"
        with pytest.raises(RefusedError, match="the highest floor that works is"):
            MARKER.embed(image, "x", psnr=highest + 0.5)


def test_an_image_that_can_hold_nothing_is_told_why() -> None:
    mask = np.ones(IMAGE.shape, np.bool_)
    with pytest.raises(RefusedError, match=r"at 40 dB: 100% of it is protected; no floor from 38 dB"):
        MARKER.embed(IMAGE, "x", psnr=40, protect=mask)
    small = IMAGE[100:228, 100:204]
    with pytest.raises(RefusedError, match=r": the image is small.*; "):
        MARKER.embed(small, "x" * 16, psnr=70)


def test_flat_images_lie_fifteen_above_their_floor_or_are_refused() -> None:
    for level in (0, 127, 255):  # of black and white, half of what could be written is clipped
        page = np.full((256, 256), level, np.uint8)
        with contextlib.suppress(RefusedError) if level != 127 else contextlib.nullcontext():
            marked = MARKER.embed(page, "flat", psnr=35).image
            assert MARKER.extract(marked).message == "flat"
            for top, left in np.ndindex(8, 8):
                patch = np.s_[32 * top : 32 * top + 32, 32 * left : 32 * left + 32]
                assert measured_psnr(page[patch], marked[patch], 255) >= 35 + 15
    with pytest.raises(RefusedError, match="highest floor"):  # 70 dB are one pixel in 150, by one level
        MARKER.embed(np.full((256, 256), 127, np.uint8), "flat", psnr=55)


@given(st.integers(1, 63), st.integers(1, 200), st.booleans())
@settings(max_examples=15)
def test_what_is_too_small_is_told_how_large_it_must_be(short: int, long: int, upright: bool) -> None:
    height, width = (long, short) if upright else (short, long)
    image = np.zeros((height, width), np.uint8)
    with pytest.raises(DataError, match=rf"expected an image of at least 64 x 64 pixels, got {width} x {height}"):
        MARKER.embed(image, "x")
    assert not MARKER.extract(image)


def test_the_smallest_image_is_one_tile() -> None:
    smallest = natural_image(height=256, width=256)[100:164, 100:164]
    with pytest.raises(RefusedError, match="the image is small"):  # large enough, but it is protected
        MARKER.embed(smallest, "x", protect=np.ones((64, 64), np.bool_))
    assert MARKER.extract(MARKER.embed(smallest, "x", psnr=28).image).message == "x"


def test_without_the_right_key_there_is_nothing() -> None:
    keyed, other = (Watermarker(MARKER.network, key=key) for key in (KEY, OTHER))
    marked, plain = keyed.embed(IMAGE, "secret", psnr=40).image, MARKER.embed(IMAGE, "public", psnr=40).image
    assert keyed.extract(marked).message == "secret"
    assert [reader.extract(marked).message for reader in (MARKER, other)] == [None, None]
    assert [reader.extract(plain).message for reader in (keyed, other)] == [None, None]
    assert "example" not in repr(KEY)


@pytest.mark.parametrize("channels", [1, 3])
def test_protected_pixels_stay_as_they_are(channels: int) -> None:
    image, mask = natural_image(channels, height=280, width=300), np.zeros((280, 300), np.bool_)
    mask[100:160, 90:200] = True
    found = MARKER.embed(image, "around", psnr=40, protect=mask)
    np.testing.assert_array_equal(found.image[mask], image[mask])
    assert (found.image != image).any()
    assert MARKER.extract(found.image).message == "around"
    measured = found.certificate.fidelity
    assert (measured.protected_pixels, measured.protected_unchanged) == (60 * 110, True)
    with pytest.raises(ConfigurationError, match="mask of 300 x 280 pixels"):
        MARKER.embed(image, "x", protect=mask.T)
    with pytest.raises(ConfigurationError, match="expected a mask of bool"):
        MARKER.embed(image, "x", protect=mask.astype(np.uint8))


def test_a_second_message_is_refused_or_takes_the_place_of_the_first() -> None:
    first = MARKER.embed(IMAGE, "first", psnr=42).image
    with pytest.raises(RefusedError, match="the image is marked already, with 'first': mark the original, or replace"):
        MARKER.embed(first, "second", psnr=40)
    found = MARKER.embed(first, "second", psnr=40, replace=True)
    assert MARKER.extract(found.image).message == "second"
    assert measured_psnr(first, found.image, 255) >= 40
    assert found.certificate.satisfied
    with pytest.raises(RefusedError, match="with 'second'"):
        MARKER.embed(found.image, "third", psnr=40)


def test_unmarked_images_read_as_nothing() -> None:
    random = np.random.default_rng(0)
    for seed in range(4):
        for image in (
            random.integers(0, 256, (128, 136), np.uint8),
            natural_image(1 + 2 * (seed % 2), height=256, width=256, seed=seed),
            random.integers(0, 1 << 12, (120, 120), np.uint16),
        ):
            found = MARKER.extract(image)
            assert (found.message, found.confidence, found.corrected_errors, bool(found)) == (None, 0.0, 0, False)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_thousands_of_unmarked_images_read_as_nothing_with_any_key(part: int) -> None:
    random = np.random.default_rng(part)
    for number in range(30):
        # To make a marker takes as long as a reading: each, half of them with a key of their own, reads ten images.
        marker = Watermarker(MARKER.network, key=Key(random.bytes(16))) if number % 2 else MARKER
        for seed in range(150 * part + 5 * number, 150 * part + 5 * number + 5):
            assert not marker.extract(random.integers(0, 256, (128, 128), np.uint8)), seed
            assert not marker.extract(natural_image(height=200, width=168, seed=seed)), seed


@pytest.mark.parametrize("mode", ["L", "RGB", "I;16"])
def test_pillow_images_are_taken(mode: str) -> None:
    values: Any = {"L": IMAGE, "RGB": natural_image(3, height=256, width=256), "I;16": deep_image(0, 60000)}[mode]
    image = Image.fromarray(values)
    assert image.mode == mode
    found = MARKER.embed(image, "pillow", psnr=40)
    assert MARKER.extract(Image.fromarray(found.image)).message == "pillow"


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (Image.new("RGBA", (256, 256)), "got mode RGBA: convert it first"),
        (Image.new("P", (256, 256)), "got mode P"),
        (np.zeros((256, 256)), "got shape .* of float64"),
        (np.zeros((256, 256, 4), np.uint8), r"got shape \(256, 256, 4\)"),
        (np.zeros((0, 256), np.uint8), r"got shape \(0, 256\)"),
        (np.zeros(256, np.uint8), r"got shape \(256,\)"),
        (None, r"got shape \(\) of object"),
    ],
)
def test_what_is_no_image_is_refused(image: Any, message: str) -> None:
    for call in (lambda: MARKER.embed(image, "x"), lambda: MARKER.extract(image)):
        with pytest.raises(DataError, match=message):
            call()


@pytest.mark.parametrize("floor", [24.9, 101, math.nan, math.inf, "45", True])
def test_floors_that_make_no_sense_are_refused(floor: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"PSNR floor.*got"):
        MARKER.embed(IMAGE, "x", psnr=floor)


def test_messages_that_cannot_be_hidden_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected a payload of 1 to 16 bytes, as 255 bits can hold, got 17"):
        MARKER.embed(IMAGE, "x" * 17)
    with pytest.raises(ConfigurationError, match="at least one byte"):
        MARKER.embed(IMAGE, "")
    wrong: Any = 4711
    with pytest.raises(ConfigurationError, match="expected text or bytes as payload, got int"):
        MARKER.embed(IMAGE, wrong)


def test_kinds_of_messages_come_back_as_what_they_were() -> None:
    for payload in (Payload.from_hex("00ff17"), Payload.from_bits("0010110"), Payload.of(b"\x00"), Payload.of("ä")):
        found = MARKER.extract(MARKER.embed(IMAGE, payload, psnr=40).image)
        assert (found.payload, found.message) == (payload, payload.value)
    assert found.to_dict()["kind"] == "text"


@given(st.text("01", min_size=1, max_size=127))
def test_bits_are_kept_with_their_leading_zeros(digits: str) -> None:
    payload = Payload.from_bits(digits)
    assert payload.value == digits
    assert len(payload.content) <= 16


@pytest.mark.parametrize("digits", ["", "012", "0b1", "\N{FULLWIDTH DIGIT ONE}", "1 0"])
def test_what_are_no_bits_is_refused(digits: str) -> None:
    with pytest.raises(ConfigurationError, match="expected zeros and ones"):
        Payload.from_bits(digits)


def test_a_mark_that_hides_its_image_is_refused_and_a_weaker_one_not() -> None:
    noise = np.rint(np.random.default_rng(0).normal(200, 1.5, (256, 256))).astype(np.uint8)
    with pytest.raises(RefusedError, match=r"higher floor"):
        MARKER.embed(noise, "x", psnr=30)
    assert MARKER.extract(MARKER.embed(noise, "x", psnr=45).image).belongs is not False
