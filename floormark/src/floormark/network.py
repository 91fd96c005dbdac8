"""Networks that hide a message in an image and read it back: the base class, the shipped kind, the file of weights."""

import functools
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from floormark.disk import atomic, cannot_write, check_regular, decoding
from floormark.errors import ConfigurationError
from floormark.patches import above_image, calmness

NETWORK_FORMAT = "floormark-network-1"
SHIPPED_FILE = "lattice.safetensors"  # the trained network that comes with the package, in its folder
CELL = 8  # side of a cell in pixels: that of a JPEG block
GROUPS = 8  # that group norm divides the channels of a layer into
TILE = 64  # side in pixels of what repeats
CELLS_ACROSS = TILE // CELL
SLOTS = 4  # bits that are written into each cell
BASIS_SIDE = 16
"""Side in pixels of the basis patterns that bits are drawn with: twice a cell, so that neighbours overlap."""
PILOT_AMPLITUDE = 0.5  # of the pilot, relative to the message: a fifth of the energy
PILOT_BAND = 5.0, 22.0
"""Lowest and highest frequency of a pilot, in waves per tile: lungs are full of lower ones, JPEG takes higher ones."""
UNIT_CHANGE = 0.02  # change of a pixel where the gain is one


Channel = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From the encoder's output and the covers to the images as they are written and as they are received."""
Kind = TypeVar("Kind", bound="Network")


class Network(nn.Module, ABC):
    """An encoder and a decoder trained together, for messages of ``bits`` bits in images ``(channels, size, size)``.

    ``width`` is the number of channels of its layers. Files know a subclass by its name in small letters.
    """

    cell: ClassVar[int] = 1
    """The sides of the images it takes are multiples of this."""

    def __init__(self, bits: int, *, size: int, channels: int = 1, width: int = 32) -> None:
        super().__init__()
        self.bits, self.size, self.channels, self.width = bits, size, channels, width

    @property
    def arguments(self) -> dict[str, int]:
        """The arguments of the constructor that build the same network."""
        return {"bits": self.bits, "size": self.size, "channels": self.channels, "width": self.width}

    def forward(self, images: Tensor, messages: Tensor, channel: Channel) -> tuple[Tensor, Tensor]:
        """The images that ship with messages in them, and what is read of those that a channel delivers.

        Training calls this, not the parts: wrappers for several devices see only calls of the whole model.
        """
        shipped, arrived = channel(self.embed(images, messages), images)
        return shipped, self.extract(arrived)

    @abstractmethod
    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` in [0, 1] with messages ``(B, L)`` of zeros and ones; neither clamped nor rounded."""

    @abstractmethod
    def extract(self, images: Tensor) -> Tensor:
        """What the network reads from images, ``(B, C, H, W)`` to ``(B, L)``; a value above zero reads as 1."""

    @abstractmethod
    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        """The loss of what was read against the message, ``(B, L)`` twice to ``(B,)``."""


def block(inputs: int, outputs: int, *, stride: int = 1) -> nn.Sequential:
    """A 3x3 convolution, group norm, ReLU."""
    convolution = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1)
    return nn.Sequential(convolution, nn.GroupNorm(GROUPS, outputs), nn.ReLU())


@dataclass(frozen=True, eq=False)
class Encoding:
    """Messages as they will be drawn into images, before the emphasis of their bits is chosen."""

    signs: Tensor  # of the bit of each slot, (B, 4, h, w)
    amounts: Tensor  # how strongly each slot is drawn, (B, 4, h, w)
    pilot: Tensor  # (B, 1, H, W)
    gain: Tensor  # how much a pixel may change, (B, 1, H, W)


class Lattice(Network):
    """A tile of 64 x 64 pixels that carries the whole message, laid side by side all over the image.

    The residual is ``gain(image) * (message pattern + pilot)``. The gain is what the floors of the patches allow, times
    a learned one. The message pattern is a sum of learned basis patterns, linear in the bits, each of which has its
    slots in the tile; the network decides how strongly each slot of each tile is drawn, always with the sign of its
    bit. So the mark stays periodic: its period and angle show in the autocorrelation of an image that was cropped,
    resized and rotated, and the known pilot tells where a tile begins. The decoder gives a log-likelihood ratio for
    every slot, and those of a bit are added over all tiles.

    One residual serves all channels of an image, so nothing is lost where a file is stored in grey.

    Args:
        bits: length of a message, at most 256.
        size: height and width of the images, a multiple of 64. Others, also oblong ones, can be given later.
        channels: of an image.
        width: channels of the first convolutions, a multiple of 8.
    """

    cell = CELL

    def __init__(self, bits: int, *, size: int, channels: int = 1, width: int = 32) -> None:
        super().__init__(bits, size=size, channels=channels, width=width)
        if size < TILE or size % TILE:
            raise ConfigurationError(f"expected a size that is a multiple of {TILE} pixels, got {size}")
        if width < GROUPS or width % GROUPS:
            raise ConfigurationError(f"expected a width that is a multiple of {GROUPS} channels, got {width}")
        if not 1 <= bits <= SLOTS * CELLS_ACROSS**2:
            raise ConfigurationError(f"a tile holds 1 to {SLOTS * CELLS_ACROSS**2} bits, got {bits}: use fewer bits")
        self.fine = block(16, width)
        self.coarse = block(width, 2 * width, stride=2)
        self.gain = nn.Conv2d(2 * width, 1, 3, padding=1)
        self.mix = nn.Sequential(block(2 * width + SLOTS, 2 * width), nn.Conv2d(2 * width, SLOTS, 1))
        with torch.device("cpu"):  # where a network is only laid out, arithmetic would import half of torch
            # The basis patterns; the name of the parameter is a part of what names the network.
            window = torch.hann_window(BASIS_SIDE + 2, periodic=False)[1:-1]
            self.strokes = nn.Parameter(torch.randn(SLOTS, 1, BASIS_SIDE, BASIS_SIDE) * torch.outer(window, window))
        self.decoder = nn.Sequential(
            block(16, width),
            block(width, width),
            block(width, 2 * width, stride=2),
            block(2 * width, 2 * width),
            nn.Conv2d(2 * width, SLOTS, 1),
        )

    def embed(self, images: Tensor, messages: Tensor, pilots: Tensor | None = None) -> Tensor:
        """Images with messages, and with pilots ``(B, 64, 64)``; drawn at random in training if not given."""
        if pilots is None:
            pilots = random_pilots(len(images), images.device) if self.training else pilot_tiles([b""])
        return images + self.draw(self.encode(images, messages, pilots))

    def encode(self, images: Tensor, messages: Tensor, pilots: Tensor) -> Encoding:
        """Messages ``(B, L)`` for images ``(B, C, H, W)``: all of a residual but the emphasis of its bits."""
        height, width = images.shape[2:]
        grey = images.mean(1, keepdim=True)
        signs = self._laid_out(2.0 * messages - 1.0, height // CELL, width // CELL).to(images.dtype)
        features = self.coarse(self.fine(functional.pixel_unshuffle(grey - 0.5, 4)))
        amounts = 2.0 * torch.sigmoid(self.mix(torch.cat([features, signs], dim=1)))
        allowed = 10.0 ** (-above_image(calmness(grey)) / 20.0)
        gain = images.new_ones(1)
        for part in (functional.softplus(self.gain(features)), allowed):
            gain = gain * functional.interpolate(part, size=(height, width), mode="bilinear", align_corners=False)
        return Encoding(signs, amounts, _repeated(pilots.to(images)[:, None], height, width), gain)

    def draw(self, encoding: Encoding, emphasis: Tensor | None = None) -> Tensor:
        """The residual ``(B, 1, H, W)``; bits are drawn ``emphasis (B, L)`` times as strongly, if given."""
        amounts = encoding.amounts
        if emphasis is not None:
            amounts = amounts * self._laid_out(emphasis, *amounts.shape[2:])
        drawn = self._drawn(encoding.signs * amounts)
        return UNIT_CHANGE * encoding.gain * (drawn + PILOT_AMPLITUDE * encoding.pilot)

    def _laid_out(self, values: Tensor, down: int, across: int) -> Tensor:
        """The value of each bit at each of its slots, ``(B, L)`` to ``(B, 4, down, across)``."""
        tiles = values[:, _owners(self.bits).to(values.device)].view(-1, SLOTS, CELLS_ACROSS, CELLS_ACROSS)
        return _repeated(tiles, down, across)

    def _drawn(self, amounts: Tensor) -> Tensor:
        """The sum of basis patterns, each by its amount, ``(B, 4, h, w)`` to ``(B, 1, 8 h, 8 w)``.

        It has a mean square of 1 where all amounts are 1 or -1.
        """
        size = self.strokes.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        basis = self.strokes * (CELL * SLOTS**-0.5 / size)
        return functional.conv_transpose2d(amounts, basis, stride=CELL, padding=(BASIS_SIDE - CELL) // 2)

    def basis_tiles(self) -> Tensor:
        """What each slot of the first cell adds to a tile, ``(4, 64, 64)``; for other cells it is shifted."""
        slots = torch.zeros(SLOTS, SLOTS, CELLS_ACROSS, CELLS_ACROSS).to(self.strokes)
        slots[range(SLOTS), range(SLOTS), 0, 0] = 1.0
        with torch.no_grad():  # a basis pattern reaches into the next cell, and no further
            drawn = self._drawn(functional.pad(slots, (1, 1, 1, 1), mode="circular"))
        return drawn[:, 0, CELL:-CELL, CELL:-CELL]

    def extract(self, images: Tensor, weights: Tensor | None = None) -> Tensor:
        """What is read of images ``(B, C, H, W)``, whose first tile begins at their corner.

        Cells count by ``weights (B, 1, H / 8, W / 8)``; all alike if not given.
        """
        evidence = self.decoder(functional.pixel_unshuffle(images.mean(1, keepdim=True) - 0.5, 4))
        if weights is not None:
            evidence = evidence * weights
        down, across = evidence.shape[2:]
        whole = functional.pad(evidence, (0, -across % CELLS_ACROSS, 0, -down % CELLS_ACROSS))
        folded = whole.unflatten(3, (-1, CELLS_ACROSS)).unflatten(2, (-1, CELLS_ACROSS)).sum((2, 4)).flatten(1)
        owners = _owners(self.bits).to(images.device).expand(len(images), -1)
        read: Tensor = folded.new_zeros(len(images), self.bits).scatter_add(1, owners, folded)
        return read

    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(read, messages, reduction="none").mean(1)


def _repeated(tiles: Tensor, height: int, width: int) -> Tensor:
    """Tiles ``(B, C, h, w)`` side by side until they fill ``height`` x ``width``."""
    down, across = -(-height // tiles.shape[2]), -(-width // tiles.shape[3])
    return tiles.repeat(1, 1, down, across)[:, :, :height, :width]


@functools.lru_cache(maxsize=64)
def _owners(bits: int) -> Tensor:
    """The bit that each of a tile's 256 slots carries: by a hash, so that every later version reads the same."""
    slots = SLOTS * CELLS_ACROSS**2
    draws = np.frombuffer(hashlib.shake_256(f"samplewise lattice {bits}".encode()).digest(8 * slots), "<u8")
    return torch.from_numpy(np.argsort(draws, kind="stable")) % bits


def _banded(noise: Tensor) -> Tensor:
    """Noise ``(B, 64, 64)`` in the band of frequencies of a pilot, of mean square 1."""
    along = torch.fft.fftfreq(TILE, 1 / TILE)
    radius = torch.hypot(along[:, None], along)
    lowest, highest = PILOT_BAND
    kept = torch.fft.ifft2(torch.fft.fft2(noise) * ((radius >= lowest) & (radius <= highest))).real
    banded: Tensor = kept / kept.square().mean((1, 2), keepdim=True).sqrt()
    return banded


def random_pilots(count: int, device: torch.device | None = None) -> Tensor:
    """Pilots for training, ``(count, 64, 64)``."""
    return _banded(torch.randn(count, TILE, TILE)).to(device)


def pilot_tiles(seeds: Sequence[bytes]) -> Tensor:
    """The pilot that belongs to each seed, ``(seeds, 64, 64)``: in every version the same."""
    streams = (hashlib.shake_256(b"samplewise pilot " + seed).digest(TILE**2 * 2) for seed in seeds)
    draws = np.frombuffer(b"".join(streams), "<u2").reshape(-1, TILE, TILE)
    return _banded(torch.from_numpy(draws / 65535.0 - 0.5).float())


def network_name(network: Network) -> str:
    """The name of a network in certificates: its kind, and a part of the hash of all its weights."""
    digest = hashlib.sha256(json.dumps(network.arguments, sort_keys=True).encode())
    return f"{_kind(network)}-{_hashed(digest, network.state_dict())[:12]}"


def _kind(network: Network) -> str:
    return type(network).__name__.lower()


def _hashed(digest: Any, weights: Mapping[str, Tensor]) -> str:
    """The hexadecimal digest of what ``digest`` has taken in and of the names, types, shapes and values of weights."""
    for key, value in sorted(weights.items()):
        digest.update(f"{key}:{value.dtype}:{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return str(digest.hexdigest())


def _digest(header: Mapping[str, str], weights: Mapping[str, Tensor]) -> str:
    """Of the header of a file and all its weights."""
    return _hashed(hashlib.blake2b(json.dumps(dict(header), sort_keys=True).encode(), digest_size=16), weights)


def save_network(path: Path, network: Network) -> None:
    """Write a network to a safetensors file, whole or not at all.

    The header holds the format, the kind and the arguments of the network as JSON, and a digest of these and of all
    weights.
    """
    weights = {key: value.detach().cpu().contiguous().clone() for key, value in network.state_dict().items()}
    header = {"format": NETWORK_FORMAT, "kind": _kind(network), "arguments": json.dumps(network.arguments)}
    try:
        with atomic(Path(path)) as temporary:
            save_file(weights, temporary, metadata={**header, "digest": _digest(header, weights)})
    except SafetensorError as error:
        raise cannot_write(Path(path), OSError(0, str(error))) from error


def load_network(path: Path, kinds: Mapping[str, type[Kind]]) -> Kind:
    """Build the network that :func:`save_network` wrote, in eval mode.

    Raises:
        DataError: the file is torn, foreign or damaged, or of a kind that is not among ``kinds``, classes by name.
    """
    with decoding(path, "a network"):
        check_regular(path)
        try:
            with safe_open(path, framework="pt") as file:
                header = file.metadata() or {}
                weights = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary
        except SafetensorError as error:
            raise ValueError(str(error)) from error
        if (written := header.get("format")) != NETWORK_FORMAT:
            raise ValueError(f"expected the format {NETWORK_FORMAT}, got {written!r}")
        if header.pop("digest", None) != _digest(header, weights):
            raise ValueError("it is damaged, as its contents do not match its checksum")
        if (kind := header["kind"]) not in kinds:
            raise ValueError(f"expected the kind {' or '.join(kinds)}, got {kind!r}")
        with torch.device("meta"):  # the weights of the file are all that takes memory, whatever it asks for
            network = kinds[kind](**json.loads(header["arguments"]))
        if network.channels not in (1, 3):
            raise ValueError(f"expected images of 1 or 3 channels, got {network.channels}")
        for key, value in network.state_dict().items():
            if weights[key].dtype != value.dtype:
                raise ValueError(f"expected {key} of type {value.dtype}, got {weights[key].dtype}")
        network.load_state_dict(weights, assign=True)
    return network.eval()
