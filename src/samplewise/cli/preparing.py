"""Pictures prepared with progress, for every command that takes a folder of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from samplewise.cli.outcome import note
from samplewise.cli.progress import progress

__all__ = ["preparing"]


@contextmanager
def preparing(out: Path) -> Iterator[Callable[[int, int], None]]:
    """Give the function that :func:`samplewise.data.pictures.prepare` is to be watched by.

    Args:
        out: where the store is made; if what a killed process left is there, a line says that it is made anew.
    """
    from samplewise.data.pictures import is_unfinished

    if is_unfinished(out):
        note(f"{out}: an earlier process was ended before its store was complete; beginning anew")
    with progress("preparing") as watch:
        yield watch
