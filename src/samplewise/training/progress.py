"""Progress of long work on the terminal; silent where nobody watches."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any

__all__ = ["Progress"]


class Progress:
    """A bar on standard error for epochs and the steps in them.

    Args:
        epochs: how many there will be.
        done: how many are done already.
        shown: True or False, or None to show it on a terminal only.
    """

    def __init__(self, epochs: int, *, done: int = 0, shown: bool | None = None) -> None:
        self._bar: Any = None
        if shown if shown is not None else sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
                refresh_per_second=4,
            )
            self._epochs = self._bar.add_task("epochs", total=epochs, completed=done, note="")
            self._steps = self._bar.add_task("steps", total=None, note="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start_epoch(self, steps: int, done: int) -> None:
        """A new epoch of ``steps`` steps, ``done`` of them behind it."""
        if self._bar is not None:
            self._bar.reset(self._steps, total=steps, completed=done)

    def step(self) -> None:
        """One step more."""
        if self._bar is not None:
            self._bar.advance(self._steps)

    def end_epoch(self, note: str) -> None:
        """One epoch more; ``note`` says how it went."""
        if self._bar is not None:
            self._bar.update(self._epochs, advance=1, note=note)
