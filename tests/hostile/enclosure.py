"""Namespaces for a hostile agent's world, so that nothing of it outlives the test that made it.

Programs of a world leave their process tree and mount file systems. The kernel ends them all, and their mounts, also
after a `kill -9` of the test: the first process of the namespaces dies with its parent. Worlds are on a separate file
system. On a machine that forbids namespaces worlds are made without one.

Run as a program, this is the first process inside: `enclosure.py COMMAND...`. Standard library only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path

INSIDE = "HOSTILE_ENCLOSED"
"""Variable that says that this process is in an enclosure."""
WORLDS = ("/srv", "/media")
"""Folders that are empty on most machines; the worlds' file system is mounted on the first that is."""
_NAMESPACES = ("--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--ipc", "--uts")
_DIES_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")


def words(*, as_container: bool = False) -> list[str]:
    """Return the words that start a command in an enclosure; none if the machine allows no such thing.

    Args:
        as_container: whether it also gets a user namespace, so that root in it has no rights outside.
    """
    user = ["--user", "--map-root-user"] if as_container else [] if os.geteuid() == 0 else [
        "--user", "--map-current-user"]
    found = [*_DIES_WITH_PARENT, "unshare", *user, *_NAMESPACES, "--", *_DIES_WITH_PARENT]
    return [*found, sys.executable, "-I", __file__] if is_possible(tuple(found)) else []


@cache
def is_possible(found: tuple[str, ...]) -> bool:
    """Return whether a program can be started with these words before it."""
    try:
        return subprocess.run([*found, "true"], capture_output=True, check=False, cwd="/").returncode == 0
    except FileNotFoundError:
        return False


def is_inside() -> bool:
    """Return whether this process needs no enclosure: it is in one, or the machine allows none."""
    return INSIDE in os.environ or not words()


def enter(*, as_container: bool = False) -> None:
    """Replace this program by itself in an enclosure, unless it is in one already."""
    if INSIDE not in os.environ and (found := words(as_container=as_container)):
        os.execvp(found[0], [*found, sys.executable, *sys.orig_argv[1:]])


def main() -> int:
    """Act as the first process inside: mount what is private, run the command, reap orphans until it has ended."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda got, _frame: sys.exit(128 + got))  # by default it would ignore them
    os.environ[INSIDE] = "1"
    _mount("/dev/shm")
    worlds = next((path for path in WORLDS if Path(path).is_dir() and not any(Path(path).iterdir())), None)
    if worlds is not None and _mount(worlds):
        os.environ["TMPDIR"] = worlds
    child = subprocess.Popen(sys.argv[1:])
    while True:
        pid, status = os.wait()
        if pid == child.pid:
            return os.waitstatus_to_exitcode(status) & 255


def _mount(folder: str) -> bool:
    """Mount a private file system; return whether that is allowed, which it is to root only."""
    words = ["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", folder]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
