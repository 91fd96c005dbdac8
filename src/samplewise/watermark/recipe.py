"""How a watermarking network is trained: the paper's way, and ours."""

from dataclasses import dataclass, replace
from typing import Self

from samplewise.errors import ConfigurationError, did_you_mean
from samplewise.watermark.networks import NETWORKS
from samplewise.watermark.noise import parse_noise

__all__ = ["HIDDEN", "RECIPES", "SWIFT", "Recipe"]


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
    """How many dB above the floor to train for."""
    diagnosis: float | None = None
    """How far the mark may move any probability of a frozen classifier, for every image; None without one."""
    classifier: str = ""
    """Fingerprint of that classifier."""
    image_loss: float = 0.0
    """Where above zero, the paper's baseline: this weight on the mean squared error in the place of the constraint."""
    adversarial: float = 0.0
    """Weight of the discriminator's verdict; without one if zero."""
    noise: str = "identity"
    """What the images go through in training, as a spec of :func:`samplewise.watermark.noise.parse_noise`."""
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
    """Pictures of the training and of the validation part that are looked at between rounds."""
    audit_every: int = 2
    seed: int = 0
    data: str = ""
    """Fingerprint of the pictures."""

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ConfigurationError(
                f"expected network as one of {', '.join(NETWORKS)}, got {self.network!r}"
                f"{did_you_mean(self.network, list(NETWORKS))}"
            )
        for name in ("bits", "size", "width", "batch_size", "message_rounds", "rounds"):
            least = 0 if name == "message_rounds" else 1
            if getattr(self, name) < least:
                raise ConfigurationError(
                    f"expected {name.replace('_', ' ')} of at least {least}, got {getattr(self, name)}"
                )
        if not 0 < self.floor < 100:
            raise ConfigurationError(f"expected a PSNR floor between 0 and 100 dB, got {self.floor}")
        if self.diagnosis is not None and not 0 < self.diagnosis < 1:
            raise ConfigurationError(f"expected a change of probability between 0 and 1, got {self.diagnosis}")
        if self.diagnosis is not None and self.image_loss:
            raise ConfigurationError("the baseline with an image loss has no constraints: leave out the diagnosis")
        parse_noise(self.noise)

    def with_steps(self, steps: int, *, message_steps: int | None = None) -> Self:
        """The same recipe over ``steps`` steps in all, tau ending where it would have ended.

        Args:
            steps: in all.
            message_steps: of them on the message alone; as many as the recipe has if not given.
        """
        if self.steps_per_round is None:
            raise ConfigurationError(f"the recipe of {self.network} counts passes over the pictures: give epochs")
        message = self.message_rounds if message_steps is None else -(-message_steps // self.steps_per_round)
        rounds = round(steps / self.steps_per_round) - message
        if rounds < 1:
            raise ConfigurationError(
                f"{steps} steps leave none for the constraint: expected at least "
                f"{(message + 1) * self.steps_per_round}, the first {message * self.steps_per_round} for the message"
            )
        last = self.growth ** (self.rounds - 1)
        growth = last ** (1 / (rounds - 1)) if rounds > 1 else self.growth
        return replace(self, message_rounds=message, rounds=rounds, growth=growth)

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

RECIPES: dict[str, Recipe] = {"hidden": HIDDEN, "swift": SWIFT}
"""By network."""
