"""What real tools do to stored images, to find out which messages survive it."""

from dataclasses import dataclass

import numpy as np

from samplewise.errors import ConfigurationError, DataError
from samplewise.watermark.noise.grammar import parse_chains
from samplewise.watermark.noise.operators import OPERATORS, Pixels, Step

__all__ = ["STANDARD_ATTACKS", "Attack", "parse_attack", "parse_attacks"]


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
            image = OPERATORS[step.name].attack(image, step.low, rng, cover)
        return image.copy()  # writable, and never the caller's own

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
    return tuple(Attack(chain.steps) for chain in parse_chains(spec, attack=True))


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
