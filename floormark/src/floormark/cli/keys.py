"""``samplewise watermark keygen``: the pair of keys that certificates are signed and verified with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samplewise.cli.outcome import begin, emit
from samplewise.errors import ConfigurationError, printable
from studies.commands.options import JsonFlag

if TYPE_CHECKING:
    from floormark.signing import Signer

KEYGEN = (
    "\b\nExample: samplewise watermark keygen hospital\n"
    "Then:    samplewise watermark embed xray.png marked.png --text 4711 --sign hospital\n"
    "         samplewise watermark verify xray.png marked.png --public-key hospital.pub"
)

SignOption = Annotated[
    Path | None, typer.Option("--sign", help="Private key of watermark keygen, to sign the certificates with.")
]
PassphraseOption = Annotated[
    str | None, typer.Option("--passphrase", help="File that holds the passphrase of the private key, or env:NAME.")
]
PublicKeyOption = Annotated[
    Path | None, typer.Option("--public-key", help="The key that the certificate must be signed with.")
]


def keygen(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="The private key; the public one becomes NAME.pub.")],
    passphrase: PassphraseOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Make a pair of Ed25519 keys: NAME, to be kept secret, signs certificates; with NAME.pub anybody verifies them."""
    begin(f"watermark keygen: making {name}")
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
