"""Marks that are found wherever an image went, and that know which image they are of."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from attacks import border, crop, jpeg, resize, rotate
from floormark import Key, Payload, Watermarker, periods, registration, tiling
from floormark.api import Embedded
from floormark.errors import DataError
from floormark.imageio import StoredImage
from floormark.options import Region
from floormark.payload import Codec, Extracted
from floormark.prepared import PreparedImage, TileLayout
from floormark.tiling import PILOTS, TiledScheme
from natural_images import natural_image

KEY, OTHER = Key(b"an example of a key"), Key(b"another example here")
MESSAGE, FLOOR = "patient 4711", 40.0
Pixels = NDArray[Any]


def textured(seed: int, side: int = 512) -> Pixels:
    """Without a black corner, in which nothing can be read."""
    return natural_image(height=3 * side // 2, width=3 * side // 2, seed=seed)[-side:, -side:]


@dataclass(frozen=True)
class Case:
    marker: Watermarker
    image: Pixels
    marked: Embedded


@pytest.fixture(scope="module")
def case() -> Case:
    marker, image = Watermarker.load(key=KEY), textured(0)
    return Case(marker, image, marker.embed(image, MESSAGE, psnr=FLOOR))


MOVES: dict[str, Callable[[Pixels], Pixels]] = {
    "as written": lambda image: image,
    "smaller": lambda image: resize(image, 0.6),
    "larger": lambda image: resize(image, 1.3),
    "cropped": lambda image: crop(image, 0.7),
    "without its first rows and columns": lambda image: image[33:, 33:],
    "rotated": lambda image: rotate(image, 3),
    "rotated far": lambda image: rotate(image, 45),
    "mirrored": lambda image: image[:, ::-1],
    "with a border": lambda image: border(image, 0.05),
    "quarter": lambda image: np.rot90(image),
    "half": lambda image: np.rot90(image, 2),
    "upside down": lambda image: image[::-1],
    "transposed": lambda image: image.T,
    "inverted": lambda image: 255 - image,
    "inverted, rotated and resized": lambda image: resize(np.rot90(255 - image, 3), 0.8),
    "cropped and resized": lambda image: resize(crop(image, 0.8), 0.9),
    "JPEG": lambda image: jpeg(image, 70),
    "in colour": lambda image: np.stack([image] * 3, axis=2),
    "with 16 bits": lambda image: image.astype(np.uint16) * 257,
}


@pytest.mark.parametrize("move", MOVES)
def test_the_message_is_read_wherever_the_image_went(case: Case, move: str) -> None:
    found = case.marker.extract(np.ascontiguousarray(MOVES[move](case.marked.image)))
    assert found.message == MESSAGE
    assert found.belongs is True
    assert 0.0 < found.chance < 1e-6


@pytest.mark.parametrize("move", ["as written", "rotated", "quarter", "cropped", "inverted"])
def test_nothing_is_read_from_what_is_not_marked(case: Case, move: str) -> None:
    found = case.marker.extract(np.ascontiguousarray(MOVES[move](case.image)))
    assert (found.message, found.belongs, found.chance) == (None, None, 1.0)


@pytest.mark.parametrize("move", ["as written", "rotated"])
def test_nothing_is_read_without_the_key(case: Case, move: str) -> None:
    image = MOVES[move](case.marked.image)
    for key in (None, OTHER):
        assert Watermarker(case.marker.network, key=key).extract(image).message is None


@pytest.mark.parametrize("move", ["as written", "mirrored", "smaller"])
def test_a_mark_that_was_copied_is_said_to_be_of_another_image(case: Case, move: str) -> None:
    residual = case.marked.image.astype(np.int64) - case.image
    for seed in (1, 2):
        forged = np.clip(textured(seed) + residual, 0, 255).astype(np.uint8)
        found = case.marker.extract(np.ascontiguousarray(MOVES[move](forged)))
        assert found.message in (MESSAGE, None)
        assert found.belongs is not True
    assert found.message == MESSAGE
    assert found.belongs is False


def test_the_chance_counts_every_trial(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    images = {
        "unmoved": case.marked.image,
        "turned": np.ascontiguousarray(np.rot90(case.marked.image)),
    }
    decode, decoded = Codec.decode, list[float]()

    def counted(codec: Codec, *arguments: Any) -> Extracted | None:
        found = decode(codec, *arguments)
        decoded.append(1.0 if found is None else found.chance)
        return found

    monkeypatch.setattr(Codec, "decode", counted)
    for name, image in images.items():
        decoded.clear()
        found = case.marker.extract(image)
        assert found.message == MESSAGE, name
        assert found.chance == pytest.approx(case.marker.scheme.trials * min(decoded)), name
    # What is not marked is tried at all of them, if everything looks likely enough.
    monkeypatch.setattr(tiling, "MIN_ALIGNED_SCORE", -10.0)
    monkeypatch.setattr(tiling, "PLAIN_SCORE", -10.0)
    monkeypatch.setattr(registration, "NOTHING_EXPLAINED", -10.0)
    monkeypatch.setattr(registration, "MESSAGE_EXPLAINED", -10.0)
    monkeypatch.setattr(periods, "MIN_SQUARE", -10.0)
    monkeypatch.setattr(periods, "SEARCHES", [(*each[:3], -10.0) for each in periods.SEARCHES])
    decoded.clear()
    assert not case.marker.extract(case.image)
    assert set(decoded) == {1.0}
    assert 6 < len(decoded) <= case.marker.scheme.trials
    assert case.marker.scheme.trials * case.marker.codec.false_positive_rate < 1e-6


def test_what_is_written_in_the_place_of_a_message_keeps_pilot_and_floor(case: Case) -> None:
    before = case.marked.image
    found = case.marker.embed(before, "another", psnr=FLOOR, replace=True)
    assert found.certificate.satisfied
    mse = np.mean((found.image.astype(np.float64) - before) ** 2)
    assert 10 * math.log10(255**2 / mse) >= FLOOR
    scheme = case.marker.scheme
    decoded = [scheme.decode_aligned(PreparedImage.of(image)) for image in (before, found.image)]
    assert decoded[0].salt == decoded[1].salt
    for move in ("as written", "rotated", "mirrored"):
        read = case.marker.extract(np.ascontiguousarray(MOVES[move](found.image)))
        assert (read.message, read.belongs) == ("another", True)


def test_pilots_differ_from_image_to_image_and_from_key_to_key(case: Case) -> None:
    scheme, payload = case.marker.scheme, Payload.of(MESSAGE)
    assert len(set(scheme.seeds)) == PILOTS
    assert not set(scheme.seeds) & set(TiledScheme(scheme.network, OTHER).seeds)
    drawn = [scheme.encode(PreparedImage.of(textured(seed, 128)), payload).bits for seed in range(6)]
    again = scheme.encode(PreparedImage.of(textured(0, 128)), payload).bits
    np.testing.assert_array_equal(again, drawn[0])
    apart = [np.count_nonzero(drawn[0] != other) for other in drawn[1:]]
    assert all(80 < number < 175 for number in apart)  # one message, 255 other bits


def test_bits_that_are_hard_to_read_are_drawn_more_strongly(case: Case) -> None:
    scheme = case.marker.scheme
    decoded = scheme.decode_aligned(PreparedImage.of(case.marked.image))
    assert decoded.logits is not None
    margins = np.abs(decoded.logits)
    assert margins.min() > 0.2 * np.median(margins)


@pytest.mark.parametrize(
    ("shape", "factor", "scale"), [((64, 80), 1, 1.0), ((512, 700), 1, 2.0), ((4100, 2100), 2, 8.2)]
)
def test_what_is_seen_of_an_image(shape: tuple[int, int], factor: int, scale: float) -> None:
    prepared = PreparedImage.of(np.full(shape, 51, np.uint8))
    assert prepared.factor == factor
    assert prepared.scale == pytest.approx(scale, abs=0.01)
    assert prepared.picture.shape == (shape[0] // factor, shape[1] // factor)
    np.testing.assert_allclose(prepared.picture, 51, rtol=1e-5)
    given = prepared.network_input(TileLayout())
    seen, inside, origin = given.grey, given.inside, given.origin
    assert origin.tolist() == [0, 0]
    assert not any(length % 8 for length in seen.shape)
    # As large as what the network draws into, and up to a cell more at the far edges.
    for length, side in zip(seen.shape, shape, strict=True):
        assert 0 <= length - side / prepared.scale < 8.01
    np.testing.assert_allclose(seen, 51, rtol=1e-4)
    assert inside[: int(shape[0] / prepared.scale) - 1, : int(shape[1] / prepared.scale) - 1].all()


def test_images_that_are_too_oblong_are_refused_before_memory_is_taken(case: Case) -> None:
    image = StoredImage(np.broadcast_to(np.uint8(7), (64, 1 << 20)), 8)
    for call in (
        lambda: case.marker.extract(image),
        lambda: next(case.marker.scheme.decode_registered(PreparedImage(image))),
        lambda: case.marker.embed(image, "x", psnr=40.0),
    ):
        with pytest.raises(DataError, match="less oblong than 1048576 x 64: cut it into pieces"):
            call()


def shown_in(page: NDArray[np.uint8], picture: NDArray[np.uint8], top: int, left: int) -> None:
    page[top : top + len(picture), left : left + picture.shape[1]] = picture


def test_every_marked_image_of_a_page_is_found_with_its_place() -> None:
    marker, page = Watermarker.load(), np.full((1100, 1400), 245, np.uint8)
    shown_in(page, marker.embed(textured(1, 384), "first", psnr=40.0).image, 60, 90)
    shown_in(page, resize(marker.embed(textured(2, 512), "second", psnr=40.0).image, 0.8), 600, 900)
    found = {each.message: each for each in marker.extract_all(page)}
    assert found.keys() == {"first", "second"}
    for message, (left, top, width, height) in {"first": (90, 60, 384, 384), "second": (900, 600, 410, 410)}.items():
        box = found[message].box
        assert box is not None
        assert np.abs(np.array(box) - (left, top, width, height)).max() < 80
        assert found[message].belongs is not False


def test_a_part_of_another_image_is_told_from_a_text_box() -> None:
    marker = Watermarker.load()
    image = marker.embed(textured(3, 512), "mine", psnr=40.0).image
    for other in (textured(4, 512), marker.embed(textured(4, 512), "theirs", psnr=40.0).image):
        pasted = image.copy()
        pasted[200:370, 150:320] = other[200:370, 150:320]  # a ninth
        found = marker.extract(pasted)
        assert (found.message, found.belongs) == ("mine", False)
        parts = np.array([list(row) for row in found.parts])
        side = 512 / 256 * 32
        rows, columns = np.nonzero(parts == "-")
        assert len(rows)
        assert rows.min() >= 200 // side - 1
        assert rows.max() <= 370 // side + 1
        assert columns.min() >= 150 // side - 1
        assert columns.max() <= 320 // side + 1
    for share in (0.3, 0.5):
        covered = image.copy()
        covered[: round(512 * share)] = 255
        found = marker.extract(covered)
        assert found.message == "mine"
        assert found.belongs is not False


def test_a_crop_of_little_more_than_a_tile_is_read() -> None:
    """The side of a tile is a quarter of the image's; those of the crops are 1.4 and 1.8 times as long."""
    marker = Watermarker.load()
    for seed, share in ((7, 0.125), (8, 0.2), (9, 0.125)):
        marked = marker.embed(textured(seed, 512), "tight", psnr=42.0).image
        assert marker.extract(crop(marked, share)).message == "tight"


def test_a_bent_image_does_not_look_as_if_parts_were_of_another() -> None:
    marker = Watermarker.load()
    marked = marker.embed(textured(10, 512), "bent", psnr=42.0).image
    rows, columns = np.indices(marked.shape)
    for size in (1.0, 1.5, 2.0):
        shifts = size * np.stack([np.sin(columns / 50.0), np.cos(rows / 40.0)])
        bent = ndimage.map_coordinates(marked, np.stack([rows, columns]) + shifts, order=1, mode="nearest")
        found = marker.extract(bent)
        assert found.message == "bent"
        assert found.belongs is not False


def test_corners_of_a_noisy_image_do_not_look_as_if_they_were_of_another() -> None:
    marker = Watermarker.load()
    for seed in (11, 12, 13):
        marked = marker.embed(textured(seed, 512), "noisy", psnr=42.0).image
        noise = np.random.default_rng(seed).normal(0.0, 12.0, marked.shape)
        found = marker.extract(np.clip(np.rint(marked + noise), 0, 255).astype(np.uint8))
        assert found.message == "noisy"
        assert found.belongs is not False


def test_a_strangers_mark_leaves_that_of_a_key_readable_and_is_told() -> None:
    key, stranger, public = (Watermarker.load(key=key) for key in (KEY, OTHER, None))
    image = textured(5, 512)
    marked = key.embed(image, "mine", psnr=42.0).image
    for other in (stranger, public):
        found = other.extract(marked)
        assert (found.message, found.other_key) == (None, True)
        assert key.extract(other.embed(marked, "theirs", psnr=42.0).image).message == "mine"
    assert not key.extract(image).other_key
    assert not public.extract(image).other_key
    rotated = np.ascontiguousarray(np.rot90(resize(marked, 0.8)))
    assert public.extract(rotated).other_key


def test_a_protected_region_does_not_look_as_if_it_were_of_another_image() -> None:
    marker, image, region = Watermarker.load(), textured(6, 512), Region.parse("150,150,200,200")
    marked = marker.embed(image, "mine", psnr=40.0, protect=region)
    np.testing.assert_array_equal(marked.image[150:350, 150:350], image[150:350, 150:350])
    found = marker.extract(marked.image)
    assert (found.message, found.belongs, found.partial) == ("mine", True, True)
    assert any("-" in row for row in found.parts)
    again = marker.embed(marked.image, "next", psnr=40.0, protect=region, replace=True)
    assert marker.extract(again.image).message == "next"


def test_of_two_images_in_the_same_tiles_neither_is_taken_for_the_other() -> None:
    marker, page = Watermarker.load(), np.full((1000, 1400), 245, np.uint8)
    for seed, message, top, left in ((1, "first", 100, 200), (2, "second", 300, 800)):
        shown_in(page, resize(marker.embed(textured(seed, 512), message, psnr=40.0).image, 480 / 512), top, left)
    found = marker.extract_all(page)
    assert sorted(str(each.message) for each in found) == ["first", "second"]
    assert all(each.belongs is not False for each in found)
