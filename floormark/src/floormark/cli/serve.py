"""``floormark serve``: a page to inspect and mark images."""

from __future__ import annotations

import secrets
import socket
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path

from floormark.cli.keys import PASSPHRASE, add_marker_options, load_marker, open_signer, positive
from floormark.cli.output import SUCCEEDED, emit
from floormark.cli.register import add_register_option, open_register
from floormark.errors import ConfigurationError, OutputError

EXAMPLES = """example: floormark serve --register register.db
then:    open the address that it prints"""
MAX_CONNECTIONS = 16


def add_options(parser: ArgumentParser) -> None:
    """The options of :func:`serve`."""
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on; 127.0.0.1, this machine alone, if not given")
    add("--port", type=_port, default=8765, help="port to listen on; 8765 if not given, 0 for any that is free")
    add("--name", action="append", default=[], help="name under which browsers may ask for this machine; once for each")
    add("--max-mb", type=positive, default=128, help="most megabytes of files in one question; 128 if not given")
    add_marker_options(parser, several=True)
    add_register_option(parser, "register that says whose images are, and that records those that are marked")
    add("--public-key", type=Path, help="the key that certificates should be signed with")
    add("--sign", type=Path, help="private key of floormark keygen, to sign the certificates with")
    add("--passphrase", help=PASSPHRASE)


def serve(given: Namespace) -> int:
    """Open a page on this machine: drop an image to see what it says, whose it is and where it is marked.

    It answers only those who have the printed address, which holds a token. Files are not kept.
    """
    try:
        import starlette  # noqa: F401 - said before anything is read
        import uvicorn
    except ImportError as error:
        raise ConfigurationError(f"the page needs {error.name}: install floormark with its extra serve") from error
    from floormark.serve.app import build
    from floormark.serve.desk import Desk
    from floormark.signing import read_public_key

    signer = open_signer(given)
    desk = Desk(
        load_marker(given),
        open_register(given, signer),
        signer,
        None if given.public_key is None else read_public_key(given.public_key),
    )
    token = secrets.token_urlsafe(32)
    hosts = frozenset({"localhost", given.host.lower(), *(name.lower() for name in given.name)})
    app = build(desk, token=token, max_bytes=given.max_mb << 20, hosts=hosts)
    listening = _listen(given.host, given.port)
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"
    emit({"address": address}, address, "Ctrl-C ends it", as_json=given.json)
    # No log of requests: addresses hold the token.
    settings = uvicorn.Config(
        app, access_log=False, log_level="warning", server_header=False, limit_concurrency=MAX_CONNECTIONS, ws="none"
    )
    try:
        uvicorn.Server(settings).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        listening.close()
    return SUCCEEDED


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise OutputError(f"cannot listen on {host}, port {port}: {error.strerror or error}; try --port 0") from error


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"expected a port of 0 to 65535, got {text!r}")
    return int(text)
