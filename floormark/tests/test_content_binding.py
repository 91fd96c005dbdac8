"""Whether a message is its image's own, told by pairs of points."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from floormark.content_binding import CODE_SIDE, PAIRS, ContentBinding
from floormark.payload import Key
from floormark.prepared import NetworkInput, TileLayout
from natural_images import natural_image

KEY, OTHER = Key(b"an example of a key"), Key(b"another example here")
CONTENT = ContentBinding(KEY)
START = np.zeros(2, np.int64)
LAID = TileLayout.of(KEY).alignment(1.0)
Seen = NDArray[np.float32]


def seen(seed: int, *, height: int = 256, width: int = 256) -> Seen:
    """Without the black corner, which says nothing."""
    return natural_image(height=3 * height // 2, width=3 * width // 2, seed=seed)[-height:, -width:].astype(np.float32)


def given(image: Seen, origin: NDArray[np.int64] = START, *, inside: bool = True) -> NetworkInput:
    return NetworkInput(image, np.full(image.shape, inside), LAID, origin)


def belongs(bits: tuple[int, ...], image: Seen, *, registered: bool = False) -> bool | None:
    return CONTENT.belongs(bits, given(image), registered=registered)


def treated(image: Seen) -> dict[str, Seen]:
    random, unit = np.random.default_rng(0), image / np.float32(255)
    return {
        "as it is": image,
        "noise": np.clip(image + random.normal(0.0, 6.0, image.shape), 0, 255).astype(np.float32),
        "gamma up": 255 * unit**1.6,
        "gamma down": 255 * unit**0.6,
        "half the contrast": 60 + image / 2,
        "blurred": ndimage.gaussian_filter(image, 1.0),
        "equalised": 255 * (np.searchsorted(np.sort(unit.ravel()), unit) / unit.size).astype(np.float32),
    }


@pytest.mark.parametrize("treatment", treated(seen(0)))
def test_an_image_keeps_its_message_through_what_images_go_through(treatment: str) -> None:
    for seed in range(3):
        image = seen(seed)
        assert belongs(CONTENT.code(given(image)), treated(image)[treatment]) is True, seed


def test_no_image_takes_the_message_of_another() -> None:
    images = [seen(seed) for seed in range(8)]
    bits = [CONTENT.code(given(image)) for image in images]
    said = [belongs(bits[one], images[other]) for one in range(8) for other in range(8) if one != other]
    # 3 standard deviations of chance and more, in one of 740; 2 and more, which is doubt, in one of 44.
    assert said.count(True) <= 1
    assert said.count(False) >= 0.94 * len(said)


def test_a_part_that_lies_anywhere_is_told_from_another_image() -> None:
    image, other = seen(1, height=320, width=320), seen(2, height=320, width=320)
    bits = CONTENT.code(given(image))
    assert belongs(bits, image[64:, :], registered=True) is True
    before = np.pad(image, ((128, 0), (64, 0)), constant_values=90)
    assert belongs(bits, before, registered=True) is True
    assert belongs(bits, other[64:, :], registered=True) is not True


def test_of_a_place_that_is_known_the_origin_tells_what_is_missing() -> None:
    image = seen(3)
    part, bits = image[:, 64:], CONTENT.code(given(image))
    assert CONTENT.belongs(bits, given(part, np.array([0, 64])), registered=False) is True
    assert CONTENT.belongs(bits, given(part), registered=False) is not True


def test_nothing_is_said_where_too_little_is_left() -> None:
    image = seen(4)
    bits = CONTENT.code(given(image))
    assert belongs(bits, image[:24, :24]) is None
    assert belongs(bits, image[:24, :24], registered=True) is None
    assert CONTENT.belongs(bits, given(image, inside=False), registered=False) is None
    assert belongs(bits, np.full_like(image, 77)) is None  # nothing in it
    assert belongs(bits, np.full_like(image, 77), registered=True) is None
    # As much as a mark shows by itself, in an image that has nothing else to show.
    faint = np.random.default_rng(0).normal(200.0, 1.5, image.shape).astype(np.float32)
    assert belongs(bits, faint) is None
    assert belongs(bits, faint, registered=True) is None
    assert belongs(CONTENT.code(given(faint)), faint) is True


def test_the_key_says_which_places_are_compared() -> None:
    image, other = seen(5), ContentBinding(OTHER)
    assert not np.array_equal(CONTENT.points, other.points)
    assert np.array_equal(CONTENT.points, ContentBinding(KEY).points)
    assert not np.array_equal(CONTENT.points, ContentBinding(None).points)
    bits, theirs = CONTENT.code(given(image)), other.code(given(image))
    assert len(bits) == len(theirs) == PAIRS
    assert set(bits) == {0, 1}
    assert 8 < sum(a != b for a, b in zip(bits, theirs, strict=True)) < 32  # as coins fall
    assert belongs(theirs, image) is not True


def test_places_lie_inside_and_near_each_other() -> None:
    for number in range(20):
        key = Key(number.to_bytes(16))
        places, layout = ContentBinding(key).points, TileLayout.of(key)
        assert places.shape == (2, PAIRS, 2)
        # Laid out as tiles are: in the pixels of images that have no key they lie in a square of 256.
        without = (places - np.array(layout.shift)) * np.array(layout.stretch)
        assert without.min() > 2
        assert without.max() < CODE_SIDE - 4
        assert np.abs(without[0] - without[1]).max() <= 24 + 2
