"""Network guard for kernels without network namespaces: refuse TCP connections to well-known ports.

Landlock (Linux 6.7 and later) needs no privilege and applies to all descendants, permanently. It knows ports, not
addresses, so the ephemeral ports stay open, from which a server on port 0 gets its own. Real services (443, 80, 22, 53)
do not use them. UDP name look-ups are not prevented, but no such service can be reached after them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_ONLY_VERSION, _NET_PORT, _CONNECT_TCP, _NO_NEW_PRIVILEGES = 1, 2, 2, 38
_FIRST_WITH_PORTS = 4


def refusal() -> str | None:
    """Return why this kernel cannot guard connections; None if it can."""
    version = _call(_CREATE, None, 0, _ONLY_VERSION)
    if version < 0:
        return "Landlock is not enabled in this kernel"
    return None if version >= _FIRST_WITH_PORTS else f"Landlock {version} of this kernel does not support ports"


def ephemeral_ports() -> range:
    """Return the ports that stay open."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return range(int(first), int(last) + 1)


def guard() -> None:
    """Restrict this thread and all its later children to the ephemeral ports; OSError if the kernel refuses."""
    ruleset = (ctypes.c_uint64 * 2)(0, _CONNECT_TCP)
    rules = _call_checked(_CREATE, ruleset, ctypes.sizeof(ruleset), 0)
    with contextlib.closing(os.fdopen(rules, "rb", closefd=True)):
        for port in ephemeral_ports():
            _call_checked(_ADD, rules, _NET_PORT, (ctypes.c_uint64 * 2)(_CONNECT_TCP, port), 0)
        if ctypes.CDLL(None, use_errno=True).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        _call_checked(_RESTRICT, rules, 0)


def _call(number: int, *arguments: object) -> int:
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    return int(syscall(ctypes.c_long(number), *arguments))


def _call_checked(number: int, *arguments: object) -> int:
    result = _call(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
