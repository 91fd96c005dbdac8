"""The tiled scheme: an image is covered with tiles, each with the whole message and a pilot."""

import hashlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from floormark.content_binding import PAIRS, ContentBinding
from floormark.errors import DataError
from floormark.filters import Picture, median
from floormark.network import CELL, TILE, Encoding, Lattice, pilot_tiles
from floormark.parts import PART, Box, compare_parts
from floormark.payload import Codec, Extracted, Key, Payload, derived
from floormark.periods import SEARCHES, Window, find_periods
from floormark.prepared import NETWORK_SIDE, NetworkInput, PreparedImage, TileLayout
from floormark.registration import MESSAGE_EXPLAINED, UNSURE_ALIGNMENTS, Alignment, Pilots, resample
from floormark.strength import Residual

PILOTS = 256  # of a key; an image has one, which also selects order and mask of the bits
MIN_REGISTERED_SCORE, PLAIN_SCORE = 4.5, 5.2
"""Least scores of a pilot in standard deviations: with evidence of a message, and without. Chance reaches 4.9 at times:
the checksum decides, these scores only save trials."""
ALIGNED_PILOTS = 3  # pilots tried in an image that was not moved, the likeliest first
MIN_ALIGNED_SCORE = 2.6  # least score of each; by chance, one of all pilots reaches it
OTHER_KEY_EXPLAINED = 0.3
"""Part of the energy of summed tiles that messages explain, from which on there is a mark of some key: at least 0.35 in
60 readings of 20 marked X-rays at 45 dB, a third of them rotated; at most 0.17 in unmarked ones."""
MATCHED_WEIGHT = 0.5
"""Weight of the matched filter: its standard deviation relative to the decoder's. In crops to 12 or 15 % of X-rays
marked at 45 dB, 11 bits of 255 are wrong with both, 16 with the decoder alone; after JPEG 10, 7 either way. With
the filter alone 12 and 15: registered images are decoded with it alone too."""
PART_SIDE = PART * CELL  # of the network's pixels
BENT_PERCENTILE, MAX_STRAIGHT = 90, 1.0
"""Percentile of the shifts of parts that carry the message; above so many of the network's pixels, it was bent."""
CANDIDATES = 4  # periods tried, for the whole picture and for each size of window
MOST_OF_IT = 0.6  # part of a picture; once found images cover as much, the search ends
EMPHASIS_ROUNDS = 4  # corrections of the emphasis of bits, so that none is much harder to read than others
MAX_EMPHASISED_PIXELS = 1 << 20
"""The network's pixels; a larger image has more than 256 tiles, and no bit is hard to read."""
EVEN_MARGIN = 0.6  # part of the median margin; if every bit has more, the emphasis is not changed
EMPHASIS_RANGE = 0.75, 1.6  # the least and the largest factor by which one round changes the emphasis of a bit


@dataclass(frozen=True, eq=False)
class Decoded:
    """The result of decoding an image at one alignment."""

    logits: NDArray[np.float32] | None = None  # of each bit; None if nothing could be read
    found: Extracted | None = None
    salt: str = ""  # with which the message was encoded: the number of its pilot


@dataclass(frozen=True, eq=False)
class EncodedMessage:
    """A message encoded for one image: the same for every floor."""

    bits: NDArray[np.uint8]
    encoding: Encoding
    replaced: Encoding | None  # the encoding of the message that it replaces, if any


class TiledScheme:
    """Tiles that registration finds again, with a message that is bound to the content of the image."""

    trials = 2 * (ALIGNED_PILOTS + 2 * (UNSURE_ALIGNMENTS + 1) * (2 + len(SEARCHES) * CANDIDATES))
    """Most decoding trials in reading one image.

    First with each likely pilot as if the image was not moved; then at the sizes of a whole image and at the periods
    found, straight and bent, also with the matched filter alone; each with and without what covers the image.
    """

    def __init__(self, network: Lattice, key: Key | None) -> None:
        self.network, self.key = network, key
        self.codec = Codec(network.bits, key, content_bits=PAIRS)
        self.layout = TileLayout.of(key)
        self.content = ContentBinding(key)
        self.seeds = [derived(key, f"pilot {number}", 16) for number in range(PILOTS)]
        self.pilots = Pilots(network, self.seeds)

    def tiles(self, image: PreparedImage) -> float:
        """How many tiles fit along the shorter side; below 1 the image is too small."""
        return float(min(image.pixels.shape[:2])) / TILE

    def check_size(self, image: PreparedImage) -> None:
        """Refuse an image that is too small."""
        if self.tiles(image) < 1:
            height, width = image.pixels.shape[:2]
            raise DataError(f"expected an image of at least {TILE} x {TILE} pixels, got {width} x {height}")

    def encode(
        self, image: PreparedImage, payload: Payload, *, replaced: Decoded | None = None, partial: bool = False
    ) -> EncodedMessage:
        """Encode a payload for an image.

        Args:
            image: to be marked.
            payload: to be hidden.
            replaced: what was read from the image, if the payload is to replace that.
            partial: whether parts of the image will be left unmarked.
        """
        given = image.network_input(self.layout)
        # The content and the key select the pilot; a message that replaces another keeps that one's.
        shown = np.rint(given.grey).astype(np.uint8).tobytes()
        digest = hashlib.blake2b(shown, key=derived(self.key, "salt", 32)).digest()
        salt = str(digest[0]) if replaced is None else replaced.salt
        if replaced is not None and replaced.found is not None:
            partial |= replaced.found.partial
        bits = self.codec.encode(payload, self.content.code(given), salt, partial=partial)
        (pilot,) = pilot_tiles([self.seeds[int(salt)]])
        encoding, before = self.network.encode(given.picture, bits, pilot), None
        if replaced is not None and replaced.found is not None and replaced.found.payload is not None:
            old = self._bits(replaced.found, salt)
            before = self.network.encode(given.picture, old, pilot)
        return EncodedMessage(bits, encoding, before)

    def residual(self, image: PreparedImage, message: EncodedMessage, floor: float) -> Residual:
        """The residual by which an image carries a message at a floor."""
        given = image.network_input(self.layout)
        if message.replaced is None:
            drawn = self._emphasised(given.picture, message, 10.0 ** (-floor / 20.0))
        else:
            drawn = self.network.draw(message.encoding) - self.network.draw(message.replaced)
        return self.placed(image, drawn)

    def placed(self, image: PreparedImage, drawn: Picture) -> Residual:
        """The network's residual, scaled to the shown range and placed in an image."""
        given = image.network_input(self.layout)
        down, across = (image.scale * np.array(self.layout.stretch)).tolist()
        top, left = (np.array(self.layout.shift) - given.origin).tolist()
        return Residual(drawn * np.float32(image.shown[1]), (down, across), (top, left))

    def _emphasised(self, picture: Picture, message: EncodedMessage, size: float) -> Picture:
        """A residual of root mean square ``size``; bits that are hard to read in this image are emphasised."""
        emphasis = np.ones(len(message.bits), np.float32)
        for _ in range(EMPHASIS_ROUNDS if picture.size <= MAX_EMPHASISED_PIXELS else 0):
            drawn = self.network.draw(message.encoding, emphasis)
            scaled = drawn * np.float32(size / max(_rms(drawn), 1e-9))
            margins = self.network.extract(np.clip(picture + scaled, 0.0, 1.0)) * (2.0 * message.bits - 1.0)
            typical = median(margins)
            if typical <= 0 or margins.min() > EVEN_MARGIN * typical:
                return drawn
            emphasis *= np.clip(np.sqrt(typical / np.maximum(margins, 0.2 * typical)), *EMPHASIS_RANGE)
            emphasis /= _rms(emphasis)
        return self.network.draw(message.encoding, emphasis)

    def decode_aligned(self, image: PreparedImage) -> Decoded:
        """Decode an image without registration, as if it was not moved since it was marked."""
        first = Decoded()
        for given in _with_and_without_cover(image.network_input(self.layout)):
            pilots = self.pilots.likely(given.grey, given.usable, given.origin, MIN_ALIGNED_SCORE)[:ALIGNED_PILOTS]
            decoded = self._decode(image, given, pilots, registered=False) if pilots else Decoded()
            if decoded.found is not None:
                return decoded
            first = decoded if first.logits is None else first
        return first

    def decode_registered(self, image: PreparedImage) -> Iterator[Extracted]:
        """Decode marked images that were moved or are parts of another, at each place that registration finds.

        If none can be read, but there is a mark of another key, the only result says so.
        """
        picture, explained = image.picture, 0.0
        taken: list[tuple[Window, Payload | None]] = []  # windows with a mark, and its payload
        for matrix, window in self._places(image):
            if any(window.common(each).area > 0.5 * window.area for each, _ in taken):
                continue
            whole = window.area == picture.size
            for alignment in self._alignments(image, matrix, window):
                explained = max(explained, alignment.explained)
                if not _promising(alignment, whole):
                    continue
                found = self._decode_at(image, alignment, window)
                if found is not None and found.box is not None:
                    left, top, width, height = (round(edge / image.factor) for edge in found.box)
                    place = Window(top, left, top + height, left + width)
                    # Two windows may show parts of one image: the same payload in overlapping places is one image.
                    if not any(
                        place.common(each).area > (0.0 if said == found.payload else 0.5 * min(place.area, each.area))
                        for each, said in taken
                    ):
                        yield found
                        taken.append((place, found.payload))
                    break
            if sum(each.area for each, _ in taken) >= MOST_OF_IT * picture.size:
                return
        if not taken and explained > OTHER_KEY_EXPLAINED:
            yield Extracted(other_key=True)

    def _places(self, image: PreparedImage) -> Iterator[tuple[NDArray[np.float64], Window]]:
        """Candidate sizes and angles of the network's pixels, and windows: of a whole image, then from periods."""
        picture = image.picture
        whole, stretch = Window(0, 0, *picture.shape), np.diag(self.layout.stretch)
        scales = {image.scale / image.factor, min(picture.shape) / NETWORK_SIDE}  # a small one may have been large
        yield from ((scale * stretch, whole) for scale in sorted(scales, reverse=True))
        for found in find_periods(picture, self.layout.stretch[0] / self.layout.stretch[1]):
            yield from ((each.matrix / TILE, each.window) for each in found[:CANDIDATES])

    def _alignments(self, image: PreparedImage, matrix: NDArray[np.float64], window: Window) -> Iterator[Alignment]:
        """Where tiles of that size and angle begin in a window; if a pilot fits, refined, and then bent as well."""
        alignment = Alignment(matrix, np.zeros(2))
        if image.too_large(alignment, window):
            return
        picture = window.of(image.picture)
        likely = self.pilots.oriented(picture, alignment)
        whole = picture.shape == image.picture.shape
        if not _promising(likely[0], whole):
            yield likely[0].seen_from(-window.top, -window.left)
            return
        refined = [self.pilots.refined(picture, each) for each in (likely if whole else likely[:1])]
        yield from (each.seen_from(-window.top, -window.left) for each in refined)
        yield self.pilots.bent(picture, refined[0]).seen_from(-window.top, -window.left)

    def _decode_at(self, image: PreparedImage, alignment: Alignment, window: Window) -> Extracted | None:
        """Decode a window at an alignment."""
        for given in _with_and_without_cover(image.resample(alignment, TILE, window)):
            decoded = self._decode(image, given, [alignment.pilot], registered=True)
            if decoded.found is not None:
                return decoded.found
        return None

    def _decode(self, image: PreparedImage, given: NetworkInput, pilots: list[int], *, registered: bool) -> Decoded:
        """Decode the network's input with the first pilot that fits."""
        evidence, matched = self._evidence(given)
        logits, filtered = self.network.read(evidence), self.network.read(matched)
        for pilot, read in itertools.product(pilots, (logits, filtered) if registered else (logits,)):
            found = self.codec.decode(read, str(pilot))
            if found is not None and found.payload is not None:
                bits = self._bits(found, str(pilot))
                parts = compare_parts(evidence, self.network.signs(bits, evidence.shape[1:]), given)
                # Around a registered image another one may lie in the same tiles.
                foreign = parts.within_present if registered else parts.foreign
                if foreign.any():
                    foreign = foreign & self._foreign_if_bent(given, bits, pilot)
                belongs = self._belongs(found, given, foreign, registered=registered)
                box = _extent(image, given, parts.present) if registered else (0, 0, *image.pixels.shape[1::-1])
                return Decoded(logits, replace(found, belongs=belongs, box=box, parts=parts.shown(foreign)), str(pilot))
        return Decoded(logits)

    def _evidence(self, given: NetworkInput) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Evidence of cells, ``(4, h, w)``: of the decoder with the matched filter, and of the filter alone."""
        learned = self.network.evidence(given.picture, given.weights)
        matched = self.network.matched(given.grey, given.usable)
        return learned + np.float32(MATCHED_WEIGHT * learned.std() / (matched.std() + 1e-12)) * matched, matched

    def _foreign_if_bent(self, given: NetworkInput, bits: NDArray[np.uint8], pilot: int) -> NDArray[np.bool_]:
        """Which parts are foreign even after each is shifted to where it agrees best; none if the picture was bent.

        In a bent picture the mark seems to be missing, and what covers the picture hides how it was bent.
        """
        down, across = (-(-length // PART_SIDE) for length in given.grey.shape)
        if given.alignment.bend is not None:
            return np.zeros((down, across), np.bool_)
        if given.missing is not None:
            return np.ones((down, across), np.bool_)
        shape = (TILE * -(-given.grey.shape[0] // TILE), TILE * -(-given.grey.shape[1] // TILE))
        zero = np.zeros(2, np.int64)
        bent = self.pilots.bent(given.grey, Alignment(np.eye(2), np.zeros(2), pilot=pilot))
        assert bent.bend is not None
        grey, inside = resample(given.grey, bent, zero, shape)
        inside[: given.grey.shape[0], : given.grey.shape[1]] &= given.inside
        straight = NetworkInput(grey, inside, bent, zero)
        evidence, _ = self._evidence(straight)
        parts = compare_parts(evidence, self.network.signs(bits, evidence.shape[1:]), straight)
        middles = slice(PART_SIDE // 2, None, PART_SIDE)
        moved = np.linalg.norm(bent.bend.over(zero, shape), axis=0)[middles, middles]
        if np.percentile(moved[parts.present], BENT_PERCENTILE) > MAX_STRAIGHT:
            return np.zeros((down, across), np.bool_)
        return parts.foreign[:down, :across]

    def _bits(self, found: Extracted, salt: str) -> NDArray[np.uint8]:
        """The embedded bits of a message that was read."""
        assert found.payload is not None
        return self.codec.encode(found.payload, found.content_code, salt, partial=found.partial)

    def _belongs(
        self, found: Extracted, given: NetworkInput, foreign: NDArray[np.bool_], *, registered: bool
    ) -> bool | None:
        """Whether a message belongs to the image; if it seems not to, checked again without what covers the image."""
        if foreign.any() and not found.partial:
            return False
        belongs = self.content.belongs(found.content_code, given, registered=registered)
        if belongs or given.missing is not None or (uncovered := given.uncovered()) is None:
            return belongs
        return self.content.belongs(found.content_code, uncovered, registered=registered)


def _with_and_without_cover(given: NetworkInput) -> Iterator[NetworkInput]:
    """The network's input, then the same with covering regions filled in, if there are any."""
    yield given
    if (uncovered := given.uncovered()) is not None:
        yield uncovered


def _promising(alignment: Alignment, whole: bool) -> bool:
    """Whether there may be a mark: a pilot surely fits, or there is evidence of a message and a pilot may fit.

    In a whole picture weak evidence is enough, as tight crops have no better. The windows of a picture are many, and
    text or stripes in some resemble a message.
    """
    if alignment.score > PLAIN_SCORE:
        return True
    return alignment.explained > MESSAGE_EXPLAINED and (whole or alignment.score > MIN_REGISTERED_SCORE)


def _extent(image: PreparedImage, given: NetworkInput, present: NDArray[np.bool_]) -> Box:
    """The rectangle of the image that holds the parts of the network's pixels that are present."""
    side = given.grey.shape[0] // present.shape[0]
    rows, columns = np.nonzero(present)
    corners = np.array([(r, c) for r in (rows.min(), rows.max() + 1) for c in (columns.min(), columns.max() + 1)])
    at = given.alignment.matrix @ (side * corners + given.origin).T + given.alignment.start[:, None]
    height, width = image.picture.shape
    (top, left), (bottom, right) = (np.clip(edge, 0, (height, width)) * image.factor for edge in (at.min(1), at.max(1)))
    return round(left), round(top), round(right - left), round(bottom - top)


def _rms(values: NDArray[np.float32]) -> float:
    return math.sqrt(float(np.square(values).mean()))
