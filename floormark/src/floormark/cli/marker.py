"""Options of every command that needs a network: which one, and with which key."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from floormark.api import Watermarker


def add_options(parser: ArgumentParser) -> None:
    """``--key`` and ``--model``."""
    parser.add_argument("--key", help="file that holds the key, or env:NAME for an environment variable")
    parser.add_argument(
        "--model", type=Path, help="trained weights, or the folder of their run; the shipped ones if not given"
    )


def load_marker(model: Path | None, key: str | None) -> Watermarker:
    """What these options mean."""
    from floormark.api import Watermarker
    from floormark.payload import read_key

    secret = read_key(variable=key[4:]) if key is not None and key.startswith("env:") else read_key(key)
    return Watermarker.load(model, key=secret)


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)
