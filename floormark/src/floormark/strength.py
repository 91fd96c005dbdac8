"""How strong a residual may be so that the stored integers keep a floor in the image and in every patch of it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from floormark.display_range import patch_sizes, patch_squares
from floormark.filters import Picture, minimum_3x3, resized
from floormark.imageio import StoredImage, bands
from floormark.options import ADVISED_FLOOR
from floormark.patches import PATCH_SIDE
from floormark.prepared import PreparedImage

FLOOR_STEP = 0.5  # dB between the floors that are tried where one is too high
FLOOR_STRIDE = 4  # steps taken at once until a floor works
MAX_STRENGTH = 24.0  # largest factor on the network's residual
CLOSE_ENOUGH = 0.995  # part of the squared error that a floor allows; more is not worth another trial
STRENGTH_TRIALS = 8  # with different strengths; twice as many if none has kept all floors by then
STEP_BACK, FAR_STEP_BACK = 0.97, 0.6
"""Extra factors on the strength of a patch that rounding took below its floor, after correcting for its excess error.
The second is for when the first was not enough: in a patch of one value, all pixels round to the next value at once."""
TRIAL_BAND_VALUES = 1 << 18  # values processed at once: few, to stay in the processor's cache
KEPT_VALUES = 1 << 22
"""Values of the largest image whose full-size residual is kept; for a larger one each trial computes it anew."""


def highest_floor(works: Callable[[float], bool], below: float, *, step: float = FLOOR_STEP) -> float | None:
    """The highest floor from ``ADVISED_FLOOR`` to ``below`` that works, to the step; None if none does.

    Searched from above, as the lowest floors may fail: so strong a mark can be clipped, or move the range of values.
    """
    fails = math.ceil((below - ADVISED_FLOOR) / step)  # in steps above the lowest
    if fails <= 0:
        return None
    found = max(0, fails - FLOOR_STRIDE)
    while not works(ADVISED_FLOOR + step * found):
        if found == 0:
            return None
        found, fails = max(0, found - FLOOR_STRIDE), found
    while fails - found > 1:
        middle = (found + fails) // 2
        found, fails = (middle, fails) if works(ADVISED_FLOOR + step * middle) else (found, middle)
    return ADVISED_FLOOR + step * found


@dataclass(frozen=True, eq=False)
class Residual:
    """What a network adds to an image to hide bits in it."""

    values: Picture  # in stored values, the same for all colours, at the network's pixels (h, w)
    scale: tuple[float, float]  # pixels of the image per pixel of the network, down and across
    start: tuple[float, float]  # where the image begins, in the network's pixels from the first of the values

    def rows(self, rows: slice, width: int) -> Picture:
        """Rows of the residual at the size of the image, by cubic interpolation."""
        (top, left), (bottom, right) = (
            np.clip(np.divide(corner, self.scale) + self.start, 0.0, self.values.shape).tolist()
            for corner in ((rows.start, 0), (rows.stop, width))
        )
        shape, how = (rows.stop - rows.start, width), Image.Resampling.BICUBIC
        return resized(self.values, shape, box=(left, top, right, bottom), how=how)


def _interpolated(strengths: NDArray[np.float64], rows: slice, width: int) -> Picture:
    """The strengths of patches at rows of pixels, interpolated between the middles of patches."""
    box = (0.0, rows.start / PATCH_SIDE, width / PATCH_SIDE, rows.stop / PATCH_SIDE)
    return resized(strengths.astype(np.float32), (rows.stop - rows.start, width), box=box)


def fit_to_floor(
    prepared: PreparedImage,
    residual: Residual,
    floor: float,
    *,
    protect: NDArray[np.bool_] | None = None,
    max_difference: float | None = None,
    limit: float = MAX_STRENGTH,
) -> NDArray[Any]:
    """The pixels with the strongest residual that keeps the image and every patch at its floor or above.

    Rounding makes the PSNR a discontinuous function of the strength, so the returned pixels themselves were measured.
    Each patch has its own strength, at most what it can take, interpolated between patches. ``protect (H, W)`` is True
    where no pixel may change; ``limit`` is the largest factor on the residual.
    """
    image, span = prepared.image, prepared.shown[1]
    sizes = patch_sizes(image.pixels.shape)
    floors = floor + prepared.relative_floors
    if floor >= ADVISED_FLOOR:
        floors = np.maximum(floors, prepared.unseen_floors)
    allowed = sizes * span**2 * 10.0 ** (-floors / 10.0)
    total_allowed = span**2 * image.pixels.size * 10.0 ** (-floor / 10.0)
    if not residual.values.any():
        return image.pixels
    addition = _Addition(image, residual, protect, max_difference)
    rms = math.sqrt(float(np.square(residual.values).mean()))
    strength = min(span * 10.0 ** (-floor / 20.0) / rms, limit)
    caps = np.full(sizes.shape, limit)
    best, reached, unit = None, 0.0, np.zeros(sizes.shape)
    for trial in range(2 * STRENGTH_TRIALS):
        if trial >= STRENGTH_TRIALS and best is not None:
            break
        strengths = _patch_strengths(caps, strength)
        if best is not None and np.allclose(strengths, best, rtol=1e-4):
            break  # no patch can take more
        squares = addition.squares(strengths)
        excess, total = squares / allowed, float(squares.sum()) / total_allowed
        if trial == 0:
            unit = squares / strength**2
        if (excess <= 1.0).all() and total <= 1.0 and total >= reached:
            best, reached = strengths, total
            if total > CLOSE_ENOUGH or strength >= limit:
                break
        with np.errstate(divide="ignore"):
            room = strengths / np.sqrt(np.maximum(excess, 1e-12))
        # The first trial measures what each patch can take; later ones correct only patches below their floor.
        back = STEP_BACK if trial < STRENGTH_TRIALS else FAR_STEP_BACK
        caps = np.minimum(np.maximum(room, 1e-3), limit) if trial == 0 else np.where(excess > 1, back * room, caps)
        strength = _next_strength(unit, caps, limit, total_allowed, last=(strengths, squares))
    found = np.empty_like(image.pixels)
    addition.squares(np.zeros(sizes.shape) if best is None else best, found)
    return found


@dataclass(frozen=True, eq=False)
class _Addition:
    """A residual added to an image at given strengths, rounded to stored values."""

    image: StoredImage
    residual: Residual
    protect: NDArray[np.bool_] | None
    max_difference: float | None

    @cached_property
    def _bands(self) -> list[slice]:
        return bands(self.image.pixels, TRIAL_BAND_VALUES, unit=PATCH_SIDE)

    @cached_property
    def _kept(self) -> list[NDArray[np.float32]] | None:
        """The residual at full size, of each band; None for an image too large for that."""
        return None if self.image.pixels.size > KEPT_VALUES else [self._full_size(rows) for rows in self._bands]

    def _full_size(self, rows: slice) -> NDArray[np.float32]:
        """Rows of the residual at full size, zero where nothing may change."""
        found = self.residual.rows(rows, self.image.pixels.shape[1])
        return found if self.protect is None else np.where(self.protect[rows], np.float32(0.0), found)

    def squares(self, strengths: NDArray[np.float64], into: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """The sum of squared differences in each patch, by its strength; pixels are written to ``into``, if given."""
        found = []
        for number, rows in enumerate(self._bands):
            residual = self._full_size(rows) if self._kept is None else self._kept[number]
            change = residual * _interpolated(strengths, rows, residual.shape[1])
            if self.max_difference is not None:
                np.clip(change, -self.max_difference, self.max_difference, out=change)
            band = self.image.with_pixels(self.image.pixels[rows])
            pixels = band.nearest(band.pixels + (change if band.pixels.ndim == 2 else change[..., None]))
            found.append(patch_squares(band.pixels, pixels))
            if into is not None:
                into[rows] = pixels
        return np.concatenate(found)


def _patch_strengths(caps: NDArray[np.float64], strength: float) -> NDArray[np.float64]:
    """The strength of each patch: at most what it and its neighbours can take, as it is interpolated to theirs."""
    return minimum_3x3(np.minimum(caps, strength))


def _next_strength(
    unit: NDArray[np.float64],
    caps: NDArray[np.float64],
    limit: float,
    allowed: float,
    *,
    last: tuple[NDArray[np.float64], NDArray[np.int64]],
) -> float:
    """The strength at which the squared error of the image should become what its floor allows.

    Without interpolation between patches the squared error would be ``unit`` times the strength squared; the ratio to
    the actual one is estimated from the ``last`` strengths and squared errors.
    """
    strengths, squares = last
    more = float(squares.sum()) / max(float((unit * strengths**2).sum()), 1e-9)
    low, high = 0.0, limit
    for _ in range(40):
        middle = 0.5 * (low + high)
        inside = more * float((unit * _patch_strengths(caps, middle) ** 2).sum()) <= 0.998 * allowed
        low, high = (middle, high) if inside else (low, middle)
    return max(low, 1e-6)
