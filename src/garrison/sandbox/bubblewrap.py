"""Bubblewrap: the command line that builds a place from namespaces. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from garrison.sandbox.file_system import BuildStep, FileSystemStep

if TYPE_CHECKING:
    from pathlib import Path

    from garrison.sandbox.place import Abilities

PROGRAM = "bwrap"
KERNEL = ("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "asound", "mtrr", "pressure", "dynamic_debug")
"""Parts of /proc that configure the kernel. They treat root inside as the real root: even without capabilities it could
write `sys/kernel/core_pattern`. Bubblewrap 0.8 protects two of them."""
_OWN_PROC = ("--proc", "/proc", *(word for name in KERNEL
                                  for word in ("--ro-bind-try", f"/proc/{name}", f"/proc/{name}")))
NAMESPACES = ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup")
HOST_NAME = ("--hostname", "sandbox")
SHELL = "/bin/sh"
RUN = (SHELL, "-c", 'exec "$0" "$@"')
"""Starts a command inside, so that a missing program exits with 127, as outside."""
_CALLS = "9"
_LIMIT_FILES = "ulimit -Hn {0} 2>/dev/null || {{ ulimit -Sn {0}; ulimit -Hn {0}; }}; "
"""Sets the hard limit, and the soft one only if the kernel refuses: a hard limit cannot be lower. Comparing them first
would take a process."""
_LIMIT_PROCESSES = "ulimit -u {0} 2>/dev/null || ulimit -p {0} 2>/dev/null; "
"""Shells disagree on the letter."""


def command_line(argv: Iterable[str], steps: Iterable[FileSystemStep], machine: Abilities, *,
                 makes_network: bool, directory: Path | None = None, files: int = 0, processes: int = 0,
                 calls: Path | None = None, user: int | None = None, is_prepared: bool = False) -> list[str]:
    """Return the command line that runs `argv` in a place, in its own network or its caller's.

    It ends with everything inside when its parent dies. Without capabilities root inside may do no more than another
    user.

    Args:
        directory: current directory inside; None: the caller's, if it exists.
        files: descriptors that each process inside may open; 0: as many as its caller.
        processes: processes allowed inside; 0: as many as its caller may have.
        user: user and group inside; None: those outside.
        calls: file with a filter of system calls (`system.seccomp.program`), in force from the first program inside.
        is_prepared: True if the shell that starts it has run `preparation`.
    """
    # Limits are set by the shell that opens the filter: another one inside would cost time at each start of a gate or
    # agent. --new-session: in our session a program could push characters into its starting terminal (TIOCSTI).
    limit_inside = _LIMIT_FILES.format(files) if files and calls is None else ""
    first = "" if is_prepared else preparation(calls, files)
    words = [*((SHELL, "-c", f'{first}exec "$@"', "garrison-sandbox") if first else ()), machine.bubblewrap,
             *(("--seccomp", _CALLS) if calls is not None else ()), *NAMESPACES,
             *(("--unshare-net",) if makes_network else ()),
             *(("--uid", str(user), "--gid", str(user)) if user is not None else ()),
             *(("--disable-userns",) if machine.can_forbid_namespaces else ()),
             "--die-with-parent", "--new-session", "--cap-drop", "ALL",
             *(HOST_NAME if machine.can_name_host else ())]
    words += ["--dev", "/dev", *(_OWN_PROC if machine.has_own_proc else ("--ro-bind", "/proc", "/proc"))]
    for step in steps:
        words += _WORDS[step.step](step)
    program, *arguments = argv
    if directory is not None:
        words += ["--chdir", str(directory)]
    limits = limit_inside + (_LIMIT_PROCESSES.format(processes) if processes else "")
    run = (SHELL, "-c", f'{limits}exec "$0" "$@"') if limits else () if program == SHELL else RUN
    # The root is a tmpfs, in which bubblewrap has already made the mount points: nothing inside needs to write there.
    return [*words, "--remount-ro", "/", "--", *run, program, *arguments]


def preparation(calls: Path | None, files: int) -> str:
    """Return commands of the shell that starts bubblewrap: they limit the descriptors and open the filter; '' without a
    filter, when the limit is set inside. Arguments as for `command_line`."""
    if calls is None:
        return ""
    return (_LIMIT_FILES.format(files) if files else "") + f"exec {_CALLS}<{shlex.quote(str(calls))} || exit 126; "


_WORDS: Mapping[BuildStep, Callable[[FileSystemStep], tuple[str, ...]]] = {
    BuildStep.READ: lambda step: ("--ro-bind", step.source, str(step.target)),
    BuildStep.WRITE: lambda step: ("--bind", step.source, str(step.target)),
    BuildStep.LINK: lambda step: ("--symlink", step.source, str(step.target)),
    BuildStep.EMPTY: lambda step: ("--tmpfs", str(step.target)),
    BuildStep.HIDE_FOLDER: lambda step: ("--tmpfs", str(step.target), "--remount-ro", str(step.target)),
    BuildStep.HIDE_FILE: lambda step: ("--ro-bind", "/dev/null", str(step.target)),
}
