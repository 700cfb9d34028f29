"""Names of Unix sockets: a path of any length, for `bind` and `connect`, which take 107 bytes."""

from __future__ import annotations

import errno
import os
import socket
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING

from garrison.system import processes

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from garrison.system.processes import ProcessId

MAX_PATH = 107
"""Bytes of sun_path, without its final zero."""


@contextmanager
def short_path(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a short enough name of the socket: a long path goes through a descriptor of its folder."""
    text = os.fspath(path)
    if len(os.fsencode(text)) <= MAX_PATH:
        yield text
        return
    folder, name = os.path.split(text)
    descriptor = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{descriptor}/{name}"
    finally:
        os.close(descriptor)


def listen(path: Path, backlog: int, kind: int = socket.SOCK_STREAM) -> socket.socket:
    """Listen at a path, for this user only, replacing a leftover socket; OSError if that is impossible.

    Args:
        kind: type of the socket, with flags such as SOCK_NONBLOCK.
    """
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        with short_path(path) as name:
            listener.bind(name)
        path.chmod(0o600)  # before it listens: until then no one can connect, whatever the umask allowed
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


# ---- Peer of a Unix socket: which process is at the other end, and whether it descends from another one.
#
# The kernel records user and pid when the peer connects, and translates the pid into the reader's own pid namespace: a
# process in a sandbox is seen with its pid outside. A pid alone may be reused by now; a pidfd of the peer (Linux 6.5,
# else opened from the pid at once) proves that it was alive during the check.


_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77
"""Option of <asm-generic/socket.h> that Python's socket lacks."""


def credentials(connection: socket.socket) -> tuple[int, int]:
    """Return pid and user id of the peer, as they were when it connected; pid 0 if it is outside this pid namespace."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def find_objection(connection: socket.socket, uid: int, roots: Collection[ProcessId]) -> str | None:
    """Return why to reject the peer of an accepted connection; None if it is a process of `uid` below one of `roots`.

    Unlike a marker in the environment, descent cannot be forged: the kernel records each process's parent, and gives an
    orphan to the nearest subreaper above it.
    """
    try:
        pid, peer_uid = credentials(connection)
    except OSError as error:
        return f"its process is unknown ({error.strerror})"
    if peer_uid != uid:
        return f"process {pid} is user {peer_uid}'s"
    if pid <= 0:
        return "its process is outside this pid namespace"
    pidfd = _peer_pidfd(connection, pid)
    if pidfd is None:
        return f"process {pid} has ended"
    try:
        is_below = is_descendant(pid, roots)
        if processes.has_ended(pidfd):  # then the walk may have started at another process with this pid
            return f"process {pid} has ended"
    finally:
        os.close(pidfd)
    return None if is_below else f"process {pid} is not one of this agent's"


def is_descendant(pid: int, roots: Collection[ProcessId]) -> bool:
    """Return whether a process is below one of `roots`; a root is not below itself."""
    process = processes.probe(pid)
    seen = {pid}
    while process is not None:
        parent = processes.probe(process.ppid)
        # A parent that started after its child has the pid of one that ended in between.
        if parent is None or parent.pid in seen or parent.ticks > process.ticks:
            return False
        if processes.ProcessId(parent.pid, parent.ticks) in roots:
            return True
        seen.add(parent.pid)
        process = parent
    return False


def _peer_pidfd(connection: socket.socket, pid: int) -> int | None:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:  # the peer was reaped
            return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
