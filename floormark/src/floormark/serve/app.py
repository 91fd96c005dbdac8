"""The page over HTTP: who may ask, how much, and what a browser is allowed to do with the answer."""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any

import anyio.to_thread
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from floormark.errors import ConfigurationError, FloormarkError, OutputError, RefusedError, unexpected
from floormark.serve.desk import Desk, Facts, Upload

ROLES = frozenset({"image", "original", "certificate"})
MAX_HEADER_BYTES = 1 << 14  # bytes of the JSON line before the files
MAX_MESSAGE = 1000  # characters
MAX_CONCURRENT = 1  # images that are worked on at once; others wait
ASSETS = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
NO_TOKEN = "Open the address that floormark serve printed: it holds a token, without which nobody gets an answer."
OTHER_HOST = "Expected the address of this machine as the host, got another name."


class Guard:
    """Answers requests that have the token and name this machine as the host; all others end here.

    A page elsewhere could have its name point to this machine (DNS rebinding), so the host must be an address, or a
    name that was given. It cannot set the header of the token either.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str]) -> None:
        self.app, self.token, self.hosts = app, token.encode(), hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        headers, app = Headers(scope=scope), self.app
        if not self._is_here(headers.get("host", "")):
            app = PlainTextResponse(OTHER_HOST, 421)
        elif scope["path"].lstrip("/") not in ASSETS and not self._knows_token(scope, headers):
            app = PlainTextResponse(NO_TOKEN, 401)
        await app(scope, receive, send_guarded)

    def _is_here(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name.lower() in self.hosts
        return True

    def _knows_token(self, scope: Scope, headers: Headers) -> bool:
        given = headers.get("authorization", "").removeprefix("Bearer ")
        if scope["method"] in ("GET", "HEAD"):  # the address of the page itself
            given = QueryParams(scope["query_string"]).get("token", given)
        return secrets.compare_digest(given.encode(), self.token)


def build(desk: Desk, *, token: str, max_bytes: int, hosts: frozenset[str] = frozenset({"localhost"})) -> ASGIApp:
    """The application. Files are read up to ``max_bytes`` in all, held in memory, and forgotten with the answer."""
    place = resources.files("floormark.serve")
    texts = {name: (place / name).read_bytes() for name in ("page.html", *ASSETS)}
    limiter = anyio.CapacityLimiter(MAX_CONCURRENT)

    async def page(request: Request) -> Response:
        return Response(texts["page.html"], media_type="text/html")

    async def asset(request: Request) -> Response:
        name = request.url.path.lstrip("/")
        return Response(texts[name], media_type=ASSETS[name])

    async def work(request: Request, ask: Callable[[Facts, dict[str, Upload]], tuple[Facts, list[bytes]]]) -> Response:
        try:
            asked, uploads = unpacked(await _body(request, max_bytes))
            facts, parts = await anyio.to_thread.run_sync(ask, asked, uploads, limiter=limiter)
        except _TooLargeError:
            return _problem(f"expected at most {max_bytes >> 20} MB of files, got more", 413)
        except RefusedError as error:
            return _problem(str(error), 409)
        except OutputError as error:
            return _problem(str(error), 507)
        except FloormarkError as error:
            return _problem(str(error), 422)
        except MemoryError:
            return _problem("not enough memory for this image", 507)
        except ClientDisconnect:  # nobody reads the answer
            return Response(status_code=400)
        except Exception as error:
            return _problem(unexpected(error), 500)
        return Response(packed(facts, parts), media_type="application/octet-stream")

    async def inspect(request: Request) -> Response:
        return await work(request, lambda asked, uploads: desk.inspect(uploads))

    async def mark(request: Request) -> Response:
        return await work(request, lambda asked, uploads: desk.mark(uploads, _message(asked), _floor(asked)))

    routes = [Route("/", page), *(Route(f"/{name}", asset) for name in ASSETS)]
    routes += [Route("/inspect", inspect, methods=["POST"]), Route("/mark", mark, methods=["POST"])]
    return Guard(Starlette(routes=routes), token=token, hosts=hosts)


class _TooLargeError(Exception):
    pass


async def _body(request: Request, most: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and int(length) > most:
        raise _TooLargeError
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > most:
            raise _TooLargeError
    return bytes(body)


def packed(facts: Facts, parts: list[bytes]) -> bytes:
    """A line of JSON, and then files one after the other; ``sizes`` tells where each ends."""
    line = json.dumps({**facts, "sizes": [len(part) for part in parts]}, allow_nan=False)
    return b"\n".join([line.encode(), b"".join(parts)])


def unpacked(body: bytes) -> tuple[Facts, dict[str, Upload]]:
    """What the page sends: a line of JSON with ``files``, a list of role, name and size, and then the files."""
    line, _, rest = body.partition(b"\n")
    try:
        if len(line) > MAX_HEADER_BYTES:
            raise ValueError
        asked: Facts = json.loads(line)
        uploads = {}
        for role, name, size in asked["files"]:
            if role not in ROLES or type(size) is not int or not 0 <= size <= len(rest):
                raise ValueError
            uploads[role], rest = Upload(str(name), rest[:size]), rest[size:]
        if rest:
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError("expected files as the page sends them") from error
    return asked, uploads


def _message(asked: Facts) -> str:
    message = asked.get("message")
    if not isinstance(message, str) or len(message) > MAX_MESSAGE:
        raise ConfigurationError(f"expected a message of at most {MAX_MESSAGE} characters")
    return message


def _floor(asked: Facts) -> Any:
    return asked.get("psnr")  # which the options of the embedding check


def _problem(text: str, status: int) -> Response:
    return Response(json.dumps({"problem": text}), status, media_type="application/json")
