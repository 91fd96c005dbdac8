"""How a command ends: results to standard output, one clear line for an error, and the exit code."""

import argparse
import errno
import gc
import io
import json
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any, TextIO, cast

from floormark.disk import strict_json
from floormark.errors import ConfigurationError, DataError, FloormarkError, printable

SUCCEEDED, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


class _Harmless:
    """A stream on which nothing that is printed, such as a file's name, moves the cursor or turns the text round."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        self.stream.write("\n".join(map(printable, text.split("\n"))))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def note(text: str) -> None:
    """A line for people, on standard error, so that standard output stays for results."""
    print(printable(text), file=sys.stderr, flush=True)


def begin(what: str) -> None:
    """Load PyTorch, which takes a second or more, and say meanwhile what a command is about to do."""
    if "torch" in sys.modules:
        return
    note(what)
    gc.disable()  # of the million objects that are made none is garbage, and looking for it takes a tenth of the time
    import torch  # noqa: F401

    gc.freeze()
    gc.enable()


def emit_json(value: Any) -> None:
    """Strict JSON on standard output."""
    plain = (sys.stdout.encoding or "utf-8").lower() != "utf-8"
    text = json.dumps(strict_json(value), indent=2, allow_nan=False, ensure_ascii=plain)
    # What a terminal would obey is escaped as JSON does it: a program reads the same text.
    print("".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text), flush=True)


def emit(result: Any, text: str, closing: str = "", *, as_json: bool) -> None:
    """End a command with its result: as JSON, or as a text and a line for people."""
    if as_json:
        emit_json(result)
        return
    print(text)
    if closing:
        note(closing)


def run(parser: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> int:
    """Run a command line; every error becomes one line on standard error and an exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and messages may be more than it can show
    try:
        with redirect_stdout(cast(TextIO, _Harmless(sys.stdout))):
            options = vars(parser.parse_args(arguments))
            del options["debug"]
            code: int = options.pop("command")(**options)
        sys.stdout.flush()
        return code
    except SystemExit as done:  # after --help or --version
        return int(done.code or 0)
    except KeyboardInterrupt:
        note("floormark: interrupted; a folder goes on with --resume")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; a second error at exit must not follow.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--debug" in arguments:
            for line in traceback.format_exc().splitlines():
                note(line)
        code, message = _judge(error)
        note(f"floormark: error: {' '.join(message.split())}")
        return code


def _judge(error: Exception) -> tuple[int, str]:
    """The exit code and the message of an error."""
    if isinstance(error, ConfigurationError | DataError):
        return BAD_INPUT, str(error)
    if isinstance(error, FloormarkError):
        return FAILED, str(error)
    if isinstance(error, OSError):
        full = "the disk is full; free some space and go on with --resume" if error.errno == errno.ENOSPC else ""
        where = f"{error.filename}: " if error.filename else ""
        return FAILED, f"{where}{full or error.strerror or error}"
    if isinstance(error, MemoryError):
        return FAILED, "not enough memory"
    if isinstance(error, ImportError) and error.name and not error.name.startswith("floormark"):
        return FAILED, f"{error.name} is not installed: install floormark again, with all that it needs"
    return FAILED, (
        f"unexpected {type(error).__name__}: {error}. Please report it with the output of floormark env and the "
        "traceback that floormark --debug COMMAND shows"
    )
