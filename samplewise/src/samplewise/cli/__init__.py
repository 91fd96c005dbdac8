"""The commands. Each imports what it needs when it runs, so that ``--help`` is quick."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or that of the process, and return its exit code: 0, 1 (the job failed) or 2 (bad input)."""
    from samplewise.cli.app import app
    from samplewise.cli.outcome import run

    return run(app, arguments)
