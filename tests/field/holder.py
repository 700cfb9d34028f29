"""First process of a world: mounts a user's home at its place, lends the test its sockets, and reaps what is orphaned.

`holder.py PLAN` runs as pid 1 of new namespaces. PLAN is JSON: `home` and `scratch` (place inside, folder outside),
`shown` (source, target, whether it may be written), `ports` (how many listening sockets of its own network to send
through standard input, which is a socket). It ends when standard input is closed, and with it everything in the world.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    plan = json.loads(sys.argv[1])
    home = Path(plan["home"])
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/home")
    home.mkdir()
    mount("--bind", plan["scratch"], str(home))
    for source, target, is_writable in plan["shown"]:
        Path(target).mkdir(parents=True, exist_ok=True)
        mount("--bind", source, target)
        if not is_writable:
            mount("-o", "remount,bind,ro", target)
    parent = socket.socket(fileno=os.dup(0))
    sockets = []
    if plan["ports"]:
        from garrison.testing.isolation import raise_loopback
        raise_loopback()
        sockets = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(plan["ports"])]
    socket.send_fds(parent, [b"ready"], [each.fileno() for each in sockets])
    for each in sockets:
        each.close()
    signal.signal(signal.SIGCHLD, reap)
    reap()
    parent.recv(1)


if __name__ == "__main__":
    main()
