"""On a host: show here a node's server on another machine, through the user's own ssh.

    browser ── gateway, here ── Unix socket ═ ssh ═ Unix socket ── far end, on the host ── the node's port

`garrison preview NODE --relay SOCKET` is the far end. It prints its view of the node, a line at each change,
and joins each connection of its socket to the port in the connection's first line. Both ends keep
their sockets where only their user can reach them, and no port is opened on either machine.

| what ends | then |
|---|---|
| the preview here, also by a kill | the far end's standard input ends, and so does the far end |
| the far end, the host, or the connection | the preview waits; another far end is started where the node then is |
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.backoff import Backoff
from garrison.errors import GarrisonError, RecordCorrupt
from garrison.preview.gateway import TUNNEL_SECONDS
from garrison.preview.listeners import Tree
from garrison.preview.service import FOLDER, LOOK_SECONDS, SIGNALS, NodeAtWork
from garrison.preview.ways import NodeWay
from garrison.records import atomic, record
from garrison.records.hosts import read_host
from garrison.records.remote import RemotePhase, look_remote
from garrison.records.run import RunFiles
from garrison.sandbox.dialer import Unreachable
from garrison.sandbox.proxy.connection import Clients
from garrison.sandbox.proxy.relay import join_to
from garrison.sandbox.proxy.upstream import BUFFER, Stream
from garrison.system import processes
from garrison.system.unix_socket import listen, short_path
from garrison.values import Value, to_builtins
from garrison.views.remote import on_host

if TYPE_CHECKING:
    from collections.abc import Callable

    from garrison.preview.service import PreviewTarget
    from garrison.preview.ways import Way
    from garrison.records.remote import RemoteWorkState
    from garrison.records.store import Store

RETRY = Backoff(1.0, 15.0)
"""Delay before another far end replaces one that has ended."""
_PREFIX = "garrison-preview-"
"""Prefix of the names of sockets in /tmp, for homes whose path is too long."""
_JUST_BOUND = 1.0
"""Seconds for which a bound socket may not yet listen."""
MAX_REMOTE = 100
"""Bytes of a socket's path on the host, which the ssh server there uses unchanged."""
USAGE_ERROR = 2
"""Exit code of a garrison that does not know `--relay`."""
SSH_FAILED = 255
"""Exit code of ssh itself."""
_CHUNK, _MAX_LINE = 64 << 10, 1 << 20
_PORT_LINE = 8
"""Bytes of the line that names a port: a longer one is not from garrison."""


class HostView(Value):
    """The far end's view of a node."""

    tree: Tree | None = None
    is_over: bool = False
    """True if no program of it will run on the host any more."""


def work_on_host(home: Path, wanted: PreviewTarget) -> RemoteWorkState | None:
    """Return the state of a node's work on a host; None for a node of this machine."""
    files = RunFiles(home, wanted.run)
    state = look_remote(files.attempt(wanted.node, files.latest_attempt(wanted.node) or 1))
    return None if state is None or state.phase == RemotePhase.ENDED else state


# ---- here ------------------------------------------------------------------------------------------------------------


class NodeAnywhere(NodeAtWork):
    """A node at work: on this machine, or on a host, observed through a far end there."""

    def __init__(self, store: Store, wanted: PreviewTarget, why_over: Callable[[], str]) -> None:
        super().__init__(store, wanted, why_over)
        self._home, self._wanted = store.home, wanted
        self._folder = RunFiles(store.home, wanted.run).root / FOLDER
        self._place: tuple[str, str] = ("", "")
        """Host, and run there, that the far end observes."""
        self._process: subprocess.Popen[bytes] | None = None
        self._explain: Callable[[int, bytes], str] = lambda _code, _err: ""
        self._view, self._unread, self._err = HostView(), b"", -1
        self._is_seen = False
        self._token = secrets.token_hex(4)
        self._failures, self._retry_at = 0, 0.0

    @property
    def socket(self) -> Path:
        """Return the socket here that leads to the far end."""
        return self._folder / f"{self._wanted.node}.{self._token}.{os.getpid()}.sock"

    @property
    def far_end(self) -> int:
        """Return the local process of the far end, 0 without one."""
        return self._process.pid if self._process is not None else 0

    def look(self) -> Tree | None:
        """Return its programs here, or in the far end's last view; None while there is none."""
        state = work_on_host(self._home, self._wanted)
        place = ("", "") if state is None or not state.host_run or state.phase == RemotePhase.WAITING else (
            state.host, state.host_run)
        if place != self._place:  # it was lost, and another host has it; the first host's view no longer applies
            self._end()
            self._place, self._failures, self._retry_at = place, 0, 0.0
        if self._process is None and place[0] and time.monotonic() >= self._retry_at:
            self._start()
        if self._process is not None:
            self._read(self._process)
        return super().look() if state is None else self._view.tree

    def look_once(self, seconds: float) -> Tree | None:
        """Return its programs, waiting at most `seconds` for the first view of a host's far end."""
        until = time.monotonic() + seconds
        while (tree := self.look()) is None and self.far_end and not self._is_seen and time.monotonic() < until:
            time.sleep(0.05)
        return tree

    def why_over(self) -> str:
        """Return why it has ended, as known here, else as the host reports it."""
        why = super().why_over()
        if not why and self._view.is_over:
            return (f"the agent of {self._wanted.node} has ended on {self._place[0]}, and so have its servers; once "
                    f"its work is here, {self._wanted.hint}")
        return why

    def way(self, port: int) -> Way:
        return SocketWay(self, port) if self._place[0] else super().way(port)

    def _start(self) -> None:
        """Start the far end through ssh; `trouble` has the reason if that fails."""
        files = RunFiles(self._home, self._wanted.run)
        try:
            found = on_host(self._home, files.attempt(self._wanted.node, files.latest_attempt(self._wanted.node)),
                            self._wanted.node)
            if found is None:
                return
            way, command, state = found
            remote = f"{read_host(self._home, state.host).home}/{FOLDER}/{secrets.token_hex(8)}.sock"
            if len(os.fsencode(remote)) > MAX_REMOTE:
                remote = f"/tmp/{_PREFIX}{secrets.token_hex(16)}.sock"  # it cannot be guessed
            argv = way.tunnel_in(f"./{self.socket.name}", remote, [
                *command, "preview", self._wanted.node, "--run", state.host_run, "--relay", remote])
        except GarrisonError as error:
            self._fail(str(error))
            return

        def explain(code: int, err: bytes) -> str:
            if code == USAGE_ERROR:
                return f"garrison on {state.host} is another version; `garrison host add {state.host}` installs yours"
            if way.ssh and code == SSH_FAILED:
                return way.explain(err)
            said = err.decode(errors="replace").strip().splitlines()
            return f"its preview on {state.host} has ended: " + (
                said[-1].removeprefix("garrison: ")[:300] if said else f"exit code {code}")

        self._explain = explain
        atomic.make_directory(self._folder)
        _sweep(self._folder, self._wanted.node)
        self.socket.unlink(missing_ok=True)
        if not way.ssh:
            self.socket.symlink_to(remote)
        with tempfile.TemporaryFile() as err:
            self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err,
                                             cwd=self._folder, start_new_session=True)
            self._err = os.dup(err.fileno())  # read by `pread`: the child shares the offset
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Read the views that have arrived; detect the end of the far end."""
        assert process.stdout is not None
        code = process.poll()  # before the last read, so that its whole output is there
        while data := process.stdout.read(_CHUNK):
            *lines, self._unread = (self._unread + data).split(b"\n")
            self._unread = self._unread[-_MAX_LINE:]
            for line in lines:
                with suppress(RecordCorrupt):  # output of a login shell there
                    self._view = record.decode(HostView, line, self._place[0])
                    self._failures, self.trouble, self._is_seen = 0, "", True
        if code is not None and not self._view.is_over:
            err = os.pread(self._err, _CHUNK, 0)
            self._end()
            self._fail(self._explain(code, err))

    def _fail(self, why: str) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + RETRY.delay(self._failures)
        self.trouble = why

    def _end(self) -> None:
        """End the far end, by its standard input."""
        process, self._process = self._process, None
        self._view, self._unread, self.trouble, self._is_seen = HostView(), b"", "", False
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        os.close(self._err)
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:  # the host does not answer
            process.kill()
            process.wait()
        self.socket.unlink(missing_ok=True)

    def close(self) -> None:
        self._end()


class SocketWay:
    """Connection to a port of a node on a host: through the far end's socket."""

    def __init__(self, node: NodeAnywhere, port: int) -> None:
        self._node, self.port = node, port

    async def open(self) -> Stream:
        """Connect; the host's last view shows without a request whether the port listens."""
        tree = self._node.look()
        if tree is None:
            raise Unreachable(self._node.trouble or "none of its programs is running now")
        if tree.find(self.port) is None:
            raise Unreachable(f"nothing listens on its port {self.port} now")
        made = socket.socket(socket.AF_UNIX)
        made.setblocking(False)
        try:
            with short_path(self._node.socket) as name:
                await asyncio.get_running_loop().sock_connect(made, name)
            stream = Stream(*await asyncio.open_unix_connection(sock=made, limit=BUFFER))
        except OSError as error:
            made.close()
            raise Unreachable(f"the connection to its host is lost ({error.strerror})") from error
        stream.writer.write(f"{self.port}\n".encode())
        return stream


def _sweep(folder: Path, node: str) -> None:
    """Remove the local sockets of killed previews of a node."""
    for path in folder.glob(f"{node}.*.sock"):
        number = path.name.split(".")[-2]
        if number.isdecimal() and processes.probe(int(number)) is None:
            path.unlink(missing_ok=True)


# ---- on the host -----------------------------------------------------------------------------------------------------


class FarEnd:
    """Host side of a preview on another machine."""

    def __init__(self, subject: NodeAtWork, path: Path) -> None:
        """`path` is the socket to listen at."""
        self._subject, self._path = subject, path
        self._ways: dict[int, NodeWay] = {}
        self._clients = Clients(self._serve)
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Show the node until the other side ends, or a signal comes."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._stopped.set)
        os.umask(0o077)
        if not self._path.parent.exists():
            atomic.make_directory(self._path.parent)
        _sweep_left(self._path)
        server = await asyncio.start_unix_server(self._clients.accept, sock=listen(self._path, 128), limit=BUFFER)
        loop.add_reader(sys.stdin.fileno(), self._hear)
        told = ""
        try:
            while not self._stopped.is_set():
                tree = self._subject.look()
                view = HostView(tree, is_over=tree is None and bool(self._subject.why_over()))
                if (line := json.dumps(to_builtins(view))) != told:
                    print(line, flush=True)
                    told = line
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._stopped.wait()
        except BrokenPipeError:
            pass  # nothing listens there any more
        finally:
            loop.remove_reader(sys.stdin.fileno())
            server.close()
            await self._close()

    def _hear(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), _CHUNK)
        except OSError:
            data = b""
        if not data:
            self._stopped.set()

    async def _serve(self, client: Stream) -> None:
        """Join a client to the port in its first line; after a failure the connection ends at once."""
        with suppress(Unreachable, OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(LOOK_SECONDS * 20):
                line = await client.reader.readuntil(b"\n")
            if len(line) <= _PORT_LINE and line.strip().isdigit():
                port = int(line)
                way = self._ways.setdefault(port, NodeWay(self._subject.look, port))
                await join_to(client, way.open(), TUNNEL_SECONDS)

    async def _close(self) -> None:
        await self._clients.end()
        for way in self._ways.values():
            way.close()
        self._path.unlink(missing_ok=True)


def _sweep_left(path: Path) -> None:
    """Remove the sockets next to a new one on which nothing listens: those of killed far ends.

    One that was just bound, and does not listen yet, is kept.
    """
    for each in path.parent.glob("*.sock" if path.parent.name == FOLDER else f"{_PREFIX}*.sock"):
        with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
            found = each.stat()
            if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _JUST_BOUND:
                continue
            try:
                with short_path(each) as name:
                    probe.connect(name)
            except ConnectionRefusedError:
                each.unlink(missing_ok=True)
