"""The command ``studies``. Each subcommand imports what it needs when it runs, so that ``--help`` is quick."""

from collections.abc import Sequence

from samplewise.cli import note, run
from samplewise.errors import CheckpointError, ConfigurationError, DataError, SamplewiseError

__all__ = ["formerly", "main"]

EXTRAS = {"kornia": "watermark", "monai": "chest", "tensorboard": "watermark", "torchmetrics": "watermark"}
"""The smallest extra that brings a package."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, or that of the process, and return its exit code: 0, 1 (the job failed) or 2 (bad input)."""
    from floormark import errors as floormark
    from studies.commands.app import app

    return run(
        app,
        arguments,
        program="studies",
        bad_input=(ConfigurationError, DataError, CheckpointError, floormark.ConfigurationError, floormark.DataError),
        failed=(SamplewiseError, floormark.FloormarkError),
        extras=EXTRAS,
    )


def formerly(arguments: Sequence[str]) -> int:
    """Run a command by its spelling of before, ``samplewise`` and these words, and say the new one."""
    words = " ".join(arguments[: 2 if arguments[:1] in (["chest"], ["watermark"]) else 1])
    note(f"samplewise {words} is now studies {words}; the old spelling works in this version only")
    return main(arguments)
