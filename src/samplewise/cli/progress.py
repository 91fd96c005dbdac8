"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from samplewise.cli.outcome import note
from samplewise.errors import printable

__all__ = ["duration", "progress"]

Tell = Callable[..., None]
"""``tell(done, total=None, remark="")``: how much is done, of how much if that was not known, and what else to say."""

SILENCE = 30.0
"""Seconds after which a log gets a line, however little was done."""
GUESS = 5.0
"""Seconds of work before the time that is left is guessed."""


@contextmanager
def progress(label: str, total: int | None = None, *, unit: str = "images") -> Iterator[Tell]:
    """Give a function that is called as the work goes, see :data:`Tell`.

    In a log, a line says at once what begins, then one at every tenth of it, or half a minute after the last line.
    Where the total is not known there may be nothing to do, and nothing is said before the first call.

    Args:
        label: what is done.
        total: how much there is, if that is known.
        unit: of what.
    """
    if not sys.stderr.isatty():
        yield _Lines(label, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # Without markup, which would read the :100: of a row's name as an emoji.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit, markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task(printable(label), total=total, visible=total is not None, remark="")

        def tell(done: int, total: int | None = None, remark: str = "") -> None:
            bar.update(task, completed=done, total=total, visible=True, remark=printable(remark))

        yield tell


class _Lines:
    """For logs."""

    def __init__(self, label: str, total: int | None, unit: str) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.tenth = -1
        self.start = self.last = time.monotonic()
        self.begun: int | None = None
        if total is not None:
            self.tenth = 0
            note(f"{label}: {total:,} {unit}")

    def __call__(self, done: int, total: int | None = None, remark: str = "") -> None:
        self.total = total or self.total
        tenth = 10 * done // self.total if self.total else 0
        now = time.monotonic()
        if self.begun is None:
            self.begun = done  # what a run that goes on had behind it
        if tenth == self.tenth and now - self.last < SILENCE:
            return
        self.tenth, self.last = tenth, now
        text = f"{self.label}: {done:,}" + (f" of {self.total:,}" if self.total else "") + f" {self.unit}"
        if self.total and self.begun < done < self.total and now - self.start > GUESS:
            left = (now - self.start) / (done - self.begun) * (self.total - done)
            text += f", about {duration(left)} left"
        note(f"{text}, {remark}" if remark else text)


def duration(seconds: float) -> str:
    """Seconds in words for people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
