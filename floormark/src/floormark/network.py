"""A network whose mark repeats over the image, so that it can be found again wherever the image went."""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from floormark.base_network import Network
from floormark.patches import above_image, calmness
from samplewise.errors import ConfigurationError
from studies.watermark.networks.swift import CELL as CELL
from studies.watermark.networks.swift import GROUPS, block

TILE = 64
"""Side in pixels of what repeats."""
ACROSS = TILE // CELL
SLOTS = 4
"""Bits that are written into each cell."""
STROKE = 16
"""Side in pixels of the strokes that bits are drawn with: twice a cell, so that neighbours run into each other."""
PILOT = 0.5
"""Size of the pilot beside that of the message: a fifth of the energy."""
PILOT_BAND = 5.0, 22.0
"""Lowest and highest number of waves of a pilot in a tile: of less a lung is full, of more JPEG leaves nothing."""
STRENGTH = 0.02
"""Change of a pixel where the gain is one."""


class Lattice(Network):
    """A tile of 64 x 64 pixels that carries the whole message, laid side by side all over the image.

    A residual is ``gain(image) * (strokes(message) + pilot)``. The gain is what the floors of the patches allow, times
    what is learned. The strokes are learned and linear in the bits, each of which has a place in the tile; the network
    only decides how strongly each place of each tile is drawn, always with the sign of its bit. So the mark stays
    periodic: its period and angle show in the autocorrelation of an image that was cropped, scaled and turned, and the
    known pilot tells where a tile begins. The decoder gives a log-likelihood ratio for every place, and those of a bit
    are added over all tiles that are left.

    One residual serves all channels of an image, so nothing is lost where a file is stored in grey.

    Args:
        bits: length of a message, at most 256.
        size: height and width of the images, a multiple of 64. Others, also oblong ones, can be given later.
        channels: of an image.
        width: channels of the first convolutions, a multiple of 8.
    """

    cell = CELL
    tile = TILE

    def __init__(self, bits: int, *, size: int, channels: int = 1, width: int = 32) -> None:
        super().__init__(bits, size=size, channels=channels, width=width)
        if size < TILE or size % TILE:
            raise ConfigurationError(f"expected a size that is a multiple of {TILE} pixels, got {size}")
        if width < GROUPS or width % GROUPS:
            raise ConfigurationError(f"expected a width that is a multiple of {GROUPS} channels, got {width}")
        if not 1 <= bits <= SLOTS * ACROSS**2:
            raise ConfigurationError(f"a tile holds 1 to {SLOTS * ACROSS**2} bits, got {bits}: use fewer bits")
        self.fine = block(16, width)
        self.coarse = block(width, 2 * width, stride=2)
        self.gain = nn.Conv2d(2 * width, 1, 3, padding=1)
        self.mix = nn.Sequential(block(2 * width + SLOTS, 2 * width), nn.Conv2d(2 * width, SLOTS, 1))
        with torch.device("cpu"):  # where a network is only laid out, arithmetic would import half of torch
            self.strokes = nn.Parameter(torch.randn(SLOTS, 1, STROKE, STROKE) * _hann(STROKE))
        self.decoder = nn.Sequential(
            block(16, width),
            block(width, width),
            block(width, 2 * width, stride=2),
            block(2 * width, 2 * width),
            nn.Conv2d(2 * width, SLOTS, 1),
        )

    @property
    def least_cells(self) -> int:
        return ACROSS**2  # a tile

    def embed(self, images: Tensor, messages: Tensor, pilots: Tensor | None = None) -> Tensor:
        """Images with messages, and with pilots ``(B, 64, 64)``; drawn at random in training if not given."""
        if pilots is None:
            pilots = random_pilots(len(images), images.device) if self.training else pilot_tile(b"")[None]
        return images + self.residual(images, messages, pilots)

    def residual(self, images: Tensor, messages: Tensor, pilots: Tensor, emphasis: Tensor | None = None) -> Tensor:
        """What is added to every channel, ``(B, 1, H, W)``; bits are drawn ``emphasis (B, L)`` times as strongly."""
        height, width = images.shape[2:]
        down, across = height // CELL, width // CELL
        signs = self._laid_out(2.0 * messages - 1.0, down, across).to(images.dtype)
        features = self.coarse(self.fine(functional.pixel_unshuffle(images.mean(1, keepdim=True) - 0.5, 4)))
        amounts = 2.0 * torch.sigmoid(self.mix(torch.cat([features, signs], dim=1)))
        if emphasis is not None:
            amounts = amounts * self._laid_out(emphasis, down, across)
        drawn = self._drawn(signs * amounts)
        pilot = _repeated(pilots.to(images)[:, None], height, width)
        room = 10.0 ** (-above_image(calmness(images.mean(1, keepdim=True))) / 20.0)
        gain = images.new_ones(1)
        for part in (functional.softplus(self.gain(features)), room):
            gain = gain * functional.interpolate(part, size=(height, width), mode="bilinear", align_corners=False)
        return STRENGTH * gain * (drawn + PILOT * pilot)

    def _laid_out(self, values: Tensor, down: int, across: int) -> Tensor:
        """A value for each bit at each of its places, ``(B, L)`` to ``(B, 4, down, across)``."""
        tiles = values[:, _owners(self.bits).to(values.device)].view(-1, SLOTS, ACROSS, ACROSS)
        return _repeated(tiles, down, across)

    def _drawn(self, amounts: Tensor) -> Tensor:
        """Strokes of so much in each slot, ``(B, 4, h, w)`` to ``(B, 1, 8 h, 8 w)``; of mean square 1 where all are."""
        size = self.strokes.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        strokes = self.strokes * (CELL * SLOTS**-0.5 / size)
        return functional.conv_transpose2d(amounts, strokes, stride=CELL, padding=(STROKE - CELL) // 2)

    def stroke_tiles(self) -> Tensor:
        """What each slot adds to a tile among tiles, ``(256, 64, 64)``."""
        slots = torch.eye(SLOTS * ACROSS**2).view(-1, SLOTS, ACROSS, ACROSS).to(self.strokes)
        with torch.no_grad():  # a stroke reaches into the next cell, and no further
            drawn = self._drawn(functional.pad(slots, (1, 1, 1, 1), mode="circular"))
        return drawn[:, 0, CELL:-CELL, CELL:-CELL]

    def extract(self, images: Tensor, trust: Tensor | None = None) -> Tensor:
        """What is read of images ``(B, C, H, W)``, whose first tile begins at their corner.

        ``trust (B, 1, H / 8, W / 8)`` says how much each cell counts; all alike if not given.
        """
        evidence = self.decoder(functional.pixel_unshuffle(images.mean(1, keepdim=True) - 0.5, 4))
        if trust is not None:
            evidence = evidence * trust
        down, across = evidence.shape[2:]
        whole = functional.pad(evidence, (0, -across % ACROSS, 0, -down % ACROSS))
        folded = whole.unflatten(3, (-1, ACROSS)).unflatten(2, (-1, ACROSS)).sum((2, 4)).flatten(1)
        owners = _owners(self.bits).to(images.device).expand(len(images), -1)
        read: Tensor = folded.new_zeros(len(images), self.bits).scatter_add(1, owners, folded)
        return read

    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        return functional.binary_cross_entropy_with_logits(read, messages, reduction="none").mean(1)


def _repeated(tiles: Tensor, height: int, width: int) -> Tensor:
    """Tiles ``(B, C, h, w)`` side by side until they fill ``height`` x ``width``."""
    down, across = -(-height // tiles.shape[2]), -(-width // tiles.shape[3])
    return tiles.repeat(1, 1, down, across)[:, :, :height, :width]


def _hann(size: int) -> Tensor:
    """A window that falls to zero towards the ends, ``(size, size)``."""
    window = torch.hann_window(size + 2, periodic=False)[1:-1]
    return torch.outer(window, window)


@functools.lru_cache(maxsize=64)
def _owners(bits: int) -> Tensor:
    """The bit that each of a tile's 256 slots carries.

    By a hash and not by a random generator: files must be readable by every later version.
    """
    slots = SLOTS * ACROSS**2
    draws = np.frombuffer(hashlib.shake_256(f"samplewise lattice {bits}".encode()).digest(8 * slots), "<u8")
    return torch.from_numpy(np.argsort(draws, kind="stable")) % bits


def _banded(noise: Tensor) -> Tensor:
    """Noise ``(B, 64, 64)`` with the waves of a pilot alone, of mean square 1."""
    along = torch.fft.fftfreq(TILE, 1 / TILE)
    radius = torch.hypot(along[:, None], along)
    lowest, highest = PILOT_BAND
    kept = torch.fft.ifft2(torch.fft.fft2(noise) * ((radius >= lowest) & (radius <= highest))).real
    banded: Tensor = kept / kept.square().mean((1, 2), keepdim=True).sqrt()
    return banded


def random_pilots(count: int, device: torch.device | None = None) -> Tensor:
    """Pilots for training, ``(count, 64, 64)``."""
    return _banded(torch.randn(count, TILE, TILE)).to(device)


@functools.lru_cache(maxsize=512)
def pilot_tile(seed: bytes) -> Tensor:
    """The pilot that belongs to ``seed``, ``(64, 64)``: in every version the same."""
    draws = np.frombuffer(hashlib.shake_256(b"samplewise pilot " + seed).digest(TILE**2 * 2), "<u2")
    return _banded(torch.from_numpy(draws.reshape(1, TILE, TILE) / 65535.0 - 0.5).float())[0]
