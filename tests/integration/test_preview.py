"""Previews of real servers in real network namespaces: what reaches them, what does not, and how they end."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from garrison.errors import Refused
from garrison.preview.gateway import Gateway
from garrison.preview.listeners import Tree, look_at
from garrison.preview.on_host import NodeAnywhere
from garrison.preview.rules import PreviewRules
from garrison.preview.service import Address, Preview, PreviewSource, PreviewTarget, list_previews
from garrison.preview.ways import NodeWay
from garrison.records.hosts import Host, write_host
from garrison.records.identity import Identity
from garrison.records.remote import RemotePhase, RemoteWorkState, write_remote
from garrison.records.store import Store
from garrison.sandbox import network
from garrison.sandbox.dialer import Unreachable
from garrison.system import processes
from garrison.system.processes import ProcessId
from support import PROGRAM

SERVER = r"""
import base64, hashlib, json, socketserver, socket, sys, threading, time
address, port, delay = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        line = self.rfile.readline().decode(); headers = {}
        while (text := self.rfile.readline().decode().strip()):
            name, _, value = text.partition(": "); headers[name.lower()] = value
        if headers.get("upgrade"):
            key = headers["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.wfile.write(f"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
            while data := self.request.recv(4096): self.wfile.write(data.upper())
            return
        given = self.rfile.read(int(headers.get("content-length", 0))).decode()
        if line.split()[1] == "/cut": self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab"); return
        if line.split()[1] == "/garbage": self.wfile.write(b"\0\1\2 nothing of HTTP\r\n\r\n"); return
        if line.split()[1] == "/smuggle":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
                             b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nX")
            return
        if line.split()[1] == "/stream":
            self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 1\n\n")
            time.sleep(30); return
        body = json.dumps({"line": line.strip(), "headers": headers, "body": given}).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1; Domain=localhost\r\nAlt-Svc: h3\r\nContent-Length: "
                         + str(len(body)).encode() + b"\r\n\r\n" + body)
class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True; request_queue_size = 64
    address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
time.sleep(delay)
Server((address, port), Handler).serve_forever()
"""


class Node:
    """A node whose programs run in a network namespace, or in the machine's."""

    def __init__(self, tmp_path: Path, *, is_shared: bool = False) -> None:
        self.tmp_path, self.started = tmp_path, list[subprocess.Popen[bytes]]()
        self.namespace = None if is_shared else network.create()
        self.root: ProcessId | None = None

    def serve(self, address: str, *ports: int, delay: float = 0.0) -> None:
        """Start servers below the node's orchestrator, here a shell; wait until they listen if they are not late."""
        entry = () if self.namespace is None else self.namespace.entry()
        words = [" ".join([*entry, sys.executable, "-c", '"$0"', address, str(port), str(delay)]) for port in ports]
        child = subprocess.Popen(["/bin/sh", "-c", f"{' & '.join(words)} & wait", SERVER])
        self.started.append(child)
        found = processes.probe(child.pid)
        self.root = found.id
        until = time.monotonic() + 30
        while not delay and ((tree := self.look()) is None or any(tree.find(port) is None for port in ports)):
            assert time.monotonic() < until, tree
            time.sleep(0.02)

    def look(self) -> Tree | None:
        return look_at(self.root, os.getpid()) if self.root is not None else None

    def close(self) -> None:
        while self.started:
            child = self.started.pop()
            for pid in processes.child_pids(child.pid):
                os.kill(pid, signal.SIGKILL)
            child.kill()
            child.wait()
        if self.namespace is not None:
            self.namespace.listener.close()
            self.namespace.close()
            self.namespace = None


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    try:
        made = Node(tmp_path)
    except Refused as error:
        pytest.skip(str(error))
    yield made
    made.close()


def listening() -> tuple[socket.socket, int]:
    made = socket.create_server(("127.0.0.1", 0))
    return made, made.getsockname()[1]


async def ask(port: int, text: str, tls: tuple[ssl.SSLContext, str] | None = None) -> bytes:
    """Send a request as it is; return all that comes until the other side closes, or 5 seconds have passed.

    `tls` is what to trust, and the name of the server.
    """
    context, name = tls or (None, None)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    writer.write(text.replace("\n", "\r\n").encode())
    found = b""
    try:
        async with asyncio.timeout(5):
            while data := await reader.read(65536):
                found += data
                length = re.search(rb"(?i)\r\ncontent-length: (\d+)\r\n.*?\r\n\r\n", found, re.DOTALL)
                if tls is not None and length is not None and len(found) >= length.end() + int(length[1]):
                    break  # TLS has no end of one direction, so the server waits a second for ours
    except TimeoutError:
        pass
    writer.close()
    return found


@asynccontextmanager
async def served(node: Node, inner: int, address: str = "127.0.0.1") -> AsyncIterator[int]:
    """Yield the outer port of a gateway to a port of the node, on which a program of it listens."""
    node.serve(address, inner)
    listener, port = listening()
    way = NodeWay(node.look, inner)
    gateway = Gateway(way, PreviewRules(f"web-r1.localhost:{port}", inner), node="web")
    await gateway.listen([listener])
    try:
        yield port
    finally:
        await gateway.close()
        way.close()


def head(port: int, path: str = "/", more: str = "", method: str = "GET") -> str:
    return f"{method} {path} HTTP/1.1\nHost: web-r1.localhost:{port}\nConnection: close\n{more}\n"


async def test_requests_reach_the_server_as_localhost_and_only_under_the_name_of_the_preview(node: Node) -> None:
    async with served(node, 3000) as port:
        answer = await ask(port, head(port, "/a?b=1", "Content-Length: 3\n", "POST") + "abc")
        seen = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (seen["line"], seen["headers"]["host"], seen["body"]) == (
            "POST /a?b=1 HTTP/1.1", "localhost:3000", "abc")
        assert b"Domain" not in answer and b"alt-svc" not in answer.lower() and b"set-cookie: a=1\r\n" in answer.lower()
        assert (await ask(port, f"GET / HTTP/1.1\nHost: 127.0.0.1:{port}\n\n")).startswith(b"HTTP/1.1 421")
        assert (await ask(port, head(port, more="Origin: https://evil.example\n"))).startswith(b"HTTP/1.1 403")
        assert (await ask(port, "NONSENSE\n\n")).startswith(b"HTTP/1.1 400")
        # of a hostile server
        assert (await ask(port, head(port, "/garbage"))).startswith(b"HTTP/1.1 502")
        assert not (await ask(port, head(port, "/cut"))).endswith(b"\r\n\r\nab\r\n")
        assert (await ask(port, head(port, "/smuggle"))).count(b"HTTP/1.1") == 1
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head(port, "/stream").replace("\n", "\r\n").encode())
        await reader.readuntil(b"data: 1")  # events pass as they come
        writer.close()
    tree = node.look()
    assert tree is not None and tree.reserved == {network.PORT}, "the proxy's port is garrison's"
    assert tree.find(network.PORT) is None, "and no preview shows it"


async def test_a_websocket_passes_both_ways_and_not_for_a_foreign_page(node: Node) -> None:
    key = base64.b64encode(b"0123456789abcdef").decode()
    upgrade = f"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: {key}\nSec-WebSocket-Version: 13\n"
    async with served(node, 3000) as port:
        start = f"GET /ws HTTP/1.1\nHost: web-r1.localhost:{port}\n{upgrade}"
        refused = await ask(port, f"{start}Origin: http://127.0.0.1:8642\n\n")
        assert refused.startswith(b"HTTP/1.1 403")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{start}Origin: http://web-r1.localhost:{port}\n\n".replace("\n", "\r\n").encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        accept = base64.b64encode(hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest())
        assert answer.startswith(b"HTTP/1.1 101") and accept in answer
        writer.write(b"some bytes")
        assert await reader.readexactly(10) == b"SOME BYTES"
        writer.close()


async def test_a_server_that_listens_only_on_ipv6_is_reached_and_one_that_ended_is_reported(node: Node) -> None:
    async with served(node, 5173, "::1") as port:
        assert (await ask(port, head(port))).startswith(b"HTTP/1.1 200")
        node.close()
        assert b"none of its programs is running now" in await ask(port, head(port))


async def test_a_port_of_the_machine_that_is_another_programs_is_not_reached(tmp_path: Path) -> None:
    other, port = listening()
    node = Node(tmp_path, is_shared=True)
    free, own = listening()
    free.close()
    try:
        async with served(node, own) as outer:
            tree = node.look()
            assert tree is not None and tree.find(port) is None and tree.namespace is None
            with pytest.raises(Unreachable, match="nothing listens"):
                await NodeWay(node.look, port).open()
            assert (await ask(outer, head(outer))).startswith(b"HTTP/1.1 200")
    finally:
        other.close()
        node.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", "/CN=box.test", "-addext", "subjectAltName=DNS:box.test,DNS:other.test",
                    "-out", folder / "box.crt", "-keyout", folder / "box.key"], check=True, capture_output=True)
    return folder / "box.crt", folder / "box.key"


async def test_beyond_this_machine_a_ticket_opens_one_browser_over_tls(node: Node, tmp_path: Path) -> None:
    (tmp_path / "runs/r1").mkdir(parents=True)
    node.serve("127.0.0.1", 3000)
    cert, key = make_certificate(tmp_path)
    trusting = ssl.create_default_context(cafile=str(cert))
    told: list[str] = []

    address = Address(listen="0.0.0.0", hostname="Box.Test", tls=(cert, key)).check()
    preview = Preview(tmp_path, PreviewTarget("web", "r1", 3000), address, Fake(node), told.append)

    def request(path: str, *more: str, host: str = "box.test") -> str:
        return "\n".join((f"GET {path} HTTP/1.1", f"Host: {host}:{url.port}", "Connection: close", *more, "", ""))

    async def browse(path: str, *more: str, host: str = "box.test") -> str:
        return (await ask(url.port or 0, request(path, *more, host=host), (trusting, host))).decode()

    async with opened(preview) as (shown, _):
        url = urlsplit(shown)
        assert (url.scheme, url.hostname) == ("https", "box.test") and url.port is not None
        assert b" 200 " not in await ask(url.port, request("/"))  # no word in the clear
        assert (await browse("/")).startswith("HTTP/1.1 401")
        ticket = f"/?{url.query}"
        assert (await browse(ticket, host="other.test")).startswith("HTTP/1.1 401"), "a ticket for another name"
        answer = await browse(ticket)
        lines = [line for line in answer.splitlines() if line.lower().startswith("set-cookie: ")]
        assert answer.startswith("HTTP/1.1 303") and "location: /\n" in answer.lower().replace("\r", "")
        cookie, *attributes = (part.strip() for part in lines[0][len("set-cookie: "):].split(";"))
        assert set(attributes) == {"Path=/", "Secure", "HttpOnly", "SameSite=Lax"} and cookie.startswith("__Host-")
        assert (await browse(ticket)).startswith("HTTP/1.1 401"), "a second use"
        seen = await browse("/", f"Cookie: b=2; {cookie}")
        assert json.loads(seen.partition("\r\n\r\n")[2])["headers"]["cookie"] == "b=2"
        name, _, value = cookie.partition("=")
        assert (await browse("/", f"Cookie: {cookie}", host="other.test")).startswith("HTTP/1.1 421")
        for other in (f"{name}={'x' * len(value)}", f"{name[:-5]}1{name[-4:]}={value}", f"{name}="):
            assert (await browse("/", f"Cookie: {other}")).startswith("HTTP/1.1 401"), other
        following = urlsplit(told[-1].rpartition(" ")[2])
        assert following.query != url.query and (await browse(f"/?{following.query}")).startswith("HTTP/1.1 303")
        assert [each.url for each in list_previews(tmp_path, "r1")] == [f"https://box.test:{url.port}/"]


@asynccontextmanager
async def opened(preview: Preview) -> AsyncIterator[tuple[str, asyncio.Task[None]]]:
    """Run a preview; yield its address and its task once it is open."""
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(preview.run(url.set_result))
    try:
        yield await asyncio.wait_for(url, 60), running
    finally:
        running.cancel()


class Fake(PreviewSource):
    """A node whose end the test sets."""

    def __init__(self, node: Node) -> None:
        self.node, self.why = node, ""

    def look(self) -> Tree | None:
        return self.node.look()

    def why_over(self) -> str:
        return self.why


async def test_a_preview_waits_for_a_late_server_serves_it_and_ends_with_the_node(node: Node, tmp_path: Path) -> None:
    (tmp_path / "runs/r1").mkdir(parents=True)
    told: list[str] = []
    subject = Fake(node)
    node.serve("127.0.0.1", 3000, delay=1.0)
    while node.look() is None:
        time.sleep(0.01)

    preview = Preview(tmp_path, PreviewTarget("web", "r1"), Address(), subject, told.append)
    async with opened(preview) as (url, running):
        port = int(url.rstrip("/").rpartition(":")[2])
        assert (await ask(port, head(port))).startswith(b"HTTP/1.1 200")
        assert [each.url for each in list_previews(tmp_path, "r1")] == [url]
        subject.why = "web has ended"
        node.close()
        await asyncio.wait_for(running, 30)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    assert told == ["web does not listen on a port yet; waiting for it", "web has ended; its preview is closed"]
    assert list(list_previews(tmp_path, "r1")) == []


async def test_a_preview_that_cannot_be_opened_reports_why(node: Node, tmp_path: Path) -> None:
    node.serve("127.0.0.1", 3000, 3001)
    for port, words in ((0, "listens on several ports, name one: 3000 "), (network.PORT, "garrison itself")):
        with pytest.raises(Refused, match=words):
            await Preview(tmp_path, PreviewTarget("web", "r1", port), Address(), Fake(node), print).run(print)
    waiting: list[str] = []

    preview = Preview(tmp_path, PreviewTarget("web", "r1", 4444), Address(), Fake(node), waiting.append)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await preview.run(print)
    [line] = waiting
    assert line.startswith("web does not listen on port 4444 yet, but on 3000 (python")
    held, port = listening()
    with held, pytest.raises(Refused, match="cannot be opened"):
        shown = PreviewTarget("web", "r1", 3000)
        await Preview(tmp_path, shown, Address(port=port), Fake(node), print).run(print)


SSHD = """Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
StrictModes no
UsePAM no
PidFile none
PasswordAuthentication no
"""


@pytest.fixture
def ssh_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the destination of a real ssh server of this user on loopback."""
    if missing := [name for name in ("/usr/sbin/sshd", "ssh", "ssh-keygen") if shutil.which(name) is None]:
        pytest.skip(f"there is no {missing[0]}")
    folder = tmp_path / "ssh"
    folder.mkdir()
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    free, port = listening()
    free.close()
    (folder / "sshd").write_text(SSHD.format(port=port, folder=folder))
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "config").write_text(f"Host box\n HostName 127.0.0.1\n Port {port}\n IdentityFile {folder}/user\n"
                                   f" IdentitiesOnly yes\n UserKnownHostsFile {folder}/known\n")
    (folder / "bin").mkdir()
    (folder / "bin/ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", folder / "sshd"], stderr=(folder / "log").open("wb"))
    try:
        until = time.monotonic() + 20
        while subprocess.run(["ssh", "-oBatchMode=yes", "box", "true"], capture_output=True, check=False).returncode:
            assert time.monotonic() < until, (folder / "log").read_text()
            time.sleep(0.1)
        yield "box"
    finally:
        server.kill()
        server.wait()


def on_a_host(node: Node, tmp_path: Path, destination: str) -> Store:
    """Return a home whose node `web` of run r1 runs on a host, as web of run r7; what `node` serves is the host's."""
    there, here = tmp_path / "there", tmp_path / "here"
    folder = here / "runs/r1/nodes/web/1"
    folder.mkdir(parents=True)
    (there / "runs/r7/nodes/web/1").mkdir(parents=True)
    program = tmp_path / "garrison"
    program.write_text(f'#!/bin/sh\nexec {shlex.join(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    write_host(here, Host("box", destination, home=str(there), command=str(program)))
    write_remote(folder, RemoteWorkState(phase=RemotePhase.WORKING, host="box", host_run="r7"))
    identity = Identity("a", "orchestrator", "web", "r7", "2026-01-01T00:00:00Z", pid=node.root.pid,
                        start_ticks=node.root.ticks, boot_id=processes.boot_id())
    Store(there).update(Identity, identity.key, lambda _: identity)
    return Store(here)


@pytest.mark.parametrize("by_ssh", [False, True], ids=["this machine", "ssh"])
async def test_a_node_on_another_machine_is_shown_through_ssh(by_ssh: bool, node: Node, tmp_path: Path,
                                                              request: pytest.FixtureRequest) -> None:
    node.serve("127.0.0.1", 3000)
    store = on_a_host(node, tmp_path, request.getfixturevalue("ssh_host") if by_ssh else "")
    told: list[str] = []
    target = PreviewTarget("web", "r1", 3000)
    with closing(NodeAnywhere(store, target, str)) as subject:
        async with opened(Preview(store.home, target, Address(), subject, told.append)) as (url, _):
            port = int(url.rstrip("/").rpartition(":")[2])
            with closing(NodeAnywhere(store, PreviewTarget("web", "r1"), str)) as other:
                assert [each.port for each in other.look_once(20.0).listeners if each.port != network.PORT] == [3000]
            assert url == f"http://web-r1.localhost:{port}/" == next(iter(list_previews(store.home, "r1"))).url
            for number in range(3):  # each by its own connection
                answer = await ask(port, head(port, f"/{number}"))
                seen = json.loads(answer.partition(b"\r\n\r\n")[2])
                assert (seen["line"], seen["headers"]["host"]) == (f"GET /{number} HTTP/1.1", "localhost:3000")
            assert (await ask(port, f"GET / HTTP/1.1\nHost: evil.example:{port}\n\n")).startswith(b"HTTP/1.1 421")
            first = subject.far_end
            os.kill(first, signal.SIGKILL)  # the preview stays, and finds the node again
            until = time.monotonic() + 60
            while subject.far_end in (0, first) or not (await ask(port, head(port))).startswith(b"HTTP/1.1 200"):
                assert time.monotonic() < until, told
                await asyncio.sleep(0.05)
    left = subprocess.run(["pgrep", "-f", f"relay {tmp_path}"], capture_output=True, text=True, check=False).stdout
    assert not left.strip()
    assert not list(tmp_path.rglob("*.sock"))


@pytest.mark.parametrize(("words", "remedy"), [("exit 2", "garrison host add box` installs yours"),
                                              ("echo garrison: no >&2; exit 1", "its preview on box has ended: no")])
async def test_a_host_that_cannot_show_a_node_is_named_with_what_helps(words: str, remedy: str, node: Node,
                                                                       tmp_path: Path) -> None:
    node.serve("127.0.0.1", 3000)
    store = on_a_host(node, tmp_path, "")
    (tmp_path / "garrison").write_text(f"#!/bin/sh\n{words}\n")
    with closing(NodeAnywhere(store, PreviewTarget("web", "r1"), str)) as subject, pytest.raises(Refused) as refused:
        await Preview(store.home, PreviewTarget("web", "r1"), Address(), subject, print).run(print)
    assert remedy in str(refused.value) and "\n" not in str(refused.value)
    assert not list(tmp_path.rglob("*.sock"))
