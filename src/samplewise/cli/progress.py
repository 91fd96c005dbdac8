"""Progress of long work, such as rows that run side by side: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from samplewise.cli.outcome import note

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["bars_of_work", "counting", "downloading", "watching", "working"]

Watch = Callable[[dict[Any, int]], None]


@contextmanager
def bars_of_work() -> Iterator[Progress]:
    """Bars on the terminal: what, how far, how many of how many, and how long still."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    # Without markup, which would read the :100: of a row's name as an emoji.
    name = TextColumn("{task.description}", markup=False)
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bars:
        yield bars


@contextmanager
def watching(rows: int, epochs: int) -> Iterator[Watch]:
    """Give a function that is called with the epochs each unfinished row has behind it.

    Args:
        rows: how many rows there are.
        epochs: of each row.
    """
    if not sys.stderr.isatty():
        yield _Lines(epochs)
        return
    with bars_of_work() as bars:
        yield _Bars(bars, rows, epochs)


@contextmanager
def downloading() -> Iterator[Callable[[str, int, int | None], None]]:
    """Give a function that is called with a file's name, the bytes so far and the bytes in all."""
    if not sys.stderr.isatty():
        named: set[str] = set()

        def line(name: str, done: int, total: int | None) -> None:
            if name not in named:
                named.add(name)
                note(f"downloading {name}" + (f", {total / 1e6:.1f} MB" if total else ""))

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def bar(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=total)
            bars.update(tasks[name], completed=done)

        yield bar


class _Bars:
    def __init__(self, bars: Any, rows: int, epochs: int) -> None:
        self.bars = bars
        self.epochs = epochs
        self.total = bars.add_task("all rows", total=rows * epochs)
        self.tasks: dict[Any, Any] = {}
        self.rows = rows

    def __call__(self, done: dict[Any, int]) -> None:
        for job, epochs in done.items():
            if epochs and job not in self.tasks:
                self.tasks[job] = self.bars.add_task(str(job), total=self.epochs)
            if job in self.tasks:
                self.bars.update(self.tasks[job], completed=epochs)
        for job in [job for job in self.tasks if job not in done]:
            self.bars.remove_task(self.tasks.pop(job))
        finished = self.rows - len(done)
        self.bars.update(self.total, completed=finished * self.epochs + sum(done.values()))


@contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[], None]]:
    """Give a function that is called after each of ``total`` things: a bar, or a line at every tenth."""
    if sys.stderr.isatty():
        with bars_of_work() as bars:
            task = bars.add_task(what, total=total)
            yield lambda: bars.advance(task)
        return
    done = 0

    def line() -> None:
        nonlocal done
        done += 1
        if 10 * done // total > 10 * (done - 1) // total:
            note(f"{done:,} of {total:,} {what}")

    yield line


@contextmanager
def working(label: str) -> Iterator[Callable[[int, int], None]]:
    """Give a function that is called with the images done and in all: a bar, or a line at every quarter."""
    if sys.stderr.isatty():
        with bars_of_work() as bars:
            task = bars.add_task(label, total=None)
            yield lambda done, total: bars.update(task, completed=done, total=total)
        return
    shown = 0

    def line(done: int, total: int) -> None:
        nonlocal shown
        if (quarter := 4 * done // total) > shown:
            shown = quarter
            note(f"{label}: {done:,} of {total:,} images")

    yield line


class _Lines:
    """For logs: a line when a row begins to show, at every tenth of it, and when it is done."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.shown: dict[Any, int] = {}

    def __call__(self, done: dict[Any, int]) -> None:
        for job, epochs in done.items():
            tenth = 10 * epochs // self.epochs
            if epochs and tenth > self.shown.get(job, -1):
                self.shown[job] = tenth
                note(f"{job}: {epochs} of {self.epochs} epochs")
