"""The command ``samplewise``; and how a command ends, for the commands of programs that are built on the library.

Each command imports what it needs when it runs, so that ``--help`` is quick.
"""

import sys
from collections.abc import Callable, Sequence

from samplewise.cli.outcome import JsonFlag, begin, command_app, emit, note, run

__all__ = ["JsonFlag", "begin", "command_app", "emit", "main", "note", "run"]

MOVED = {"demo": "studies", "mnist": "studies", "chest": "studies", "watermark": "floormark and studies"}
"""Commands of version 0.2, and the packages that have them now."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or that of the process, and return its exit code: 0, 1 (the job failed) or 2 (bad input)."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in MOVED:
        if (formerly := _moved(words)) is not None:
            return formerly(words)
        note(f"samplewise: error: {words[0]} is a command of another package now: install {MOVED[words[0]]}")
        return 2
    from samplewise.cli.app import app

    return run(app, words)


def _moved(words: Sequence[str]) -> Callable[[Sequence[str]], int] | None:
    """The function that runs a command by its old spelling; None if the package that has it now is not installed."""
    from importlib.metadata import entry_points

    for entry in entry_points(group="samplewise.commands"):
        if entry.name in (words[0], "-".join(words[:2])):
            found: Callable[[Sequence[str]], int] = entry.load()
            return found
    return None
