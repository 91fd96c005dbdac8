"""A small learned codec for blocks of 16 x 16 pixels: transform, gain of each block, entropy model."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

SIDE = 16
PIXELS = SIDE * SIDE
LEVELS = 24
"""Gains that a block may choose from, sent as side information."""
STEP = 1 / 6
"""Between the logarithms of two gains."""
UNIT_LEVEL = 16
"""The level whose gain is one; most blocks need less."""
HYPER = 2
"""Whole numbers sent for each block that say how its coefficients are spread."""
WIDTH = 4.0
"""Of the hyper-latent and of the gain's level, in units of the networks' outputs: keeps those near one."""
GRID = 8.0
"""Steps of the logarithm of a scale in one unit: encoder and decoder round to it, so that both use the same model."""
SMALLEST, LARGEST = -3.5, 8.0  # logarithms of scales
SYMBOL_LIMIT = 4000
"""Of a quantised coefficient in size: what a file can hold."""


class Symbols(NamedTuple):
    """The transmitted symbols of some blocks, as whole numbers."""

    level: Tensor
    """Of the gain, ``(B,)``."""
    hyper: Tensor
    """``(B, HYPER)``."""
    coefficients: Tensor
    """``(B, PIXELS)``."""


class Coded(NamedTuple):
    """Bits, error and reconstruction of each block."""

    bits: Tensor
    """``(B,)``, side information included."""
    error: Tensor
    """Mean squared error ``(B,)`` in units of what the floor allows: at most 1 is above the floor."""
    symbols: Symbols


def straight_through(x: Tensor) -> Tensor:
    """Round, with the gradient of the identity."""
    return x + (x.round() - x).detach()


def laplace_bits(x: Tensor, log_scale: Tensor) -> Tensor:
    """Bits of the interval of length one around ``x`` under a Laplace distribution around zero, for each entry."""
    distance, rate = x.abs(), torch.exp(-log_scale)
    beyond = torch.exp(-rate * (distance - 0.5).clamp_min(0)) * -torch.expm1(-rate) / 2
    within = 1 - (torch.exp(-rate * (0.5 - distance).clamp_min(0)) + torch.exp(-rate * (0.5 + distance))) / 2
    return -torch.log2(torch.where(distance >= 0.5, beyond, within).clamp_min(2.0**-24))


def rounding_errors(coefficients: Tensor) -> Tensor:
    """Logarithms of the mean squared errors of ``coefficients`` rounded at each gain, ``(B, LEVELS)``.

    In units of the error that the floor allows, so that a network sees which gain is about enough.
    """
    gains = torch.exp(STEP * (torch.arange(LEVELS, dtype=coefficients.dtype) - UNIT_LEVEL))
    scaled = coefficients.unsqueeze(1) * gains.unsqueeze(1)
    sizes: Tensor = (
        torch.linalg.vector_norm(scaled.sub_(scaled.round()), dim=2) / gains
    )  # in place: memory is what takes time
    return sizes.square().mul(12 / coefficients.shape[1]).clamp_min(1e-6).log()


def enough_gain(errors: Tensor, allowed: Tensor) -> Tensor:
    """Where :func:`rounding_errors` ``(B, LEVELS)`` fall below ``allowed`` ``(B,)``, between two levels, ``(B,)``."""
    above = (errors > allowed.detach().unsqueeze(1)).long() * torch.arange(1, LEVELS + 1)
    last = above.amax(1).clamp(1, LEVELS - 1).unsqueeze(1) - 1
    high, low = errors.gather(1, last).squeeze(1), errors.gather(1, last + 1).squeeze(1)
    return last.squeeze(1) + (high - allowed) / (high - low).clamp_min(STEP)


def narrowed(x: Tensor) -> Tensor:
    """Values of any size as inputs of a network: the logarithm of their size, with their sign."""
    return x.abs().log1p() * x.sign()


def _network(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """A network with one hidden layer; its output starts at zero, so that the codec starts as its linear transform."""
    last = nn.Linear(hidden, outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), last)


class Codec(nn.Module):
    """Codes each block by itself; begins at the principal components of ``blocks``.

    A block's coefficients are multiplied by its gain, which a network chooses, and rounded. Their scales depend on the
    gain and on two further numbers. In training, noise takes the place of rounding for the bits, and the reconstruction
    is neither clamped nor rounded; in evaluation mode bits and error are those of what is sent and shown. Files
    are written and read in double precision (:meth:`ready`), so that encoder and decoder round alike.

    Args:
        blocks: to begin with, ``(N, PIXELS)`` of uint8.
        floor: the PSNR that is asked for, in dB; it sets the codec's units.
        hidden: width of the networks.
        conditioned: choose the gain also by a weight that is given with each block, see :meth:`forward`.
    """

    mean: Tensor

    def __init__(self, blocks: Tensor, floor: float, *, hidden: int = 64, conditioned: bool = False) -> None:
        super().__init__()
        self.floor, self.hidden, self.conditioned = floor, hidden, conditioned
        self.allowed = 10 ** (-floor / 10)
        pixels = blocks.double() / 255
        values, vectors = torch.linalg.eigh(torch.cov(pixels.T))
        basis = vectors.flip(1)
        self.unit = math.sqrt(12 * self.allowed)  # rounding to steps of this size errs by what is allowed
        scales = (values.flip(0).clamp_min(1e-12).sqrt() / self.unit).log()
        self.register_buffer("mean", pixels.mean(0).float())
        self.analysis = nn.Parameter(basis.T.float().contiguous())
        self.synthesis = nn.Parameter(basis.float().contiguous())
        self.refine = _network(PIXELS, hidden, PIXELS)
        self.restore = _network(PIXELS, hidden, PIXELS)
        self.choose = _network(PIXELS + LEVELS + conditioned, hidden, 2)
        self.summarise = nn.Sequential(nn.Linear(PIXELS + 1, hidden), nn.GELU(), nn.Linear(hidden, HYPER))
        self.spread = _network(HYPER + 1, hidden, PIXELS)
        self.log_scales = nn.Parameter(scales.clamp(-3, LARGEST).float())
        self.follow = nn.Parameter(torch.tensor(0.5))
        self.hyper_log_scales = nn.Parameter(torch.zeros(HYPER))
        self.expect = _network(HYPER, hidden, 1)
        self.level_log_scale = nn.Parameter(torch.tensor(1.0))

    def ready(self) -> "Codec":
        """Itself, in double precision and evaluation mode."""
        return self.double().eval()

    def transforms(self) -> list[nn.Parameter]:
        """The linear transforms, which start near a good solution and get a smaller learning rate."""
        return [self.analysis, self.synthesis]

    def forward(self, blocks: Tensor, level: Tensor | None = None, weight: Tensor | None = None) -> Coded:
        """Code blocks.

        Args:
            blocks: ``(B, PIXELS)`` of uint8.
            level: of the gain ``(B,)``, in place of the network's choice.
            weight: of the error ``(B,)``, for a conditioned codec.
        """
        pixels = blocks.to(self.mean.dtype) / 255
        coefficients = (pixels - self.mean) @ self.analysis.T / self.unit
        coefficients = coefficients + self.refine(narrowed(coefficients))
        sizes = coefficients.abs().log1p()
        if level is None:
            seen = [sizes, rounding_errors(coefficients.detach())]
            if weight is not None:
                seen.append(weight.log().unsqueeze(1) / WIDTH)
            shift, allowed = self.choose(torch.cat(seen, 1)).unbind(1)
            chosen = UNIT_LEVEL + shift * WIDTH + self.follow * (enough_gain(seen[1], allowed) - UNIT_LEVEL)
            level = chosen + (chosen.round().clamp(0, LEVELS - 1) - chosen).detach()  # a slope beyond the ends too
        gain = level.unsqueeze(1) - UNIT_LEVEL
        hyper = self.summarise(torch.cat([sizes, gain / WIDTH], 1)) * WIDTH
        scaled = coefficients * torch.exp(STEP * gain)
        symbols = Symbols(
            level,
            straight_through(hyper),
            straight_through(scaled.clamp(-SYMBOL_LIMIT, SYMBOL_LIMIT)),
        )
        log_scales = self.coefficient_scales(symbols)
        if self.training:
            costs = laplace_bits(scaled + torch.rand_like(scaled) - 0.5, log_scales)
            hyper_costs = laplace_bits(hyper + torch.rand_like(hyper) - 0.5, self.hyper_log_scales)
            shown = self.restored(symbols)
        else:
            costs = laplace_bits(symbols.coefficients, log_scales)
            hyper_costs = laplace_bits(symbols.hyper, self.hyper_scales())
            shown = self.shown(symbols).to(pixels.dtype) / 255
        level_costs = laplace_bits(level - self.expected_level(symbols), self.level_scale())
        bits = costs.sum(1) + hyper_costs.sum(1) + level_costs
        return Coded(bits, (shown - pixels).square().mean(1) / self.allowed, symbols)

    def coefficient_scales(self, symbols: Symbols) -> Tensor:
        """Logarithms of the coefficients' scales, ``(B, PIXELS)``."""
        gain = symbols.level.unsqueeze(1) - UNIT_LEVEL
        scales = self.log_scales + STEP * gain + self.spread(torch.cat([symbols.hyper, gain], 1) / WIDTH)
        return scales.clamp(SMALLEST, LARGEST) if self.training else _on_grid(scales)

    def hyper_scales(self) -> Tensor:
        """Logarithms of the scales of the hyper-latent, as they are sent with."""
        return _on_grid(self.hyper_log_scales)

    def expected_level(self, symbols: Symbols) -> Tensor:
        """The level of the gain that the hyper-latent predicts, ``(B,)``."""
        level: Tensor = self.expect(symbols.hyper / WIDTH).squeeze(1) * WIDTH + UNIT_LEVEL
        return level if self.training else (level * GRID).round() / GRID

    def level_scale(self) -> Tensor:
        """Logarithm of the scale of the levels' distribution around the expected one."""
        return self.level_log_scale if self.training else _on_grid(self.level_log_scale)

    def shown(self, symbols: Symbols) -> Tensor:
        """Pixels of blocks in 8 bits, ``(B, PIXELS)``."""
        return self.restored(symbols).mul(255).round().clamp(0, 255).to(torch.uint8)

    def restored(self, symbols: Symbols) -> Tensor:
        """Reconstruct the pixels of blocks from the symbols, ``(B, PIXELS)``, about 0 to 1."""
        gain = symbols.level.unsqueeze(1) - UNIT_LEVEL
        coefficients = symbols.coefficients * torch.exp(-STEP * gain)
        coefficients = coefficients + self.restore(narrowed(coefficients))
        pixels: Tensor = coefficients * self.unit @ self.synthesis.T + self.mean
        return pixels


def _on_grid(log_scales: Tensor) -> Tensor:
    return (log_scales * GRID).round().clamp(SMALLEST * GRID, LARGEST * GRID) / GRID
