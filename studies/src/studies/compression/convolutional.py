"""A small convolutional codec for tiles of 64 x 64 pixels: one gain a tile, a hyper-latent, a Laplace model."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from studies.compression import codec
from studies.compression.codec import (
    LEVELS,
    PIXELS,
    SIDE,
    STEP,
    UNIT_LEVEL,
    WIDTH,
    Coded,
    Symbols,
    laplace_bits,
    narrowed,
    straight_through,
)

TILE = 64
ACROSS = TILE // SIDE
"""Positions of the latent along a side of a tile."""
POSITIONS = ACROSS**2
JOINT = 8
"""Channels that are transformed once more over all positions: what changes slowly is the same in many of them."""
HYPER_CHANNELS = 2
FILTER_CELL = 4  # pixels


def _network(inputs: int, hidden: int, outputs: int, *, last: int = 1) -> nn.Sequential:
    """Two convolutions; their output starts at zero, so that the codec starts as its linear transform."""
    end = nn.Conv2d(hidden, outputs, last, padding=last // 2)
    nn.init.zeros_(end.weight)
    assert end.bias is not None
    nn.init.zeros_(end.bias)
    return nn.Sequential(nn.Conv2d(inputs, hidden, 3, padding=1), nn.GELU(), end)


def _mix(x: Tensor, matrix: Tensor) -> Tensor:
    """A convolution of 1 x 1."""
    return F.conv2d(x, matrix[:, :, None, None])


def _components(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Principal components of ``rows``, one a row and the largest first, and their variances."""
    variances, vectors = torch.linalg.eigh(torch.cov(rows.T.double()))
    return vectors.flip(1).T.contiguous(), variances.flip(0).clamp_min(1e-12)


class ConvolutionalCodec(nn.Module):
    """Codes each tile as a latent of 256 channels at a sixteenth of its resolution.

    A strided convolution that begins at the principal components of blocks, and for the first channels a second one
    over the blocks, both refined by small convolutional networks; after the inverse, a filter over the edges of blocks.
    The latent is multiplied by the tile's gain and rounded. Its scales depend on the gain and on a rounded
    hyper-latent; gain, hyper-latent and latent are all counted. In training noise takes the place of rounding for the
    bits, and rounding has the gradient of the identity for the error.

    Args:
        tiles: to begin with, ``(N, TILE ** 2)`` of uint8.
        floor: the PSNR that is asked for, in dB; it sets the codec's units.
        hidden: channels of the networks.
    """

    mean: Tensor

    def __init__(self, tiles: Tensor, floor: float, *, hidden: int = 48) -> None:
        super().__init__()
        self.floor, self.hidden = floor, hidden
        self.allowed = 10 ** (-floor / 10)
        self.unit = math.sqrt(12 * self.allowed)  # rounding to steps of this size errs by what is allowed
        blocks = _blocks(tiles.float() / 255)
        rows = blocks.movedim(1, -1).reshape(-1, PIXELS)
        basis, variances = _components(rows)
        self.register_buffer("mean", rows.mean(0))
        self.analysis = nn.Parameter(basis.float())
        first = _mix(blocks - self.mean[:, None, None], self.analysis.detach()[:JOINT])
        joint, joint_variances = _components(F.pixel_unshuffle(first, ACROSS).flatten(1))
        self.joint = nn.Parameter(joint.float())
        self.synthesis = nn.Parameter(basis.T.float().contiguous())
        self.joint_synthesis = nn.Parameter(joint.T.float().contiguous())
        spread = torch.cat([joint_variances, variances[JOINT:].repeat_interleave(POSITIONS)]).view(-1, ACROSS, ACROSS)
        self.log_scales = nn.Parameter((spread.sqrt() / self.unit).log().clamp(-3, codec.LARGEST).float())
        self.hyper_log_scales = nn.Parameter(torch.zeros(HYPER_CHANNELS, 1, 1))
        self.refine = _network(PIXELS, hidden, PIXELS)
        self.restore = _network(PIXELS, hidden, PIXELS)
        self.filter = _network(FILTER_CELL**2, hidden, FILTER_CELL**2, last=3)
        self.choose = nn.Sequential(nn.Linear(PIXELS + LEVELS, hidden), nn.GELU(), nn.Linear(hidden, 2))
        for parameter in self.choose[2].parameters():
            nn.init.zeros_(parameter)
        self.follow = nn.Parameter(torch.tensor(0.5))
        self.summarise = nn.Sequential(
            nn.Conv2d(PIXELS + 1, hidden, 3, padding=1), nn.GELU(), nn.Conv2d(hidden, HYPER_CHANNELS, 1)
        )
        self.spread = _network(HYPER_CHANNELS + 1, hidden, PIXELS)

    def ready(self) -> "ConvolutionalCodec":
        """Itself, in evaluation mode."""
        return self.eval()

    def transforms(self) -> list[nn.Parameter]:
        """The linear transforms, which start near a good solution and get a smaller learning rate."""
        return [self.analysis, self.joint, self.synthesis, self.joint_synthesis]

    def forward(self, tiles: Tensor, level: Tensor | None = None, weight: Tensor | None = None) -> Coded:
        """Code tiles ``(B, TILE ** 2)`` of uint8; bits are those of 256 pixels on average, as of the block codec.

        ``level`` is of the gain ``(B,)``, in the place of what the network would choose; there is no ``weight``.
        """
        pixels = tiles.to(self.mean.dtype) / 255
        latent = self._analysed(pixels)
        level = self._chosen(latent) if level is None else level
        gain = (level - UNIT_LEVEL)[:, None, None, None]
        seen = gain.expand(-1, 1, *latent.shape[2:]) / WIDTH
        hyper = self.summarise(torch.cat([latent.abs().log1p(), seen], 1)) * WIDTH
        scaled = latent * torch.exp(STEP * gain)
        symbols = Symbols(level, straight_through(hyper), straight_through(scaled))
        log_scales = self.log_scales + STEP * gain + self.spread(torch.cat([symbols.hyper / WIDTH, seen], 1))
        shown = self._restored(symbols.coefficients * torch.exp(-STEP * gain))
        if self.training:
            sent, sent_hyper = (x + torch.rand_like(x) - 0.5 for x in (scaled, hyper))
        else:
            sent, sent_hyper = symbols.coefficients, symbols.hyper
            shown = shown.mul(255).round().clamp(0, 255) / 255
        bits = laplace_bits(sent, log_scales.clamp(codec.SMALLEST, codec.LARGEST)).sum((1, 2, 3))
        bits = bits + laplace_bits(sent_hyper, self.hyper_log_scales).sum((1, 2, 3)) + math.log2(LEVELS)
        return Coded(bits / POSITIONS, (shown - pixels).square().mean(1) / self.allowed, symbols)

    def _chosen(self, latent: Tensor) -> Tensor:
        """The level of each tile's gain ``(B,)``, with a slope beyond the ends too."""
        errors = codec.rounding_errors(latent.detach().flatten(1))
        shift, allowed = self.choose(torch.cat([latent.abs().log1p().mean((2, 3)), errors], 1)).unbind(1)
        chosen = UNIT_LEVEL + shift * WIDTH + self.follow * (codec.enough_gain(errors, allowed) - UNIT_LEVEL)
        level: Tensor = chosen + (chosen.round().clamp(0, LEVELS - 1) - chosen).detach()
        return level

    def _analysed(self, pixels: Tensor) -> Tensor:
        """The latent ``(B, PIXELS, ACROSS, ACROSS)`` at the unit gain."""
        latent = _mix(_blocks(pixels) - self.mean[:, None, None], self.analysis) / self.unit
        latent = latent + self.refine(narrowed(latent))
        return _over_positions(latent, self.joint)

    def _restored(self, latent: Tensor) -> Tensor:
        """Pixels ``(B, TILE ** 2)``, about 0 to 1."""
        latent = _over_positions(latent, self.joint_synthesis)
        latent = latent + self.restore(narrowed(latent))
        pixels = F.pixel_shuffle(_mix(latent, self.synthesis) * self.unit + self.mean[:, None, None], SIDE)
        edges = self.filter(F.pixel_unshuffle(pixels, FILTER_CELL))
        return (pixels + F.pixel_shuffle(edges, FILTER_CELL)).flatten(1)


def _blocks(pixels: Tensor) -> Tensor:
    """Tiles ``(B, TILE ** 2)`` as ``(B, PIXELS, ACROSS, ACROSS)``."""
    return F.pixel_unshuffle(pixels.view(-1, 1, TILE, TILE), SIDE)


def _over_positions(latent: Tensor, matrix: Tensor) -> Tensor:
    """Transform the first channels over all positions of a tile."""
    mixed = F.pixel_shuffle(_mix(F.pixel_unshuffle(latent[:, :JOINT], ACROSS), matrix), ACROSS)
    return torch.cat([mixed, latent[:, JOINT:]], 1)
