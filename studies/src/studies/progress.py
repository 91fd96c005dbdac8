"""Progress of long work: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samplewise.cli import note
from samplewise.errors import printable

if TYPE_CHECKING:
    from studies.pictures import Listing, Store

Tell = Callable[..., None]
"""``tell(done, total=None)``: how much is done, and of how much if that was not known."""

SILENCE = 30.0
"""Seconds after which a log gets a line, however little was done."""
GUESS = 5.0
"""Seconds of work before the time that is left is guessed."""


@contextmanager
def progress(label: str, total: int | None = None, *, unit: str = "images") -> Iterator[Tell]:
    """Give a function that is called as the work goes, see :data:`Tell`.

    In a log, a line says at once what begins, then one at every tenth of it, or half a minute after the last line.
    Where the total is not known there may be nothing to do, and nothing is said before the first call.
    """
    if not sys.stderr.isatty():
        yield _lines(label, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name = TextColumn("{task.description}", markup=False)  # which would read [40 dB] as a style
    columns = (name, BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task(printable(label), total=total, visible=total is not None)

        def tell(done: int, total: int | None = None) -> None:
            bar.update(task, completed=done, total=total, visible=True)

        yield tell


def _lines(label: str, total: int | None, unit: str) -> Tell:
    """For logs."""
    tenth = -1 if total is None else 0
    start = last = time.monotonic()
    begun: int | None = None
    if total is not None:
        note(f"{label}: {total:,} {unit}")

    def tell(done: int, of: int | None = None) -> None:
        nonlocal total, tenth, last, begun
        total = of or total
        reached = 10 * done // total if total else 0
        now = time.monotonic()
        if begun is None:
            begun = done  # what a run that goes on had behind it
        if reached == tenth and now - last < SILENCE:
            return
        tenth, last = reached, now
        text = f"{label}: {done:,}" + (f" of {total:,}" if total else "") + f" {unit}"
        if total and begun < done < total and now - start > GUESS:
            text += f", about {duration((now - start) / (done - begun) * (total - done))} left"
        note(text)

    return tell


def duration(seconds: float) -> str:
    """A duration for people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def prepare_pictures(source: Path | Listing, out: Path, **options: Any) -> Store:
    """:func:`studies.pictures.prepare` with progress, and a line if it begins anew what a kill left."""
    from studies.pictures import is_unfinished, prepare

    if is_unfinished(out):
        note(f"{out}: an earlier process was ended before its store was complete; beginning anew")
    with progress("preparing") as watch:
        return prepare(source, out, watch=watch, **options)
