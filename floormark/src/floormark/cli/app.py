"""The command line of ``floormark``: its subcommands, what they share, and those of a few lines."""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable
from importlib import metadata
from typing import NoReturn

from floormark.cli import embed, extract, keys, verify
from floormark.cli.outcome import SUCCEEDED, emit
from floormark.errors import ConfigurationError

NEEDED = ("torch", "numpy", "scipy", "pillow", "pydicom", "imagecodecs", "safetensors", "cryptography")
"""Packages whose versions ``floormark env`` prints."""


class Parser(argparse.ArgumentParser):
    """One that raises its errors, and shows examples as they are written."""

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
    found.set_defaults(command=lambda: _help(found))
    commands = found.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)

    def command(function: Callable[..., int], add: Callable[[Parser], None], example: str) -> None:
        told = (function.__doc__ or "").strip()
        made = commands.add_parser(
            function.__name__,
            help=told.partition("\n")[0].partition(":")[0].rstrip("."),
            description="\n".join(line.strip() for line in told.splitlines()),
            epilog=example,
        )
        add(made)
        made.add_argument("--json", action="store_true", dest="as_json", help="print the result as JSON, for machines")
        made.set_defaults(command=function)

    command(embed.embed, embed.add_options, embed.EXAMPLES)
    command(extract.extract, extract.add_options, extract.EXAMPLES)
    command(verify.verify, verify.add_options, verify.EXAMPLES)
    command(keys.keygen, keys.add_options, keys.EXAMPLES)
    command(env, lambda made: None, "example: floormark env --json")
    return found


def _help(parser: Parser) -> int:
    parser.print_help()
    return SUCCEEDED


def env(as_json: bool) -> int:
    """Print versions, for bug reports."""
    found = {"floormark": metadata.version("floormark"), "python": platform.python_version()}
    found |= {"system": platform.platform()} | {name: metadata.version(name) for name in NEEDED}
    emit(found, "\n".join(f"{name}: {version}" for name, version in found.items()), as_json=as_json)
    return SUCCEEDED
