"""HiDDeN (Zhu et al., 2018, arXiv 1807.09937) as the paper trains it, section V-B."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from samplewise.errors import ConfigurationError
from samplewise.measures import mse
from studies.watermark.networks.base import Network


def block(inputs: int, outputs: int) -> nn.Sequential:
    """A block of HiDDeN: a 3x3 convolution that keeps height and width, batch norm, ReLU."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def channels_last(images: Tensor) -> Tensor:
    """The same images with the channels of a pixel side by side in memory: faster here, and all layers keep it."""
    return images.contiguous(memory_format=torch.channels_last)


def average_pool(features: Tensor) -> Tensor:
    """The mean over all pixels, ``(B, C, H, W)`` to ``(B, C)``.

    Divides after the sum: the gradient of ``mean`` and of PyTorch's pooling would be written out pixel by pixel first.
    """
    height, width = features.shape[2:]
    return features.sum((2, 3)) / (height * width)


class MessageConv2d(nn.Conv2d):
    """3x3 convolution of ``[message, features, image]``, the message repeated over all pixels without repeating it.

    Where every pixel has the same message, each of the nine taps gives one number for an image and an output channel.
    A pixel's value is their sum, at the border without the taps that lie outside. So the message costs some small
    matrix products instead of a convolution of L channels. Weights and results are those of the plain ``Conv2d``.
    """

    def __init__(self, bits: int, features: int, channels: int, outputs: int) -> None:
        super().__init__(bits + features + channels, outputs, 3, padding=1)
        self.parts = [bits, features, channels]

    def forward(self, messages: Tensor, features: Tensor, images: Tensor) -> Tensor:  # type: ignore[override]
        """Shapes ``(B, L)``, ``(B, F, H, W)`` and ``(B, C, H, W)`` to ``(B, outputs, H, W)``."""
        of_messages, of_features, of_images = self.weight.split(self.parts, dim=1)
        # Two convolutions rather than one of both together: numbers of channels like 67 are slow.
        result = functional.conv2d(features, of_features, self.bias, padding=1)
        result += functional.conv2d(images, of_images, padding=1)
        result += self._repeated(messages, of_messages, *images.shape[2:])
        return result

    def _repeated(self, messages: Tensor, weight: Tensor, height: int, width: int) -> Tensor:
        """Convolution of messages ``(B, L)``, repeated over all pixels, by ``(O, L, 3, 3)``: ``(B, O, H, W)``."""
        taps = messages @ weight.permute(1, 2, 3, 0).flatten(1)  # (B, 3 * 3 * O)
        rows = _inside(height, like=weight) @ taps.view(len(messages), 3, -1)  # (B, H, 3 * O)
        pixels = _inside(width, like=weight) @ rows.view(len(messages), height, 3, -1)  # (B, H, W, O)
        return pixels.permute(0, 3, 1, 2)


def _inside(length: int, *, like: Tensor) -> Tensor:
    """Ones for the taps around each position that lie inside, zeros for the others, ``(length, 3)``."""
    positions = torch.arange(length, device=like.device).unsqueeze(1) + torch.tensor([-1, 0, 1], device=like.device)
    return ((positions >= 0) & (positions < length)).to(like.dtype)


class Encoder(nn.Module):
    """Four blocks on the image, one on message, features and image together, then a 1x1 convolution to an image.

    As published: no residual and no clamp, so it must learn to draw the image itself.
    """

    def __init__(self, bits: int, channels: int, width: int) -> None:
        super().__init__()
        self.features = nn.Sequential(block(channels, width), *(block(width, width) for _ in range(3)))
        self.merge = MessageConv2d(bits, width, channels, width)
        self.draw = nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.Conv2d(width, channels, 1))

    def forward(self, images: Tensor, messages: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` that carry messages ``(B, L)``."""
        images = channels_last(images)
        drawn: Tensor = self.draw(self.merge(messages, self.features(images), images))
        return drawn


class Reader(nn.Module):
    """A block of each width, their mean over the image, and a linear layer: the decoder, and the discriminator."""

    def __init__(self, channels: int, widths: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*(block(*pair) for pair in pairwise([channels, *widths])))
        self.linear = nn.Linear(widths[-1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` to ``(B, outputs)``."""
        read: Tensor = self.linear(average_pool(self.features(channels_last(images))))
        return read


class Hidden(Network):
    """HiDDeN with the layers, widths and losses published with the paper.

    Batch norm is part of it: in training an image is normalised with its batch, in use with running statistics. So
    what is measured in training (PSNR, bit errors) is not what the network ships; audits, in eval mode, measure that.
    It takes images of any size; the paper turns X-rays into RGB.

    Example:
        >>> import torch
        >>> network = Hidden(8, size=16, width=4)
        >>> marked = network.embed(torch.rand(2, 3, 16, 16), torch.randint(2, (2, 8)))
        >>> network.extract(marked).shape
        torch.Size([2, 8])
    """

    def __init__(self, bits: int, *, size: int = 224, channels: int = 3, width: int = 64) -> None:
        super().__init__(bits, size=size, channels=channels, width=width)
        if min(bits, channels, width) < 1:
            raise ConfigurationError(
                f"expected bits, channels and width of at least 1, got bits={bits}, channels={channels}, width={width}"
            )
        self.encoder = Encoder(bits, channels, width)
        self.decoder = Reader(channels, [width] * 7 + [bits], bits)

    def embed(self, images: Tensor, messages: Tensor) -> Tensor:
        marked: Tensor = self.encoder(images, messages.to(images.dtype))
        return marked

    def extract(self, images: Tensor) -> Tensor:
        # The decoder is trained towards 0 and 1 and read by rounding.
        read: Tensor = self.decoder(images) - 0.5
        return read

    def message_loss(self, read: Tensor, messages: Tensor) -> Tensor:
        """Mean squared error between the decoder's output and the message, as published."""
        return mse(read + 0.5, messages.to(read.dtype))


class Discriminator(Reader):
    """The discriminator, which tells covers from marked images: three blocks, as published."""

    def __init__(self, *, channels: int = 3, width: int = 64) -> None:
        super().__init__(channels, [width] * 3, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images ``(B, C, H, W)`` to logits ``(B,)``; above zero means a cover."""
        return super().forward(images).squeeze(1)
