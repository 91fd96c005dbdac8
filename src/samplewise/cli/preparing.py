"""Progress of preparing pictures: a bar on a terminal, a line at every tenth elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from samplewise.cli.outcome import note
from samplewise.cli.progress import bars_of_work

if TYPE_CHECKING:
    from samplewise.data.pictures import Progress
    from samplewise.data.pictures.prepare import Watch

__all__ = ["duration", "preparing", "volume"]


def duration(seconds: float) -> str:
    """Seconds in words for people: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def volume(length: int) -> str:
    """A number of bytes in words for people: 140 MB, 5.6 GB."""
    return f"{length / 1e6:.0f} MB" if length < 1e9 else f"{length / 1e9:.1f} GB"


@contextmanager
def preparing() -> Iterator[Watch]:
    """Give the function that :func:`samplewise.data.pictures.prepare` is to be watched by."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    with bars_of_work() as bars:
        yield _Bar(bars)


def _announce(progress: Progress) -> str:
    left = f"{progress.total - progress.done:,} of {progress.total:,} pictures to prepare"
    return f"{left}: about {duration(progress.seconds_left)}, {volume(progress.bytes_total)}"


class _Bar:
    def __init__(self, bars: Any) -> None:
        self.bars = bars
        self.task: Any = None

    def __call__(self, progress: Progress) -> None:
        if self.task is None:
            self.bars.console.print(_announce(progress), highlight=False)
            self.task = self.bars.add_task("pictures", total=progress.total)
        self.bars.update(self.task, completed=progress.done)


class _Lines:
    """For logs."""

    def __init__(self) -> None:
        self.tenth: int | None = None

    def __call__(self, progress: Progress) -> None:
        tenth = 10 * progress.done // max(1, progress.total)
        if self.tenth is None:
            note(_announce(progress))
        elif tenth > self.tenth:
            note(f"{progress.done:,} of {progress.total:,} pictures, {progress.skipped:,} skipped")
        self.tenth = tenth
