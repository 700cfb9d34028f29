"""Error page for people: what the server refuses, as one line that says what to do.

It stands alone, since a refused browser gets no other file: its style is in it, allowed by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
from http import HTTPStatus

from starlette.responses import Response

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
