"""What real tools do to stored images, to find out which messages survive it."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from samplewise.errors import ConfigurationError, DataError, MissingPackageError
from samplewise.watermark.noise.grammar import Step, parse_chains

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["STANDARD_ATTACKS", "Attack", "parse_attack", "parse_attacks"]

Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Attack:
    """Steps done to one stored image one after another, each rounded to 8 bits as a file would be.

    ``str`` gives the spec, which :func:`parse_attack` reads back.
    """

    steps: tuple[Step, ...]

    def __call__(self, image: Pixels, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
        """Attack an image.

        Args:
            image: grey ``(H, W)`` or RGB ``(H, W, 3)``; it is left as it is.
            rng: source of everything random.
            cover: the image before embedding, the same shape; only dropout needs it.

        Returns:
            The same shape.
        """
        _check(image, cover)
        for step in self.steps:
            if step.name in _ON_PICTURES:
                image = np.asarray(_ON_PICTURES[step.name](_picture(image), step.low))
            else:
                image = _ON_PIXELS[step.name](image, step.low, rng, cover)
        return image.copy()  # writable, and never the caller's own

    @property
    def needs_cover(self) -> bool:
        """Whether it can only be carried out by somebody who has the cover."""
        return any(step.name == "dropout" for step in self.steps)

    def __str__(self) -> str:
        return " + ".join(map(str, self.steps))


def parse_attack(spec: str) -> Attack:
    """Read one attack, such as ``"jpeg(75)"`` or ``"crop(0.9) + jpeg(90)"``: a noise without ranges and weights.

    Raises:
        ConfigurationError: the spec does not follow the grammar, or holds several attacks.

    Example:
        >>> import numpy as np
        >>> image = np.full((16, 16), 200, dtype=np.uint8)
        >>> int(parse_attack("brightness(0.5)")(image, np.random.default_rng(0)).max())
        100
    """
    attacks = parse_attacks(spec)
    if len(attacks) != 1:
        raise ConfigurationError(f"expected one attack, got {len(attacks)} in {spec!r}; '+' chains several into one")
    return attacks[0]


def parse_attacks(spec: str) -> tuple[Attack, ...]:
    """Read attacks separated by commas.

    Example:
        >>> [str(attack) for attack in parse_attacks("identity, crop(0.90) + jpeg(75)")]
        ['identity', 'crop(0.9) + jpeg(75)']
    """
    return tuple(Attack(chain.steps) for chain in parse_chains(spec, fixed=True))


STANDARD_ATTACKS = parse_attacks(
    "identity, jpeg(95), jpeg(90), jpeg(75), jpeg(50), resize(0.5), resize(0.75), resize(1.25), gaussian(0.01), "
    "gaussian(0.02), blur(0.5), blur(1), crop(0.9), crop(0.7), dropout(0.1), dropout(0.3), brightness(0.9), "
    "brightness(1.1)"
)
"""What an evaluation tries unless told otherwise: from what every image meets to what leaves visible traces."""


def _check(image: Pixels, cover: Pixels | None) -> None:
    if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)) or not image.size:
        raise DataError(f"expected an image of uint8 (H, W) or (H, W, 3), got {image.dtype} {image.shape}")
    if cover is not None and (cover.dtype != image.dtype or cover.shape != image.shape):
        raise DataError(
            f"expected a cover like the image, {image.dtype} {image.shape}, got {cover.dtype} {cover.shape}"
        )


def _picture(image: Pixels) -> "Image.Image":
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("attacks need pillow: pip install 'samplewise[watermark]'") from error
    return Image.fromarray(image)


def _jpeg(picture: "Image.Image", quality: float) -> "Image.Image":
    from PIL import Image

    file = io.BytesIO()
    picture.save(file, "JPEG", quality=int(quality))
    return Image.open(file)


def _resize(picture: "Image.Image", scale: float) -> "Image.Image":
    from PIL.Image import Resampling

    width, height = picture.size
    scaled = picture.resize((max(1, round(width * scale)), max(1, round(height * scale))), Resampling.BILINEAR)
    return scaled.resize((width, height), Resampling.BILINEAR)


def _blur(picture: "Image.Image", sigma: float) -> "Image.Image":
    from PIL.ImageFilter import GaussianBlur

    return picture.filter(GaussianBlur(sigma))


def _brightness(picture: "Image.Image", factor: float) -> "Image.Image":
    from PIL.ImageEnhance import Brightness

    return Brightness(picture).enhance(factor)


def _contrast(picture: "Image.Image", factor: float) -> "Image.Image":
    from PIL.ImageEnhance import Contrast

    return Contrast(picture).enhance(factor)


def _identity(image: Pixels, strength: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    return image


def _crop(image: Pixels, share: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    height, width = (max(1, round(side * share)) for side in image.shape[:2])
    top, left = rng.integers(image.shape[0] - height + 1), rng.integers(image.shape[1] - width + 1)
    window = np.s_[top : top + height, left : left + width]
    kept = np.zeros_like(image)
    kept[window] = image[window]
    return kept


def _dropout(image: Pixels, chance: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    if cover is None:
        raise ConfigurationError("dropout puts pixels of the cover back: give the cover, or leave this attack out")
    dropped = rng.random(image.shape[:2]) < chance
    attacked = image.copy()
    attacked[dropped] = cover[dropped]
    return attacked


def _gaussian(image: Pixels, sigma: float, rng: np.random.Generator, cover: Pixels | None) -> Pixels:
    noisy = image + 255.0 * sigma * rng.standard_normal(image.shape)
    return np.asarray(np.rint(noisy.clip(0.0, 255.0)), dtype=np.uint8)


_ON_PICTURES: dict[str, Callable[["Image.Image", float], "Image.Image"]] = {
    "jpeg": _jpeg,
    "resize": _resize,
    "blur": _blur,
    "brightness": _brightness,
    "contrast": _contrast,
}
_ON_PIXELS: dict[str, Callable[[Pixels, float, np.random.Generator, Pixels | None], Pixels]] = {
    "identity": _identity,
    "crop": _crop,
    "dropout": _dropout,
    "gaussian": _gaussian,
}
