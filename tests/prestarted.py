"""A garrison that has started: a command is a fork of it, which saves each the third of a second that its imports take.

What the command does is its own: arguments, environment, folder, standard streams, pid and exit code. It is not for
what looks at an environment from outside (`/proc`) or at what a start loads: such a command has a Python of its own.

Run as a program it is the server: it reads requests from the socket that is its standard input, and ends with that.
"""

from __future__ import annotations

import gc
import json
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

FEW = ("garrison.cli.top_app", "garrison.cli.acp", "garrison.cli.mcp", "garrison.cli.chat")
"""Modules of commands that load large libraries."""


class Prestarted:
    """The server of this process; a second command at the same time is for the caller to start otherwise."""

    def __init__(self, python: str, environment: Mapping[str, str]) -> None:
        self.lock = threading.Lock()
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen([python, "-P", __file__], env=dict(environment), stdin=theirs, cwd="/",
                                            start_new_session=True)
        self.socket = ours

    def run(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path,
            seconds: float) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does with captured output."""
        request = json.dumps([list(arguments), dict(environment), str(folder)]).encode()
        pipes = [os.pipe(), os.pipe()]
        socket.send_fds(self.socket, [len(request).to_bytes(8, "big")], [pipes[0][1], pipes[1][1]])
        self.socket.sendall(request)
        for _, writing in pipes:
            os.close(writing)
        pid = int.from_bytes(self._receive(), "big")
        end, output = time.monotonic() + seconds, {reading: b"" for reading, _ in pipes}
        with selectors.DefaultSelector() as selector:
            for reading in output:
                selector.register(reading, selectors.EVENT_READ)
            while selector.get_map():
                found = selector.select(max(0.0, end - time.monotonic()))
                if not found:
                    os.kill(pid, 9)
                    raise subprocess.TimeoutExpired(list(arguments), seconds)
                for key, _ in found:
                    block = os.read(key.fd, 1 << 16)
                    output[key.fd] += block
                    if not block:
                        selector.unregister(key.fd)
                        os.close(key.fd)
        code = os.waitstatus_to_exitcode(int.from_bytes(self._receive(), "big"))
        out, err = (text.decode().replace("\r\n", "\n") for text in output.values())
        return subprocess.CompletedProcess(list(arguments), code, out, err)

    def _receive(self) -> bytes:
        answer = self.socket.recv(8, socket.MSG_WAITALL)
        assert answer, "the server of commands has ended"
        return answer


def serve() -> None:
    """Fork for each request, and answer with the pid, then with how the command ended; return in the fork."""
    import importlib
    import pkgutil

    import garrison.cli

    for found in pkgutil.iter_modules(garrison.cli.__path__, "garrison.cli."):
        if found.name not in FEW:
            importlib.import_module(found.name)
    gc.freeze()  # a fork that searched for garbage would copy all of it
    with socket.socket(fileno=os.dup(0)) as requests:
        while True:
            size, descriptors, _, _ = socket.recv_fds(requests, 8, 2)
            if not size:
                os._exit(0)
            out, err = descriptors
            arguments, environment, folder = json.loads(requests.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL))
            pid = os.fork()
            if pid == 0:
                break
            for descriptor in (out, err):
                os.close(descriptor)
            requests.sendall(pid.to_bytes(8, "big"))
            requests.sendall(os.waitpid(pid, 0)[1].to_bytes(8, "big"))
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123  # a descriptor is all that is wanted
        for source, target in ((nothing.fileno(), 0), (out, 1), (err, 2)):
            os.dup2(source, target)
    os.close(out)
    os.close(err)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [sys.modules["garrison.cli.main"].__file__ or "", *arguments]


if __name__ == "__main__":
    serve()
    from garrison.cli.main import main

    sys.exit(main())
