"""Errors of the web server: as answers to the client, and faults as one line on the server's terminal."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.processes.main import describe_fault
from garrison.system.terminal_text import clean
from garrison.web.sse import as_json

Handler = Callable[[Request], Awaitable[Response]]
STATUSES = ((NotFound, 404), (UsageError, 400), (Refused, 409))
"""Error → the HTTP status of its answer; 500 for all others."""


def json_answer(body: Any, status: int = 200) -> Response:
    """Return an answer in JSON that is cached nowhere."""
    return Response(as_json(body), status, {"cache-control": "no-store"}, "application/json")


def refusal(status: int, message: str) -> Response:
    """Return a refusal: JSON whose `message` is one line for people."""
    return json_answer({"ok": False, "message": message}, status)


def with_errors(handler: Handler) -> Handler:
    """Wrap a route's handler: an error of garrison becomes a refusal in its own words, any other a fault."""
    async def wrapped(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except GarrisonError as error:
            return refusal(next((status for kind, status in STATUSES if isinstance(error, kind)), 500), str(error))
        except Exception as error:
            log_fault(error)
            return refusal(500, "internal error; the server's terminal shows where")
    return wrapped


async def no_such_address(request: Request, error: Exception) -> Response:
    """Answer a request for an address without a route."""
    return refusal(404, "there is nothing at this address")


def log_fault(error: Exception) -> None:
    """Print a fault of the server on stderr: one line that names its place; a traceback with GARRISON_DEBUG=1."""
    if os.environ.get("GARRISON_DEBUG") == "1":
        traceback.print_exception(error, file=sys.stderr)
    else:
        print(clean(f"garrison serve: {describe_fault(error)}"), file=sys.stderr, flush=True)
