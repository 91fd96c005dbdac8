"""The receiving side: a DICOM storage SCP that answers when a marked image is safely in the queue."""

from __future__ import annotations

import hashlib
import secrets
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from socketserver import BaseServer
from threading import Condition
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import finalize

from pydicom import Dataset
from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian
from pynetdicom import AE, AllStoragePresentationContexts, _config, dimse_messages, evt
from pynetdicom._globals import ALL_TRANSFER_SYNTAXES
from pynetdicom.association import Association
from pynetdicom.sop_class import Verification  # type: ignore[attr-defined]
from pynetdicom.transport import ThreadedAssociationServer

from floormark.disk import cannot_write
from floormark.imageio import MAX_FILE
from floormark.node.pool import OUT_OF_RESOURCES, REFUSED, SUCCESS, MarkingPool, Outcome, not_written
from floormark.node.queue import Queue

if TYPE_CHECKING:
    from floormark.node.status import Journal

MAX_COMMENT = 64  # characters of ErrorComment
MAX_PDU = 1 << 17  # bytes
SYNTAXES = sorted(
    (syntax for syntax in ALL_TRANSFER_SYNTAXES if syntax != ExplicitVRBigEndian),
    key=lambda syntax: syntax != ExplicitVRLittleEndian,
)
"""Explicit before implicit, as that says what is what; a peer that offers big endian, which is retired, offers another
too, and turns its image round itself."""
HANDSHAKE_SECONDS = 5.0
STOP_SECONDS = 60.0  # that marking may take when the node is to end

Network = IPv4Network | IPv6Network


@dataclass(frozen=True, kw_only=True)
class Listening:
    """Where the node listens, and to whom."""

    host: str
    port: int
    ae_title: str
    """By which peers call this node; other names are accepted too unless titles are allowed by list."""
    associations: int
    """How many may be open at once."""
    titles: tuple[str, ...] = ()
    """AE titles that may call; all if there are none."""
    addresses: tuple[Network, ...] = ()
    """From where peers may connect; from everywhere if there are none."""
    tls: ssl.SSLContext | None = None


class Receiver:
    """The storage SCP.

    Args:
        listening: where, and to whom.
        queue: takes what was marked.
        pool: marks.
        forward_refused: queue what cannot be marked as it is, instead of refusing it.
        journal: is told what happens.
    """

    def __init__(
        self, listening: Listening, queue: Queue, pool: MarkingPool, *, forward_refused: bool, journal: Journal
    ) -> None:
        self.listening, self.queue, self.pool, self.journal = listening, queue, pool, journal
        self.forward_refused = forward_refused
        self._arriving: dict[Any, int] = {}  # bytes of the message that each association is sending
        # Of the whole process, which is the node's own: what arrives goes to the disk at once, beside the queue, so
        # that a rename and no copy brings it there.
        _config.STORE_RECV_CHUNKED_DATASET = True
        file = partial(_Arriving, queue.receiving)
        dimse_messages.NamedTemporaryFile = file  # type: ignore[assignment, attr-defined]
        self._ae = AE(listening.ae_title)
        self._ae.maximum_associations, self._ae.maximum_pdu_size = listening.associations, MAX_PDU
        self._ae.require_calling_aet = list(listening.titles)
        self._ae.require_called_aet = bool(listening.titles)
        self._ae.add_supported_context(Verification)
        for context in AllStoragePresentationContexts:
            self._ae.add_supported_context(str(context.abstract_syntax), SYNTAXES)
        self._server: _Server | None = None
        self._stopping, self._at_work, self._done = False, set[str](), Condition()

    def start(self) -> int:
        """Listen; returns the port."""
        handlers: Sequence[tuple[Any, Callable[[evt.Event], Any]]] = (
            (evt.EVT_C_STORE, self._store),
            (evt.EVT_C_ECHO, self._echo),
            (evt.EVT_DATA_RECV, self._count),
            (evt.EVT_CONN_CLOSE, self._closed),
            (evt.EVT_REJECTED, self._rejected),
        )
        threading.excepthook = self._broken
        server = self._ae.make_server(
            (self.listening.host, self.listening.port),
            evt_handlers=list(handlers),
            ssl_context=self.listening.tls,
            server_class=_Server,
            addresses=self.listening.addresses,
            journal=self.journal,
        )
        assert isinstance(server, _Server)
        self._server, port = server, server.server_address[1]
        return port

    def serve(self) -> None:
        """Take connections until :meth:`stop`."""
        assert self._server is not None
        self._server.serve_forever(poll_interval=0.1)

    @property
    def associations(self) -> int:
        """How many peers are connected."""
        return len(self._ae.active_associations)

    def stop(self) -> None:
        """Take no more connections and images, answer those that were received, and end the associations."""
        assert self._server is not None
        self._server.shutdown()
        with self._done:
            self._stopping = True
            self._done.wait_for(lambda: not self._at_work, STOP_SECONDS)
        for association in self._ae.active_associations:
            association.abort()

    def _store(self, event: evt.Event) -> int | Dataset:
        """Answer one C-STORE."""
        began = monotonic()
        self._arriving.pop(event.assoc, None)
        arriving = event.request._dataset_file
        assert isinstance(arriving, _Arriving)
        received = Path(arriving.name)
        peer = {"peer": event.assoc.requestor.ae_title, "address": event.assoc.requestor.address}
        told = {
            **peer,
            "uid": str(getattr(event.request, "AffectedSOPInstanceUID", "")),
            "bytes": arriving.size,
        }
        self.journal.count("received")
        try:
            arriving.check()
            with received.open("rb") as file:
                told["id"] = name = hashlib.file_digest(file, "sha256").hexdigest()
            with self._alone(name):
                outcome = self._take(received, name)
        except OSError as error:
            outcome = not_written(error)
        told |= {"seconds": round(monotonic() - began, 3), "status": f"{outcome.status:04X}"}
        self.journal.tell(outcome.event, **told, reason=outcome.reason)
        if outcome.status == SUCCESS:
            return SUCCESS
        answer = Dataset()
        plain = (outcome.comment or outcome.reason).encode("ascii", "replace").decode().replace("\\", "/")
        answer.Status, answer.ErrorComment = outcome.status, plain[:MAX_COMMENT]
        return answer

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Wait while the same file is marked for another association: then it is in the queue."""
        with self._done:
            self._done.wait_for(lambda: name not in self._at_work)
            self._at_work.add(name)
        try:
            yield
        finally:
            with self._done:
                self._at_work.discard(name)
                self._done.notify_all()

    def _take(self, received: Path, name: str) -> Outcome:
        """Have a file marked into the queue, unless it is there or the queue is full."""
        place = self.queue.place(name)
        if place.exists():
            return Outcome("again")
        if self._stopping or self.queue.full:
            return Outcome(REFUSED, OUT_OF_RESOURCES, "the node stops" if self._stopping else "the queue is full")
        outcome = self.pool.mark(received, place)
        if outcome.status == SUCCESS:
            self.queue.added(name)
        elif self.forward_refused and outcome.status != OUT_OF_RESOURCES:
            self.queue.put(received, name)
            return Outcome("unmarked", reason=outcome.reason)
        return outcome

    def _echo(self, event: evt.Event) -> int:
        self.journal.tell("echo", peer=event.assoc.requestor.ae_title, address=event.assoc.requestor.address)
        return SUCCESS

    def _count(self, event: evt.Event) -> None:
        """End an association that sends more than any image has."""
        self._arriving[event.assoc] = self._arriving.get(event.assoc, 0) + len(event.data)
        if self._arriving[event.assoc] > MAX_FILE:
            self.journal.tell("too_large", peer=event.assoc.requestor.ae_title)
            event.assoc.abort()

    def _closed(self, event: evt.Event) -> None:
        """Remove what a peer had begun to send when it went."""
        if self._discard(event.assoc):
            self.journal.tell("broken_off", peer=event.assoc.requestor.ae_title)

    def _broken(self, told: threading.ExceptHookArgs) -> None:
        """What a peer sent made a thread of pynetdicom fail, and so ended the association, of which no event tells."""
        thread = told.thread
        association = thread if isinstance(thread, Association) else getattr(thread, "assoc", None)
        if association is None:  # none of pynetdicom's: a fault of ours
            threading.__excepthook__(told)
            return
        self._discard(association)
        self.journal.tell("invalid", reason=told.exc_type.__name__)

    def _discard(self, association: Any) -> bool:
        """Remove what an association had begun to send, which pynetdicom leaves there; whether there was something."""
        self._arriving.pop(association, None)
        begun = getattr(association.dimse.message, "_data_set_path", None)
        if begun is not None:
            begun.unlink(missing_ok=True)
        return begun is not None

    def _rejected(self, event: evt.Event) -> None:
        requestor = event.assoc.requestor
        called = requestor.primitive.called_ae_title if requestor.primitive else ""
        self.journal.tell("rejected", peer=requestor.ae_title, address=requestor.address, called=called)


class _Arriving:
    """The file on the disk to which pynetdicom writes what arrives; it is removed with this object at the latest.

    When the disk is full, what was written is cut off and the rest is dropped, so that the peer gets an answer: an
    error in :meth:`write` would end its association without one.
    """

    def __init__(self, folder: Path, **_: object) -> None:
        self.name = str(folder / f"{secrets.token_hex(8)}.dcm")
        self.size = 0
        self._raw: BinaryIO | None = None
        self._error: OSError | None = None
        finalize(self, Path(self.name).unlink, missing_ok=True)

    def write(self, content: bytes) -> None:
        self.size += len(content)
        if self._error is not None:
            return
        try:
            if self._raw is None:
                self._raw = Path(self.name).open("xb", buffering=0)  # noqa: SIM115 - as long as this object
            left = memoryview(content)
            while left:
                left = left[self._raw.write(left) :]
        except OSError as error:
            self._error = error
            if self._raw is not None:
                self._raw.truncate(0)

    def check(self) -> None:
        """Raise the error that kept what arrived from being written, if there was one."""
        if self._error is not None:
            raise cannot_write(Path(self.name), self._error)

    @property
    def file(self) -> _Arriving:
        """What pynetdicom flushes: of a temporary file that of the system."""
        return self

    def flush(self) -> None:
        """Nothing: :meth:`write` keeps nothing back."""

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()


class _Server(ThreadedAssociationServer):
    """A server that closes connections from elsewhere unheard, and does not wait long for a TLS handshake."""

    def __init__(self, *arguments: Any, addresses: tuple[Network, ...], journal: Journal, **options: Any) -> None:
        self.addresses, self.journal = addresses, journal
        super().__init__(*arguments, **options)

    def shutdown(self) -> None:
        BaseServer.shutdown(self)  # pynetdicom's would take it from a list that it is not on
        self.server_close()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        assert self.socket is not None
        connection, address = self.socket.accept()
        try:
            if self.addresses and not any(ip_address(address[0]) in network for network in self.addresses):
                raise ConnectionRefusedError("its address is not on the list")
            if self.ssl_context is not None:
                connection = self.ssl_context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        except OSError as error:  # the server goes on with the next
            self._reject(connection, address, error)
            raise
        return connection, address

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Shake hands in a thread of the connection's own, so that who is slow at it holds up nobody else."""
        if isinstance(request, ssl.SSLSocket):
            limit = threading.Timer(HANDSHAKE_SECONDS, _hang_up, [request])
            limit.start()
            try:
                request.do_handshake()
            except OSError as error:  # an SSLError is one
                self._reject(request, client_address, error)
                return
            finally:
                limit.cancel()
        super().process_request_thread(request, client_address)

    def handle_error(self, request: object, client_address: object) -> None:
        self.journal.tell("invalid", reason=type(sys.exception()).__name__)

    def _reject(self, connection: socket.socket, address: tuple[str, int], error: OSError) -> None:
        with suppress(OSError):
            connection.close()
        self.journal.tell("rejected", address=address[0], reason=str(error))


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)  # and not that of TLS, which is under way
