"""A forge on 127.0.0.1: git over HTTP on real bare repositories, and the REST routes of GitHub, GitLab and Gitea.

In a test: `with ForgeServer(folder) as server: server.state.create("owner/name")`, then the remote is
`server.remote("owner/name")` and the token `OWN_TOKEN`. By hand: `python -m doubles.forge_server FOLDER
[--port 0]` prints the URL and serves until SIGTERM. What it knows is kept in FOLDER, so a restart continues.

Faults are planted by name and count: `server.plant("502-after", method="PUT", path="/merge")`. `POST /control/plant`
does the same from another process. Each request that a fault meets uses it up once.
"""

from __future__ import annotations

import argparse
import base64
import binascii
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from doubles.forge_gitea import GiteaRoutes
from doubles.forge_github import GitHubRoutes
from doubles.forge_gitlab import GitLabRoutes
from doubles.forge_routes import Routes
from doubles.forge_state import OWN_TOKEN, ForgeState, Problem
from garrison.values import fields_of

FAULTS = (
    "502-before",
    "502-after",
    "drop-before",
    "drop-after",
    "hang",
    "rate-limit",
    "secondary-limit",
    "401",
    "403-scope",
    "not-json",
    "push-rejected",
    "unlisted",
    "lie-nothing",
    "lie-tree",
    "stale",
    "reversed",
    "repeated",
    "moved",
)
"""Faults by name. `-after`: the request is carried out, and its answer lost. `unlisted`: what is opened is not listed
for three reads. `lie-…`: a merge is reported that did not move the base, or that merged another tree. `stale`: a read
is answered as before the last change. `reversed`, `repeated`: a list in another order, or with objects twice. `moved`:
a redirect, as after the repository was renamed."""
_HIDDEN_READS = 3
_HANG = 30.0


@dataclass
class Fault:
    """A fault that waits for its requests."""

    name: str
    times: int = 1
    method: str = ""
    path: str = ""
    """Part of the path; empty for all."""


@dataclass
class Request:
    method: str
    path: str
    fault: str = ""
    status: int = 0


class ForgeServer:
    """The double; a context manager that serves on a thread."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = ForgeState(folder)
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.answers: dict[str, list[bytes]] = {}
        """Address → its last two different answers."""
        self.released = threading.Event()
        self.routes: dict[str, Routes] = {
            "/api/v3": GitHubRoutes(self.state),
            "/api/v4": GitLabRoutes(self.state),
            "/api/v1": GiteaRoutes(self.state),
        }
        self._http = _Server(("127.0.0.1", port), _Handler)
        self._http.forge = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._http.server_address[1]}"

    def remote(self, path: str) -> str:
        return f"http://{self.host}/{path}.git"

    def plant(self, name: str, times: int = 1, method: str = "", path: str = "") -> None:
        """Plant a fault for the next `times` requests with this method and part of a path."""
        if name not in FAULTS:
            raise ValueError(f"no fault {name}; there are {', '.join(FAULTS)}")
        self.faults.append(Fault(name, times, method, path))

    def take_fault(self, method: str, path: str) -> str:
        """Use up a fault that waits for this request; return its name."""
        with self.state.lock:
            for fault in self.faults:
                if fault.times and fault.method in {"", method} and fault.path in path:
                    fault.times -= 1
                    return fault.name
        return ""

    def __enter__(self) -> ForgeServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    forge: ForgeServer

    def handle_error(self, *_: object) -> None:
        """Overlook clients that were killed."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    server: _Server

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _serve(self) -> None:
        forge, split = self.server.forge, urlsplit(self.path)
        content = self._read_body()
        if split.path.startswith("/control/"):
            self._control(split.path, content)
            return
        record = Request(self.command, split.path, forge.take_fault(self.command, split.path))
        forge.requests.append(record)
        if record.fault == "hang":
            forge.released.wait(_HANG)
        if record.fault in {"hang", "drop-before"}:
            self.close_connection = True
            return
        status, headers, body = self._early(record) or (
            self._git(split.path, split.query, content, record)
            if ".git/" in split.path
            else self._api(split.path, split.query, content, record)
        )
        if record.fault == "502-after":
            status, headers, body = 502, {}, b"<html>Bad Gateway</html>"
        record.status = status
        if record.fault == "drop-after":
            self.close_connection = True
            return
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        pieces = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return pieces

    def _early(self, record: Request) -> tuple[int, dict[str, str], bytes] | None:
        """Return the answer if nothing is to be done."""
        limits = {
            "rate-limit": (
                403,
                {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(time.time()) + 120)},
                "API rate limit exceeded",
            ),
            "secondary-limit": (403, {"Retry-After": "7"}, "You have exceeded a secondary rate limit"),
            "401": (401, {}, "Bad credentials"),
            "403-scope": (403, {"X-Accepted-OAuth-Scopes": "repo"}, "Resource not accessible"),
            "502-before": (502, {}, "Bad Gateway"),
        }
        if record.fault in limits:
            status, headers, said = limits[record.fault]
            return status, headers, json.dumps({"message": said}).encode()
        if record.fault == "not-json":
            return 200, {}, b"<html>maintenance</html>"
        if not self._is_authorized():
            return 401, {"WWW-Authenticate": 'Basic realm="double"'}, b'{"message": "Bad credentials"}'
        if record.fault == "moved":
            return 301, {"Location": f"http://{self.server.forge.host}/api/elsewhere"}, b'{"message": "Moved"}'
        if record.fault == "push-rejected":
            return 403, {}, b'{"message": "protected branch hook declined"}'
        return None

    def _is_authorized(self) -> bool:
        kind, _, given = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                given = base64.b64decode(given).decode().partition(":")[2]
            except (binascii.Error, UnicodeDecodeError):
                return False
        return given == OWN_TOKEN

    def _api(self, path: str, query: str, content: bytes, record: Request) -> tuple[int, dict[str, str], bytes]:
        forge = self.server.forge
        root, rest = ("/api/v3", "/graphql") if path == "/api/graphql" else (path[:7], path[7:])
        if root not in forge.routes:
            return 404, {}, b'{"message": "Not Found"}'
        asked = dict(parse_qsl(query))
        try:
            body = json.loads(content) if content else {}
            if record.fault in {"lie-nothing", "lie-tree"}:
                body["lie"] = record.fault.partition("-")[2]
            with forge.state.lock:
                for repository in forge.state.repositories.values():
                    forge.state.settle(repository)
                status, made = forge.routes[root].handle(self.command, rest, asked, body)
                if self.command != "GET":
                    self._after_write(record)
        except Problem as problem:
            return problem.status, {}, json.dumps({"message": problem.message}).encode()
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            return 422, {}, json.dumps({"message": f"malformed: {type(error).__name__} {error}"}).encode()
        return (status, {}, made.encode()) if isinstance(made, str) else self._encode(status, made, asked, record)

    def _encode(self, status: int, made: Any, asked: dict[str, str], record: Request,
                ) -> tuple[int, dict[str, str], bytes]:
        """Return an answer as JSON: one page of a list, with its ETag on forges that send them."""
        headers: dict[str, str] = {}
        if isinstance(made, list):
            made = self._page(_disorder(made, record.fault), asked, headers)
        encoded = b"" if made is None else json.dumps(made).encode()
        if self.command == "GET":
            encoded = self._remember(encoded, stale=record.fault == "stale")
        if self.command == "GET" and not self.path.startswith("/api/v1"):
            headers["ETag"] = f'"{hashlib.sha256(encoded).hexdigest()[:32]}"'
            if self.headers.get("If-None-Match") == headers["ETag"]:
                return 304, headers, b""
        return status, headers, encoded

    def _remember(self, answer: bytes, *, stale: bool) -> bytes:
        """Return the answer of an address, or the one before the last change."""
        with self.server.forge.state.lock:
            last = self.server.forge.answers.setdefault(self.path, [])
            if answer not in last[-1:]:
                last[:] = [*last[-1:], answer]
            return last[0] if stale else answer

    def _after_write(self, record: Request) -> None:
        state = self.server.forge.state
        for repository in state.repositories.values():
            if record.fault == "unlisted" and repository.pulls:
                repository.pulls[-1].hidden = _HIDDEN_READS
            state.settle(repository)
        state.save()

    def _page(self, rows: list[Any], asked: dict[str, str], headers: dict[str, str]) -> list[Any]:
        size = int(asked.get("per_page") or asked.get("limit") or 30)
        page = int(asked.get("page", "1"))
        if len(rows) > page * size:
            onward = urlencode({**asked, "page": str(page + 1)})
            headers["Link"] = f'<http://{self.server.forge.host}{urlsplit(self.path).path}?{onward}>; rel="next"'
        return rows[(page - 1) * size : page * size]

    def _git(self, path: str, query: str, content: bytes, _record: Request) -> tuple[int, dict[str, str], bytes]:
        """Answer by `git http-backend`."""
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.server.forge.state.folder / "git"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REMOTE_USER": "double",
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(content)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_CONFIG_GLOBAL": os.devnull,
            "REMOTE_ADDR": "127.0.0.1",
        }
        done = subprocess.run(["git", "http-backend"], input=content, capture_output=True, env=environ, check=False)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(re.findall(r"(?m)^([\w-]+): (.*?)\r?$", head.decode()))
        status = int(headers.pop("Status", "200").split()[0])
        with self.server.forge.state.lock:
            for repository in self.server.forge.state.repositories.values():
                self.server.forge.state.settle(repository)
        return status, headers, body

    def _control(self, path: str, content: bytes) -> None:
        if path == "/control/plant":
            self.server.forge.plant(**json.loads(content))
        body = json.dumps([fields_of(each) for each in self.server.forge.requests]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


def _disorder(rows: list[Any], fault: str) -> list[Any]:
    """Return a list as a forge sends it whose pages shift while they are read."""
    if fault == "reversed":
        return rows[::-1]
    return [*rows, *rows[-2:]] if fault == "repeated" else rows


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(description="A forge on 127.0.0.1 for tests")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--create", action="append", default=[], metavar="OWNER/NAME")
    given = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with ForgeServer(given.folder, given.port) as server:
        for path in given.create:
            server.state.create(path)
        print(f"http://{server.host}", flush=True)
        ended.wait()
    sys.exit(0)


if __name__ == "__main__":
    main()
