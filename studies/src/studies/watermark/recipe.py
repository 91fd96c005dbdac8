"""Recipes for training a watermarking network: the paper's, and ours."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from samplewise.errors import ConfigurationError, did_you_mean
from studies.records import SettingsFile, check_least
from studies.watermark.networks import NETWORKS
from studies.watermark.noise import parse_noise

LEAST_VALUES = {
    1: "bits size width batch_size steps_per_round rounds every growth audit_images audit_every",
    0: "message_rounds margin image_loss adversarial seed",
}
"""Least values of the fields named."""


@dataclass(frozen=True)
class Recipe:
    """All that a training run depends on beside the pictures."""

    network: str
    bits: int = 200
    size: int = 224
    width: int = 32
    """Channels of the network's layers, and of the discriminator's."""
    floor: float = 40.0
    """PSNR in dB that every image must reach."""
    margin: float = 0.0
    """Margin above the floor in training, in dB."""
    local: bool = False
    """Whether every patch has a floor of its own too, the higher the smoother the patch."""
    diagnosis: float | None = None
    """Most that any probability of a frozen classifier may change, for every image; None without one."""
    classifier: str = ""
    """Fingerprint of that classifier."""
    image_loss: float = 0.0
    """Above zero, the paper's baseline: this weight on the mean squared error instead of the constraint."""
    adversarial: float = 0.0
    """Weight of the adversarial loss; zero for no discriminator."""
    noise: str = "identity"
    """Distortions of the images in training, as a spec of :func:`studies.watermark.noise.parse_noise`."""
    rounded: bool = True
    """Whether images ship as 8-bit files in training too."""
    batch_size: int = 8
    rate: float = 1e-3
    anneal: bool = True
    """Whether the learning rate falls to zero as a cosine."""
    steps_per_round: int | None = 50
    """Steps at one tau; a pass over the training pictures if None."""
    message_rounds: int = 3
    """Rounds on the message alone, before the constraint counts."""
    rounds: int = 17
    """Rounds under the constraint."""
    tau: float = 1e-3
    growth: float = 1.3
    every: int = 1
    """Rounds between growths of tau."""
    maximum_tau: float = 500.0
    audit_images: int = 128
    """Pictures of the training and of the validation part that are audited between rounds."""
    audit_every: int = 2
    seed: int = 0
    data: str = ""
    """Fingerprint of the pictures."""
    begin: str = ""
    """Fingerprint of the trained network that the run begins with; a new one if empty."""

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ConfigurationError(
                f"expected network as one of {', '.join(NETWORKS)}, got {self.network!r}"
                f"{did_you_mean(self.network, list(NETWORKS))}"
            )
        for least, names in LEAST_VALUES.items():
            check_least(self, **dict.fromkeys(names.split(), least))
        for name in ("rate", "tau", "maximum_tau"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"expected a {name.replace('_', ' ')} above 0, got {getattr(self, name)}")
        if not 0 < self.floor < 100:
            raise ConfigurationError(f"expected a PSNR floor between 0 and 100 dB, got {self.floor}")
        if self.diagnosis is not None and not 0 < self.diagnosis < 1:
            raise ConfigurationError(f"expected a change of probability between 0 and 1, got {self.diagnosis}")
        if self.diagnosis is not None and self.image_loss:
            raise ConfigurationError("the baseline with an image loss has no constraints: leave out the diagnosis")
        parse_noise(self.noise)

    def with_length(self, *, steps: int | None = None, epochs: int | None = None) -> Self:
        """The same recipe over ``epochs`` passes or ``steps`` steps, those on the message alone included.

        Whatever the number of steps, tau ends where it would.
        """
        per_round, message = self.steps_per_round, self.message_rounds
        if (steps if per_round is None else epochs) is not None:
            unit = "epochs" if per_round is None else "steps"
            raise ConfigurationError(f"{self.network} is trained by {unit}: give --{unit}")
        if epochs is not None:
            return replace(self, rounds=epochs)
        if steps is None or per_round is None:
            return self
        rounds = round(steps / per_round) - message
        if rounds < 1:
            raise ConfigurationError(
                f"{steps} steps leave none for the constraint: expected at least {(message + 1) * per_round}, the "
                f"first {message * per_round} for the message"
            )
        last = self.growth ** (self.rounds - 1)
        growth = last ** (1 / (rounds - 1)) if rounds > 1 else self.growth
        return replace(self, rounds=rounds, growth=growth)

    @property
    def own_floor(self) -> float | None:
        """The floor it is trained for; None for the baseline, which has an image loss in its place."""
        return None if self.image_loss else self.floor

    @property
    def last_round(self) -> int:
        """Number of rounds in all."""
        return self.message_rounds + self.rounds


HIDDEN = Recipe(
    network="hidden",
    width=64,
    adversarial=1e-3,
    rounded=False,
    batch_size=32,
    rate=1e-4,
    anneal=False,
    steps_per_round=None,
    message_rounds=0,
    rounds=200,
    tau=0.1,
    growth=1.1,
    every=10,
    audit_every=1,
)
"""As published: unclamped floats, a constant learning rate, the constraint from the first step."""

SWIFT = Recipe(network="swift", margin=0.3)
"""Ours: the message first and alone, then tau from a thousandth upwards while the learning rate falls.

Adam divides by the gradient's size, so even a tiny tau from the first step would make the residual vanish before there
is a message worth keeping.
"""

LATTICE = replace(
    SWIFT,
    network="lattice",
    bits=255,
    size=256,
    floor=45.0,
    local=True,
    noise="2*jitter(1) + jpeg(40..95), jitter(1) + resize_back(0.4..1) + jpeg(60..95), "
    "jitter(1) + crop_zero_fill(0.5..1), jitter(1) + gaussian(0..0.02), gamma(0.6..1.6) + jitter(1), jitter(1)",
)
"""As swift, for marks that registration must find: every patch has a floor, and noise moves images a little."""

RECIPES = {recipe.network: recipe for recipe in (HIDDEN, LATTICE, SWIFT)}
RECIPE_FILE = SettingsFile(
    "recipe.json", "samplewise-watermark-2", Recipe, "watermark training", derived=("data", "classifier", "begin")
)
"""The file of a run's recipe, so that no other run goes on in its folder."""


def make_recipe(given: Mapping[str, Any], source: Path | None = None) -> Recipe:
    """The recipe of a network, lattice if none is named, with the fields ``given``; errors name their ``source``."""
    base = RECIPES.get(given.get("network", LATTICE.network), LATTICE)
    try:
        return replace(base, **given)
    except ConfigurationError as error:
        raise ConfigurationError(f"{'' if source is None else f'{source}: '}{error}") from error
