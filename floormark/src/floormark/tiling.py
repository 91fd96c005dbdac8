"""The scheme by which a message lies in an image: tiles all over it, each with the whole message and a pilot."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from floormark.content_binding import PAIRS, ContentBinding
from floormark.errors import DataError
from floormark.network import TILE, Encoding, Lattice, pilot_tiles
from floormark.payload import Codec, Extracted, Key, Payload, derived
from floormark.prepared import MAX_NETWORK_PIXELS, NetworkInput, PreparedImage
from floormark.registration import CANDIDATES, Alignment, Pilots, periods
from floormark.strength import Residual

PILOTS = 256  # of a key, of which an image has one; order and mask of the bits differ with it
MIN_REGISTERED_SCORE = 4.5
"""Standard deviations of a pilot. Chance reaches 4.4 and more at times: the checksum decides, this saves trials."""
ALIGNED_PILOTS = 3  # how many pilots are tried in an image that nobody moved, the likeliest first
MIN_ALIGNED_SCORE = 2.6  # standard deviations that each of them has at least; of all pilots one has that by chance
EMPHASIS_ROUNDS = 4  # how often the emphasis of the bits is corrected, so that none is much harder to read than others
MAX_EMPHASISED_PIXELS = 1 << 20
"""Of the network; in a larger image, which has more than 256 tiles, no bit is hard to read."""
EVEN_MARGIN = 0.6  # part of the median margin; where every bit has more, the emphasis is left as it is
EMPHASIS_RANGE = 0.75, 1.6  # the least and the largest factor by which one round changes the emphasis of a bit


@dataclass(frozen=True, eq=False)
class Decoded:
    """What was read of an image at one alignment."""

    logits: NDArray[np.float32] | None = None  # of each bit; None if nothing could be read
    found: Extracted | None = None
    salt: str = ""  # that the message was encoded with: the number of its pilot


@dataclass(frozen=True, eq=False)
class EncodedMessage:
    """A message encoded for one image: the same for every floor."""

    bits: NDArray[np.uint8]
    encoding: Encoding
    replaced: Encoding | None  # that of the message in whose place it is written, if there is one


class TiledScheme:
    """Tiles that registration finds again, with a message that is bound to the content of the image."""

    trials = ALIGNED_PILOTS + 1 + CANDIDATES
    """How often reading one image tries to decode bits, at most: by each likely pilot where nobody moved the image,
    then at the size of a whole image, then at each period that is found."""

    def __init__(self, network: Lattice, key: Key | None) -> None:
        self.network, self.key = network, key
        self.codec = Codec(network.bits, key, content_bits=PAIRS)
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

    def encode(self, image: PreparedImage, payload: Payload, *, replaced: Decoded | None = None) -> EncodedMessage:
        """Encode a payload for an image; ``replaced`` is what was read of it, if the payload is to replace that."""
        grey = image.network_input.grey
        content_code = self.content.code(grey)
        # Which pilot an image has is a matter of its content and the key; a message that replaces another keeps its.
        digest = hashlib.blake2b(np.rint(grey).astype(np.uint8).tobytes(), key=derived(self.key, "salt", 32)).digest()
        salt = str(digest[0]) if replaced is None else replaced.salt
        bits = self.codec.encode(payload, content_code, salt)
        images, pilots = image.network_input.tensor(), pilot_tiles([self.seeds[int(salt)]])
        with torch.inference_mode():
            encoding = self.network.encode(images, _messages(bits), pilots)
            before = None
            if replaced is not None and replaced.found is not None and replaced.found.payload is not None:
                old = self.codec.encode(replaced.found.payload, replaced.found.content_code, salt)
                before = self.network.encode(images, _messages(old), pilots)
        return EncodedMessage(bits, encoding, before)

    def residual(self, image: PreparedImage, message: EncodedMessage, floor: float) -> Residual:
        """What to add to an image so that it carries a message at a floor."""
        with torch.inference_mode():
            if message.replaced is None:
                drawn = self._emphasised(image.network_input.tensor(), message, 10.0 ** (-floor / 20.0))
            else:
                drawn = self.network.draw(message.encoding) - self.network.draw(message.replaced)
        return Residual(drawn[0, 0].numpy() * np.float32(image.shown[1]), image.scale)

    def _emphasised(self, images: Tensor, message: EncodedMessage, size: float) -> Tensor:
        """A residual of that root mean square; bits that are hard to read in this image are drawn more strongly."""
        messages = _messages(message.bits)
        emphasis = torch.ones_like(messages)
        for _ in range(EMPHASIS_ROUNDS if images.numel() <= MAX_EMPHASISED_PIXELS else 0):
            drawn = self.network.draw(message.encoding, emphasis)
            scaled = drawn * (size / drawn.square().mean().sqrt().clamp_min(1e-9))
            margins = self.network.extract((images + scaled).clamp(0.0, 1.0)) * (2.0 * messages - 1.0)
            typical = margins.median()
            if typical <= 0 or margins.min() > EVEN_MARGIN * typical:
                return drawn
            wanted = (typical / margins.clamp_min(0.2 * typical)).sqrt().clamp(*EMPHASIS_RANGE)
            emphasis = emphasis * wanted
            emphasis = emphasis / emphasis.square().mean().sqrt()
        return self.network.draw(message.encoding, emphasis)

    def decode_aligned(self, image: PreparedImage) -> Decoded:
        """Decode an image as it lies, not moved since it was marked."""
        pilots = self.pilots.likely(image.network_input.grey, MIN_ALIGNED_SCORE)[:ALIGNED_PILOTS]
        return self._decode(image.network_input, pilots, registered=False) if pilots else Decoded()

    def decode_registered(self, image: PreparedImage) -> Extracted | None:
        """Decode an image that was moved, at each alignment that registration finds."""
        for alignment in self._alignments(image):
            decoded = self._decode(image.resample(alignment, TILE), [alignment.pilot], registered=True)
            if decoded.found is not None:
                return decoded.found
        return None

    def _alignments(self, image: PreparedImage) -> Iterator[Alignment]:
        """Where the tiles may lie: at the size of a whole image, then as its periods say."""

        def sizes() -> Iterator[NDArray[np.float64]]:
            yield image.unmoved.matrix
            yield from (matrix / TILE for _, matrix in periods(image.picture))

        for matrix in sizes():
            alignment = Alignment(matrix, np.zeros(2))
            if math.prod(alignment.covering(image.picture.shape, TILE)[1]) > MAX_NETWORK_PIXELS:
                continue  # a very oblong image is not searched at an angle
            alignment = self.pilots.oriented(image.picture, alignment)
            if alignment.score > MIN_REGISTERED_SCORE:
                yield self.pilots.refined(image.picture, alignment)

    def _decode(self, given: NetworkInput, pilots: list[int], *, registered: bool) -> Decoded:
        """Decode what the network is given, by the first pilot that fits."""
        with torch.inference_mode():
            logits = self.network.extract(given.tensor(), given.weights())[0].numpy()
        for pilot in pilots:
            found = self.codec.decode(logits, str(pilot))
            if found is not None:
                belongs = self.content.belongs(found.content_code, given, registered=registered)
                return Decoded(logits, replace(found, belongs=belongs), str(pilot))
        return Decoded(logits)


def _messages(bits: NDArray[np.uint8]) -> Tensor:
    """Bits as a network takes them, ``(1, L)``."""
    return torch.from_numpy(bits)[None].float()
