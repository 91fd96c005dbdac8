"""How a result prints: its verdict, an aligned table and notes, ten lines at most; the same as HTML in notebooks."""

import html
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from samplewise.errors import printable

LINES, WIDTH, LABEL = 10, 100, 28
"""The most lines, characters in a line and characters in the first column."""


class Printout(NamedTuple):
    """What is printed of a result."""

    verdict: str
    rows: Sequence[Sequence[str]] = ()
    """Of the table; the first one is its head."""
    notes: Sequence[str] = ()


class Printed(ABC):
    """Base of results that print as :class:`Printout` says."""

    @abstractmethod
    def printout(self) -> Printout:
        """Verdict, table and notes."""

    def __str__(self) -> str:
        return as_text(self.printout())

    def _repr_html_(self) -> str:
        return as_html(self.printout())

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """For notebooks: where HTML is not shown the text of ``print``, not a dataclass with every tensor in it."""
        return {"text/plain": str(self), "text/html": self._repr_html_()}


def as_text(printout: Printout) -> str:
    """At most ten lines of at most 100 characters; what has no room is said to be left out."""
    head = _wrapped(printout.verdict, 4)
    notes = [line for note in printout.notes[:3] for line in _wrapped(note, 2)][: max(4, LINES - len(head) - 3)]
    rows = [[_clipped(printable(row[0]), LABEL), *map(printable, row[1:])] for row in printout.rows]
    room = LINES - len(head) - len(notes)
    left_out = len(rows) - (room - 1) if len(rows) > room else 0
    rows = rows[: len(rows) - left_out]
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
    more = [f"... and {left_out} more"] if left_out else []
    return "\n".join([*head, *(_clipped(line, WIDTH) for line in table), *more, *notes])


def as_html(printout: Printout) -> str:
    """The same, whole, as a paragraph, a table and paragraphs."""

    def cells(row: Sequence[str], kind: str) -> str:
        return "".join(f"<{kind}>{html.escape(printable(cell))}</{kind}>" for cell in row)

    lines = [cells(row, "td" if number else "th") for number, row in enumerate(printout.rows)]
    table = f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>" if lines else ""
    notes = "".join(f"<p>{html.escape(printable(note))}</p>" for note in printout.notes)
    return f"<p><b>{html.escape(printable(printout.verdict))}</b></p>{table}{notes}"


def _wrapped(text: str, lines: int) -> list[str]:
    return textwrap.wrap(printable(text), WIDTH, max_lines=lines, placeholder=" ...")


def _clipped(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 3]}..."


def percentage(value: float, rounded: Callable[[float], int] = round, digits: int = 1) -> str:
    """A rate in percent, with enough digits to differ from 0 and 100 %; a dash for NaN.

    A bound stays true if an upper one is ``rounded`` by ``math.ceil`` and a lower one by ``math.floor``.

    Example:
        >>> percentage(0.5), percentage(0.99996), percentage(1.0), percentage(0.04604, math.ceil, 2)
        ('50.0%', '99.996%', '100%', '4.61%')
    """
    if math.isnan(value):
        return "–"  # noqa: RUF001 - a dash, not a minus
    if value in (0.0, 1.0):
        return f"{value:.0%}"
    for shown in range(digits, 8):
        unit = 10**shown
        found = rounded(round(100 * value * unit, 6)) / unit  # what floats add to 0.07 is no reason to round up
        if 0.0 < found < 100.0:
            break
    return f"{found:.{shown}f}%"
