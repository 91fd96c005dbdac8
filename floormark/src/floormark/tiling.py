"""The two ways in which a message lies in an image: cells that must stay where they are, and tiles that are found."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floormark.content_binding import PAIRS, Content
from floormark.display_range import BAND, shown_grey, shown_range
from floormark.errors import DataError
from floormark.imageio import StoredImage, bands
from floormark.network import CELL, TILE, Lattice, pilot_tile
from floormark.payload import Codec, Extracted, Key, Payload, derived
from floormark.payload.codec import layouts
from floormark.registration import CANDIDATES, Picture, Pilots, Place, periods, seen_at
from floormark.strength import Drawing

SIDE = 256
"""The network's pixels along the shorter side of an image, whatever its size; smaller images are seen as they are."""
PICTURE = 1024
"""Pixels of the shorter side, or up to twice as many, of the picture in which a mark is looked for."""
MOST = 1 << 22
"""Pixels that the network sees at most. Only images many times as long as they are wide have more."""
LEVELS = 255
"""Steps between black and white."""
SALTS = 256
"""Pilots, of which an image has one; order and mask of the bits differ with it."""
LEAST_PILOT = 4.5
"""Standard deviations. Chance lies around 4.4 and reaches more at times: the checksum decides, this saves tries."""
REDRAWN = 4
"""How often a mark is drawn anew, so that no bit is much harder to read than others."""
MANY = 1 << 20
"""Pixels that the network sees; of more, and so of more than 256 tiles, no bit is hard to read."""
EASY = 0.6
"""Share of the median margin; a mark whose every bit has more is not drawn anew."""
STEPS = 0.75, 1.6
"""How much weaker and stronger a bit is drawn the next time, at most."""
LIKELY_PILOTS = 3
"""How many pilots are tried where nothing else is in doubt, the likeliest first."""
LIKELY_PILOT = 2.6
"""Standard deviations that each of them has at least; of all pilots one has that by chance."""


def check_bits(bits: int) -> None:
    """Refuse a network whose messages are too short for the tool, before anybody trains it."""
    layouts(bits, tie=PAIRS)


@dataclass(frozen=True, eq=False)
class Look:
    """What was read of an image at one place."""

    logits: NDArray[np.float32] | None = None
    """Of each bit; None if nothing could be read."""
    found: Extracted | None = None
    salt: str = ""
    """That the message was encoded with."""


@dataclass(frozen=True, eq=False)
class Sight:
    """One image as the lattice is looked for in it."""

    image: StoredImage
    shown: tuple[float, float]
    """The lowest stored value and the width of the range that is seen as 0 to 1."""
    factor: int
    """Pixels of the image for one of the picture."""

    @classmethod
    def of(cls, image: StoredImage) -> Self:
        """What is shown of an image, large ones at a fraction of their size; too oblong an image is refused."""
        height, width = image.pixels.shape[:2]
        factor = max(1, min(height, width) // SIDE)
        if height * width > MOST * factor**2:
            raise DataError(f"expected an image less oblong than {width} x {height}: cut it into pieces")
        return cls(image, shown_range(image), max(1, min(image.pixels.shape[:2]) // PICTURE))

    @cached_property
    def picture(self) -> Picture:
        """In grey levels from 0 to 255."""
        parts = []
        for rows in bands(self.image.pixels, BAND, unit=self.factor):
            grey = torch.from_numpy(shown_grey(self.image.pixels[rows], self.shown))[None, None]
            parts.append(torch.nn.functional.avg_pool2d(grey, self.factor) if self.factor > 1 else grey)
        picture: Picture = torch.cat([part for part in parts if part.shape[2]], dim=2)[0, 0].numpy()
        return picture * np.float32(LEVELS)

    @property
    def scale(self) -> float:
        """Pixels of the image for one of the network's, where nobody moved it."""
        return max(1.0, float(min(self.image.pixels.shape[:2])) / SIDE)

    @property
    def unmoved(self) -> Place:
        """Where the tiles lie if nobody moved them."""
        return Place(self.scale / self.factor * np.eye(2), np.zeros(2))

    @cached_property
    def seen(self) -> tuple[Picture, NDArray[np.bool_], NDArray[np.int64]]:
        """What the network sees if nobody moved the image: grey levels, which lie inside, and the first pixel."""
        return self.at(self.unmoved, CELL)

    def at(self, place: Place, unit: int) -> tuple[Picture, NDArray[np.bool_], NDArray[np.int64]]:
        """What the network sees at a place, in whole units of pixels."""
        origin, shape = place.covering(self.picture.shape, unit)
        seen, inside = seen_at(self.picture, place, origin, shape)
        return np.clip(LEVELS - seen if place.inverted else seen, 0.0, LEVELS), inside, origin


class Woven:
    """Tiles all over an image that are found wherever it went, tied to what is in the image."""

    tries = LIKELY_PILOTS + 1 + CANDIDATES
    """By each likely pilot where nobody moved the image, then as large as if it were whole, then by each period."""

    def __init__(self, network: Lattice, key: Key | None) -> None:
        self.network = network
        self.key = key
        self.codec = Codec(network.bits, key, tie=PAIRS)
        self.content = Content(key)
        self.seeds = [derived(key, f"pilot {number}", 16) for number in range(SALTS)]
        self.pilots = Pilots(network, self.seeds)

    def room(self, image: StoredImage) -> float:
        return float(min(image.pixels.shape[:2])) / TILE

    def check_room(self, image: StoredImage) -> None:
        if self.room(image) < 1:
            height, width = image.pixels.shape[:2]
            raise DataError(f"expected an image of at least {TILE} x {TILE} pixels, got {width} x {height}")

    def draw(self, image: StoredImage, payload: Payload, floor: float, *, instead: Look | None = None) -> Drawing:
        sight = Sight.of(image)
        seen = sight.seen[0]
        tie = self.content.bits(seen)
        # Which pilot an image has is a matter of its content and the key; a mark in the place of another keeps its.
        digest = hashlib.blake2b(np.rint(seen).astype(np.uint8).tobytes(), key=derived(self.key, "salt", 32)).digest()
        salt = str(digest[0]) if instead is None else instead.salt
        bits = self.codec.encode(payload, tie, salt)
        images, pilots = (
            torch.from_numpy(seen / np.float32(LEVELS))[None, None],
            pilot_tile(self.seeds[int(salt)])[None],
        )
        messages = torch.from_numpy(bits)[None].float()
        with torch.inference_mode():
            if instead is not None and instead.found is not None and instead.found.payload is not None:
                old = self.codec.encode(instead.found.payload, instead.found.tie, salt)
                drawn = self.network.residual(images, messages, pilots)
                drawn -= self.network.residual(images, torch.from_numpy(old)[None].float(), pilots)
            else:
                drawn = self._emphasised(images, messages, pilots, 10.0 ** (-floor / 20.0))
        return Drawing(bits, drawn[0, 0].numpy() * np.float32(sight.shown[1]), sight.scale)

    def _emphasised(self, images: Tensor, messages: Tensor, pilots: Tensor, size: float) -> Tensor:
        """A residual in which bits that this image makes hard to read are drawn more strongly, and easy ones less.

        ``size`` is that at which it will be used: the root of its mean square.
        """
        emphasis = torch.ones_like(messages)
        for _ in range(REDRAWN if images.numel() <= MANY else 0):
            drawn = self.network.residual(images, messages, pilots, emphasis)
            scaled = drawn * (size / drawn.square().mean().sqrt().clamp_min(1e-9))
            margins = self.network.extract((images + scaled).clamp(0.0, 1.0)) * (2.0 * messages - 1.0)
            typical = margins.median()
            if typical <= 0 or margins.min() > EASY * typical:
                break
            wanted = (typical / margins.clamp_min(0.2 * typical)).sqrt().clamp(*STEPS)
            emphasis = emphasis * wanted
            emphasis = emphasis / emphasis.square().mean().sqrt()
        return self.network.residual(images, messages, pilots, emphasis)

    def look(self, image: StoredImage) -> Look:
        if self.room(image) < 1:
            return Look()
        sight = Sight.of(image)
        pilots = self.pilots.unmoved(sight.seen[0], LIKELY_PILOT)[:LIKELY_PILOTS]
        return self._read(*sight.seen, pilots, moved=False) if pilots else Look()

    def search(self, image: StoredImage) -> Extracted | None:
        if self.room(image) < 1:
            return None
        sight = Sight.of(image)
        looks = (self._read(*sight.at(place, TILE), [place.pilot], moved=True) for place in self._places(sight))
        return next((look.found for look in looks if look.found is not None), None)

    def _places(self, sight: Sight) -> Iterator[Place]:
        """Where the tiles may lie: as large as if the image were whole, then as its periods say."""

        def sizes() -> Iterator[NDArray[np.float64]]:
            yield sight.unmoved.matrix
            yield from (matrix / TILE for _, matrix in periods(sight.picture))

        for matrix in sizes():
            place = Place(matrix, np.zeros(2))
            if math.prod(place.covering(sight.picture.shape, TILE)[1]) > MOST:
                continue  # what is very oblong is not looked for at an angle
            place = self.pilots.best(sight.picture, place)
            if place.sure > LEAST_PILOT:
                yield self.pilots.exact(sight.picture, place)

    def _read(
        self,
        seen: Picture,
        inside: NDArray[np.bool_],
        origin: NDArray[np.int64],
        pilots: list[int],
        *,
        moved: bool,
    ) -> Look:
        """Read what the network sees, whose first pixel is the first of a tile, by the first pilot that fits."""
        down, across = seen.shape[0] // CELL, seen.shape[1] // CELL
        trust = inside.reshape(down, CELL, across, CELL).all((1, 3)).astype(np.float32)
        with torch.inference_mode():
            images = torch.from_numpy(seen / np.float32(LEVELS))[None, None]
            logits = self.network.extract(images, torch.from_numpy(trust)[None, None])[0].numpy()
        for pilot in pilots:
            found = self.codec.decode(logits, str(pilot))
            if found is not None:
                belongs = self.content.belongs(found.tie, seen, inside, origin, moved=moved)
                return Look(logits, replace(found, belongs=belongs), str(pilot))
        return Look(logits)
