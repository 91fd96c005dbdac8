"""Rows of the study: a small grammar, and what each row means in methods and optimisers."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from samplewise.constraints import Constraint
from samplewise.errors import ConfigurationError, did_you_mean
from samplewise.methods import AugmentedLagrangian, FixedPenalty, Method, SequentialPenalty, Unconstrained
from samplewise.penalties import Linear, Penalty, Quadratic
from samplewise.schedules import Geometric
from samplewise.studies.mnist.table_one import TABLE_ONE

__all__ = ["GRAMMAR", "GROUPS", "OURS", "Naming", "Options", "Row", "make_method", "parse_row"]

GRAMMAR = (
    "classification | fixed:LAMBDA | penalty:TAU0:GAMMA | quadratic:TAU0:GAMMA | auglag:TAU0:GAMMA:STEP | ours, each "
    "with options behind it: ,lr=constant|cosine ,rate=RATE ,decay=WEIGHT_DECAY ,margin=MARGIN ,cap=MAXIMUM_TAU; "
    "for example penalty:100:1.01 or penalty:200:1.01,lr=cosine,decay=3e-4,margin=0.001"
)

OURS = "penalty:100:1.01,lr=cosine,decay=1e-4,margin=0.0015"
"""The recommended recipe, which the row ``ours`` stands for."""

GROUPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "all": tuple(TABLE_ONE),
        "fixed": tuple(name for name in TABLE_ONE if name.startswith("fixed")),
        "sequential": tuple(name for name in TABLE_ONE if name.startswith("penalty")),
    }
)
"""What ``--rows`` takes; ``all`` is the paper's Table I."""

NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "classification": (),
        "fixed": ("LAMBDA",),
        "penalty": ("TAU0", "GAMMA"),
        "quadratic": ("TAU0", "GAMMA"),
        "auglag": ("TAU0", "GAMMA", "STEP"),
    }
)
GAMMA = "\N{GREEK SMALL LETTER GAMMA}"
LABELS: Mapping[str, str] = MappingProxyType(
    {
        "classification": "Classification only",
        "fixed": "Fixed (λ = {})",
        "penalty": f"Penalty (τ₀ = {{}}, {GAMMA} = {{}})",
        "quadratic": f"Quadratic penalty (τ₀ = {{}}, {GAMMA} = {{}})",
        "auglag": f"Augmented Lagrangian (τ₀ = {{}}, {GAMMA} = {{}}, step = {{}})",
    }
)
PENALTIES: Mapping[str, type[Penalty]] = MappingProxyType({"penalty": Linear, "quadratic": Quadratic})
RATES = ("constant", "cosine")


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
    """How much tighter the bound is in training."""
    cap: float = 1e4
    """The largest tau."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a method and how it is trained."""

    name: str
    """What the table calls it: ``text``, or the name of a recipe."""
    kind: str
    numbers: tuple[float, ...]
    options: Options = field(default_factory=Options)

    @property
    def text(self) -> str:
        """The row in its shortest form, which :func:`parse_row` reads back."""
        head = ":".join([self.kind, *(f"{number:.12g}" for number in self.numbers)])
        usual = Options()
        tail = [
            f"{name}={value:.12g}" if isinstance(value, float) else f"{name}={value}"
            for name in Options.__dataclass_fields__
            if (value := getattr(self.options, name)) != getattr(usual, name)
        ]
        return ",".join([head, *tail])

    @property
    def folder(self) -> str:
        """The row as a folder's name."""
        return self.name.replace(":", "-").replace(",", "_")

    @property
    def extras(self) -> tuple[str, ...]:
        """The options that differ from the paper's, such as ``lr=cosine``."""
        return tuple(self.text.split(",")[1:])

    @property
    def family(self) -> str:
        """``classification``, ``fixed`` or ``sequential``: what the figures tell apart."""
        return self.kind if self.kind in ("classification", "fixed") else "sequential"


class Naming:
    """What tables and figures call the rows of one run: options that all rows share are said once, not in each name.

    Args:
        rows: of the run.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        extras = [row.extras for row in rows]
        # A single row keeps its options in its name.
        self.shared = tuple(e for e in extras[0] if all(e in other for other in extras)) if len(extras) > 1 else ()

    def extras(self, row: Row) -> list[str]:
        """The options that set the row apart from the others."""
        return [extra for extra in row.extras if extra not in self.shared]

    def label(self, row: Row) -> str:
        """The row as the paper's table writes it."""
        if row.name != row.text:
            return f"Ours ({row.text})"
        values = (f"{number:.12g}" for number in row.numbers)
        return ", ".join([LABELS[row.kind].format(*values), *self.extras(row)])

    def kind(self, row: Row) -> str:
        """How figures mark the row: by its family; sequential rows beyond the paper's kind as ``ours``."""
        beyond = row.kind != "penalty" or row.name != row.text or self.extras(row)
        return "ours" if row.family == "sequential" and beyond else row.family

    def short(self, row: Row) -> str:
        """The row's numbers alone, for a place beside a point."""
        if row.name != row.text:
            return row.name
        return ", ".join([*(f"{number:g}" for number in row.numbers[:2]), *self.extras(row)])


def parse_row(text: str) -> Row:
    """Read a row, such as ``penalty:100:1.01`` or ``fixed:100``.

    Raises:
        ConfigurationError: the text is not in the grammar, which the message shows.
    """
    head, *tail = text.strip().split(",")
    recipe = head == "ours"
    if recipe:
        base, *usual = OURS.split(",")
        kind, *values = base.split(":")
        options = _options(text, usual + tail)
    else:
        kind, *values = head.split(":")
        options = _options(text, tail)
    if kind not in NUMBERS:
        raise _bad(text, f"there is no method {kind!r}.{did_you_mean(kind, [*NUMBERS, 'ours'])}")
    wanted = NUMBERS[kind]
    if len(values) != len(wanted):
        raise _bad(text, f"{kind} takes {':'.join(wanted) or 'no number'}, got {':'.join(values) or 'none'}.")
    numbers = tuple(_number(text, name, value) for name, value in zip(wanted, values, strict=True))
    row = Row(head if recipe else "", kind, numbers, options)
    try:
        make_method(row, (), samples=1)  # numbers that the methods refuse are refused here, before anything runs
    except ConfigurationError as error:
        raise _bad(text, f"{error}.") from None
    if recipe and not tail:
        return row
    return Row(row.text, kind, numbers, options)


def _bad(text: str, what: str) -> ConfigurationError:
    return ConfigurationError(f"cannot read the row {text!r}: {what} The grammar: {GRAMMAR}")


def _number(text: str, name: str, value: str) -> float:
    if not re.fullmatch(r"[0-9.]+(e[+-]?[0-9]+)?", value):
        raise _bad(text, f"expected a number for {name}, got {value!r}.")
    try:
        number = float(value)
    except ValueError:
        raise _bad(text, f"expected a number for {name}, got {value!r}.") from None
    if not math.isfinite(number):
        raise _bad(text, f"expected a finite number for {name}, got {value!r}.")
    return number


def _options(text: str, parts: list[str]) -> Options:
    given: dict[str, str | float] = {}
    names = list(Options.__dataclass_fields__)
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or name not in names:
            raise _bad(text, f"expected an option NAME=VALUE, got {part!r}.{did_you_mean(name, names)}")
        if name == "lr":
            if value not in RATES:
                raise _bad(text, f"expected lr as one of {', '.join(RATES)}, got {value!r}.")
            given[name] = value
        else:
            given[name] = _number(text, name, value)
    options = Options(**given)  # type: ignore[arg-type]  # the names were checked above, one by one
    if not options.rate > 0:
        raise _bad(text, "expected rate > 0.")
    return options


def make_method(row: Row, constraints: tuple[Constraint, ...], *, samples: int) -> Method:
    """The method that the row names.

    Args:
        row: what the table calls it.
        constraints: the problem's.
        samples: length of the training set, for methods with a multiplier for each sample.
    """
    if row.kind == "classification":
        return Unconstrained(constraints)
    if row.kind == "fixed":
        return FixedPenalty(constraints, row.numbers[0])
    schedule = Geometric(row.numbers[0], growth=row.numbers[1], maximum=row.options.cap)
    if row.kind == "auglag":
        return AugmentedLagrangian(constraints, samples=samples, schedule=schedule, multiplier_step=row.numbers[2])
    return SequentialPenalty(constraints, penalty=PENALTIES[row.kind](), schedule=schedule)
