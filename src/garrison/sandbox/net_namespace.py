"""Network namespaces: make one with its loopback device up and a listener in it, without leaving this one.

A short-lived child enters the new namespace and passes back the listener and the namespace. A command enters it by
`nsenter` (util-linux), which replaces itself by the command. The namespace ends with the last process in it and the
last descriptor of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from garrison.errors import Refused, Shortage
from garrison.system import processes
from garrison.system.machine import ERRNOS

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 61280
"""Port of the listener in every namespace: above the range that the kernel gives to outgoing connections."""
BACKLOG = 256
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000
_SET_FLAGS, _UP = 0x8914, 1


@dataclass(slots=True)
class NetNamespace:
    """A network namespace that this process holds open, and the listener in it."""

    listener: socket.socket
    program: str
    """Path of nsenter."""
    network: int
    user: int | None
    """The user namespace that owns it; None if this process may enter it as it is."""

    def entry(self) -> tuple[str, ...]:
        """Return the words that start a command in it, for as long as this process lives."""
        folder = f"/proc/{os.getpid()}/fd"
        user = () if self.user is None else (f"--user={folder}/{self.user}", "--preserve-credentials")
        return (self.program, *user, f"--net={folder}/{self.network}", "--")

    def close(self) -> None:
        """Let go of the namespace; the listener stays open."""
        for descriptor in (self.network, self.user):
            if descriptor is not None:
                os.close(descriptor)
        self.network, self.user = -1, None


def create() -> NetNamespace:
    """Make a network namespace; Refused with the reason where the machine does not allow it, Shortage where it has no
    room for one now."""
    program = shutil.which("nsenter") or shutil.which("nsenter", path="/usr/bin:/bin")
    if program is None:
        raise Refused("network = \"allow\" needs the program nsenter (util-linux); install it, or set network = "
                      "\"none\" or \"open\"")
    unshare = ctypes.CDLL(None, use_errno=True).unshare  # looked up before the fork
    try:
        parent, child = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        if error.errno not in ERRNOS:
            raise
        raise Shortage(f"no room for a network namespace ({error.strerror}); it is tried again") from error
    with parent, child:
        try:
            pid = os.fork()
        except OSError as error:
            raise Shortage(f"no room for a network namespace ({error.strerror}); it is tried again") from error
        if pid == 0:
            _make_in_child(unshare, child)
        child.close()
        message, descriptors, _, _ = socket.recv_fds(parent, 256, 3, socket.MSG_CMSG_CLOEXEC)
        with contextlib.suppress(ChildProcessError):  # the process collects all children
            os.waitpid(pid, 0)
    if message != b"ready":
        for descriptor in descriptors:
            os.close(descriptor)
        number, _, told = message.decode(errors="replace").partition(" ")
        if int(number or 0) in ERRNOS or (int(number or 0) == errno.ENOSPC and _is_used_up()):
            raise Shortage(f"no room for a network namespace ({told}); it is tried again")
        raise Refused(f"network namespaces are not allowed here ({told or 'no reason'}); set network = \"none\" or "
                      "\"open\"")
    listener, network, *user = descriptors
    return NetNamespace(socket.socket(fileno=listener), program, network, user[0] if user else None)


def _is_used_up() -> bool:
    """Return whether the machine allows namespaces: then the user who gets none has all of them."""
    folder = Path("/proc/sys/user")
    return all((folder / name).read_text().strip() != "0" for name in ("max_net_namespaces", "max_user_namespaces"))


def _make_in_child(unshare: Callable[[int], int], channel: socket.socket) -> None:
    """Make the namespace in the forked child, pass it on, and exit."""
    try:
        descriptors = _make(unshare)
        processes.send_descriptors(channel, b"ready", descriptors)
    except BaseException as error:  # nothing of the parent's may run in the child
        with contextlib.suppress(OSError):
            channel.send(f"{getattr(error, 'errno', None) or 0} {error}".encode()[:250])
    finally:
        os._exit(0)


def _make(unshare: Callable[[int], int]) -> list[int]:
    """Enter a new namespace; return the descriptors of a listener in it, of it, and of its owner if that is new."""
    uid, gid = os.getuid(), os.getgid()
    needs_owner = unshare(_NEW_NETWORK) != 0  # only root, and not every root, may do without a user namespace
    if needs_owner:
        if unshare(_NEW_NETWORK | _NEW_USER) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(text)
    listener = socket.socket()
    fcntl.ioctl(listener, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    listener.bind(("127.0.0.1", PORT))
    listener.listen(BACKLOG)
    names = ("net", "user") if needs_owner else ("net",)
    return [listener.detach(), *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names)]
