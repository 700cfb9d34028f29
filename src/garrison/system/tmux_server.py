"""tmux server of a home: version check, socket, start, and repair of a server that is stopped or lost its socket.

The server has its own socket (absolute path, directory 0700), its own configuration and an empty environment; the
user's own tmux is never read, started or ended. Repair, in the order of harm:

* A stopped server (SIGSTOP) is continued while the client still waits, so no command is sent twice.
* A server whose socket was removed creates it again on SIGUSR1.
* A server that stays unresponsive is killed, but only by a caller that needs a session now.

Signals go only to servers started with our own configuration, through verified pidfds. Commands: `tmux_client`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from garrison.errors import GarrisonError
from garrison.system import processes, systemd, untrusted
from garrison.system.clock import wait_until
from garrison.system.command import run
from garrison.system.processes import ProcessId
from garrison.system.stamps import file_stamp

# exit-empty: a server that ended between two sessions would meet the next client half way. set-clipboard, set-titles:
# what an agent prints is not for the user's clipboard or window. remain-on-exit: the exit code is read from the dead
# pane. update-environment: by default each client's variables, keys among them, would get into its session.
CONFIGURATION = """\
set -s exit-empty off
set -s escape-time 50
set -s set-clipboard off
set -g update-environment ''
set -g default-command ''
set -g destroy-unattached off
set -g history-limit 20000
set -g status off
set -g default-size 200x50
set -g set-titles off
set -g default-terminal screen-256color
set -wg remain-on-exit on
set -wgq remain-on-exit-format ''
set -wg automatic-rename off
set -wg allow-rename off
"""
SOCKET_BYTES = 100
"""Longest socket path: Linux allows 107 bytes, of which tmux's own lock file needs a few."""
_ASKED = 3
"""Times that tmux is asked for its version while it is killed before it answers."""
REPAIR_SECONDS = 2.0
"""Seconds for a server to create its socket again, or to be gone after SIGKILL."""


def supported_version() -> str | None:
    """Return the version of the tmux on PATH if it is 3.2 or newer."""
    program = shutil.which("tmux")
    if program is None:
        return None
    try:
        version = _ask_version(program, file_stamp(program))
    except TimeoutError:
        return None
    match = re.search(r"(\d+)\.(\d+)", version)
    return version if match and (int(match[1]), int(match[2])) >= (3, 2) else None


@lru_cache(maxsize=4)  # a guardian asks for all its runners
def _ask_version(program: str, stamp: object) -> str:
    """Return what a tmux gives as its version; TimeoutError if it does not answer.

    Args:
        stamp: of its file, which may be replaced.
    """
    for _ in range(_ASKED):
        done = run([program, "-V"], 20.0)
        if done.code is None:
            break
        if done.code >= 0:  # one that was killed says nothing about the installed version
            return done.out.removeprefix("tmux").strip()
    raise TimeoutError(program)


class TmuxServer:
    """Server of the home whose `run/` directory is given; creating the object starts nothing."""

    command_seconds = 10.0
    """Seconds that a tmux command may take."""
    open_seconds = 30.0
    """Seconds for a command that opens a session; a server that does not answer for that long is replaced."""
    repair_seconds = REPAIR_SECONDS

    def __init__(self, run: Path) -> None:
        self.run = run
        self._socket: Path | None = None

    @property
    def socket(self) -> Path:
        """Return the path of the socket, whether or not a server listens on it; see `socket_path`."""
        if self._socket is None:
            self._socket = socket_path(self.run, self.repair_seconds)
        return self._socket

    def forget_socket(self) -> None:
        """Choose the socket again at its next use: another process may have removed its directory."""
        self._socket = None

    def remove_socket(self) -> None:
        """Remove the leftovers of an ended server, with its directory if that is outside the home."""
        self.socket.unlink(missing_ok=True)
        if self.socket.parent != self.run:
            with suppress(OSError):  # not empty: it contains files of another program
                self.socket.parent.rmdir()
                _note(self.run).unlink(missing_ok=True)

    def start(self) -> None:
        """Start the server unless it runs: empty environment, own configuration, if possible its own systemd scope.

        GarrisonError if tmux cannot be started.
        """
        configuration = self.run / "tmux.conf"
        untrusted.write(self.run, configuration.name, CONFIGURATION.encode())
        program = shutil.which("tmux") or "tmux"
        command = [program, "-u", "-S", str(self.socket), "-f", str(configuration), "start-server"]
        errors = ""
        for prefix in (scope_prefix(), []):
            done = run([*prefix, *_empty_environment(os.environ), *command], 30.0)
            if done.ok:
                return
            errors = done.why or done.err.strip()
        raise GarrisonError(f"cannot start tmux on {self.socket}: {errors}; try --terminal process")

    def processes(self) -> list[ProcessId]:
        """Return the living servers started with our configuration, even without a socket; normally at most one."""
        return _servers(self.run)

    def end(self) -> None:
        """Send SIGTERM to our servers: for a home that was removed with its socket, where no command reaches them."""
        self._signal(signal.SIGTERM)

    def wake(self) -> None:
        """Continue our servers that were stopped; harmless to running ones."""
        self._signal(signal.SIGCONT)

    def kill_unresponsive(self) -> None:
        """Kill our servers: an unresponsive one blocks the output of its sessions' agents."""
        self._signal(signal.SIGKILL)
        wait_until(lambda: not self.processes(), self.repair_seconds, 0.01)

    def restore_socket(self) -> bool:
        """Make a living server recreate its removed socket; False without a server.

        Also True if another process has just restored it: the server lives, and the caller found it without a socket.
        """
        if _restore_socket(self.run, self.repair_seconds) is None:
            return False
        self.forget_socket()
        return True

    def _signal(self, number: int) -> None:
        for server in self.processes():
            processes.send(server.pid, server.ticks, number)


def scope_prefix() -> list[str]:
    """Return the command prefix that puts the server into its own systemd scope, if that keeps it alive."""
    manager = systemd.find_manager(os.environ)
    chosen = systemd.choose_start_method(in_unit=False, unit=False, manager=manager is not None,
                                         lingering=systemd.is_lingering(manager))
    return systemd.scope_prefix(manager) if chosen == "scope" else []


def socket_path(run: Path, repair_seconds: float = REPAIR_SECONDS) -> Path:
    """Return the socket path of the home whose `run/` is given; its directory exists with mode 0700.

    It is in `run/` itself or, if that path is too long, in a directory under XDG_RUNTIME_DIR or the temporary
    directory. That choice is recorded in `run/tmux.socket-path`, because cron's environment may differ from the user's.
    """
    os.makedirs(run, mode=0o700, exist_ok=True)  # noqa: PTH103
    plain = run / "tmux.sock"
    if len(os.fsencode(plain)) <= SOCKET_BYTES:
        return plain
    with suppress(FileNotFoundError):
        noted = Path(_note(run).read_text().strip())
        if noted.parent.is_dir():
            _check_private(noted.parent)
            return noted
        if (restored := _restore_socket(run, repair_seconds)) is not None:
            return restored  # the runtime directory was emptied while the server runs
    folder = _short_folder(hashlib.sha256(os.fsencode(run)).hexdigest()[:16])
    untrusted.write(run, _note(run).name, f"{folder / 'tmux.sock'}\n".encode())
    return folder / "tmux.sock"


def has_socket(run: Path) -> bool:
    """Return whether the socket of that home exists, wherever it is, without choosing a path."""
    with suppress(OSError):
        return (run / "tmux.sock").exists() or Path(_note(run).read_text().strip()).exists()
    return False


def _note(run: Path) -> Path:
    return run / "tmux.socket-path"


def _short_folder(key: str) -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    bases = [Path(runtime)] if runtime and os.access(runtime, os.W_OK | os.X_OK) else []
    for base in [*bases, Path(tempfile.gettempdir()), Path("/tmp")]:
        folder = base / f"garrison-{os.getuid()}-{key}"
        if len(os.fsencode(folder / "tmux.sock")) <= SOCKET_BYTES:
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
            return folder
    raise GarrisonError("no directory is short enough for a tmux socket; set XDG_RUNTIME_DIR or use --terminal process")


def _check_private(folder: Path) -> None:
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise GarrisonError(f"{folder} is not a directory of yours with mode 0700; remove it, then try again")


def _empty_environment(source: Mapping[str, str]) -> list[str]:
    defaults = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", "TERM": "screen"}
    return [shutil.which("env") or "/usr/bin/env", "-i",
            *(f"{name}={source.get(name) or value}" for name, value in defaults.items())]


def _servers(run: Path) -> list[ProcessId]:
    configuration = os.fsencode(run / "tmux.conf")
    return [process.id for process in processes.list_processes()
            if process.comm.startswith("tmux: server") and configuration in processes.read_argv(process.pid)]


def home_of(pid: int) -> Path | None:
    """Return the home whose terminal server this process is; None for another process."""
    process = processes.probe(pid)
    if process is None or not process.comm.startswith("tmux: server"):
        return None
    words = processes.read_argv(pid)
    configuration = Path(os.fsdecode(words[words.index(b"-f") + 1])) if b"-f" in words[:-1] else Path()
    return configuration.parents[1] if configuration.parts[-2:] == ("run", "tmux.conf") else None


def _restore_socket(run: Path, seconds: float) -> Path | None:
    """Make our living server recreate its socket; return its path, None without a server."""
    for server in _servers(run) if run.is_dir() else ():  # a removed home is not recreated
        words = processes.read_argv(server.pid)
        at = words.index(b"-S") + 1 if b"-S" in words else len(words)
        if at >= len(words):
            continue
        socket = Path(os.fsdecode(words[at]))
        os.makedirs(socket.parent, mode=0o700, exist_ok=True)  # noqa: PTH103
        if not socket.exists():
            processes.send(server.pid, server.ticks, signal.SIGUSR1)
        if wait_until(socket.exists, seconds, 0.01):
            return socket
    return None
