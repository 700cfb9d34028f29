"""Landlock: restrict this thread and everything it starts later, without privilege and permanently (Linux 5.13 and
later).

The kernel's ABI number says what it can restrict: 1 reads and writes, 2 moves between folders, 3 truncation, 4 TCP
ports, 5 device ioctls, 6 signals and abstract sockets.
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # the launcher of every confined command imports this module: only import what Python loads anyway
    from collections.abc import Collection, Iterable
    from pathlib import Path

PORTS_ABI, SCOPES_ABI = 4, 6
"""First ABIs that restrict TCP ports, and signals and abstract sockets."""
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_ONLY_VERSION, _PATH_BENEATH, _NET_PORT, _NO_NEW_PRIVILEGES = 1, 1, 2, 38
_DROP_FROM_BOUNDING_SET = 24
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPES = 3  # abstract Unix sockets, signals
_EXECUTE, _WRITE_FILE, _READ_FILE, _TRUNCATE, _IOCTL_DEVICE = 1, 1 << 1, 1 << 2, 1 << 14, 1 << 15
_READS = _EXECUTE | _READ_FILE
"""Not the right to list folders: names can be found in other ways, and programs list folders to find their files."""
OF_FILES = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE
"""Rights that a rule may grant on a file; the others are on folders."""
_WRITES = {1: _WRITE_FILE | 0x1FF0, 2: 1 << 13, 3: _TRUNCATE, 5: _IOCTL_DEVICE}
"""ABI → rights to write, make and remove files that it adds."""


def abi() -> int:
    """Return the Landlock ABI of this kernel, 0 without Landlock."""
    return max(0, _call(_CREATE, None, 0, _ONLY_VERSION))


def ephemeral_ports() -> range:
    """Return the range of ports that servers on port 0 get."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:  # noqa: PTH123  # as above: no pathlib
        first, last = file.read().split()
    return range(int(first), int(last) + 1)


def ruleset(version: int, *, reads: bool = False, writes: bool = False, connect: bool = False, bind: bool = False,
            scoped: bool = False) -> tuple[bytes, int, int]:
    """Return the restrictions for the kernel, and the rights on what stays readable and writable. Pure.

    Args:
        version: ABI of the kernel.
        reads: restrict reading; the others are those of `restrict`.
    """
    read = _READS if reads else 0
    write = sum(bits for since, bits in _WRITES.items() if since <= version) if writes else 0
    ports = (_CONNECT_TCP if connect else 0) | (_BIND_TCP if bind else 0)
    body = [read | write, *([ports] if version >= PORTS_ABI else []),
            *([_SCOPES if scoped else 0] if version >= SCOPES_ABI else [])]
    return b"".join(number.to_bytes(8, sys.byteorder) for number in body), read, read | write


def restrict(*, readable: Iterable[str | Path] | None = None, writable: Iterable[str | Path] | None = None,
             connect: Iterable[int] | None = None, bind: Collection[int] | None = None, scoped: bool = False) -> None:
    """Restrict this thread and its later children, as far as the kernel supports it; OSError if it refuses.

    Args:
        readable: files and folders that stay readable and executable, as do those that stay writable; missing ones are
            ignored. None: no restriction. Names, sizes and links stay visible everywhere.
        writable: files and folders that stay writable, in the same way.
        connect: TCP ports that may be connected to; None: all.
        bind: TCP ports that may be listened on; None: all.
        scoped: no signals to processes outside, and none of their abstract sockets.
    """
    body, reads, writes = ruleset(abi(), reads=readable is not None, writes=writable is not None,
                                  connect=connect is not None, bind=bind is not None, scoped=scoped)
    rules = _call_checked(_CREATE, body, len(body), 0)
    try:
        for path in (readable or ()) if reads else ():
            _allow(rules, path, reads)
        for path in writable or ():
            _allow(rules, path, writes)
        for right, allowed in ((_CONNECT_TCP, connect), (_BIND_TCP, bind)) if abi() >= PORTS_ABI else ():
            for port in allowed or ():
                _call_checked(_ADD, rules, _NET_PORT, (ctypes.c_uint64 * 2)(right, port), 0)
        if _LIBC.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call_checked(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def drop_capabilities() -> None:
    """Drop root's capabilities, also for everything it starts later; other users have none."""
    number = 0
    while os.geteuid() == 0 and _LIBC.prctl(_DROP_FROM_BOUNDING_SET, number, 0, 0, 0) == 0:
        number += 1  # until the kernel has no further one; execve gives root what is left in the set


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # implied by _pack_; Python 3.14 wants it explicit
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _allow(rules: int, path: str | Path, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        granted = rights if stat.S_ISDIR(os.fstat(descriptor).st_mode) else rights & OF_FILES
        _call_checked(_ADD, rules, _PATH_BENEATH, ctypes.byref(_PathBeneath(granted, descriptor)), 0)
    finally:
        os.close(descriptor)


_LIBC = ctypes.CDLL(None, use_errno=True)
"""Opened once: otherwise a launch with a hundred rules would take five milliseconds more."""
_SYSCALL = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long


def _call(number: int, *arguments: object) -> int:
    return int(_SYSCALL(ctypes.c_long(number), *arguments))


def _call_checked(number: int, *arguments: object) -> int:
    result = _call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
