"""A process that has loaded a module: programs of a test's process that run it are copies of that, as a run's are of
its guardian. It saves each the half second of its imports.

A copy becomes a child of the test's process, as one that it has started itself: its first parent ends at once, and the
kernel gives an orphan to the nearest subreaper above it.

Run as a program it is that process: it reads requests from the socket that is its standard input, and ends with that.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from garrison.system import forks, processes
from garrison.system.machine import module_argv, program_of
from garrison.system.processes import Child

_SET_CHILD_SUBREAPER = 36
_MESSAGE = 1 << 20


@contextmanager
def copies_of(module: str) -> Iterator[Callable[..., Child]]:
    """Yield a `forks.start` that starts this module's programs as copies."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        parent = subprocess.Popen([sys.executable, "-P", __file__, module], env={"PATH": os.environ["PATH"]},
                                  stdin=theirs, cwd="/", start_new_session=True)
    start_itself, prctl = forks.start, ctypes.CDLL(None).prctl

    def start(argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Child:
        if len(argv) < len(module_argv(module)) or program_of(argv)[0] != module:
            return start_itself(argv, env=env, cwd=cwd, log=log)
        prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            ours.send(json.dumps([list(argv), dict(env), str(cwd), str(log)]).encode())
            pid = int(ours.recv(_MESSAGE))
        finally:
            prctl(_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        return processes.adopt_child(pid)

    with ours:
        yield start
    parent.wait()


def serve(module: str) -> None:
    """Answer each request with the pid of its copy, once that has been given away."""
    forks.load(module)
    os.environ.pop("LC_CTYPE", None)  # Python's own, for want of a locale, as in a new interpreter
    with socket.socket(fileno=os.dup(0)) as requests:
        while request := requests.recv(_MESSAGE):
            argv, env, cwd, log = json.loads(request)
            reading, writing = os.pipe()
            pid = os.fork()
            if not pid:
                _main_after(module, os.getpid())
                os.write(writing, str(forks.start(argv, env=env, cwd=cwd, log=Path(log)).pid).encode())
                os._exit(0)
            os.close(writing)
            os.waitpid(pid, 0)
            requests.send(os.read(reading, _MESSAGE))
            os.close(reading)


def _main_after(name: str, first: int) -> None:
    """Let a module's program begin only once its first parent has ended: it may ask to be ended with its parent."""
    module = sys.modules[name]
    main = module.main

    def begin() -> object:
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(first)
            select.select([ended], [], [])
            os.close(ended)
        return main()

    module.main = begin


if __name__ == "__main__":
    serve(sys.argv[1])
