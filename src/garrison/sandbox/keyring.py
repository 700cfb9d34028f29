"""Session keyring: what a log-in session keeps in the kernel, and every process below it could read.

Namespaces do not separate it. Linux only knows it by system calls, which the C library does not wrap.
"""

from __future__ import annotations

import ctypes
import errno
import os

from garrison.errors import Refused, Shortage

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "loongarch64": 219, "ppc64le": 271, "ppc64": 271,
           "s390x": 280, "i686": 288, "i586": 288, "armv8l": 311, "armv7l": 311, "armv6l": 311}
"""Machine → number of the system call keyctl."""
_GET_KEYRING_ID, _JOIN_SESSION_KEYRING = 0, 1
_SESSION_KEYRING = -3
_FORBIDDEN = (errno.ENOSYS, errno.EPERM)
"""Errors of a kernel without keyrings, and of a container that forbids the call."""


def leave_session_keyring() -> None:
    """Give this thread, and what it starts from now on, an empty session keyring; Shortage if none can be had now.

    Does nothing where the kernel has no keyrings or forbids all such calls, as containers do: nobody inside has them
    either. A user has a quota of keys (`/proc/key-users`), which an agent can use up.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is None:
        raise Refused(f"no sandbox: garrison does not know how a {os.uname().machine} keeps the log-in session's keys "
                      "from agents; set mode = \"none\" in [sandbox] of config.toml, or report it")
    failure = _keyctl(number, _JOIN_SESSION_KEYRING, None)
    if failure and not (failure in _FORBIDDEN and _keyctl(number, _GET_KEYRING_ID, _SESSION_KEYRING, 0) in _FORBIDDEN):
        raise Shortage(f"the sandbox gets no keyring of its own: {os.strerror(failure)}; is your quota of keys used up "
                       "(/proc/key-users)? It is tried again")


def _keyctl(number: int, *arguments: int | None) -> int:
    """Make the system call; return its error, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    words = [argument if argument is None else ctypes.c_long(argument) for argument in arguments]
    return ctypes.get_errno() if libc.syscall(ctypes.c_long(number), *words) < 0 else 0
