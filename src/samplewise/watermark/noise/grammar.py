"""The one language in which noise for training and attacks for evaluation are written."""

import re
from dataclasses import dataclass
from typing import NoReturn

from samplewise.errors import ConfigurationError, did_you_mean
from samplewise.watermark.noise.operators import OPERATORS, Limits, Step, shortest

__all__ = ["Chain", "format_chains", "parse_chains"]

WEIGHTS = Limits(0.001, 1000)
NUMBER = r"-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"  # leaves both dots of 0..1 alone
STEP = re.compile(
    rf"(?:(?P<weight>{NUMBER})\s*\*)?\s*(?P<name>[A-Za-z_]\w*)"
    rf"\s*(?:\(\s*(?P<low>{NUMBER})\s*(?:\.\.\s*(?P<high>{NUMBER})\s*)?\))?"
)
PLUS = re.compile(r"\+(?![^()]*\))")  # not that of a number such as 1e+1


@dataclass(frozen=True)
class Chain:
    """Steps applied one after another, and how often they are drawn beside the other alternatives."""

    steps: tuple[Step, ...]
    weight: float = 1.0

    def __str__(self) -> str:
        steps = " + ".join(map(str, self.steps))
        return steps if self.weight == 1.0 else f"{shortest(self.weight)}*{steps}"


def parse_chains(spec: str, *, attack: bool = False) -> tuple[Chain, ...]:
    """Read the alternatives of a spec such as ``"jpeg(50..95), 2*crop(0.7..1) + blur(0..1), identity"``.

    Args:
        spec: alternatives separated by commas; ``+`` chains steps, ``a..b`` is a range, ``w*`` weighs the whole chain.
        attack: what is written must happen as it stands, by real tools: neither ranges nor weights, but also operators
            that training does not have.

    Raises:
        ConfigurationError: with the step that is wrong, what was expected of it, and the grammar.

    Example:
        >>> [str(chain) for chain in parse_chains("jpeg( 50 .. 95.0 )+blur(.5), 2*identity")]
        ['jpeg(50..95) + blur(0.5)', '2*identity']
    """
    chains = []
    for alternative in spec.split(","):
        steps, weights = zip(*(_step(spec, text.strip(), attack) for text in PLUS.split(alternative)), strict=True)
        if any(weight is not None for weight in weights[1:]):
            _refuse(spec, alternative.strip(), "a weight only before the first step of a chain", attack)
        chains.append(Chain(steps, 1.0 if weights[0] is None else weights[0]))
    return tuple(chains)


def format_chains(chains: tuple[Chain, ...]) -> str:
    """The canonical spec, which parses back to ``chains``."""
    return ", ".join(map(str, chains))


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
    if attack and (found["weight"] or len(numbers) > 1):
        _refuse(spec, text, "one strength and no weight for an attack", attack)
    if limits is None and numbers:
        _refuse(spec, text, f"no strength for {name}", attack)
    if limits is not None and not (numbers and all(map(limits.hold, numbers))):
        _refuse(spec, text, f"{limits} as the strength of {name}", attack)
    if numbers != sorted(numbers):
        _refuse(spec, text, "a range that begins with its lower end", attack)
    weight = None if found["weight"] is None else float(found["weight"])
    if weight is not None and not WEIGHTS.hold(weight):
        _refuse(spec, text, f"{WEIGHTS} as a weight", attack)
    return Step(name, numbers[0], numbers[-1]) if numbers else Step(name), weight


def _names(attack: bool) -> list[str]:
    return [name for name, operator in OPERATORS.items() if attack or operator.train]


def _refuse(spec: str, text: str, expected: str, attack: bool, hint: str = "") -> NoReturn:
    step = "NAME(NUMBER)" if attack else "NAME(NUMBER) or NAME(LOW..HIGH)"
    chain = "STEP[+STEP...]" if attack else "[WEIGHT*]STEP[+STEP...]"
    names = ", ".join(name for name in _names(attack) if OPERATORS[name].limits)
    raise ConfigurationError(
        f"{spec!r}: expected {expected}, got {text!r}.{hint} The grammar: {chain}[, ...] where STEP is identity or "
        f"{step}, NAME one of {names}"
    )
