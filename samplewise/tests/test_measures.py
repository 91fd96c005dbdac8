import math
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor
from torchmetrics.functional.image import peak_signal_noise_ratio

from samplewise.errors import MeasureError, MissingPackageError
from samplewise.measures import bit_error, mae, max_difference, mse, psnr, ssim

Measure = Callable[[Tensor, Tensor], Tensor]
SHAPES = [(5,), (5, 7), (5, 3, 4), (5, 3, 6, 4)]


def pair(shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(shape, generator=generator), torch.rand(shape, generator=generator)


def rows(a: Tensor, b: Tensor) -> npt.NDArray[np.float64]:
    return np.asarray((a.double() - b.double()).reshape(len(a), -1))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("measure", "oracle"),
    [
        (mse, lambda d: (d**2).mean(1)),
        (mae, lambda d: np.abs(d).mean(1)),
        (max_difference, lambda d: np.abs(d).max(1)),
        (psnr, lambda d: -10 * np.log10((d**2).mean(1))),
    ],
)
def test_agrees_with_numpy(
    measure: Measure, oracle: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]], shape: tuple[int, ...]
) -> None:
    a, b = pair(shape)
    found = measure(a, b)
    assert found.shape == (5,)
    np.testing.assert_allclose(found.numpy(), oracle(rows(a, b)), rtol=1e-5)


@pytest.mark.parametrize("peak", [1.0, 255.0, 4095.0])
def test_psnr_agrees_with_torchmetrics(peak: float) -> None:
    a, b = pair((4, 3, 16, 12))
    found = psnr(a * peak, b * peak, peak=peak)
    expected = peak_signal_noise_ratio(a * peak, b * peak, data_range=peak, reduction="none", dim=(1, 2, 3))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_psnr_of_identical_images_is_its_ceiling_with_zero_gradient(dtype: torch.dtype) -> None:
    image = torch.rand(3, 1, 8, 8).to(dtype).requires_grad_()
    found = psnr(image, image.detach().clone(), ceiling=90.0)
    torch.testing.assert_close(found, torch.full_like(found, 90.0))
    (gradient,) = torch.autograd.grad(found.sum(), image)
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_psnr_has_a_finite_gradient_next_to_identical_images() -> None:
    image = torch.rand(3, 1, 8, 8)
    near = (image + 1e-7).requires_grad_()
    found = psnr(near, image)
    assert found.max() <= 120.0 + 1e-4
    (gradient,) = torch.autograd.grad(found.sum(), near)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("measure", [psnr, ssim])
def test_pixels_far_beyond_the_peak_are_refused(measure: Callable[..., Tensor]) -> None:
    image, near = pair((2, 1, 16, 16))
    with pytest.raises(MeasureError, match="peak=255"):
        measure(200 * near, 200 * image)
    with pytest.raises(MeasureError, match="peak=4095"):
        measure(4000 * near, 4000 * image, peak=255)
    torch.testing.assert_close(measure(200 * near, 200 * image, peak=200), measure(near, image), rtol=1e-3, atol=1e-4)
    measure(1e4 * near, 3 * image)  # a normalised image, and a model that makes wild ones


def test_psnr_of_one_sample_at_a_time_in_vmap() -> None:
    image, near = pair((3, 1, 8, 8))
    found = torch.vmap(lambda x, y: psnr(x.unsqueeze(0), y.unsqueeze(0)).squeeze(0))(image, near)
    torch.testing.assert_close(found, psnr(image, near))


@pytest.mark.parametrize("measure", [mse, mae, psnr])
def test_gradcheck(measure: Measure) -> None:
    a, b = pair((3, 2, 4))
    assert torch.autograd.gradcheck(measure, (a.double().requires_grad_(), b.double().requires_grad_()))


def test_half_precision_keeps_small_errors() -> None:
    a = torch.full((2, 100), 1e-4, dtype=torch.float16)
    found = mse(a, torch.zeros_like(a))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((2,), 1e-8), rtol=1e-2, atol=0.0)


def test_ssim_agrees_with_scipy() -> None:
    a, b = pair((4, 1, 24, 20))
    expected = []
    for x, y in zip(a.double().numpy()[:, 0], b.double().numpy()[:, 0], strict=True):

        def blur(image: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
            return np.asarray(gaussian_filter(image, 1.5, truncate=3.5, mode="mirror"))

        mean_x, mean_y = blur(x), blur(y)
        var_x, var_y, both = blur(x * x) - mean_x**2, blur(y * y) - mean_y**2, blur(x * y) - mean_x * mean_y
        numerator = (2 * mean_x * mean_y + 0.01**2) * (2 * both + 0.03**2)
        index = numerator / ((mean_x**2 + mean_y**2 + 0.01**2) * (var_x + var_y + 0.03**2))
        expected.append(index.mean())
    np.testing.assert_allclose(ssim(a, b).numpy(), expected, rtol=1e-4)


def test_ssim_of_identical_images_is_one_for_a_batch_of_one_too() -> None:
    image = torch.rand(1, 3, 16, 16)
    torch.testing.assert_close(ssim(image, image), torch.ones(1))


@pytest.mark.parametrize("shape", [(2, 3, 10, 32), (2, 32, 32)])
def test_ssim_says_what_images_it_needs(shape: tuple[int, ...]) -> None:
    with pytest.raises(MeasureError, match="at least 11"):
        ssim(*pair(shape))


def test_ssim_without_torchmetrics_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchmetrics.functional.image", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'torchmetrics>="):
        ssim(*pair((1, 1, 16, 16)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_bit_error_counts_wrong_bits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 40, generator=generator)
    bits = torch.randint(2, (6, 40), generator=generator)
    expected = [
        sum(int(x > 0) != int(y) for x, y in zip(*both, strict=True)) / 40 for both in zip(logits, bits, strict=True)
    ]
    np.testing.assert_allclose(bit_error(logits, bits.to(dtype)).numpy(), expected, rtol=1e-6)


def test_bit_error_reads_a_logit_of_zero_as_zero() -> None:
    assert bit_error(torch.zeros(2), torch.tensor([0.0, 1.0])).tolist() == [0.0, 1.0]


@pytest.mark.parametrize("measure", [mse, mae, max_difference, psnr, bit_error])
@pytest.mark.parametrize("other", [(4, 1), (1, 3), (4, 3, 1), (3,), ()])
def test_refuses_shapes_that_would_broadcast(measure: Measure, other: tuple[int, ...]) -> None:
    with pytest.raises(MeasureError, match="reshape"):
        measure(torch.zeros(4, 3), torch.zeros(other))


@pytest.mark.parametrize("measure", [mse, mae, max_difference, bit_error])
def test_refuses_scalars_and_samples_without_values(measure: Measure) -> None:
    with pytest.raises(MeasureError, match="one shape"):
        measure(torch.zeros(()), torch.zeros(()))
    with pytest.raises(MeasureError, match="at least one value"):
        measure(torch.zeros(2, 0), torch.zeros(2, 0))


@pytest.mark.parametrize("measure", [mse, mae, max_difference, psnr])
def test_refuses_integers_whose_difference_wraps_around(measure: Measure) -> None:
    a = torch.tensor([[1, 2]], dtype=torch.uint8)
    with pytest.raises(MeasureError, match="uint8"):
        measure(a, a)


@pytest.mark.parametrize(("peak", "ceiling"), [(0.0, 120.0), (math.inf, 120.0), (1.0, 0.0), (1.0, 400.0)])
def test_psnr_refuses_what_has_no_finite_value(peak: float, ceiling: float) -> None:
    with pytest.raises(MeasureError, match="ceiling"):
        psnr(*pair((2, 4)), peak=peak, ceiling=ceiling)
