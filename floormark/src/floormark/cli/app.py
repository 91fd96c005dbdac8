"""The command line of ``floormark``: its subcommands, and how each of them ends."""

import argparse
import errno
import io
import os
import platform
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any, NoReturn

from floormark.cli import embed, keys, node, read, register, serve
from floormark.cli.output import FAILED, SUCCEEDED, emit, note
from floormark.errors import ConfigurationError, DataError, FloormarkError

BAD_INPUT, INTERRUPTED = 2, 130
ENV_PACKAGES = ("numpy", "scipy", "pillow", "pydicom", "imagecodecs", "safetensors", "cryptography")
"""Packages whose versions ``floormark env`` prints."""
NODE_MODULES = frozenset({"pynetdicom", "dicomweb_client", "prometheus_client"})


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors, and shows examples as they are written."""

    def __init__(self, **options: object) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message} (see {self.prog} --help)")


def parser() -> Parser:
    """The parser of the whole command line."""
    found = Parser(
        prog="floormark",
        description="Watermarks in medical images, with a quality floor under every image.",
        epilog='example: floormark embed xray.png marked.png --text "patient 4711"',
    )
    found.add_argument("--version", action="version", version=f"floormark {metadata.version('floormark')}")
    found.add_argument("--debug", action="store_true", help="show the traceback of an error, for bug reports")
    found.set_defaults(command=None, parser=found)
    commands = found.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _command(commands, embed.embed, embed.add_options, embed.EXAMPLES)
    _command(commands, read.extract, read.add_extract_options, read.EXTRACT_EXAMPLES)
    _command(commands, read.verify, read.add_verify_options, read.VERIFY_EXAMPLES)
    _command(commands, keys.keygen, keys.add_options, keys.EXAMPLES)
    _command(commands, serve.serve, serve.add_options, serve.EXAMPLES)
    _command(commands, node.node, node.add_options, node.EXAMPLES)
    group = commands.add_parser("register", help="Whose an image is", description="Whose an image is, by a register.")
    group.set_defaults(command=None, parser=group)
    inner = group.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    _command(inner, register.lookup, register.add_lookup_options, register.LOOKUP_EXAMPLES)
    _command(inner, register.export, register.add_options, "example: floormark register export --register register.db")
    _command(inner, register.check, register.add_check_options, register.CHECK_EXAMPLES)
    _command(inner, register.settle, register.add_options, "example: floormark register settle --register register.db")
    _command(commands, env, lambda made: None, "example: floormark env --json")
    return found


def _command(commands: Any, function: Callable[[Namespace], int], add: Callable[[Parser], None], example: str) -> None:
    """Add a command that is documented by its function."""
    told = (function.__doc__ or "").strip()
    made = commands.add_parser(
        function.__name__,
        help=told.partition("\n")[0].partition(":")[0].rstrip("."),
        description="\n".join(line.strip() for line in told.splitlines()),
        epilog=example,
    )
    add(made)
    made.add_argument("--json", action="store_true", help="print the result as JSON, for machines")
    made.set_defaults(command=function)


def env(given: Namespace) -> int:
    """Print versions, for bug reports."""
    found = {"floormark": metadata.version("floormark"), "python": platform.python_version()}
    found |= {"system": platform.platform()} | {name: metadata.version(name) for name in ENV_PACKAGES}
    emit(found, "\n".join(f"{name}: {version}" for name, version in found.items()), as_json=given.json)
    return SUCCEEDED


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; every error becomes one line on standard error and an exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and messages may be more than it can show
    try:
        given = parser().parse_args(arguments)
        if given.command is None:
            given.parser.print_help()
            return SUCCEEDED
        code: int = given.command(given)
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
        note(f"floormark: error: {' '.join(_explained(error).split())}")
        return BAD_INPUT if isinstance(error, ConfigurationError | DataError) else FAILED


def _explained(error: Exception) -> str:
    if isinstance(error, FloormarkError):
        return str(error)
    if isinstance(error, OSError):
        full = "the disk is full; free some space and go on with --resume" if error.errno == errno.ENOSPC else ""
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{full or error.strerror or error}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, ImportError) and error.name and not error.name.startswith("floormark"):
        what = "'floormark[node]'" if error.name in NODE_MODULES else "floormark again, with all that it needs"
        return f"{error.name} is not installed: install {what}"
    return (
        f"unexpected {type(error).__name__}: {error}. Please report it with the output of floormark env and the "
        "traceback that floormark --debug COMMAND shows"
    )
