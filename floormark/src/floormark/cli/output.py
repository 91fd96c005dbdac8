"""Output of commands: results on standard output, notes for people and progress on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from floormark.errors import printable

if TYPE_CHECKING:
    from floormark.certificate import Fidelity

SUCCEEDED, FAILED = 0, 1
QUIET_SECONDS = 30.0  # after which a log gets a line, however little was done


def note(text: str) -> None:
    """A line for people, on standard error, so that standard output stays for results."""
    print(printable(text), file=sys.stderr, flush=True)


def emit_json(value: Any) -> None:
    """Strict JSON on standard output."""
    plain = (sys.stdout.encoding or "utf-8").lower() != "utf-8"
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=plain)
    # Control characters are escaped as in JSON: a program reads the same text.
    print("".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text), flush=True)


def emit(result: Any, text: str, closing: str = "", *, as_json: bool) -> None:
    """End a command with its result: as JSON, or as a text and a line for people."""
    if as_json:
        emit_json(result)
        return
    print("\n".join(map(printable, text.split("\n"))))
    if closing:
        note(closing)


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of images done: a bar on a terminal, a line for each tenth in a log.

    Nothing is shown before the first call: work that cannot begin ends in one line.
    """
    if not sys.stderr.isatty():
        yield _lines(label, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=2) as bar:
        task = bar.add_task(label, total=total, visible=False)
        yield lambda done: bar.update(task, completed=done, visible=True)


def _lines(label: str, total: int) -> Callable[[int], None]:
    tenth, last = -1, time.monotonic()

    def tell(done: int) -> None:
        nonlocal tenth, last
        reached, now = 10 * done // total, time.monotonic()
        if reached != tenth or now - last >= QUIET_SECONDS:
            tenth, last = reached, now
            note(f"{label}: {done:,} of {total:,} images")

    return tell


def largest_change(measured: Fidelity) -> str:
    """The largest difference, in the unit of the modality too if it has one, and the range that is shown."""
    unit = f" ({measured.largest_change:g} {measured.unit})" if measured.unit else ""
    return f"{measured.max_difference}{unit} of {measured.shown:g}"


def decibels(psnr: float | None) -> str:
    """A PSNR, which is None where nothing changed."""
    return "infinite, no pixel changed" if psnr is None else f"{psnr:.3f} dB"
