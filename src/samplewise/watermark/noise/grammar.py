"""The one language in which noise for training and attacks for evaluation are written."""

import re
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

from samplewise.errors import ConfigurationError, did_you_mean

__all__ = ["OPERATORS", "Chain", "Limits", "Step", "format_chains", "parse_chains"]


class Limits(NamedTuple):
    """Which strengths make sense for an operator."""

    lowest: float
    highest: float
    whole: bool = False
    """Only whole numbers."""

    def __str__(self) -> str:
        return f"{'a whole number' if self.whole else 'a number'} from {self.lowest:g} to {self.highest:g}"


OPERATORS: dict[str, Limits | None] = {
    "identity": None,
    "jpeg": Limits(1, 100, whole=True),  # quality of the encoder
    "resize": Limits(0.05, 4),  # scale of both sides; back to the old size afterwards
    "crop": Limits(0.05, 1),  # share of both sides that is kept
    "dropout": Limits(0, 1),  # probability that a pixel is the cover's again
    "gaussian": Limits(0, 1),  # standard deviation where white is 1
    "blur": Limits(0, 16),  # standard deviation in pixels
    "brightness": Limits(0, 4),  # factor
    "contrast": Limits(0, 4),  # factor of the distance to the mean grey
}
"""Every operator by name, and the strengths it takes (none for identity)."""

WEIGHTS = Limits(0.001, 1000)

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<name>[A-Za-z_]\w*)
    | (?P<number>-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)  # leaves both dots of 0..1 alone
    | (?P<sign>\.\.|[,+*()])
    | (?P<other>\S)
    )""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Step:
    """One operator whose strength lies between ``low`` and ``high``; identity has none."""

    name: str
    low: float = 0.0
    high: float = 0.0

    def __str__(self) -> str:
        if OPERATORS[self.name] is None:
            return self.name
        strength = _number(self.low) if self.low == self.high else f"{_number(self.low)}..{_number(self.high)}"
        return f"{self.name}({strength})"


@dataclass(frozen=True)
class Chain:
    """Steps applied one after another, and how often they are drawn beside the other alternatives."""

    steps: tuple[Step, ...]
    weight: float = 1.0

    def __str__(self) -> str:
        steps = " + ".join(map(str, self.steps))
        return steps if self.weight == 1.0 else f"{_number(self.weight)}*{steps}"


def parse_chains(spec: str, *, fixed: bool = False) -> tuple[Chain, ...]:
    """Read the alternatives of a spec such as ``"jpeg(50..95), 2*crop(0.7..1) + blur(0..1), identity"``.

    Args:
        spec: alternatives separated by commas; ``+`` chains steps, ``a..b`` is a range, ``w*`` weighs the whole chain.
        fixed: what is written must happen as it stands: neither ranges nor weights.

    Raises:
        ConfigurationError: with the position, what was found there, what was expected, and the grammar.

    Example:
        >>> [str(chain) for chain in parse_chains("jpeg( 50 .. 95.0 )+blur(.5), 2*identity")]
        ['jpeg(50..95) + blur(0.5)', '2*identity']
    """
    return _Parser(spec, fixed).chains()


def format_chains(chains: tuple[Chain, ...]) -> str:
    """The canonical spec, which parses back to ``chains``."""
    return ", ".join(map(str, chains))


def _number(value: float) -> str:
    """The shortest text that reads back as ``value``, 50 rather than 50.0."""
    return str(int(value)) if value == int(value) else repr(value)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else repr(self.text)


class _Parser:
    """Recursive descent, a method for each rule of the grammar."""

    def __init__(self, spec: str, fixed: bool) -> None:
        self.spec = spec
        self.fixed = fixed
        kinds = [(found, str(found.lastgroup)) for found in _TOKEN.finditer(spec)]
        self.tokens = [_Token(kind, found[kind], found.start(kind)) for found, kind in kinds]
        self.tokens.append(_Token("end", "", len(spec)))
        self.next = 0

    @property
    def token(self) -> _Token:
        return self.tokens[self.next]

    def take(self, kind: str, text: str | None = None) -> _Token | None:
        """The token at hand if it is of that kind (and text), and step over it."""
        token = self.token
        if token.kind != kind or text not in (None, token.text):
            return None
        self.next += 1
        return token

    def chains(self) -> tuple[Chain, ...]:
        chains = [self.chain()]
        while self.take("sign", ","):
            chains.append(self.chain())
        if self.token.kind != "end":
            self.fail("',', '+' or the end")
        return tuple(chains)

    def chain(self) -> Chain:
        weight = 1.0
        if not self.fixed and self.token.kind == "number":
            weight = self.number("a weight", WEIGHTS)
            self.expect("*")
        steps = [self.step()]
        while self.take("sign", "+"):
            steps.append(self.step())
        return Chain(tuple(steps), weight)

    def step(self) -> Step:
        token = self.take("name")
        if token is None:
            self.fail("an operator")
        if token.text not in OPERATORS:
            self.fail("an operator", token, did_you_mean(token.text.lower(), OPERATORS))
        limits = OPERATORS[token.text]
        if limits is None:
            return Step(token.text)
        self.expect("(")
        low = high = self.number(f"the strength of {token.text}", limits)
        if not self.fixed and self.take("sign", ".."):
            start = self.token
            high = self.number(f"the strength of {token.text}", limits)
            if high < low:
                self.fail(f"at least the lower end {_number(low)} of the range", start)
        self.expect(")")
        return Step(token.text, low, high)

    def number(self, what: str, limits: Limits) -> float:
        token = self.take("number")
        if token is None:
            self.fail(f"{limits} as {what}")
        value = float(token.text)
        if not limits.lowest <= value <= limits.highest or (limits.whole and value != int(value)):
            self.fail(f"{limits} as {what}", token)
        return value

    def expect(self, sign: str) -> None:
        if not self.take("sign", sign):
            self.fail(repr(sign))

    def fail(self, expected: str, found: _Token | None = None, hint: str = "") -> NoReturn:
        found = found or self.token
        step = "NAME(NUMBER)" if self.fixed else "NAME(NUMBER) or NAME(LOW..HIGH)"
        chain = "STEP[+STEP...]" if self.fixed else "[WEIGHT*]STEP[+STEP...]"
        names = ", ".join(name for name, limits in OPERATORS.items() if limits)
        raise ConfigurationError(
            f"{self.spec!r}: expected {expected} at position {found.start + 1}, got {found}.{hint} The grammar: "
            f"{chain}[, ...] where STEP is identity or {step}, NAME one of {names}"
        )
