"""What the node tells: lines in its log, counters for Prometheus, and a page that can only be read."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, disable_created_metrics, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

EVENTS = {
    "received": "Files received by C-STORE",
    "marked": "Files marked and queued",
    "again": "Files that were in the queue already when a peer sent them again",
    "unmarked": "Files queued as they are, since they cannot be marked",
    "refused": "Files answered with a status of failure",
    "sent": "Files that the target has stored",
    "failed": "Files that the target does not take",
    "away": "Attempts at which the target could not be reached",
    "held": "Attempts after which a file stayed in the queue, since its certificate could not be kept",
    "rejected": "Associations or connections that were not accepted",
    "broken_off": "Files that a peer began to send and did not finish",
    "too_large": "Associations aborted as they sent too much",
    "invalid": "Associations ended by what is no DICOM message",
    "echo": "C-ECHO requests",
    "unlogged": "Lines that the log did not take, as on a full disk",
}
"""What is counted; each but the first and the last is a line in the log too."""
STYLE = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:2rem}h1{font-size:1.35rem}"
    "table{border-collapse:collapse}tr{border-bottom:1px solid #8884}th{font-weight:400;text-align:left}"
    "td,th{padding:.25rem 0}td{padding-left:2rem;text-align:right;font-variant-numeric:tabular-nums}"
)


class Journal:
    """Where everything that happens is told: one line of JSON each on standard output, and counted."""

    def __init__(self) -> None:
        # Of the whole process, which is the node's own: when a counter began says nothing.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._counters = {
            name: Counter(f"floormark_node_{name}", told, registry=self.registry) for name, told in EVENTS.items()
        }
        self._seconds = Summary(
            "floormark_node_store_seconds", "From a file's arrival to its answer", registry=self.registry
        )
        self._gauges: dict[str, Callable[[], float]] = {}
        self._lock = Lock()

    def count(self, event: str) -> None:
        """Count without a line."""
        self._counters[event].inc()

    def tell(self, event: str, **facts: Any) -> None:
        """Write a line and count; neither ever names a patient."""
        if event in self._counters:
            self.count(event)
        if "seconds" in facts:
            self._seconds.observe(facts["seconds"])
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event} | {name: value for name, value in facts.items() if value != ""})
        with self._lock:
            try:
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            except OSError:  # images matter more
                self.count("unlogged")

    def gauge(self, name: str, told: str, value: Callable[[], float]) -> None:
        """Show a value that is asked for when somebody looks."""
        Gauge(f"floormark_node_{name}", told, registry=self.registry).set_function(value)
        self._gauges[told] = value

    def page(self) -> str:
        """All numbers as an HTML page."""
        numbers = {told: value() for told, value in self._gauges.items()}
        numbers |= {
            told: self.registry.get_sample_value(f"floormark_node_{name}_total") or 0 for name, told in EVENTS.items()
        }
        rows = "".join(f"<tr><th scope=row>{escape(told)}<td>{value:,.0f}" for told, value in numbers.items())
        head = (
            "<meta charset=utf-8><meta name=viewport content='width=device-width'><title>floormark node</title>"
            "<meta http-equiv=refresh content=5>"
        )
        return f"<!doctype html><html lang=en>{head}<style>{STYLE}</style><h1>floormark node</h1><table>{rows}</table>"


def status_server(journal: Journal, port: int) -> ThreadingHTTPServer:
    """A server of the page at ``/`` and the metrics at ``/metrics``, for this machine alone; not yet serving."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(CONTENT_TYPE_LATEST, generate_latest(journal.registry))
            elif self.path == "/":
                self._answer("text/html; charset=utf-8", journal.page().encode())
            else:
                self.send_error(404)

        def _answer(self, kind: str, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *arguments: Any) -> None:
            pass  # the log is for images

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # who asked has gone

    return Server(("127.0.0.1", port), Handler)
