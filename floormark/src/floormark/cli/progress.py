"""Progress of long work: a bar on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from floormark.cli.outcome import note
from floormark.errors import printable

Tell = Callable[[int], None]
"""``tell(done)``: how many images are done."""
QUIET_SECONDS = 30.0
"""After which a log gets a line, however little was done."""


@contextmanager
def progress(label: str, total: int) -> Iterator[Tell]:
    """Give a function that is called as the work goes; a log has a line at every tenth of it.

    Nothing is shown before the first call: work that cannot begin ends in one line.
    """
    if not sys.stderr.isatty():
        yield _lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task(printable(label), total=total, visible=False)
        yield lambda done: bar.update(task, completed=done, visible=True)


def _lines(label: str, total: int) -> Tell:
    """For logs."""
    tenth, last = -1, time.monotonic()

    def tell(done: int) -> None:
        nonlocal tenth, last
        reached, now = 10 * done // total, time.monotonic()
        if reached != tenth or now - last >= QUIET_SECONDS:
            tenth, last = reached, now
            note(f"{label}: {done:,} of {total:,} images")

    return tell
