"""The command ``floormark``. Each subcommand imports what it needs when it runs, so that ``--help`` is quick."""

from collections.abc import Sequence

__all__ = ["formerly", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or that of the process, and return its exit code: 0, 1 (the job failed) or 2 (bad input)."""
    from floormark.cli.app import run

    return run(arguments)


def formerly(arguments: Sequence[str]) -> int:
    """Run ``samplewise watermark embed ...``, the spelling of before, given the words after ``samplewise``."""
    from floormark.cli.output import note

    words = list(arguments)
    words.remove("watermark")
    name = next((word for word in words if not word.startswith("-")), "")
    note(f"samplewise watermark {name} is now called floormark {name}; the old spelling goes with the next version")
    return main(words)
