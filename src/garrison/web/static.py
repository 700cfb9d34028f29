"""The page's own files: index.html for its addresses, the rest by names that exist beside it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from garrison.errors import NotFound

FOLDER = Path(__file__).parent / "static"
PAGES = ("/", "/chat")
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".wasm": "application/wasm", ".svg": "image/svg+xml",
    ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2", ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
"""What is served; a file of another kind is not there."""


async def page(request: Request) -> Response:
    """The page itself."""
    return sent(FOLDER / "index.html", request)


async def file(request: Request) -> Response:
    """A file of the page; NotFound for every name that does not stand in its folder."""
    name = request.path_params["name"]
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in name.split("/")):
        raise NotFound("the page has no such file")
    path = FOLDER / name
    if path.suffix not in TYPES or not path.is_file() or FOLDER.resolve() not in path.resolve().parents:
        raise NotFound("the page has no such file")
    return sent(path, request)


def sent(path: Path, request: Request) -> Response:
    """A file, or that the browser's copy is still good."""
    data = path.read_bytes()
    tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, 200, headers | {"content-type": TYPES[path.suffix]})
