"""How a command ends: results to standard output, one clear line for an error, and the exit code."""

import errno
import io
import json
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import metadata
from typing import Annotated, Any, TextIO, cast

import typer

from samplewise.errors import CheckpointError, ConfigurationError, DataError, SamplewiseError, install, printable

FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130
JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for machines.")]


class _Harmless:
    """A stream on which nothing that is printed, such as a file's name, can send control characters to a terminal."""

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
    """Say what a command is about to do, where it must first load PyTorch, which takes seconds."""
    if "torch" not in sys.modules and os.environ.get("LOCAL_RANK", "0") == "0":  # of several processes only the first
        note(what)


def emit_json(value: Any) -> None:
    """Strict JSON on standard output."""
    from samplewise.storage.disk import strict_json

    plain = (sys.stdout.encoding or "utf-8").lower() != "utf-8"
    text = json.dumps(strict_json(value), indent=2, allow_nan=False, ensure_ascii=plain)
    # What a terminal would obey is escaped as JSON does it: a program reads the same text.
    print("".join(char if char.isprintable() or char == "\n" else json.dumps(char)[1:-1] for char in text), flush=True)


def emit(result: Any, text: str, closing: str = "", *, as_json: bool) -> None:
    """End a command with its result: as JSON, or as a text and a line that says where it is."""
    if as_json:
        emit_json(result)
        return
    print(text)
    if closing:
        note(closing)


def command_app(program: str, help: str, example: str) -> typer.Typer:
    """The command line ``program``, still without commands; alone it shows its help."""
    app = typer.Typer(
        name=program,
        help=help,
        epilog=f"Example: {example}",
        invoke_without_command=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # rich reads :100: as an emoji
    )

    @app.callback()
    def common(
        context: typer.Context,
        debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error, for reports.")] = False,
        version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    ) -> None:
        """Options of every command; ``--debug`` is read where errors are reported."""
        if version:
            print(f"{program} {metadata.version(program)}")
            raise typer.Exit
        if context.invoked_subcommand is None:
            print(context.get_help())

    return app


def run(
    app: typer.Typer,
    arguments: Sequence[str] | None = None,
    *,
    program: str = "samplewise",
    bad_input: tuple[type[Exception], ...] = (ConfigurationError, DataError, CheckpointError),
    failed: tuple[type[Exception], ...] = (SamplewiseError,),
    extras: Mapping[str, str] | None = None,
) -> int:
    """Run a command line; every error becomes one line on standard error and an exit code.

    Args:
        app: its commands.
        arguments: those of the process if not given.
        program: what it is called.
        bad_input: errors that say what is wrong with the input.
        failed: other errors that were raised on purpose, whose message is enough.
        extras: which extra of ``program`` brings a package, for imports that do not say it themselves.
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and messages may be more than it can show
    try:
        with redirect_stdout(cast(TextIO, _Harmless(sys.stdout))):
            result = app(args=arguments, prog_name=program, standalone_mode=False)
        code = result if isinstance(result, int) else 0  # typer turns some interrupts into a code
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; a second error at exit must not follow.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        if "--debug" in arguments:
            for line in traceback.format_exc().splitlines():
                note(line)
        if hasattr(error, "format_message"):  # what typer raises for a bad command line, whatever its version calls it
            asked = getattr(getattr(error, "ctx", None), "command_path", program)
            code, message = BAD_INPUT, f"{error.format_message()} (see {asked} --help)"
        elif isinstance(error, bad_input + failed):
            code, message = BAD_INPUT if isinstance(error, bad_input) else FAILED, str(error)
        else:
            code, message = FAILED, _explain(error, program, extras or {})
        note(f"{program}: error: {' '.join(message.split())}")
        return code
    if code == INTERRUPTED:
        note(f"{program}: interrupted; a run that writes to a folder goes on with --resume")
    return code


def _explain(error: Exception, program: str, extras: Mapping[str, str]) -> str:
    """The message for an error that nobody raised on purpose."""
    if isinstance(error, OSError):
        full = "the disk is full; free some space and go on with --resume" if error.errno == errno.ENOSPC else ""
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{full or error.strerror or error}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, ImportError) and error.name and not error.name.startswith(program):
        extra = extras.get(error.name.partition(".")[0])
        return f"{error.name} is not installed" + (f"; {install(extra, program)}" if extra else "")
    return (
        f"unexpected {type(error).__name__}: {error}. Please report it with the output of samplewise env "
        f"and the traceback that {program} --debug COMMAND shows"
    )
