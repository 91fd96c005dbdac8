"""Rows of the study: a small grammar, and what each row means in methods and optimisers."""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

import samplewise as sw
from samplewise.errors import ConfigurationError, did_you_mean
from studies.mnist.table_one import TABLE_ONE

GRAMMAR = (
    "classification | fixed:LAMBDA | penalty:TAU0:GAMMA | quadratic:TAU0:GAMMA | auglag:TAU0:GAMMA:STEP | ours, each "
    "with options behind it: ,lr=constant|cosine ,rate=RATE ,decay=WEIGHT_DECAY ,margin=MARGIN ,cap=MAXIMUM_TAU "
    ",average=SHARE; for example penalty:100:1.01 or penalty:200:1.01,lr=cosine,decay=3e-4,margin=0.001"
)

OURS = "penalty:100:1.01,lr=cosine,decay=1e-4,margin=0.0015"
"""The recommended recipe, which the row ``ours`` stands for."""

GROUPS = {
    "all": tuple(TABLE_ONE),
    "fixed": tuple(name for name in TABLE_ONE if name.startswith("fixed")),
    "sequential": tuple(name for name in TABLE_ONE if name.startswith("penalty")),
}
"""What ``--rows`` takes; ``all`` is the paper's Table I."""

GAMMA = "\N{GREEK SMALL LETTER GAMMA}"
RATES = ("constant", "cosine")
NUMBER = re.compile(r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?")


@dataclass(frozen=True)
class Options:
    """How a row is trained; the defaults are the paper's."""

    lr: str = "constant"
    """How the learning rate runs: constant, or falling to zero as a cosine."""
    rate: float = 1e-3
    """The learning rate at the start."""
    decay: float = 1e-3
    """Adam's weight decay."""
    margin: float = 0.0
    """By how much the bound is tighter in training."""
    cap: float = 1e4
    """The largest tau."""
    average: float = 0.0
    """How much of the weights' average stays at each step; 0 for the weights themselves."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a method and how it is trained."""

    kind: str
    numbers: tuple[float, ...]
    options: Options = Options()
    recipe: str = ""
    """What it is called, if not by its text."""

    @property
    def name(self) -> str:
        """What the table calls it."""
        return self.recipe or self.text

    @property
    def text(self) -> str:
        """The row in its shortest form, which :func:`parse_row` reads back."""
        return ",".join([":".join([self.kind, *(f"{number:.12g}" for number in self.numbers)]), *self.extras])

    @property
    def folder(self) -> str:
        """The row as a folder's name."""
        return self.name.replace(":", "-").replace(",", "_")

    @property
    def extras(self) -> tuple[str, ...]:
        """The options that differ from the paper's, such as ``lr=cosine``."""
        given = ((field.name, getattr(self.options, field.name), field.default) for field in fields(Options))
        return tuple(
            f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"
            for name, value, usual in given
            if value != usual
        )

    @property
    def family(self) -> str:
        """``classification``, ``fixed`` or ``sequential``: what the figures tell apart."""
        return self.kind if self.kind in ("classification", "fixed") else "sequential"


KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": ("Classification only", ()),
    "fixed": ("Fixed (λ = {})", ("LAMBDA",)),
    "penalty": (f"Penalty (τ₀ = {{}}, {GAMMA} = {{}})", ("TAU0", "GAMMA")),
    "quadratic": (f"Quadratic penalty (τ₀ = {{}}, {GAMMA} = {{}})", ("TAU0", "GAMMA")),
    "auglag": (f"Augmented Lagrangian (τ₀ = {{}}, {GAMMA} = {{}}, step = {{}})", ("TAU0", "GAMMA", "STEP")),
}
"""Of each kind of row what the paper's table calls it, and the numbers that it takes."""


def make_method(row: Row, constraints: tuple[sw.Constraint, ...], *, samples: int) -> sw.Method:
    """The method that the row names; ``samples`` is the length of the training set, for one multiplier each."""
    if row.kind == "classification":
        return sw.Unconstrained(constraints)
    if row.kind == "fixed":
        return sw.FixedPenalty(constraints, row.numbers[0])
    schedule = sw.Geometric(row.numbers[0], growth=row.numbers[1], maximum=row.options.cap)
    if row.kind == "auglag":
        return sw.AugmentedLagrangian(constraints, samples=samples, schedule=schedule, multiplier_step=row.numbers[2])
    penalty = sw.Quadratic() if row.kind == "quadratic" else sw.Linear()
    return sw.SequentialPenalty(constraints, penalty=penalty, schedule=schedule)


class RowLabels:
    """Names of the rows of one run in tables and figures: options that all rows share are said once."""

    def __init__(self, rows: Iterable[Row]) -> None:
        extras = [row.extras for row in dict.fromkeys(rows)]
        # A single row keeps its options in its name.
        self.shared = tuple(e for e in extras[0] if all(e in other for other in extras)) if len(extras) > 1 else ()

    def extras(self, row: Row) -> list[str]:
        """The options that set the row apart from the others."""
        return [extra for extra in row.extras if extra not in self.shared]

    def label(self, row: Row) -> str:
        """The row as the paper's table writes it."""
        if row.recipe:
            return f"Ours ({row.text})"
        values = (f"{number:.12g}" for number in row.numbers)
        return ", ".join([KINDS[row.kind][0].format(*values), *self.extras(row)])

    def kind(self, row: Row) -> str:
        """The series of the row in figures: its family; ``ours`` for sequential rows beyond the paper's kind."""
        beyond = row.kind != "penalty" or row.recipe or self.extras(row)
        return "ours" if row.family == "sequential" and beyond else row.family

    def short(self, row: Row) -> str:
        """The row's numbers alone, for a place beside a point."""
        return row.recipe or ", ".join([*(f"{number:g}" for number in row.numbers[:2]), *self.extras(row)])


def parse_row(text: str) -> Row:
    """Read a row, such as ``penalty:100:1.01`` or ``fixed:100``; an error shows the grammar."""
    try:
        return _parse(text.strip())
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot read the row {text!r}: {error} The grammar: {GRAMMAR}") from None


def _parse(text: str) -> Row:
    head, *parts = text.split(",")
    if head == "ours":
        head, *parts = [*OURS.split(","), *parts]
    kind, *values = head.split(":")
    if kind not in KINDS:
        raise ConfigurationError(f"there is no method {kind!r}.{did_you_mean(kind, [*KINDS, 'ours'])}")
    wanted = KINDS[kind][1]
    if len(values) != len(wanted):
        expected, got = ":".join(wanted) or "no number", ":".join(values) or "none"
        raise ConfigurationError(f"{kind} takes {expected}, got {got}.")
    numbers = tuple(map(_number, wanted, values))
    row = Row(kind, numbers, _options(parts), recipe="ours" if text == "ours" else "")
    if kind == "classification" and row.options.average:
        raise ConfigurationError("classification takes no average: the weights of its last epoch are its result.")
    try:
        # Numbers that the methods refuse are refused here, before anything runs.
        make_method(row, (sw.Constraint("any", 0.0),), samples=1)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error}.") from None
    return row


def _number(name: str, value: str) -> float:
    number = float(value) if NUMBER.fullmatch(value) else math.nan
    if not math.isfinite(number):
        raise ConfigurationError(f"expected a finite number of at least 0 for {name}, got {value!r}.")
    return number


def _options(parts: Iterable[str]) -> Options:
    options, names = Options(), [field.name for field in fields(Options)]
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in names:
            raise ConfigurationError(f"expected an option NAME=VALUE, got {part!r}.{did_you_mean(name, names)}")
        if name == "lr" and value not in RATES:
            raise ConfigurationError(f"expected lr as one of {', '.join(RATES)}, got {value!r}.")
        given: dict[str, str | float] = {name: value if name == "lr" else _number(name, value)}
        options = replace(options, **given)  # type: ignore[arg-type]  # checked above
    if not options.rate > 0:
        raise ConfigurationError("expected rate > 0.")
    if not options.average < 1:
        raise ConfigurationError("expected average < 1, such as 0.998.")
    return options
