"""How a command ends: results to standard output, one clear line for an error, and the exit code."""

import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer

from samplewise.errors import CheckpointError, ConfigurationError, DataError, SamplewiseError

__all__ = ["BAD_INPUT", "FAILED", "INTERRUPTED", "emit_json", "note", "run"]

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130


def note(text: str) -> None:
    """A line for people, on standard error, so that standard output stays for results."""
    print(text, file=sys.stderr, flush=True)


def emit_json(value: Any) -> None:
    """Strict JSON on standard output."""
    from samplewise.checkpoint import strict_json

    plain = (sys.stdout.encoding or "utf-8").lower() != "utf-8"
    print(json.dumps(strict_json(value), indent=2, allow_nan=False, ensure_ascii=plain), flush=True)


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run the command line; every error becomes one line on standard error and an exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and messages may be more than it can show
    try:
        result = app(args=arguments, prog_name="samplewise", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; a second error at exit must not follow.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        code, message = _judge(error)
        note(f"samplewise: error: {' '.join(message.split())}")
        return code
    if code == INTERRUPTED:
        note("samplewise: interrupted; a run that writes to a folder goes on with --resume")
    return code


def _judge(error: Exception) -> tuple[int, str]:
    """The exit code and the message of an error."""
    if hasattr(error, "format_message"):  # what typer raises for a bad command line, whatever its version calls it
        return BAD_INPUT, f"{error.format_message()} (see samplewise --help)"
    if isinstance(error, typer.Abort):
        return INTERRUPTED, "interrupted"
    if isinstance(error, ConfigurationError | DataError | CheckpointError):
        return BAD_INPUT, str(error)
    if isinstance(error, SamplewiseError):
        return FAILED, str(error)
    if isinstance(error, OSError):
        full = "the disk is full; free some space and go on with --resume" if error.errno == errno.ENOSPC else ""
        where = f"{error.filename}: " if error.filename else ""
        return FAILED, f"{where}{full or error.strerror or error}"
    if isinstance(error, MemoryError):
        return FAILED, "not enough memory"
    if isinstance(error, ImportError) and error.name and not error.name.startswith("samplewise"):
        return FAILED, f"{error.name} is not installed: pip install 'samplewise[demo]'"
    return FAILED, (
        f"unexpected {type(error).__name__}: {error}. Please report it with the output of samplewise env "
        "and the traceback that samplewise --debug COMMAND shows"
    )
