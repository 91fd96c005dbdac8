"""The network that the tool ships, as it is trained; :class:`floormark.network.Lattice` is the same in use."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from floormark import network as tool
from floormark.network import BASIS_SIDE, CELL, CELLS_ACROSS, SLOTS, slot_owners
from studies.watermark.networks.base import Network, arrays, block, cell_decoder
from studies.watermark.patches import above_image, calmness


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
        tool.check_lattice(bits=bits, size=size, width=width)
        self.fine = block(16, width)
        self.coarse = block(width, 2 * width, stride=2)
        self.gain = nn.Conv2d(2 * width, 1, 3, padding=1)
        self.mix = nn.Sequential(block(2 * width + SLOTS, 2 * width), nn.Conv2d(2 * width, SLOTS, 1))
        with torch.device("cpu"):  # where a network is only laid out, arithmetic would import half of torch
            # The basis patterns; the name of the parameter is a part of what names the network.
            window = torch.hann_window(BASIS_SIDE + 2, periodic=False)[1:-1]
            self.strokes = nn.Parameter(torch.randn(SLOTS, 1, BASIS_SIDE, BASIS_SIDE) * torch.outer(window, window))
        self.decoder = cell_decoder(width, SLOTS)

    def embed(self, images: Tensor, messages: Tensor, pilots: Tensor | None = None) -> Tensor:
        """Images with messages, and with pilots ``(B, 64, 64)``; drawn at random in training if not given."""
        if pilots is None:
            pilots = random_pilots(len(images)) if self.training else torch.from_numpy(tool.pilot_tiles([b""]))
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
        return tool.UNIT_CHANGE * encoding.gain * (drawn + tool.PILOT_AMPLITUDE * encoding.pilot)

    def _laid_out(self, values: Tensor, down: int, across: int) -> Tensor:
        """The value of each bit at each of its slots, ``(B, L)`` to ``(B, 4, down, across)``."""
        owners = torch.from_numpy(slot_owners(self.bits)).to(values.device)
        return _repeated(values[:, owners].view(-1, SLOTS, CELLS_ACROSS, CELLS_ACROSS), down, across)

    def _drawn(self, amounts: Tensor) -> Tensor:
        """The sum of basis patterns, each by its amount, ``(B, 4, h, w)`` to ``(B, 1, 8 h, 8 w)``.

        It has a mean square of 1 where all amounts are 1 or -1.
        """
        size = self.strokes.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        basis = self.strokes * (CELL * SLOTS**-0.5 / size)
        return functional.conv_transpose2d(amounts, basis, stride=CELL, padding=(BASIS_SIDE - CELL) // 2)

    def extract(self, images: Tensor, weights: Tensor | None = None) -> Tensor:
        """The logits of the bits in images ``(B, C, H, W)``, whose first tile begins at their corner.

        Cells count by ``weights (B, 1, H / 8, W / 8)``; all alike if not given.
        """
        evidence = self.decoder(functional.pixel_unshuffle(images.mean(1, keepdim=True) - 0.5, 4))
        if weights is not None:
            evidence = evidence * weights
        down, across = evidence.shape[2:]
        whole = functional.pad(evidence, (0, -across % CELLS_ACROSS, 0, -down % CELLS_ACROSS))
        folded = whole.unflatten(3, (-1, CELLS_ACROSS)).unflatten(2, (-1, CELLS_ACROSS)).sum((2, 4)).flatten(1)
        owners = torch.from_numpy(slot_owners(self.bits)).to(images.device).expand(len(images), -1)
        read: Tensor = folded.new_zeros(len(images), self.bits).scatter_add(1, owners, folded)
        return read

    def in_the_tool(self) -> tool.Lattice:
        """The same network as the tool runs it, with these weights."""
        return tool.Lattice.of(self.arguments, arrays(self))


def _repeated(tiles: Tensor, height: int, width: int) -> Tensor:
    """Tiles ``(B, C, h, w)`` side by side until they fill ``height`` x ``width``."""
    down, across = -(-height // tiles.shape[2]), -(-width // tiles.shape[3])
    return tiles.repeat(1, 1, down, across)[:, :, :height, :width]


def random_pilots(count: int) -> Tensor:
    """Pilots for training, ``(count, 64, 64)``."""
    return torch.from_numpy(tool.banded(torch.randn(count, tool.TILE, tool.TILE).numpy()))
