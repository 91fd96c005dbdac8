"""``floormark node``: a DICOM node that marks what it receives and sends it on."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING

from floormark.cli.embed import add_marking_options, file_marker
from floormark.cli.keys import positive, secret_place
from floormark.cli.output import SUCCEEDED
from floormark.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

    from floormark.node.forward import Target

GIGABYTE = 10**9
MAX_AUTHORIZATION = 8192  # bytes
EXAMPLES = """example:  floormark node --forward ARCHIVE@10.0.0.5:104 --queue /var/lib/floormark --text "St. Elsewhere"
to a web: floormark node --stow https://archive.example/dicom-web --queue queue --message-from "{PatientID}"
careful:  ... --allow-aet CT1 --allow-aet MR1 --allow-address 10.0.0.0/24 --on-refusal forward"""


def add_options(parser: ArgumentParser) -> None:
    """The options of :func:`node`."""
    add = parser.add_argument
    add("--forward", metavar="AET@HOST:PORT", help="the DICOM node that gets what was marked")
    add("--stow", metavar="URL", help="the DICOMweb service that gets it instead, by STOW-RS")
    add("--stow-auth", metavar="FILE", help="file with the value of the header Authorization for it, or env:NAME")
    add("--queue", type=Path, help="folder for images that wait for the target (needed)")
    add(
        "--queue-limit",
        type=_gigabytes,
        default=10 * GIGABYTE,
        metavar="GB",
        help="most that waits there; 10 if not given",
    )
    add("--on-refusal", choices=("reject", "forward"), default="reject", help="what to do with what cannot be marked: "
        "answer with a failure (if not given), or send it on as it is")  # fmt: skip
    add("--certificates", type=Path, help="folder for the certificates of what was sent; not kept if not given")
    add("--port", type=_port, default=11112, help="port to listen on; 11112 if not given, 0 for any")
    add("--host", default="0.0.0.0", help="address to listen on; all if not given")
    add("--ae-title", default="FLOORMARK", help="title of this node; FLOORMARK if not given")
    add(
        "--allow-aet", action="append", default=[], metavar="AET", help="a title that may call, and only by this node's"
    )
    add(
        "--allow-address",
        action="append",
        default=[],
        type=_network,
        metavar="ADDRESS",
        help="from where, as 10.0.0.0/24",
    )
    add("--associations", type=positive, default=10, help="most associations at once; 10 if not given")
    add("--tls-cert", type=Path, help="certificate chain in PEM, to listen by TLS alone")
    add("--tls-key", type=Path, help="its private key")
    add("--tls-ca", type=Path, help="authorities that peers, and the target, must have their certificate from")
    add("--forward-tls", action="store_true", help="send by TLS too, with the same certificate and authorities")
    add("--status-port", type=_port, default=11113, help="port of the status page and metrics, on 127.0.0.1; "
        "11113 if not given, 0 for any")  # fmt: skip
    add("--workers", type=positive, help="processes that mark; one for each core if not given")
    add_marking_options(parser)


def node(given: Namespace) -> int:
    """Receive DICOM images by C-STORE, mark them and send them on: until it is ended by SIGTERM.

    A peer gets success when its image is marked and safely in the queue on the disk, from where it goes to the target
    once, whatever happens to this process. What happens is told in lines of JSON on standard output.
    """
    if (given.forward is None) == (given.stow is None):
        raise ConfigurationError("expected a target: give --forward AET@HOST:PORT, or --stow URL")
    if given.queue is None:
        raise ConfigurationError("expected a folder for the queue: give --queue FOLDER")
    from floormark.node.receive import Listening
    from floormark.node.service import run
    from floormark.processes import cores

    listening = Listening(
        host=given.host,
        port=given.port,
        ae_title=_title(given.ae_title),
        associations=given.associations,
        titles=tuple(map(_title, given.allow_aet)),
        addresses=tuple(given.allow_address),
        tls=_tls_server(given),
    )
    run(
        file_marker(given, force=True),
        _target(given),
        listening,
        folder=given.queue,
        limit=given.queue_limit,
        workers=given.workers or cores(),
        forward_refused=given.on_refusal == "forward",
        status_port=given.status_port,
        certificates=given.certificates,
    )
    return SUCCEEDED


def _target(given: Namespace) -> Target:
    from floormark.node.forward import StorageTarget, WebTarget

    if given.forward is not None:
        if given.stow_auth is not None:
            raise ConfigurationError("--stow-auth is for --stow")
        return StorageTarget.parse(given.forward, ae_title=given.ae_title, tls=_tls_client(given))
    if given.forward_tls:
        raise ConfigurationError("--forward-tls is for --forward; with --stow give a URL that begins with https")
    from floormark.disk import read_secret

    authorization = None
    if given.stow_auth is not None:
        place = secret_place(given.stow_auth)
        authorization = read_secret("authorization", **place, most=MAX_AUTHORIZATION).decode("latin-1")
    return WebTarget(given.stow, authorization=authorization, authorities=given.tls_ca)


def _tls_server(given: Namespace) -> ssl.SSLContext | None:
    if given.tls_cert is None:
        if given.tls_key is not None:
            raise ConfigurationError("--tls-key is for --tls-cert: give both")
        if given.tls_ca is not None and given.stow is None and not given.forward_tls:
            # Who gives it does not mean to listen in the clear.
            raise ConfigurationError("--tls-ca is for --tls-cert, --forward-tls or --stow: give one of them")
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _load(context, given)
    if given.tls_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _tls_client(given: Namespace) -> ssl.SSLContext | None:
    if not given.forward_tls:
        return None
    import ssl

    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
    _load(context, given)
    return context


def _load(context: ssl.SSLContext, given: Namespace) -> None:
    import ssl

    try:
        if given.tls_cert is not None:
            context.load_cert_chain(given.tls_cert, given.tls_key, password="")  # or OpenSSL would ask for one
        if given.tls_ca is not None:
            context.load_verify_locations(given.tls_ca)
    except ssl.SSLError as error:
        raise ConfigurationError(
            "expected certificates in PEM in --tls-cert and --tls-ca, and the private key of the first, without a "
            f"passphrase, in --tls-key or behind them; got something else ({error.reason or error})"
        ) from error
    except OSError as error:
        told = "--tls-cert, --tls-key or --tls-ca cannot be read as PEM"
        raise ConfigurationError(f"{told}: {error.strerror or error}") from error


def _title(text: str) -> str:
    if not 1 <= len(text.strip()) <= 16 or not text.isascii() or not text.isprintable() or "\\" in text:
        raise ConfigurationError(f"expected an AE title of 1 to 16 ASCII characters, got {text!r}")
    return text.strip()


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise ArgumentTypeError(f"expected a port from 0 to 65535, got {text!r}")
    return int(text)


def _gigabytes(text: str) -> int:
    try:
        size = int(float(text) * GIGABYTE)
    except (OverflowError, ValueError):
        size = 0
    if size < 1:
        raise ArgumentTypeError(f"expected a size in GB, such as 10 or 0.5, got {text!r}")
    return size


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ArgumentTypeError(f"expected an address or a network, such as 10.0.0.0/24: {error}") from None
