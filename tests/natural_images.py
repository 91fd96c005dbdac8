"""Pictures with the spectrum of photographs, so that compression and filters meet what they are made for."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def natural_image(channels: int = 1, *, height: int = 96, width: int = 80, seed: int = 0) -> NDArray[np.uint8]:
    """Noise whose amplitude falls with frequency, with a black corner; grey ``(H, W)`` or RGB ``(H, W, 3)``."""
    rng = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width))
    frequency[0, 0] = 1.0

    def layer() -> NDArray[np.float64]:
        found = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((height, width))) / frequency**1.5, s=(height, width))
        return np.asarray((found - found.mean()) / found.std())

    # Channels of photographs are mostly alike.
    light = layer()
    image = light[..., None] if channels == 1 else np.stack([light + 0.3 * layer() for _ in range(channels)], axis=-1)
    image = 0.5 + 0.18 * image
    image[: height // 4, : width // 4] = 0.0
    pixels: NDArray[np.uint8] = np.rint(image.clip(0, 1) * 255).astype(np.uint8)
    return pixels[..., 0] if channels == 1 else pixels


def natural_batch(count: int, channels: int = 1, *, height: int = 48, width: int = 40) -> Tensor:
    """Different ones in [0, 1], shape ``(count, channels, height, width)``."""
    return torch.cat(
        [to_tensor(natural_image(channels, height=height, width=width, seed=seed)) for seed in range(count)]
    )


def to_tensor(image: NDArray[np.uint8]) -> Tensor:
    """In [0, 1], ``(H, W)`` or ``(H, W, C)`` to ``(1, C, H, W)``."""
    return torch.from_numpy(np.atleast_3d(image)).permute(2, 0, 1)[None].float() / 255


def to_pixels(image: Tensor) -> NDArray[np.uint8]:
    """Rounded to 8 bits, ``(1, C, H, W)`` to ``(H, W)`` or ``(H, W, 3)``."""
    pixels = (image[0].detach().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    return pixels[..., 0] if pixels.shape[2] == 1 else pixels
