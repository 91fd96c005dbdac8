"""Output during a run: the user's callbacks, a progress bar, and Fabric's loggers."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from samplewise.audits.audit import Audit
from samplewise.constraints import present
from samplewise.printed import percentage
from samplewise.storage import distributed

if TYPE_CHECKING:
    from lightning_fabric import Fabric

LINE = 79  # characters that are written over


class Callback:
    """What :func:`samplewise.fit` calls, in every process; a subclass overrides what it needs."""

    def on_audit(self, model: nn.Module, epoch: int, audits: Mapping[str, Audit]) -> None:
        """After an audit: the model in evaluation mode, the epoch, and its audits by data set."""

    def on_epoch(self, row: Mapping[str, Any]) -> None:
        """After an epoch: its row of the history."""


class RunLogger(Callback):
    """Writes the numbers and distributions of a run to Fabric's loggers, from the first process, and shows a bar."""

    def __init__(self, fabric: Fabric, progress: bool | None) -> None:
        first, terminal = distributed.rank() == 0, sys.stderr.isatty()
        self.loggers: list[Any] = list(fabric.loggers) if first else []
        notebook = "ipykernel" in sys.modules  # which is no terminal, but shows one line that is written anew
        kind = "notebook" if notebook else "bar" if terminal else "lines"  # in a file or a pipe a bar cannot move
        self._shown = kind if first and (notebook or terminal if progress is None else progress) else ""
        self._quiet = not first or progress is False
        self._last = 0
        self._bar: Any = None

    def say(self, chosen: Sequence[str]) -> None:
        """Print the choices made for arguments that were not given."""
        if chosen and not self._quiet:
            print(f"Chosen: {'; '.join(chosen)}.", file=sys.stderr, flush=True)

    def on_audit(self, model: nn.Module, epoch: int, audits: Mapping[str, Audit]) -> None:
        """The distribution of each measure, to the loggers that can show it."""
        if self._shown == "lines":
            held = ", ".join(f"{split} {percentage(found.satisfied, digits=2)} met" for split, found in audits.items())
            print(f"epoch {epoch} of {self._last}: {held}", file=sys.stderr, flush=True)
        shows = [each.experiment.add_histogram for each in self.loggers if hasattr(each.experiment, "add_histogram")]
        for show in shows:
            for split, found in audits.items():
                for name, values in found.measures.items():
                    # Not the name of the mean: TensorBoard takes a name for one kind of data only.
                    if len(there := present(values)):
                        show(f"{split}/{name}/distribution", there, epoch)

    def on_epoch(self, row: Mapping[str, Any]) -> None:
        numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
        for logger in self.loggers:
            logger.log_metrics(numbers, step=row["epoch"])
        if self._shown in ("bar", "notebook"):
            names = [name.removeprefix("tau/") for name in row if name.startswith("tau/")]
            least = min((row[f"running/{name}/satisfied"] for name in names), default=1.0)
            note = f"objective {row['running/objective']:.4g}, met {percentage(least)}"
            if self._bar is not None:
                self._bar.update(self._epochs, advance=1, note=note)
            else:
                line = f"epoch {row['epoch']} of {self._last}: {note}"
                print(f"\r{line:<{LINE}}", end="", file=sys.stderr, flush=True)

    def end(self, solution: object) -> None:
        """Write the summary of the run where lines are written."""
        if self._shown == "lines":
            print(solution, file=sys.stderr, flush=True)

    def start_epoch(self, steps: int | None, done: int) -> None:
        if self._bar is not None:
            self._bar.reset(self._steps, total=steps, completed=done)

    def step(self) -> None:
        if self._bar is not None:
            self._bar.advance(self._steps)

    @contextlib.contextmanager
    def logging(self) -> Iterator[None]:
        """A context at whose end the loggers write what they hold, also after an error."""
        try:
            yield
        except BaseException:
            self._finalize("failed")
            raise
        self._finalize("success")

    def _finalize(self, status: str) -> None:
        for logger in self.loggers:
            try:
                logger.save()  # some only close on finalize
                logger.finalize(status)
            except Exception as error:  # a run, or the error that ended it, is not lost for a logger's sake
                warnings.warn(f"{type(logger).__name__} could not write what it holds: {error!r}", stacklevel=2)

    @contextlib.contextmanager
    def bar(self, epochs: int, done: int) -> Iterator[None]:
        """Show on standard error how far a run of ``epochs`` is, ``done`` of them complete, if that is wanted."""
        self._last = epochs
        if self._shown != "bar":
            yield
            if self._shown == "notebook":
                print(file=sys.stderr, flush=True)
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        # The bar has what the others leave of the line: a terminal may have 80 columns.
        bar = BarColumn(bar_width=None, table_column=Column(max_width=40))
        columns = (TextColumn("{task.description}"), bar, MofNCompleteColumn(), TimeRemainingColumn())
        note = TextColumn("{task.fields[note]}")
        with Progress(*columns, note, console=Console(stderr=True), refresh_per_second=4) as self._bar:
            self._epochs = self._bar.add_task("epochs", total=epochs, completed=done, note="")
            self._steps = self._bar.add_task("steps", total=None, note="")
            yield
