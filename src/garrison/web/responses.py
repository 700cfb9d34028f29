"""Responses of the web server: JSON, refusals, errors, and the static files of the page.

An error becomes a response to the client; a fault also one line on the server's terminal.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from http import HTTPStatus
from pathlib import Path

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.processes.main import describe_fault
from garrison.system.terminal_text import clean
from garrison.web.access import BODY_BYTES
from garrison.web.connections import Overloaded
from garrison.web.sse import as_json

FOLDER = Path(__file__).parent / "static"
PAGES = ("/", "/chat")
RETRY_AFTER = "5"
"""Seconds after which a client may try again when the server is full."""
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".wasm": "application/wasm", ".svg": "image/svg+xml",
    ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2", ".json": "application/json",
    ".txt": "text/plain; charset=utf-8", ".webmanifest": "application/manifest+json",
}
"""Suffix → content type of each kind of file that is served."""
COMPRESSED = (".png", ".woff2", ".ico")
"""Kinds that are compressed already."""


async def send_index(request: Request) -> Response:
    """Send the page itself."""
    return _send(FOLDER / "index.html", request)


async def send_worker(request: Request) -> Response:
    """Send the service worker, which governs the whole page and so has an address above it."""
    return _send(FOLDER / "service_worker.js", request)


async def send_file(request: Request) -> Response:
    """Send a file of the page; NotFound for every name that is not in its folder."""
    name = request.path_params["name"]
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in name.split("/")):
        raise NotFound("the page has no such file")
    path = FOLDER / name
    if path.suffix not in TYPES or not path.is_file() or FOLDER.resolve() not in path.resolve().parents:
        raise NotFound("the page has no such file")
    return _send(path, request)


def _send(path: Path, request: Request) -> Response:
    """Send a file, or 304 if the browser's copy is current."""
    data, compressed, tag = _read(path, path.stat().st_mtime_ns)
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    headers["content-type"] = TYPES[path.suffix]
    if compressed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, 200, headers | {"content-encoding": "gzip"})
    return Response(data, 200, headers)


@lru_cache(maxsize=256)
def _read(path: Path, _changed: int) -> tuple[bytes, bytes, str]:
    """Return a file, its compressed form (empty if that is not smaller), and its tag."""
    data = path.read_bytes()
    compressed = gzip.compress(data, mtime=0) if len(data) > 1000 and path.suffix not in COMPRESSED else b""
    return data, compressed, f'"{hashlib.sha256(data).hexdigest()[:20]}"'


# ---- JSON and errors ----------------------------------------------------------------------------------------------

Handler = Callable[[Request], Awaitable[Response]]
STATUSES = ((Overloaded, 503), (NotFound, 404), (UsageError, 400), (Refused, 409))
"""Error → HTTP status of its response; 500 for all others."""


def json_answer(body: object, status: int = 200) -> Response:
    """Return a JSON response that is not cached."""
    return Response(as_json(body), status, {"cache-control": "no-store"}, "application/json")


def refusal(request: Request, status: int, message: str, *, close: bool = False) -> Response:
    """Return a refusal whose `message` is one line for people: a page for a browser's tab, else JSON.

    With `close`, the connection ends after it.
    """
    wants_page = "text/html" in request.headers.get("accept", "")
    answer = error_page(status, message) if wants_page else json_answer({"ok": False, "message": message}, status)
    if close:
        answer.headers["connection"] = "close"
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        answer.headers["retry-after"] = RETRY_AFTER
    return answer


def handle_errors(handler: Handler) -> Handler:
    """Wrap a route's handler: a garrison error becomes a refusal with its message, any other a fault."""
    async def wrapped(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except GarrisonError as error:
            status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
            return refusal(request, status, str(error))
        except Exception as error:  # a bug must not end the server
            log_fault(error)
            return refusal(request, 500, "internal error; the server's terminal shows where")
    return wrapped


async def unknown_address(request: Request, error: Exception) -> Response:
    """Respond to a request for an address without a route."""
    return refusal(request, 404, "no page at this address; open the start page")


def log_fault(error: Exception) -> None:
    """Print a fault of the server on stderr: one line that names its place; a traceback with GARRISON_DEBUG=1."""
    if os.environ.get("GARRISON_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(clean(f"garrison serve: {describe_fault(error)}"), file=sys.stderr, flush=True)


async def body_of(request: Request) -> Mapping[str, object]:
    """Return a request's JSON object; UsageError for anything else, or if it is too large."""
    data = b""
    async for piece in request.stream():
        data += piece
        if len(data) > BODY_BYTES:
            raise UsageError(f"a request has at most {BODY_BYTES >> 10} KiB")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise UsageError("send a JSON object") from None
    if not isinstance(body, dict):
        raise UsageError("send a JSON object")
    return body


# ---- a refusal as a page

_STYLE = """
:root { color-scheme: light dark; }
body { margin: 0; min-height: 100vh; display: grid; place-content: center; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 34rem; padding: 24px; }
h1 { font-size: 20px; margin: 0 0 8px; }
p { margin: 0 0 12px; overflow-wrap: anywhere; }
small { opacity: .75; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_TITLES = {401: "No access", 403: "Not allowed", 404: "Not found", 421: "Another host name"}
"""Status → heading, where HTTP's own phrase says less."""


def error_page(status: int, message: str) -> Response:
    """Return the page of a refusal."""
    title = _TITLES.get(status) or HTTPStatus(status).phrase.capitalize()
    start = '<p><a href="/">Start page</a></p>' if status == HTTPStatus.NOT_FOUND else ""
    body = (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{title} · garrison</title>'
            f"<style>{_STYLE}</style></head>\n<body><main><h1>{title}</h1><p>{_in_html(message)}.</p>{start}"
            f"<small>garrison, status {status}</small></main></body></html>\n")
    return Response(body, status, {"cache-control": "no-store", "content-security-policy": _POLICY},
                    "text/html; charset=utf-8")


def _in_html(message: str) -> str:
    """Return a message as text of a page, with a capital letter; what it quotes in backquotes is a command."""
    parts = [html.escape(part) for part in f"{message[:1].upper()}{message[1:]}".split("`")]
    return "".join(f"<code>{part}</code>" if number % 2 and number < len(parts) - 1 else part
                   for number, part in enumerate(parts))
