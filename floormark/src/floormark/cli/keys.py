"""``floormark keygen``: the pair of keys that certificates are signed and verified with."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import TYPE_CHECKING

from floormark.cli.outcome import SUCCEEDED, emit
from floormark.errors import ConfigurationError, printable

if TYPE_CHECKING:
    from floormark.signing import Signer

PASSPHRASE = "file that holds the passphrase of the private key, or env:NAME"
EXAMPLES = """example: floormark keygen hospital
then:    floormark embed xray.png marked.png --text 4711 --sign hospital
         floormark verify xray.png marked.png --public-key hospital.pub"""


def add_options(parser: ArgumentParser) -> None:
    """Those of :func:`keygen`."""
    parser.add_argument("name", metavar="NAME", type=Path, help="the private key; the public one becomes NAME.pub")
    parser.add_argument("--passphrase", help=PASSPHRASE)


def keygen(name: Path, passphrase: str | None, as_json: bool) -> int:
    """Make a pair of Ed25519 keys: NAME, to be kept secret, signs certificates; with NAME.pub anybody verifies them."""
    from floormark.signing import Signer, write_keys

    signer = Signer.generate()
    public = write_keys(name, signer, _passphrase(passphrase))
    fingerprint = signer.public.fingerprint
    emit(
        {"private_key": str(name), "public_key": str(public), "fingerprint": fingerprint},
        f"{printable(str(public))}: fingerprint {fingerprint}",
        f"Keep {name} secret; give {public} to those who verify, in a way that they trust",
        as_json=as_json,
    )
    return SUCCEEDED


def open_signer(key: Path | None, passphrase: str | None) -> Signer | None:
    """What the options --sign and --passphrase mean."""
    if key is None:
        if passphrase is not None:
            raise ConfigurationError("--passphrase opens the private key of --sign: give both, or neither")
        return None
    from floormark.signing import read_signer

    return read_signer(key, _passphrase(passphrase))


def _passphrase(text: str | None) -> bytes | None:
    if text is None:
        return None
    from floormark.signing import read_passphrase

    return read_passphrase(variable=text[4:]) if text.startswith("env:") else read_passphrase(text)
