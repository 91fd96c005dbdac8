"""A grammar for distortions of images: noise for training, which is differentiable, and attacks by real tools.

What there is to choose from: :data:`studies.watermark.operators.OPERATORS`.
"""

import re
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from samplewise.errors import ConfigurationError, DataError, did_you_mean
from studies.watermark.operators import OPERATORS, Limits, Pixels, Step, shortest

WEIGHTS = Limits(0.001, 1000)
NUMBER = r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"  # leaves both dots of 0..1 alone
STEP = re.compile(
    rf"(?:(?P<weight>{NUMBER})\s*\*)?\s*(?P<name>[A-Za-z_]\w*)"
    rf"\s*(?:\(\s*(?P<low>{NUMBER})\s*(?:\.\.\s*(?P<high>{NUMBER})\s*)?\))?"
)
PLUS = re.compile(r"\+(?![^()]*\))")  # not that of a number such as 1e+1


@dataclass(frozen=True)
class Chain:
    """Steps one after another, and how often they are drawn beside the other alternatives.

    ``str`` gives the canonical spec. Called, it attacks one stored image as real tools do, each step rounded to 8 bits
    as a file would be.
    """

    steps: tuple[Step, ...]
    weight: float = 1.0

    def __call__(self, image: Pixels, rng: np.random.Generator, cover: Pixels | None = None) -> Pixels:
        """Attack an image, grey ``(H, W)`` or RGB ``(H, W, 3)``; only dropout needs its cover, as it was before."""
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or image.shape[2:] not in ((), (3,)) or not image.size:
            raise DataError(f"expected an image of uint8 (H, W) or (H, W, 3), got {image.dtype} {image.shape}")
        if cover is not None and (cover.dtype != image.dtype or cover.shape != image.shape):
            raise DataError(
                f"expected a cover like the image, {image.dtype} {image.shape}, got {cover.dtype} {cover.shape}"
            )
        for step in self.steps:
            image = OPERATORS[step.name].attack(image, step.low, rng, cover)
        return image.copy()  # writable, and never the caller's own

    @property
    def geometric(self) -> bool:
        """Whether what comes out has another size, orientation or place, so that a reader must register it."""
        return any(OPERATORS[step.name].geometric for step in self.steps)

    def __str__(self) -> str:
        steps = " + ".join(map(str, self.steps))
        return steps if self.weight == 1.0 else f"{shortest(self.weight)}*{steps}"


class Noise(nn.Module):
    """A layer that draws one of its alternatives in each call and applies it to the batch, differentiably.

    All randomness is torch's default generator's: the same seed before a call gives the same noise. ``str`` gives the
    canonical spec, which :func:`parse_noise` reads back.
    """

    def __init__(self, chains: tuple[Chain, ...]) -> None:
        super().__init__()
        self.chains = chains

    def forward(self, images: Tensor, cover: Tensor) -> Tensor:
        """Disturb images that carry a message, ``(B, 1 or 3, H, W)`` and in [0, 1] as their covers and the result."""
        if images.ndim != 4 or images.shape[1] not in (1, 3) or images.shape != cover.shape:
            raise DataError(
                "expected images and their covers of one shape (B, 1 or 3, H, W), got "
                f"{tuple(images.shape)} and {tuple(cover.shape)}"
            )
        weights = torch.tensor([chain.weight for chain in self.chains], dtype=torch.float64)
        for step in self.chains[int(torch.multinomial(weights, 1))].steps:
            train = OPERATORS[step.name].train
            assert train is not None  # the grammar has seen to that
            images = train(images, cover, step).clamp(0.0, 1.0)  # after every step, as tools that store images do
        return images

    def __str__(self) -> str:
        return ", ".join(map(str, self.chains))

    extra_repr = __str__


def parse_noise(spec: str) -> Noise:
    """Read noise from a spec such as ``"2*jpeg(50..95), crop_zero_fill(0.7..1) + blur(0..1), identity"``.

    The entries between the commas are alternatives, drawn by their weights (1 where none is given); ``+`` applies one
    after the other. A range is drawn from uniformly, anew for each image (resize_back: for each batch). A
    ``ConfigurationError`` says where a spec does not follow the grammar, and shows it.

    Example:
        >>> noise = parse_noise("dropout(.3),2 * identity")
        >>> str(noise)
        'dropout(0.3), 2*identity'
        >>> noise(torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)).shape
        torch.Size([2, 1, 8, 8])
    """
    return Noise(parse_chains(spec))


def parse_attack(spec: str) -> Chain:
    """Read one attack, such as ``"jpeg(75)"`` or ``"crop(0.9) + jpeg(90)"``: noise without ranges and weights.

    Example:
        >>> image = np.full((16, 16), 200, dtype=np.uint8)
        >>> int(parse_attack("brightness(0.5)")(image, np.random.default_rng(0)).max())
        100
    """
    attacks = parse_attacks(spec)
    if len(attacks) != 1:
        raise ConfigurationError(f"expected one attack, got {len(attacks)} in {spec!r}; '+' chains several into one")
    return attacks[0]


def parse_attacks(spec: str) -> tuple[Chain, ...]:
    """Read attacks separated by commas.

    Example:
        >>> [str(attack) for attack in parse_attacks("identity, crop_zero_fill(0.90) + jpeg(75)")]
        ['identity', 'crop_zero_fill(0.9) + jpeg(75)']
    """
    return parse_chains(spec, attack=True)


def parse_chains(spec: str, *, attack: bool = False) -> tuple[Chain, ...]:
    """Read the alternatives of a spec: ``+`` chains steps, ``a..b`` is a range, ``w*`` weighs the whole chain.

    An attack must happen as it stands, by real tools: it has neither ranges nor weights, but also operators that
    training does not have. Errors name the step that is wrong, what was expected of it, and the grammar.
    """
    chains = []
    for alternative in spec.split(","):
        steps, weights = zip(*(_step(spec, text.strip(), attack) for text in PLUS.split(alternative)), strict=True)
        if any(weight is not None for weight in weights[1:]):
            _refuse(spec, alternative.strip(), "a weight only before the first step of a chain", attack)
        chains.append(Chain(steps, 1.0 if weights[0] is None else weights[0]))
    return tuple(chains)


def _step(spec: str, text: str, attack: bool) -> tuple[Step, float | None]:
    """The step that ``text`` stands for, and the weight before it."""
    found = STEP.fullmatch(text)
    if not found:
        _refuse(spec, text, "an operator and its strength, as in jpeg(75)", attack)
    name, operator = found["name"], OPERATORS.get(found["name"])
    if operator is None:
        _refuse(spec, text, "an operator", attack, did_you_mean(name.lower(), _names(attack)))
    if operator.train is None and not attack:
        _refuse(spec, text, "an operator that can be trained for", attack, f" {name} is for attacks only.")
    limits, numbers = operator.limits, [float(found[end]) for end in ("low", "high") if found[end] is not None]
    weight = None if found["weight"] is None else float(found["weight"])
    for wrong, expected in (
        (attack and (weight is not None or len(numbers) > 1), "one strength and no weight for an attack"),
        (limits is None and numbers, f"no strength for {name}"),
        (limits and not (numbers and all(map(limits.hold, numbers))), f"{limits} as the strength of {name}"),
        (numbers != sorted(numbers), "a range that begins with its lower end"),
        (weight is not None and not WEIGHTS.hold(weight), f"{WEIGHTS} as a weight"),
    ):
        if wrong:
            _refuse(spec, text, expected, attack)
    return Step(name, numbers[0], numbers[-1]) if numbers else Step(name), weight


def _names(attack: bool) -> list[str]:
    return [name for name, operator in OPERATORS.items() if attack or operator.train]


def _refuse(spec: str, text: str, expected: str, attack: bool, hint: str = "") -> NoReturn:
    step = "NAME(NUMBER)" if attack else "NAME(NUMBER) or NAME(LOW..HIGH)"
    chain = "STEP[+STEP...]" if attack else "[WEIGHT*]STEP[+STEP...]"
    names = ", ".join(name for name in _names(attack) if OPERATORS[name].limits)
    plain = ", ".join(name for name in _names(attack) if not OPERATORS[name].limits)
    raise ConfigurationError(
        f"{spec!r}: expected {expected}, got {text!r}.{hint} The grammar: {chain}[, ...] where STEP is {plain} or "
        f"{step}, NAME one of {names}"
    )


STANDARD_ATTACKS = parse_attacks(
    "identity, jpeg(95), jpeg(90), jpeg(75), jpeg(50), resize_back(0.5), resize_back(0.75), resize_back(1.25), "
    "gaussian(0.01), gaussian(0.02), blur(0.5), blur(1), crop_zero_fill(0.9), crop_zero_fill(0.7), dropout(0.1), "
    "dropout(0.3), brightness(0.9), brightness(1.1)"
)
"""The default of an evaluation: from what every image meets to what leaves visible traces."""
