"""Pure per-sample measures: tensors in, one number for each sample out, shape ``(B,)``."""

import torch
from torch import Tensor

from samplewise.errors import MeasureError

__all__ = ["bit_error", "mae", "max_difference", "mse", "psnr", "ssim"]


def _same_shape(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape or first.ndim == 0:
        raise MeasureError(
            f"expected two tensors of one shape (B, ...), got {tuple(first.shape)} and "
            f"{tuple(second.shape)}: broadcasting would hide a mistake, so reshape one of them"
        )


def mse(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each sample.

    Args:
        prediction: shape ``(B, ...)``.
        target: the same shape.

    Returns:
        Shape ``(B,)``.

    Example:
        >>> import torch
        >>> mse(torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.ones(2, 2))
        tensor([1., 0.])
    """
    _same_shape(prediction, target)
    return (prediction - target).square().flatten(1).mean(1)


def mae(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of each sample, ``(B, ...)`` twice to ``(B,)``.

    Example:
        >>> import torch
        >>> mae(torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.ones(2, 2))
        tensor([1., 0.])
    """
    _same_shape(prediction, target)
    return (prediction - target).abs().flatten(1).mean(1)


def max_difference(prediction: Tensor, target: Tensor) -> Tensor:
    """Largest absolute difference in each sample, ``(B, ...)`` twice to ``(B,)``.

    Example:
        >>> import torch
        >>> max_difference(torch.tensor([[0.0, 4.0], [1.0, 1.0]]), torch.ones(2, 2))
        tensor([3., 0.])
    """
    _same_shape(prediction, target)
    return (prediction - target).abs().flatten(1).amax(1)


def psnr(image: Tensor, reference: Tensor, *, peak: float = 1.0, ceiling: float = 120.0) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB: ``10 log10(peak^2 / mse)``.

    Identical images would have an infinite PSNR and an undefined gradient, which no optimiser survives. The mean
    squared error is therefore held above the value that belongs to ``ceiling``; there the gradient is zero.

    Args:
        image: shape ``(B, ...)``.
        reference: the same shape.
        peak: the largest value a pixel can take (1.0, 255, or ``2**bits - 1``).
        ceiling: the value in dB that stands for "identical".

    Returns:
        Shape ``(B,)``, at most ``ceiling``.

    Example:
        >>> import torch
        >>> psnr(torch.full((1, 1, 8, 8), 0.25), torch.full((1, 1, 8, 8), 0.5))
        tensor([12.0412])
    """
    floor = peak**2 * 10.0 ** (-ceiling / 10.0)
    return 10.0 * torch.log10(peak**2 / mse(image, reference).clamp_min(floor))


def ssim(image: Tensor, reference: Tensor, *, peak: float = 1.0) -> Tensor:
    """Structural similarity of each image, by torchmetrics.

    Args:
        image: shape ``(B, C, H, W)``.
        reference: the same shape.
        peak: the largest value a pixel can take.

    Returns:
        Shape ``(B,)``, 1 for identical images.
    """
    # Imported here because torchmetrics is an extra that the core does without.
    from torchmetrics.functional.image import structural_similarity_index_measure

    _same_shape(image, reference)
    value = structural_similarity_index_measure(image, reference, data_range=peak, reduction="none")
    assert isinstance(value, Tensor)  # a tuple only when maps are asked for
    return value.reshape(len(image))


def bit_error(logits: Tensor, bits: Tensor) -> Tensor:
    """Share of wrong bits in each message; a logit above zero reads as 1.

    Args:
        logits: shape ``(B, L)``.
        bits: shape ``(B, L)``, zeros and ones.

    Returns:
        Shape ``(B,)``, in [0, 1].

    Example:
        >>> import torch
        >>> bit_error(torch.tensor([[3.0, -1.0]]), torch.tensor([[1.0, 1.0]]))
        tensor([0.5000])
    """
    _same_shape(logits, bits)
    return ((logits > 0) != (bits > 0.5)).flatten(1).float().mean(1)
