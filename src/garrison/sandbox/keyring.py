"""Session keyring: what a log-in session keeps in the kernel, and every process below it could read.

Namespaces do not separate it. Linux only knows it by system calls, which the C library does not wrap.
"""

from __future__ import annotations

import ctypes
import os

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280, "i686": 288, "armv7l": 311}
"""Machine → number of the system call keyctl."""
_JOIN_SESSION_KEYRING = 1


def leave_session_keyring() -> None:
    """Give this thread, and what it starts from now on, an empty session keyring.

    Does nothing where the kernel has no keyrings or forbids the call, as containers do: then nobody inside has it.
    """
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(ctypes.c_long(number), ctypes.c_long(_JOIN_SESSION_KEYRING), None)
