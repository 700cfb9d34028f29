"""tmux server of a home: version check, socket path, start, and commands with a time limit.

The server has its own socket (absolute path, directory 0700), its own configuration and an empty environment; the
user's own tmux is never read, started or ended. No command waits without limit:

* A stopped server (SIGSTOP) is continued after a second while the client still waits, so no command is sent twice.
* A server whose socket was removed creates it again on SIGUSR1.
* A server that stays unresponsive is killed, but only by a caller that needs a session now.

Signals go only to servers started with our own configuration, through verified pidfds.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from garrison.errors import GarrisonError
from garrison.system import processes, systemd
from garrison.system.processes import ProcessId

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
"""A socket path may be 107 bytes on Linux; tmux's own lock file needs a few of them."""


def available() -> str | None:
    """The version of the tmux on PATH, if it is 3.2 or newer."""
    program = shutil.which("tmux")
    if program is None:
        return None
    try:
        answer = subprocess.run([program, "-V"], capture_output=True, text=True, timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = answer.removeprefix("tmux").strip()
    match = re.search(r"(\d+)\.(\d+)", version)
    return version if match and (int(match[1]), int(match[2])) >= (3, 2) else None


def end_lost_server(home: Path) -> None:
    """End our server of a home that was removed: its socket went too, so that nobody could reach it again."""
    for one in servers(home / "run"):
        processes.send(one.pid, one.ticks, signal.SIGTERM)


def start_server(socket: Path, configuration: Path) -> None:
    """Start our server, or do nothing if it runs: empty environment, own configuration, a scope of its own if we can.

    GarrisonError if tmux cannot be started.
    """
    temporary = configuration.with_name(f".{configuration.name}.{os.getpid()}.tmp")
    temporary.write_text(CONFIGURATION)
    temporary.replace(configuration)
    command = [shutil.which("tmux") or "tmux", "-u", "-S", str(socket), "-f", str(configuration), "start-server"]
    errors = ""
    for prefix in (_scope(), []):
        try:
            answer = subprocess.run([*prefix, *_empty(os.environ), *command], cwd="/", stdin=subprocess.DEVNULL,
                                    capture_output=True, text=True, timeout=30, check=False, start_new_session=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            errors = str(error)
            continue
        if answer.returncode == 0:
            return
        errors = answer.stderr.strip()
    raise GarrisonError(f"cannot start tmux on {socket}: {errors}; try --terminal process")


def _empty(source: Mapping[str, str]) -> list[str]:
    """`env -i` with the four variables that the server may have."""
    defaults = {"PATH": os.defpath, "HOME": "/", "LANG": "C.UTF-8", "TERM": "screen"}
    kept = [f"{name}={source.get(name) or value}" for name, value in defaults.items()]
    return [shutil.which("env") or "/usr/bin/env", "-i", *kept]


def _scope() -> list[str]:
    """The prefix that puts the server in a scope of its own, where that keeps it alive."""
    manager = systemd.find(os.environ)
    chosen = systemd.way(in_unit=False, unit=False, manager=manager is not None,
                              lingering=systemd.lingering(manager))
    return systemd.scope(manager) if chosen == "scope" else []


def socket_path(run: Path) -> Path:
    """The socket of the home whose `run/` is given; its directory exists with mode 0700.

    In `run/` itself, or where that is too long, in a directory under XDG_RUNTIME_DIR or the temporary directory. That
    choice is noted in `run/tmux.socket-path`, because cron's environment may differ from a person's.
    """
    os.makedirs(run, mode=0o700, exist_ok=True)  # noqa: PTH103
    plain = run / "tmux.sock"
    if len(os.fsencode(plain)) <= SOCKET_BYTES:
        return plain
    note = run / "tmux.socket-path"
    with suppress(FileNotFoundError):
        noted = Path(note.read_text().strip())
        if noted.parent.is_dir():
            _check_private(noted.parent)
            return noted
        if (living := revive(run)) is not None:
            return living  # the runtime directory was emptied under a server that lives on
    folder = _short_folder(hashlib.sha256(os.fsencode(run)).hexdigest()[:16])
    temporary = note.with_name(f".{note.name}.{os.getpid()}.tmp")
    temporary.write_text(f"{folder / 'tmux.sock'}\n")
    temporary.replace(note)
    return folder / "tmux.sock"


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
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise GarrisonError(f"{folder} is not a directory of yours with mode 0700; remove it, then try again")


PATIENCE = 10.0
"""Seconds that a tmux command may take."""
OPENING = 30.0
"""The same where a session is opened; a server that is deaf for so long is replaced."""
_SUSPICION = 1.0
"""Seconds of silence after which the server is looked at."""
_NEW_SOCKET = 2.0
"""Seconds that a server is given to make its socket anew."""


@dataclass(frozen=True)
class Answer:
    """What tmux said; `deaf` if it said nothing in time."""

    code: int
    lines: list[str]
    error: str
    deaf: bool = False


def ask(run: Path, words: Sequence[str], patience: float = PATIENCE) -> Answer:
    """Run one tmux client, at most `patience` seconds; `run` is the folder of the home whose server it asks.

    GarrisonError if there is no tmux.
    """
    try:
        client = subprocess.Popen([shutil.which("tmux") or "tmux", *words], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise GarrisonError(f"cannot run tmux: {error.strerror}; install it, or use --terminal process") from error
    suspicion = min(_SUSPICION, patience / 2)
    for seconds in (suspicion, patience - suspicion):
        try:
            said, complained = client.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            wake(run)
            continue
        lines = said.decode(errors="backslashreplace").rstrip("\n").split("\n")
        errors = [line for line in complained.decode(errors="backslashreplace").split("\n") if line]
        return Answer(client.returncode, lines if lines != [""] else [], "; ".join(errors))
    client.kill()
    client.wait()
    for pipe in (client.stdout, client.stderr):
        assert pipe is not None
        pipe.close()  # unread: the client has passed its ends to the server, so that they never come to an end
    return Answer(client.returncode, [], "no answer", deaf=True)


def servers(run: Path) -> list[ProcessId]:
    """The living tmux servers that were started with the configuration in `run`, whatever became of their socket."""
    ours = os.fsencode(run / "tmux.conf")
    return [one.id for one in processes.probes()
            if one.comm.startswith("tmux: server") and not one.zombie and ours in argv(one.pid)]


def argv(pid: int) -> list[bytes]:
    """A process's command line; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def wake(run: Path) -> None:
    """Continue our servers that were stopped; to any other it means nothing."""
    for one in servers(run):
        processes.send(one.pid, one.ticks, signal.SIGCONT)


def end_deaf(run: Path) -> None:
    """kill -9 our servers: one that does not answer serves nobody, and its sessions' agents block on their output."""
    for one in servers(run):
        processes.send(one.pid, one.ticks, signal.SIGKILL)
    until = time.monotonic() + _NEW_SOCKET
    while servers(run) and time.monotonic() < until:
        time.sleep(0.01)


def revive(run: Path) -> Path | None:
    """Let our living server make the socket anew that was removed from under it; where that is, None without one."""
    for one in servers(run) if run.is_dir() else ():  # a home that was removed is not made anew
        words = argv(one.pid)
        at = words.index(b"-S") + 1 if b"-S" in words else len(words)
        if at >= len(words):
            continue
        socket = Path(os.fsdecode(words[at]))
        os.makedirs(socket.parent, mode=0o700, exist_ok=True)  # noqa: PTH103
        if not socket.exists():
            processes.send(one.pid, one.ticks, signal.SIGUSR1)
        until = time.monotonic() + _NEW_SOCKET
        while not socket.exists() and time.monotonic() < until:
            time.sleep(0.01)
        if socket.exists():
            return socket
    return None
