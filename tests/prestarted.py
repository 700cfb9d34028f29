"""A garrison that has started: a command is a fork of it, which saves each the third of a second that its imports take.

What the command does is its own: arguments, environment, folder, standard streams, pid and exit code. It is not for
what looks at a start, or at what that loads: such a command has a Python of its own.

Run as a program it is the server: it reads requests from the socket that is its standard input, and ends with that.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FEW = ("garrison.cli.top_app", "garrison.cli.acp", "garrison.cli.mcp", "garrison.cli.chat")
"""Modules of commands that load large libraries."""
LATE = ("platformdirs", "filelock")
"""Packages that most commands load while they work."""


class Begun:
    """A command at work, as a `subprocess.Popen`; the server tells its pid, then its exit status."""

    def __init__(self, told: int) -> None:
        self.returncode: int | None = None
        self._told = os.fdopen(told, "rb", 0)
        self.pid = self._receive()

    def poll(self) -> int | None:
        """Return its exit code, None while it works."""
        return self._end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._told, selectors.EVENT_READ)
                if selector.select(timeout):
                    self.returncode = os.waitstatus_to_exitcode(self._receive())
                    self._told.close()
        return self.returncode

    def _receive(self) -> int:
        answer = self._told.read(8)
        assert answer, "the server of commands has ended"
        return int.from_bytes(answer, "big")


class Prestarted:
    """The server of this process, which loads these modules, too."""

    def __init__(self, python: str, environment: Mapping[str, str], modules: Sequence[str]) -> None:
        self._lock = threading.Lock()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen([python, "-P", __file__, *modules], env=dict(environment), stdin=theirs,
                                            cwd="/", start_new_session=True)
        self._socket = ours

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path,
            seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does with captured output."""
        pipes = [os.pipe(), os.pipe()]
        begun = self._request([list(arguments), dict(environment), str(folder)], *(writing for _, writing in pipes))
        end, output = time.monotonic() + seconds, {reading: b"" for reading, _ in pipes}
        with selectors.DefaultSelector() as selector:
            for reading in output:
                selector.register(reading, selectors.EVENT_READ)
            while selector.get_map():
                found = selector.select(max(0.0, end - time.monotonic()))
                if not found:
                    begun.kill()
                    raise subprocess.TimeoutExpired(list(arguments), seconds)
                for key, _ in found:
                    block = os.read(key.fd, 1 << 16)
                    output[key.fd] += block
                    if not block:
                        selector.unregister(key.fd)
                        os.close(key.fd)
        out, err = (text.decode().replace("\r\n", "\n") for text in output.values())
        return subprocess.CompletedProcess(list(arguments), begun.wait(), out, err)

    def begin(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, log: Path) -> Begun:
        """Start a command in a session of its own, whose output is appended to `log`, as the product starts copies."""
        return self._request([list(arguments), dict(environment), str(folder), str(log)])

    def _request(self, request: Sequence[object], *streams: int) -> Begun:
        """Ask for a command; its streams are closed here."""
        told, tell = os.pipe()
        file = os.memfd_create("request")
        os.write(file, json.dumps(request).encode())
        with self._lock:
            socket.send_fds(self._socket, [b"."], [file, tell, *streams])
        for descriptor in (file, tell, *streams):
            os.close(descriptor)
        return Begun(told)


def serve() -> None:
    """Fork for each request, and answer with the pid, then with how the command ended; return in the fork."""
    import importlib
    import pkgutil

    import garrison.cli
    from garrison.system import forks, machine

    found = [module.name for module in pkgutil.iter_modules(garrison.cli.__path__, "garrison.cli.")]
    for name in (*found, *LATE, *sys.argv[1:]):
        if name not in FEW:
            importlib.import_module(name)
    gc.freeze()  # a fork that searched for garbage would copy all of it
    requests, works = socket.socket(fileno=os.dup(0)), selectors.PollSelector()
    works.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in works.select():
            if key.data is not None:
                works.unregister(key.fd)
                os.close(key.fd)
                pid, tell = key.data
                _tell(tell, os.waitpid(pid, 0)[1])
                os.close(tell)
                continue
            descriptors = socket.recv_fds(requests, 1, 4)[1]
            if not descriptors:
                os._exit(0)
            file, tell, *streams = descriptors
            arguments, environment, folder, *log = json.loads(os.pread(file, os.fstat(file).st_size, 0))
            os.close(file)
            if log:
                argv = [*machine.module_argv("garrison.cli.main"), *arguments]
                child = forks.start(argv, env=environment, cwd=folder, log=Path(log[0]))
                pid, pidfd = child.pid, child.pidfd
            else:
                pid = os.fork()
                if not pid:
                    os.close(tell)
                    works.close()
                    requests.close()
                    _become(arguments, environment, folder, streams)
                    return
                pidfd = os.pidfd_open(pid)
            for descriptor in streams:
                os.close(descriptor)
            _tell(tell, pid)
            works.register(pidfd, selectors.EVENT_READ, (pid, tell))


def _tell(tell: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the test was cut off
        os.write(tell, number.to_bytes(8, "big"))


def _become(arguments: Sequence[str], environment: Mapping[str, str], folder: str, streams: Sequence[int]) -> None:
    """Take the arguments, environment, folder and output of a command."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in zip((nothing, *streams), (0, 1, 2), strict=True):
        os.dup2(source, target)
        os.close(source)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [sys.modules["garrison.cli.main"].__file__ or "", *arguments]


if __name__ == "__main__":
    serve()
    from garrison.cli.main import main

    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if threading.active_count() > 1:
        sys.exit(code)
    os._exit(code)  # Python would end each module, and copy what the fork shares: 40 ms
