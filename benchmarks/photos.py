"""Colour pictures that come with packages: nothing is fetched for them. See ``watermark_attacks``."""

from collections.abc import Callable
from functools import partial

from common import Pixels
from skimage import data
from sklearn.datasets import load_sample_image

_stereo: Callable[[], tuple[Pixels, ...]] = data.stereo_motorcycle
PHOTOS: dict[str, Callable[[], Pixels]] = {
    "astronaut": data.astronaut,
    "cat": data.chelsea,
    "china": partial(load_sample_image, "china.jpg"),
    "coffee": data.coffee,
    "flower": partial(load_sample_image, "flower.jpg"),
    "galaxies": data.hubble_deep_field,
    "motorcycle": lambda: _stereo()[0],
    "retina": data.retina,
    "rocket": data.rocket,
    "tissue": data.immunohistochemistry,
}
"""Those of scikit-image's and scikit-learn's wheels, by name; ``(H, W, 3)``."""
