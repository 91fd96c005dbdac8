"""Pure per-sample measures: tensors in, one number for each sample out, shape ``(B,)``."""

import contextlib
import math

import torch
from torch import Tensor

from samplewise.errors import MeasureError, needed_for

__all__ = ["bit_error", "mae", "max_difference", "mse", "psnr", "ssim"]

SSIM_WINDOW = 11  # pixels on each side of the Gaussian window


def _check(first: Tensor, second: Tensor) -> None:
    shape = first.shape
    if shape != second.shape or not shape:
        raise MeasureError(
            f"expected two tensors of one shape (B, ...), got {tuple(shape)} and {tuple(second.shape)}: broadcasting "
            "would hide a mistake, so reshape one of them"
        )
    if 0 in shape[1:]:
        raise MeasureError(f"expected at least one value in each sample, got the shape {tuple(shape)}")


def _wide(tensor: Tensor) -> Tensor:
    """The tensor in float32 at least: squares of small errors vanish in half precision."""
    if tensor.dtype is torch.float32 or tensor.dtype is torch.float64:
        return tensor
    if not tensor.is_floating_point():
        raise MeasureError(
            f"expected tensors of floating point type, got {tensor.dtype}: differences of unsigned integers wrap "
            "around, so convert both first, for example with .float()"
        )
    return tensor.float()


def _difference(first: Tensor, second: Tensor) -> Tensor:
    """``first - second`` as ``(B, n)``."""
    _check(first, second)
    difference = _wide(first) - _wide(second)
    return difference if difference.ndim == 2 else difference.unsqueeze(-1).flatten(1)


def _check_peak(reference: Tensor, peak: float) -> None:
    """Refuse images of 0 to 255 with ``peak=1``, judged by the reference image and only if it is on the host.

    Ten times the peak is beyond any overshoot and any normalisation. Reading from an accelerator would wait for it.
    """
    if reference.is_cpu and reference.numel() and not torch.compiler.is_compiling():
        largest = 0.0
        with contextlib.suppress(RuntimeError):  # in torch.vmap nothing can be read
            largest = float(reference.detach().amax())
        if largest > 10 * peak:
            likely = next((top for top in (255, 1023, 4095, 65535) if largest <= top), "the largest pixel value")
            raise MeasureError(f"expected pixels from 0 to peak = {peak:g}, got up to {largest:g}: give peak={likely}")


def mse(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of each sample, ``(B, ...)`` twice to ``(B,)``.

    Example:
        >>> import torch
        >>> mse(torch.tensor([[0.0, 2.0], [1.0, 1.0]]), torch.ones(2, 2))
        tensor([1., 0.])
    """
    return _difference(prediction, target).square().mean(1)


def mae(prediction: Tensor, target: Tensor) -> Tensor:
    """Mean absolute error of each sample, ``(B, ...)`` twice to ``(B,)``."""
    return _difference(prediction, target).abs().mean(1)


def max_difference(prediction: Tensor, target: Tensor) -> Tensor:
    """Largest absolute difference in each sample, ``(B, ...)`` twice to ``(B,)``."""
    return _difference(prediction, target).abs().amax(1)


def psnr(image: Tensor, reference: Tensor, *, peak: float = 1.0, ceiling: float = 120.0) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, ``10 log10(peak^2 / mse)``: ``(B, ...)`` twice to ``(B,)``.

    Identical images would have an infinite PSNR and an undefined gradient, which no optimiser survives. The mean
    squared error is therefore held above the value that belongs to ``ceiling``, the value in dB that stands for
    "identical", at most 300; there the gradient is zero. ``peak`` is the largest value a pixel can take
    (1.0, 255, or ``2**bits - 1``).

    Example:
        >>> import torch
        >>> psnr(torch.full((1, 1, 8, 8), 0.25), torch.full((1, 1, 8, 8), 0.5))
        tensor([12.0412])
    """
    if not (0 < peak < math.inf and 0 < ceiling <= 300):
        raise MeasureError(f"expected a finite peak > 0 and 0 < ceiling <= 300 dB, got {peak} and {ceiling}")
    _check_peak(reference, peak)
    relative = mse(image, reference) / peak**2
    return -10.0 * torch.log10(relative.clamp_min(10.0 ** (-ceiling / 10.0)))


def ssim(image: Tensor, reference: Tensor, *, peak: float = 1.0) -> Tensor:
    """Structural similarity of each image, by torchmetrics: ``(B, C, H, W)`` twice to ``(B,)``, 1 if identical.

    ``peak`` is the largest value a pixel can take.
    """
    _check(image, reference)
    if image.ndim != 4 or min(image.shape[2:]) < SSIM_WINDOW:
        raise MeasureError(
            f"expected images of shape (B, C, H, W) with H and W of at least {SSIM_WINDOW}, got {tuple(image.shape)}"
        )
    _check_peak(reference, peak)
    with needed_for("ssim", "images"):
        # Imported here because torchmetrics is an extra that the core does without.
        from torchmetrics.functional.image import structural_similarity_index_measure
    value = structural_similarity_index_measure(image, reference, data_range=peak, reduction="none")
    assert isinstance(value, Tensor)  # a tuple only when maps are asked for
    return value.reshape(len(image))


def bit_error(logits: Tensor, bits: Tensor) -> Tensor:
    """Fraction of wrong bits in each message, ``(B, L)`` twice to ``(B,)``; a logit above zero reads as 1.

    ``bits`` are zeros and ones of any type.

    Example:
        >>> import torch
        >>> bit_error(torch.tensor([[3.0, -1.0]]), torch.tensor([[1.0, 1.0]]))
        tensor([0.5000])
    """
    _check(logits, bits)
    wrong = ((logits > 0) != (bits > 0.5)).float()
    return wrong.flatten(1).mean(1) if wrong.ndim > 1 else wrong
