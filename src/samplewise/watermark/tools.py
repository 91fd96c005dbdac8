"""What the operators on images share: what a real tool takes and gives, and Pillow's ways to be one."""

import importlib
import io
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import needed_for

Pixels: TypeAlias = NDArray[np.uint8]
"""One stored image, ``(H, W)`` or ``(H, W, 3)``."""
Real: TypeAlias = Callable[[Pixels, float, np.random.Generator, Pixels | None], Pixels]
"""From one image, the strength, the source of chance and the cover, if there is one, to the image of a real tool."""


def package(name: str) -> Any:
    """A module of one of the packages that come with an extra, imported when it is first needed."""
    with needed_for("this", "watermark"):
        importlib.import_module(name.partition(".")[0])
        return importlib.import_module(name)


def by_pillow(change: Callable[[Any, float], Any]) -> Real:
    """A real tool from what Pillow does to one of its pictures."""

    def attack(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
        return np.asarray(change(package("PIL.Image").fromarray(image), strength))

    return attack


def stored(kind: str) -> Real:
    """A file of that kind, written with a quality and read."""

    def through_a_file(picture: Any, quality: float) -> Any:
        file = io.BytesIO()
        picture.save(file, kind, quality=int(quality))
        return package("PIL.Image").open(file).convert(picture.mode)

    return by_pillow(through_a_file)
