"""Static files of the page: index.html for its addresses, the others by their names in `static/`."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import lru_cache
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
"""Suffix of each kind of file that is served; a file of another kind is not found."""
COMPRESSED = (".png", ".woff2", ".ico")
"""Kinds that are compressed in themselves."""


async def index(request: Request) -> Response:
    """Return the page itself."""
    return _answer(FOLDER / "index.html", request)


async def file(request: Request) -> Response:
    """Return a file of the page; NotFound for every name that is not in its folder."""
    name = request.path_params["name"]
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in name.split("/")):
        raise NotFound("the page has no such file")
    path = FOLDER / name
    if path.suffix not in TYPES or not path.is_file() or FOLDER.resolve() not in path.resolve().parents:
        raise NotFound("the page has no such file")
    return _answer(path, request)


def _answer(path: Path, request: Request) -> Response:
    """Return a file, or 304 if the browser's copy is current."""
    data, small, tag = _read(path, path.stat().st_mtime_ns)
    headers = {"etag": tag, "cache-control": "no-cache", "vary": "accept-encoding"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    headers["content-type"] = TYPES[path.suffix]
    if small and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(small, 200, headers | {"content-encoding": "gzip"})
    return Response(data, 200, headers)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> tuple[bytes, bytes, str]:
    """Return a file, the same compressed (empty where that is no gain), and its tag."""
    data = path.read_bytes()
    small = gzip.compress(data, mtime=0) if len(data) > 1000 and path.suffix not in COMPRESSED else b""
    return data, small, f'"{hashlib.sha256(data).hexdigest()[:20]}"'
