"""How much marking changed an image: on the stored integers, against their whole range and against what is shown."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floormark.certificate import Fidelity as Fidelity  # what is measured here
from floormark.display_range import patch_sizes, patch_squares
from floormark.errors import DataError
from floormark.imageio import StoredImage, bands
from floormark.patches import PATCH_SIDE
from floormark.prepared import PreparedImage

SSIM_BAND_VALUES = 1 << 16  # compared at once: intermediate results stay in the processor's cache
SSIM_WINDOW, SSIM_SIGMA = 11, 1.5  # pixels: side and standard deviation of its Gaussian window


def fidelity(
    original: StoredImage | PreparedImage, marked: NDArray[Any], *, protected: NDArray[np.bool_] | None = None
) -> Fidelity:
    """Compare an image with its marked integers; ``protected`` is True where nothing may change."""
    prepared = PreparedImage.of(original)
    image = prepared.image
    pixels, peak = image.pixels, image.peak
    same = pixels.shape == marked.shape and pixels.dtype == marked.dtype
    if not same or pixels.dtype.kind not in "iu" or pixels.ndim not in (2, 3) or not pixels.size:
        raise DataError(
            f"expected two images (H, W) or (H, W, C) of one integer type, got {pixels.shape} {pixels.dtype} and "
            f"{marked.shape} {marked.dtype}"
        )
    largest, changed, kept, untouched = 0, 0, 0, True
    patches = []
    for rows in bands(pixels, unit=PATCH_SIDE):
        difference = np.abs(np.subtract(marked[rows], pixels[rows], dtype=np.int32))
        patches.append(patch_squares(pixels[rows], marked[rows]))
        largest = max(largest, int(difference.max()))
        touched = difference > 0 if difference.ndim == 2 else difference.max(axis=2) > 0
        changed += int(touched.sum())
        if protected is not None:
            kept += int(protected[rows].sum())
            untouched &= not touched[protected[rows]].any()
    squares = np.concatenate(patches)
    total = int(squares.sum())
    span, window = prepared.shown[1], image.window
    worst, where = _worst_patch(prepared, squares) if total else (None, None)
    return Fidelity(
        peak=peak,
        psnr=10.0 * math.log10(peak**2 * pixels.size / total) if total else None,
        ssim=ssim(image, marked),
        max_difference=largest,
        changed_share=changed / (pixels.shape[0] * pixels.shape[1]),
        protected_pixels=kept,
        protected_unchanged=untouched,
        shown=float(span),
        shown_psnr=10.0 * math.log10(span**2 * pixels.size / total) if total else None,
        largest_change=float(largest * (1.0 if window is None else window.step)),
        unit="" if window is None else window.unit,
        min_adjusted_patch_psnr=worst,
        worst_patch=where,
    )


def _worst_patch(original: PreparedImage, squares: NDArray[np.int64]) -> tuple[float, str]:
    """The least adjusted PSNR of a patch, and where that patch is."""
    mean = np.maximum(squares, 1e-9) / patch_sizes(original.pixels.shape) / original.shown[1] ** 2
    reached = -10.0 * np.log10(mean) - original.relative_floors
    row, column = np.unravel_index(int(reached.argmin()), reached.shape)
    height, width = original.pixels.shape[:2]
    top, left = PATCH_SIDE * int(row), PATCH_SIDE * int(column)
    return float(reached.min()), f"{left},{top},{min(PATCH_SIDE, width - left)},{min(PATCH_SIDE, height - top)}"


def ssim(original: StoredImage, marked: NDArray[Any]) -> float | None:
    """The structural similarity (Wang et al., 2004): filtered along rows, then columns, a band of rows at a time.

    In float64, since the variance of a bright, flat area is a difference of two nearly equal numbers. Computed from the
    images' sum and difference, which takes four moments instead of five.
    """
    size, peak = SSIM_WINDOW, original.peak
    if min(marked.shape[:2]) < size:
        return None
    window = np.exp(-(((np.arange(size) - size // 2) / SSIM_SIGMA) ** 2) / 2)
    window /= window.sum()
    # The borders are mirrored band by band: second copies of two large images would take much memory.
    reach = size // 2
    down = np.pad(np.arange(len(marked)), reach, mode="reflect")
    images = [np.atleast_3d(image) for image in (original.pixels, marked)]
    total = 0.0
    for rows in bands(
        np.broadcast_to(images[0][:1], (len(down), *images[0].shape[1:])), SSIM_BAND_VALUES, overlap=size - 1
    ):
        first, second = (image[down[rows]].astype(np.float64) for image in images)
        both, difference = first + second - 2.0 * original.lowest, first - second
        moments = _filtered(np.stack([both, difference, both * both, difference * difference]), window, 1)
        left, right = moments[:, :, reach:0:-1], moments[:, :, -2 : -reach - 2 : -1]
        mean, error, square, error_square = _filtered(np.concatenate([left, moments, right], 2), window, 2)
        # The usual constants for values up to the peak; doubled, as the moments are of sum and difference.
        low, high = 2 * (0.01 * peak) ** 2, 2 * (0.03 * peak) ** 2
        mean *= mean
        error *= error
        square -= mean
        error_square -= error
        alike = (mean - error + low) / (mean + error + low)
        alike *= (square - error_square + high) / (square + error_square + high)
        total += float(alike.mean()) * len(mean)
    return total / len(marked)


def _filtered(values: NDArray[np.float64], window: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """Values filtered by a symmetric window along one axis, where the window lies inside."""
    length = values.shape[axis] - len(window) + 1

    def shifted(place: int) -> NDArray[np.float64]:
        return values[(slice(None),) * axis + (slice(place, place + length),)]

    middle = len(window) // 2
    found: NDArray[np.float64] = shifted(middle) * window[middle]
    for place in range(middle):
        term = shifted(place) + shifted(len(window) - 1 - place)
        term *= window[place]
        found += term
    return found
