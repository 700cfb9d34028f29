"""Responses of the web server: JSON, refusals, errors.

An error becomes a response to the client; a fault is also one line on the server's terminal.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.processes.main import describe_fault
from garrison.system.terminal_text import clean
from garrison.web.access import BODY_BYTES
from garrison.web.connections import Overloaded
from garrison.web.sse import as_json

RETRY_AFTER = "5"
"""Seconds after which a client may try again when the server is full."""

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
        if len(data) > BODY_BYTES:  # counted here: a chunked body announces no length for `access.judge` to refuse
            raise UsageError(f"the request is larger than the limit of {BODY_BYTES >> 10} KiB")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):  # RecursionError: a thousand open brackets
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
