"""What is done to marked images in ``watermark_attacks``, in groups, by name."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from common import Pixels
from numpy.typing import NDArray

from studies.watermark.noise import parse_attack

VALUES, CLINIC, GEOMETRY, TOGETHER, EDITS = "values", "X-rays' own", "geometry", "together", "edits"
DEEP = 12
"""Bits of the images that are exported to 8."""


@dataclass(frozen=True)
class Kind:
    """One thing that is done, by real tools."""

    name: str
    group: str
    spec: str = "identity"
    """In the language of attacks; ``{angle}`` is drawn anew for each image."""
    deep: bool = False
    """Done to an image of 12 bits, which is exported to 8 first."""
    first: Callable[[Pixels], Pixels] | None = None
    """What the language has no word for."""

    def __call__(self, image: NDArray[Any], picture: str, seed: int) -> Pixels:
        """The image after it. What is random depends on picture, kind and seed: it is the same for every tool."""
        rng = np.random.default_rng([seed, zlib.crc32(f"{picture} {self.name}".encode())])
        spec = self.spec.format(angle=f"{rng.uniform(-180.0, 180.0):.2f}")
        shown = (image >> (DEEP - 8)).astype(np.uint8) if self.deep else image
        return parse_attack(spec)(shown if self.first is None else self.first(shown), rng)


def clahe(image: Pixels) -> Pixels:
    """By OpenCV, which the peers bring along; each channel for itself."""
    import cv2

    change = cv2.createCLAHE(2.0, (8, 8)).apply
    if image.ndim == 2:
        return np.asarray(change(image), np.uint8)
    return np.dstack([change(np.ascontiguousarray(image[..., channel])) for channel in range(3)])


def deepened(grey: Pixels) -> NDArray[np.uint16]:
    """An image of 12 bits that would be exported as ``grey``: what the 8 bits do not tell is noise."""
    finer = np.random.default_rng(0).integers(0, 1 << (DEEP - 8), grey.shape, dtype=np.uint16)
    return np.asarray((grey.astype(np.uint16) << (DEEP - 8)) + finer, np.uint16)


_VALUES = {
    "none": "identity",
    **{f"JPEG {quality}": f"jpeg({quality})" for quality in (90, 75, 50, 30)},
    "WebP 80": "webp(80)",
    "noise of 10 levels": "gaussian(0.0392)",
    "blur, sigma 2": "blur(2)",
    "median 3 x 3": "median(3)",
    "median 5 x 5": "median(5)",
    "6 bits": "posterize(6)",
    "equalisation": "equalise",
    "gamma 0.7": "gamma(0.7)",
    "gamma 1.5": "gamma(1.5)",
    "middle 70 % of the greys": "window(0.7)",
    "brightness x 1.5": "brightness(1.5)",
    "burned-in text": "text",
}
_CLINIC = {
    "window and level, 50 %": "window(0.5)",
    "inversion": "invert",
    "inversion, JPEG 75": "invert + jpeg(75)",
    "viewer's screenshot, window of 70 %": "window(0.7) + screenshot(90)",
}
_EXPORTED = {
    "12 to 8 bits": "identity",
    "12 to 8 bits, window of 70 %": "window(0.7)",
    "12 to 8 bits, MONOCHROME1": "invert",
    "12 to 8 bits, JPEG 75": "jpeg(75)",
}
_GEOMETRY = {
    **{f"resize to {round(100 * scale)} %": f"resize({scale})" for scale in (0.25, 0.5, 0.7, 0.99, 1.5, 2)},
    "one pixel cut off": "trim(1)",
    "cut to half the area": "crop(0.5)",
    **{f"rotation by {degrees}": f"rotate({degrees})" for degrees in (1, 7, 30, 45)},
    "rotation by any angle": "rotate({angle})",
    "quarter turn": "rotate90(1)",
    "half turn": "rotate90(2)",
    "three quarters turn": "rotate90(3)",
    "mirrored": "flip",
    "upside down": "flip + rotate90(2)",
    "border of 5 %": "border(0.05)",
    "screenshot": "screenshot(95)",
}
_TOGETHER = {
    "rotation by 7, resize to 70 %, cut to 60 %": "rotate(7) + resize(0.7) + crop(0.6)",
    "any rotation, resize to 70 %, cut to 60 %": "rotate({angle}) + resize(0.7) + crop(0.6)",
    "mirrored, resize to 50 %, gamma 0.7": "flip + resize(0.5) + gamma(0.7)",
    "quarter turn, cut to half, resize to 150 %": "rotate90(1) + crop(0.5) + resize(1.5)",
    "inverted, mirrored, resize to 70 %, border": "invert + flip + resize(0.7) + border(0.05)",
    "window of 70 %, rotation by 1, cut to 80 %, text": "window(0.7) + rotate(1) + crop(0.8) + text",
}

_EDITS = {
    **{f"width times {factor}": f"stretch({factor})" for factor in (0.8, 0.9, 1.1, 1.25)},
    **{f"sheared by {amount}": f"shear({amount})" for amount in (0.05, 0.1)},
    "corners moved by 3 %": "perspective(0.03)",
    **{f"bent by {pixels} pixels": f"bend({pixels})" for pixels in (4, 8, 16)},
    **{f"on a page at {share}": f"page({share})" for share in (0.2, 0.3, 0.5)},
    **{f"cut to {round(100 * share)} % of the area": f"crop({share})" for share in (0.25, 0.15, 0.12)},
    **{f"box over {round(100 * share)} %": f"box({share})" for share in (0.3, 0.5)},
    **{f"stripes over {round(100 * share)} %": f"stripes({share})" for share in (0.3, 0.5)},
    "bilateral filter 50": "bilateral(50)",
    "JPEG 15": "jpeg(15)",
    "JPEG 10": "jpeg(10)",
    "WebP 10": "webp(10)",
    "JPEG 2000, 50 to 1": "jpeg2000(50)",
    "JPEG 2000, 200 to 1": "jpeg2000(200)",
    "stretched, sheared, cut to 60 %, JPEG 75": "stretch(1.15) + shear(0.05) + crop(0.6) + jpeg(75)",
}


def _kinds() -> dict[str, Kind]:
    found = [Kind(name, VALUES, spec) for name, spec in _VALUES.items()]
    found += [Kind("CLAHE", VALUES, first=clahe)]
    found += [Kind(name, CLINIC, spec) for name, spec in _CLINIC.items()]
    found += [Kind(name, CLINIC, spec, deep=True) for name, spec in _EXPORTED.items()]
    plain = [Kind(name, GEOMETRY, spec) for name, spec in _GEOMETRY.items()]
    found += [each for kind in plain for each in (kind, _as_jpeg(kind))]
    found += [_as_jpeg(Kind(name, TOGETHER, spec)) for name, spec in _TOGETHER.items()]
    found += [Kind(name, EDITS, spec) for name, spec in _EDITS.items()]
    return {kind.name: kind for kind in found}


def _as_jpeg(kind: Kind) -> Kind:
    return replace(kind, name=f"{kind.name}, JPEG 75", spec=f"{kind.spec} + jpeg(75)")


KINDS = _kinds()
"""Every kind by name, in the order of the page."""
