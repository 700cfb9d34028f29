"""Seccomp: refuse system calls that Landlock does not know, to this thread and all that it starts later, for good.

Only what a number among the arguments tells can be refused: the kernel's filter follows no pointer, so it knows no
paths. Calls that could do the same out of its sight (io_uring, openat2, clone3, another architecture's) are answered
like those of an older kernel, and programs fall back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEW_USER, _SET_USER_ID = 0x10000000, 0o4000
_ANY = 0xFFFFFFFF

# name → (number on x86_64, on aarch64; None: no such call), [(argument, bits)]: refused if each argument has one of its
# bits; without any, the kernel seems not to have the call
_REFUSED: tuple[tuple[tuple[int | None, int | None], tuple[tuple[int, int], ...]], ...] = (
    # a program of the user's that runs as the user for everybody
    ((90, None), ((1, _SET_USER_ID),)), ((91, 52), ((1, _SET_USER_ID),)),  # chmod, fchmod
    ((268, 53), ((2, _SET_USER_ID),)), ((452, 452), ((2, _SET_USER_ID),)),  # fchmodat, fchmodat2
    ((2, None), ((2, _SET_USER_ID),)), ((257, 56), ((3, _SET_USER_ID),)),  # open, openat
    ((85, None), ((1, _SET_USER_ID),)), ((133, None), ((1, _SET_USER_ID),)),  # creat, mknod
    ((259, 33), ((2, _SET_USER_ID),)), ((437, 437), ()), ((425, 425), ()),  # mknodat, openat2, io_uring_setup
    # priorities and limits of another process
    ((141, 140), ((1, _ANY),)), ((251, 30), ((1, _ANY),)),  # setpriority, ioprio_set
    ((144, 119), ((0, _ANY),)), ((314, 274), ((0, _ANY),)),  # sched_setscheduler, sched_setattr
    ((302, 261), ((0, _ANY), (2, _ANY))),  # prlimit64 with a new limit
    # user namespaces, in which it would be root
    ((272, 97), ((0, _NEW_USER),)), ((56, 220), ((0, _NEW_USER),)),  # unshare, clone
    ((308, 268), ((1, _ANY),)), ((435, 435), ()),  # setns, clone3
)
_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_LOAD, _IF_EQUAL, _IF_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000


def is_known(machine: str = "") -> bool:
    """Return whether the numbers of this architecture's system calls are known here."""
    return (machine or os.uname().machine) in _ARCHITECTURES


def restrict() -> None:
    """Refuse the calls from now on; nothing on an architecture that is not known. OSError if the kernel refuses."""
    if not is_known():
        return
    program = _program(os.uname().machine)
    code = ctypes.create_string_buffer(program)
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.c_char_p(header), 0, 0):
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")


def _program(machine: str) -> bytes:
    """Return the filter's instructions. Pure."""
    column = list(_ARCHITECTURES).index(machine)
    lines = [_step(_LOAD, _ARCHITECTURE), _step(_IF_EQUAL, _ARCHITECTURES[machine], 1, 0),
             _step(_RETURN, _REFUSE | errno.ENOSYS), _step(_LOAD, _NUMBER), _step(_IF_BITS, _X32, 0, 1),
             _step(_RETURN, _REFUSE | errno.ENOSYS)]
    for numbers, conditions in _REFUSED:
        number = numbers[column]
        if number is None:
            continue
        body: list[bytes] = []
        left = 2 * len(conditions)
        for argument, bits in conditions:
            left -= 2
            # one without the bits: past the rest and the refusal, to the line that allows
            body += [_step(_LOAD, _ARGUMENTS + 8 * argument), _step(_IF_BITS, bits, 0, left + 1)]
        body += [_step(_RETURN, _REFUSE | (errno.EPERM if conditions else errno.ENOSYS)), _step(_RETURN, _ALLOW)]
        lines += [_step(_IF_EQUAL, number, 0, len(body)), *body]
    return b"".join([*lines, _step(_RETURN, _ALLOW)])


def _step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("HBBI", code, then, otherwise, value)
