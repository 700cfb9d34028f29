"""Seccomp: block system calls that neither namespaces nor Landlock cover, for a thread and everything it starts later.

Only numeric arguments can be checked: the kernel's filter follows no pointers, so it sees no paths. Calls that could
bypass it (io_uring, and under Landlock openat2, clone3 and 32-bit programs) are answered as by an older kernel, and
programs fall back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_I386 = 0x40000003
_NEW_USER, _SET_USER_ID = 0x10000000, 0o4000
_ANY = 0xFFFFFFFF
_SET_LEASE, _VSOCK, _SOCKET = 1024, 40, 1
_LOAD, _IF_EQUAL, _IF_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06

# numbers on x86_64, aarch64 and for 32-bit programs of x86 (None: no such call, or not asked for), [(argument, value)]:
# refused if each argument is the value or, in the second table, has one of its bits; without any, the kernel seems not
# to have the call
_Rules = tuple[tuple[tuple[int | None, ...], tuple[tuple[int, int], ...]], ...]
_EVERYWHERE: _Rules = (
    ((425, 425, 425), ()),  # io_uring_setup
    # the keys of a login session, and a quota shared by the user's processes
    ((248, 217, 286), ()), ((249, 218, 287), ()), ((250, 219, 288), ()),  # add_key, request_key, keyctl
    ((103, 116, 103), ()),  # syslog: the kernel's log
    ((72, 25, 55), ((1, _SET_LEASE),)), ((None, None, 221), ((1, _SET_LEASE),)),  # fcntl, fcntl64: the owner's programs
    # a write to a shared file would wait for the lease, 45 s each time
    ((41, 198, 359), ((0, _VSOCK),)), ((53, 199, 360), ((0, _VSOCK),)),  # socket, socketpair: to a virtual machine's
    ((None, None, 102), ((0, _SOCKET),)),  # host, which no network namespace keeps apart; socketcall
)
_BY_LANDLOCK: _Rules = (
    # a setuid program would run as the user for everyone
    ((90, None), ((1, _SET_USER_ID),)), ((91, 52), ((1, _SET_USER_ID),)),  # chmod, fchmod
    ((268, 53), ((2, _SET_USER_ID),)), ((452, 452), ((2, _SET_USER_ID),)),  # fchmodat, fchmodat2
    ((2, None), ((2, _SET_USER_ID),)), ((257, 56), ((3, _SET_USER_ID),)),  # open, openat
    ((85, None), ((1, _SET_USER_ID),)), ((133, None), ((1, _SET_USER_ID),)),  # creat, mknod
    ((259, 33), ((2, _SET_USER_ID),)), ((437, 437), ()),  # mknodat, openat2
    # priorities, processors and limits of another process
    ((141, 140), ((1, _ANY),)), ((251, 30), ((1, _ANY),)),  # setpriority, ioprio_set
    ((144, 119), ((0, _ANY),)), ((314, 274), ((0, _ANY),)),  # sched_setscheduler, sched_setattr
    ((203, 122), ((0, _ANY),)),  # sched_setaffinity
    ((302, 261), ((0, _ANY), (2, _ANY))),  # prlimit64 with a new limit
)
_NAMESPACES: _Rules = (
    # user namespaces, in which it would be root
    ((272, 97), ((0, _NEW_USER),)), ((56, 220), ((0, _NEW_USER),)),  # unshare, clone
    ((308, 268), ((1, _ANY),)), ((435, 435), ()),  # setns, clone3
)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000


def is_known(machine: str = "") -> bool:
    return (machine or os.uname().machine) in _ARCHITECTURES


def restrict() -> None:
    """Block the calls from now on; nothing on an unknown architecture. OSError if the kernel refuses."""
    if not is_known():
        return
    code = program(is_landlock=True)
    buffer = ctypes.create_string_buffer(code)
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def program(machine: str = "", *, is_landlock: bool = False, refuses_namespaces: bool = False) -> bytes:
    """Return the filter's instructions for a known architecture.

    Args:
        is_landlock: also block what namespaces would block, and 32-bit programs, whose calls differ.
        refuses_namespaces: block user namespaces, and 32-bit programs, if bubblewrap cannot, as in some containers.
    """
    machine = machine or os.uname().machine
    column = list(_ARCHITECTURES).index(machine)
    # Calls of the x32 ABI have the same architecture and this bit in their numbers: no rule would match them.
    lines = [_step(_LOAD, _NUMBER), _step(_IF_BITS, _X32, 0, 1), _step(_RETURN, _REFUSE | errno.ENOSYS),
             *_rules(_EVERYWHERE, column, _IF_EQUAL),
             *(_rules(_BY_LANDLOCK, column, _IF_BITS) if is_landlock else ()),
             *(_rules(_NAMESPACES, column, _IF_BITS) if is_landlock or refuses_namespaces else ()),
             _step(_RETURN, _ALLOW)]
    others = [_step(_RETURN, _REFUSE | errno.ENOSYS)]
    if machine == "x86_64" and not (is_landlock or refuses_namespaces):
        small = [_step(_LOAD, _NUMBER), *_rules(_EVERYWHERE, 2, _IF_EQUAL), _step(_RETURN, _ALLOW)]
        others = [_step(_IF_EQUAL, _I386, 0, len(small)), *small, *others]
    return b"".join([_step(_LOAD, _ARCHITECTURE), _step(_IF_EQUAL, _ARCHITECTURES[machine], len(others), 0),
                     *others, *lines])


def _rules(rules: _Rules, column: int, test: int) -> list[bytes]:
    """Return the instructions for these rules; each expects the call's number to be loaded, and keeps it."""
    lines: list[bytes] = []
    for numbers, conditions in rules:
        number = numbers[column]
        if number is None:
            continue
        body: list[bytes] = []
        left = 2 * len(conditions)
        for argument, value in conditions:
            left -= 2
            # on a mismatch: skip the rest and the refusal, to the line that allows
            body += [_step(_LOAD, _ARGUMENTS + 8 * argument), _step(test, value, 0, left + 1)]
        body += [_step(_RETURN, _REFUSE | (errno.EPERM if conditions else errno.ENOSYS)), _step(_RETURN, _ALLOW)]
        lines += [_step(_IF_EQUAL, number, 0, len(body)), *body]
    return lines


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)
