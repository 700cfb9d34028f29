"""First process of a world: mount a user's home, pass sockets to the test, and reap orphans.

`holder.py PLAN` runs as pid 1 of new namespaces. PLAN is JSON: `home` and `scratch` (place inside, folder outside),
`shown` (source, target, whether it is writable), `kept` (folders to keep below a covered one), `passwd` (a file in
place of /etc/passwd, or ''), `ports` (number of listening sockets of its network to send through standard input, which
is a socket). It ends when standard input is closed, and everything in the world with it.
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


def _aside(scratch: str, source: str, name: str) -> str:
    """Bind a folder to a place next to HOME, where no mount covers it; return that."""
    place = Path(scratch).with_name("aside") / name
    place.mkdir(parents=True)
    mount("--bind", source, str(place))
    return str(place)


def reap(*_: object) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def main() -> None:
    plan = json.loads(sys.argv[1])
    home, covered = Path(plan["home"]), ["/home", *(["/root"] if plan["passwd"] else [])]
    kept = [(path, path, True) for path in plan["kept"] if any(map(Path(path).is_relative_to, covered))]
    shown = [(_aside(plan["scratch"], source, str(number)), target, is_writable)
             for number, (source, target, is_writable) in enumerate([*kept, *plan["shown"]])]
    scratch = _aside(plan["scratch"], plan["scratch"], "home")
    for folder in covered:
        mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", folder)
    home.mkdir()
    mount("--bind", scratch, str(home))
    if plan["passwd"]:
        mount("--bind", plan["passwd"], "/etc/passwd")
    for source, target, is_writable in shown:
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
