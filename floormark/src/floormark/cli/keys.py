"""``floormark keygen``, and what the options ``--key``, ``--model``, ``--sign`` and ``--passphrase`` mean."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from floormark.cli.output import SUCCEEDED, emit
from floormark.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from floormark.api import Watermarker
    from floormark.signing import Signer

PASSPHRASE = "file that holds the passphrase of the private key, or env:NAME"
EXAMPLES = """example: floormark keygen hospital
then:    floormark embed xray.png marked.png --text 4711 --sign hospital
         floormark verify xray.png marked.png --public-key hospital.pub"""


def add_options(parser: ArgumentParser) -> None:
    """The options of :func:`keygen`."""
    parser.add_argument("name", metavar="NAME", type=Path, help="the private key; the public one becomes NAME.pub")
    parser.add_argument("--passphrase", help=PASSPHRASE)


def keygen(given: Namespace) -> int:
    """Make a pair of Ed25519 keys: NAME, to be kept secret, signs certificates; with NAME.pub anybody verifies them."""
    from floormark.signing import Signer, write_keys

    signer = Signer.generate()
    public = write_keys(given.name, signer, _passphrase(given.passphrase))
    fingerprint = signer.public.fingerprint
    emit(
        {"private_key": str(given.name), "public_key": str(public), "fingerprint": fingerprint},
        f"{printable(str(public))}: fingerprint {fingerprint}",
        f"Keep {given.name} secret; give {public} to those who verify, in a way that they trust",
        as_json=given.json,
    )
    return SUCCEEDED


def add_marker_options(parser: ArgumentParser, *, several: bool = False) -> None:
    """The options of :func:`load_marker`, with one key or with several, all of which are read."""
    told = "file that holds the key, or env:NAME for an environment variable"
    parser.add_argument(
        "--key",
        action="append",
        default=[],
        help=f"{told}; once for each key that images may have" if several else told,
    )
    parser.set_defaults(several_keys=several)
    parser.add_argument(
        "--model", type=Path, help="trained weights, or the folder of their run; the shipped ones if not given"
    )


def load_marker(given: Namespace) -> Watermarker:
    """The network and the keys that were asked for."""
    from floormark.api import Watermarker
    from floormark.payload import read_key

    if len(given.key) > 1 and not given.several_keys:
        raise ConfigurationError(f"expected one key to write with, got {len(given.key)}: several are only read")
    keys = [key for place in given.key if (key := read_key(**secret_place(place))) is not None]
    return Watermarker.load(given.model, key=keys[0] if keys else None, former_keys=keys[1:])


def open_signer(given: Namespace) -> Signer | None:
    """The private key that was asked for."""
    if given.sign is None:
        if given.passphrase is not None:
            raise ConfigurationError("--passphrase opens the private key of --sign: give both, or neither")
        return None
    from floormark.signing import read_signer

    return read_signer(given.sign, _passphrase(given.passphrase))


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(text)


def _passphrase(text: str | None) -> bytes | None:
    from floormark.signing import read_passphrase

    return None if text is None else read_passphrase(**secret_place(text))


def secret_place(text: str) -> dict[str, str]:
    """Where a secret lies: in a file, or in an environment variable."""
    return {"variable": text[4:]} if text.startswith("env:") else {"file": text}
