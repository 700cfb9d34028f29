"""Escape attempts, run inside a sandbox as a file: print as JSON which of them succeeded.

    python -I escape_attempts.py FACTS    # JSON: paths, pid and sockets of the attempt's targets outside
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import resource
import socket
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

_PTRACE_SEIZE, _PR_GET_NO_NEW_PRIVS, _CLONE_NEWUSER = 0x4206, 39, 0x10000000


_MAX_SOCKET = 107
"""Longest socket path in bytes that the kernel accepts."""
LEFT = "left-by-setup"
TOKEN = "garrison-doctor-token"
OBEYED = "obeyed"
"""File in the worktree that a git creates if it obeys what the agent wrote."""
OWN_PROGRAMS = "own-programs"
"""Relative folder in garrison's PATH in the trial, next to an empty entry."""
GIT_FILES: Mapping[str, tuple[str, ...]] = {
    "git_link": ("objects/escaped", "refs/escaped", "logs/escaped", "objects/pack/escaped"),
    "git_settings": ("config", "commondir", "config.worktree", "modules/inner/config", "worktrees/node/commondir",
                     "worktrees/node/config.worktree", "info/attributes", "objects/info/alternates"),
    "git_hook": ("hooks/post-checkout", "hooks/pre-commit"),
    "git_branch": ("refs/heads/main", "packed-refs", "HEAD", "worktrees/node/HEAD")}
"""Escape → files of the repository's git directory that it would create or change, which is checked outside."""


class AttemptTargets(TypedDict):
    """Targets of the attempts, outside."""

    sibling: str
    """Folder of another worktree; it, garrison's home and the user's home have a file `secret`."""
    home: str
    user: str
    tokens: list[str]
    """Files with a secret next to the user's programs: one that others may not read, one with a known name."""
    lock: str
    """File there that a package manager locks."""
    files: int
    """Most descriptors that a process outside may open; 0: no relevant limit."""
    repository: str
    """Git directory of the worktree's repository, whose configuration contains the word `TOKEN`; '' without git."""
    address: str
    """Address where nothing outside may search for a submodule."""
    attempt: str
    """Folder of an attempt, whose folder `agent` is writable inside."""
    setup: str
    """Folder of what a set-up left in its home, the layer under this one's: a file `LEFT`."""
    pid: int
    """A process outside with the word `mark` in its command line."""
    mark: str
    daemon: str
    """Word in the command line of a process that is left running."""
    terminal: str
    """Device of a terminal."""
    tmux: str
    """Socket of the tmux server of garrison's home, '' if none runs."""
    unix: str
    abstract: str
    port: int


def write(path: str) -> bool:
    target = Path(path, "escaped")
    target.write_text("x")
    return True


def read(path: str) -> bool:
    return Path(path, "secret").read_text() == "secret"


def _holds_secret(path: str) -> bool:
    with suppress(OSError):
        return Path(path).read_text() == "secret"
    return False


def _write_setup(facts: AttemptTargets) -> bool:
    for path in (Path(os.environ["HOME"], LEFT), Path(facts["setup"], LEFT)):
        with suppress(OSError):
            path.write_text("changed")
    return write(facts["setup"])


def _write_attempt(facts: AttemptTargets) -> bool:
    attempt = Path(facts["attempt"])
    with suppress(OSError):
        (attempt / "agent").rename(attempt / "escaped")
    with suppress(OSError):
        (attempt / "agent").chmod(0o777)
        (attempt / "response.md").symlink_to("/escaped")
    return write(facts["attempt"])


def _lock(facts: AttemptTargets) -> bool:
    with Path(facts["lock"]).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return True


def _take_rights(facts: AttemptTargets) -> bool:
    """Leave unreadable folders; whether they can be removed is checked outside."""
    top = Path(facts["attempt"], "agent", "locked")
    (top / "below").mkdir(parents=True)
    (top / "below").chmod(0)
    top.chmod(0)
    return False


def _open_many(facts: AttemptTargets) -> bool:
    if facts["files"]:
        resource.setrlimit(resource.RLIMIT_NOFILE, (facts["files"], facts["files"]))
    return bool(facts["files"])


def _link_out(facts: AttemptTargets) -> bool:
    link = Path("link-out")
    link.unlink(missing_ok=True)
    link.symlink_to(facts["sibling"])
    return write(str(link))


def _plant(key: str, facts: AttemptTargets) -> bool:
    for name in GIT_FILES[key]:
        path = Path(facts["repository"], name)
        with suppress(OSError):
            if key == "git_link":
                path.symlink_to(facts["user"])
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("[core]\n\tfsmonitor = false\n")
    return False


def _run_git(*words: str) -> str:
    name = ("-c", "user.name=garrison", "-c", "user.email=garrison@localhost")
    return subprocess.run(["git", *name, *words], capture_output=True, text=True, errors="replace", check=False).stdout


def _read_settings(facts: AttemptTargets) -> bool:
    if not facts["repository"] or TOKEN in _run_git("config", "--list"):
        return bool(facts["repository"])
    return TOKEN in Path(facts["repository"], "config").read_text()


def _name_submodule(facts: AttemptTargets) -> bool:
    """Commit a submodule at our own address; whether something outside connects to it is checked there."""
    if facts["repository"]:
        Path(".gitmodules").write_text(f'[submodule "m"]\n\tpath = m\n\turl = {facts["address"]}\n')
        _run_git("add", ".gitmodules")
        _run_git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},m")
        _run_git("commit", "-q", "-m", "a submodule")
    return False


def _replace_git(facts: AttemptTargets) -> bool:
    """Replace the worktree's repository by ours, put others below it, and our own git into folders of a relative PATH;
    whether anything obeys or runs them is checked outside."""
    if not facts["repository"]:
        return False
    for folder in (Path(), Path(OWN_PROGRAMS)):
        folder.mkdir(exist_ok=True)
        (folder / "git").write_text(f"#!/bin/sh\n: > {Path(OBEYED).absolute()}\nexit 1\n")
        (folder / "git").chmod(0o755)
    for folder in (Path("own"), Path("nested/.git"), Path(".git")):
        with suppress(OSError):
            if folder.name == ".git" and folder.is_file():
                folder.unlink()
            for name in ("objects", "refs", "hooks"):
                (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / "HEAD").write_text("ref: refs/heads/main\n")
            (folder / "config").write_text(f"[core]\n\tfsmonitor = touch {Path(OBEYED).absolute()};\n")
            (folder / "commondir").write_text(f"{facts['repository']}\n")
    return False


def _signal(facts: AttemptTargets) -> bool:
    os.kill(facts["pid"], 0)
    return _is_outer(facts)


def _is_outer(facts: AttemptTargets) -> bool:
    """Return whether the pid is the process outside, not one of our own with the same number."""
    return facts["mark"].encode() in Path(f"/proc/{facts['pid']}/cmdline").read_bytes()


def _trace(facts: AttemptTargets) -> bool:
    return _is_outer(facts) and ctypes.CDLL(None, use_errno=True).ptrace(_PTRACE_SEIZE, facts["pid"], 0, 0) == 0


def _connect(family: int, address: Any) -> bool:
    with socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)
    return True


def _connect_unix(path: str) -> bool:
    if len(os.fsencode(path)) <= _MAX_SOCKET:
        return _connect(socket.AF_UNIX, path)
    folder, name = os.path.split(path)
    return _connect(socket.AF_UNIX, f"/proc/self/fd/{os.open(folder, os.O_PATH | os.O_DIRECTORY)}/{name}")


def _mount(_facts: AttemptTargets) -> bool:
    """Mount over our own folder, and undo it: a success may affect the real machine."""
    folder, libc = Path("mounted").absolute(), ctypes.CDLL(None, use_errno=True)
    folder.mkdir(exist_ok=True)
    if libc.mount(b"none", bytes(folder), b"tmpfs", 0, None):
        return False
    libc.umount2(bytes(folder), 2)
    return True


def _user_namespace(_facts: AttemptTargets) -> bool:
    child = os.fork()
    if child == 0:
        os._exit(0 if ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0 else 1)
    return os.waitpid(child, 0)[1] == 0


def _capabilities(_facts: AttemptTargets) -> bool:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("CapEff:")[2].split()[0], 16) != 0


def _new_privileges(_facts: AttemptTargets) -> bool:
    return bool(ctypes.CDLL(None).prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 0)


def _set_user_id(facts: AttemptTargets) -> bool:
    program = Path(facts["user"], "secret")
    program.chmod(0o4755)
    return bool(program.stat().st_mode & 0o4000)


def _priority(facts: AttemptTargets) -> bool:
    if _is_outer(facts):
        os.setpriority(os.PRIO_PROCESS, facts["pid"], 19)
    return _is_outer(facts)


def _lease(_facts: AttemptTargets) -> bool:
    Path("leased").touch()
    with Path("leased").open() as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return True


def _keys(_facts: AttemptTargets) -> bool:
    number = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
    return bool(ctypes.CDLL(None).syscall(number, b"user", b"escaped", b"x", 1, -2) > 0)


def _virtual_socket(_facts: AttemptTargets) -> bool:
    socket.socket(socket.AF_VSOCK).close()
    return True


def _opens(*paths: str) -> bool:
    for path in paths:
        with suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            return True
    return False


def _devices(_facts: AttemptTargets) -> bool:
    disks = [f"/dev/{path.name}" for path in Path("/sys/block").iterdir()] if Path("/sys/block").is_dir() else []
    for path in ("/dev/mem", "/dev/kmsg", *disks, "/dev/vda", "/dev/sda"):
        with suppress(OSError):
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            return True
    return False


def _terminal(facts: AttemptTargets) -> bool:
    """Type into a terminal that we have made our session's."""
    child = os.fork()
    if child == 0:
        with suppress(OSError):
            os.setsid()
            fcntl.ioctl(os.open(facts["terminal"], os.O_RDWR), termios.TIOCSTI, b"\0")
            os._exit(0)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _other_terminal(facts: AttemptTargets) -> bool:
    os.close(os.open(facts["terminal"], os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    return True


def _daemon(facts: AttemptTargets) -> bool:
    """Leave a process running that only its command line identifies; whether it stays is checked outside.

    It exits with the process that tries this and has the other end of standard input.
    """
    subprocess.Popen(["/bin/sh", "-c", "trap '' HUP TERM; read _", facts["daemon"]], env={}, start_new_session=True,
                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return True


ATTEMPTS: Mapping[str, Callable[[AttemptTargets], bool]] = {
    "write_sibling": lambda facts: write(facts["sibling"]), "read_sibling": lambda facts: read(facts["sibling"]),
    "write_home": lambda facts: write(facts["home"]), "read_home": lambda facts: read(facts["home"]),
    "write_user": lambda facts: write(facts["user"]), "read_user": lambda facts: read(facts["user"]),
    "write_attempt": _write_attempt, "link_out": _link_out, "write_setup": _write_setup,
    "write_system": lambda _: write("/usr/local"),
    **{key: partial(_plant, key) for key in GIT_FILES},
    "git_secret": _read_settings, "git_submodule": _name_submodule, "git_obeyed": _replace_git,
    "read_shadow": lambda _: bool(Path("/etc/shadow").read_bytes()),
    "read_token": lambda facts: any(map(_holds_secret, facts["tokens"])), "lock": _lock, "rights": _take_rights,
    "descriptors": _open_many, "see_process": _is_outer,
    "signal_process": _signal,
    "read_environment": lambda facts: _is_outer(facts) and bool(Path(f"/proc/{facts['pid']}/environ").read_bytes()),
    "process_root": lambda facts: read(f"/proc/{facts['pid']}/root{facts['sibling']}"), "trace_process": _trace,
    "unix_socket": lambda facts: _connect_unix(facts["unix"]),
    "terminal_server": lambda facts: bool(facts["tmux"]) and _connect_unix(facts["tmux"]),
    "abstract_socket": lambda facts: _connect(socket.AF_UNIX, "\0" + facts["abstract"]),
    "tcp": lambda facts: _connect(socket.AF_INET, ("127.0.0.1", facts["port"])),
    "mount": _mount, "user_namespace": _user_namespace, "capabilities": _capabilities,
    "new_privileges": _new_privileges, "set_user_id": _set_user_id, "priority": _priority,
    "lease": _lease, "keys": _keys, "virtual_socket": _virtual_socket,
    "kernel_setting": lambda _: _opens("/proc/sys/kernel/core_pattern"),
    "cgroup": lambda _: _opens("/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/systemd/cgroup.procs"),
    "device": _devices, "terminal": _terminal,
    "other_terminal": _other_terminal, "daemon": _daemon,
}
"""Key of an escape → the attempt; an error means that it was blocked."""


def main(argument: str) -> int:
    """Try all of them."""
    facts, succeeded = json.loads(argument), {}
    for key, attempt in ATTEMPTS.items():
        succeeded[key] = False
        with suppress(OSError, ValueError, KeyError):
            succeeded[key] = attempt(facts)
    print(json.dumps(succeeded), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
