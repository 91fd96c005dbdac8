"""The command ``studies``. Each subcommand imports what it needs when it runs, so that ``--help`` is quick."""

from collections.abc import Sequence

from samplewise.cli import note, run

__all__ = ["formerly", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or that of the process, and return its exit code: 0, 1 (the job failed) or 2 (bad input)."""
    from floormark import errors
    from studies.commands.app import app

    known = {errors.ConfigurationError: 2, errors.DataError: 2, errors.FloormarkError: 1}
    return run(app, arguments, name="studies", known=known)


def formerly(arguments: Sequence[str]) -> int:
    """Run a command in its spelling of before, ``samplewise mnist ...``, of which ``arguments`` are the words behind
    ``samplewise``, and say the new one.
    """
    words = " ".join(word for word in arguments[:2] if word.isalpha())
    note(f"samplewise {words}: this command is now called studies {words}, and in the next version only so")
    return main(arguments)
