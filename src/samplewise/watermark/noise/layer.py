"""Noise as a layer between embedding and reading: one of its alternatives in each step of training."""

import torch
from torch import Tensor, nn

from samplewise.errors import DataError
from samplewise.watermark.noise.grammar import Chain, format_chains, parse_chains
from samplewise.watermark.noise.operators import OPERATORS

__all__ = ["Noise", "parse_noise"]


class Noise(nn.Module):
    """Draws one of its alternatives in each call and applies it to the batch.

    All randomness is torch's default generator's: the same seed before a call gives the same noise. ``str`` gives the
    canonical spec, which :func:`parse_noise` reads back.

    Args:
        chains: the alternatives and their weights, at least one.
    """

    def __init__(self, chains: tuple[Chain, ...]) -> None:
        super().__init__()
        self.chains = chains

    def forward(self, images: Tensor, cover: Tensor) -> Tensor:
        """Disturb images that carry a message.

        Args:
            images: grey or RGB in [0, 1], shape ``(B, 1 or 3, H, W)``.
            cover: the images before embedding, the same shape.

        Returns:
            The same shape, clamped to [0, 1].
        """
        if images.ndim != 4 or images.shape[1] not in (1, 3) or images.shape != cover.shape:
            raise DataError(
                "expected images and their covers of one shape (B, 1 or 3, H, W), got "
                f"{tuple(images.shape)} and {tuple(cover.shape)}"
            )
        weights = torch.tensor([chain.weight for chain in self.chains], dtype=torch.float64)
        for step in self.chains[int(torch.multinomial(weights, 1))].steps:
            # After every step, as tools that store images do.
            train = OPERATORS[step.name].train
            assert train is not None  # the grammar has seen to that
            images = train(images, cover, step).clamp(0.0, 1.0)
        return images

    def extra_repr(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return format_chains(self.chains)


def parse_noise(spec: str) -> Noise:
    """Read noise from a spec such as ``"2*jpeg(50..95), crop(0.7..1) + blur(0..1), identity"``.

    The entries between the commas are alternatives, drawn by their weights (1 where none is given); ``+`` applies one
    after the other. A range is drawn from uniformly, anew for each image (resize: for each batch).

    What there is to choose from: :data:`samplewise.watermark.noise.operators.OPERATORS`.

    Raises:
        ConfigurationError: the spec does not follow the grammar; the message says where and shows it.

    Example:
        >>> noise = parse_noise("dropout(.3),2 * identity")
        >>> str(noise)
        'dropout(0.3), 2*identity'
        >>> noise(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 1, 8, 8])
    """
    return Noise(parse_chains(spec))
