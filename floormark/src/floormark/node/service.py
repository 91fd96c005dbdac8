"""The node as a whole: its parts started, watched until it is told to end, and stopped in order."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from floormark.disk import locked
from floormark.errors import ConfigurationError
from floormark.node.forward import Target, forward
from floormark.node.pool import MarkingPool
from floormark.node.queue import Queue
from floormark.node.receive import Listening, Receiver
from floormark.node.status import Journal, status_server

if TYPE_CHECKING:
    from floormark.files.marking import FileMarker

SIGNAL_SECONDS = 0.5
"""Between checks for signals: Python handles them in the main thread, which sleeps on when the system wakes another."""
STOP_SECONDS = 30.0  # that the sending of one image may take when the node is to end


def run(
    marker: FileMarker,
    target: Target,
    listening: Listening,
    *,
    folder: Path,
    limit: int,
    workers: int,
    forward_refused: bool,
    status_port: int,
    certificates: Path | None = None,
) -> None:
    """Receive, mark and send until SIGTERM or SIGINT; what breaks in one of its threads ends it too.

    Args:
        marker: marks what arrives.
        target: gets what was marked.
        listening: where images arrive.
        folder: of the queue.
        limit: of the queue, in bytes.
        workers: processes that mark.
        forward_refused: send on what cannot be marked, as it is.
        status_port: of the page and the metrics, on 127.0.0.1; 0 for any.
        certificates: a folder for the certificates of what was sent.
    """
    stop, failures = Event(), list[BaseException]()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, lambda number, frame: stop.set())
    journal, queue = Journal(), Queue(folder, limit=limit, certificates=certificates)
    with ExitStack() as stack:
        stack.enter_context(locked(folder))
        queue.open()
        if marker.register is not None:
            marker.register.settle_pending()  # of a node that was killed, before anything leaves the queue
        pool = MarkingPool(marker, workers)
        stack.callback(pool.close)
        receiver = Receiver(listening, queue, pool, forward_refused=forward_refused, journal=journal)
        try:
            port = receiver.start()
            page = status_server(journal, status_port)
        except OSError as error:
            told = f"cannot listen on {listening.host}:{listening.port} or 127.0.0.1:{status_port}: {error.strerror}"
            raise ConfigurationError(told) from error
        journal.gauge("queue_files", "Files in the queue", lambda: queue.count)
        journal.gauge("queue_bytes", "Bytes in the queue and set aside", lambda: queue.bytes)
        journal.gauge("queue_limit_bytes", "Bytes from which on nothing is taken", lambda: queue.limit)
        journal.gauge("failed_files", "Files set aside that the target does not take", lambda: queue.failed_count)
        journal.gauge("associations", "Peers that are connected", lambda: receiver.associations)

        def watched(work: object, *arguments: object) -> Thread:
            """A thread whose failure ends the node: what supervises it starts it again."""

            def guarded() -> None:
                try:
                    work(*arguments)  # type: ignore[operator]
                except BaseException as error:
                    failures.append(error)
                    stop.set()

            thread = Thread(target=guarded, daemon=True)
            thread.start()
            return thread

        watched(page.serve_forever)
        watched(receiver.serve)
        sending = watched(forward, queue, target, stop, journal)
        where = {"host": listening.host, "port": port, "ae_title": listening.ae_title, "target": str(target)}
        journal.tell("started", **where, status_port=page.server_address[1], waiting=queue.count)
        while not stop.wait(SIGNAL_SECONDS):
            pass
        receiver.stop()
        page.shutdown()
        page.server_close()
        with queue.changed:
            queue.changed.notify_all()
        sending.join(STOP_SECONDS)
        journal.tell("stopped", waiting=queue.count)
    if failures:
        raise failures[0]
