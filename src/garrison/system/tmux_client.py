"""Asking a tmux server that may not answer. The rule of this file: no call lasts for ever, whatever became of it.

A stopped server (SIGSTOP) is continued after a second, while the client still waits: nothing is asked twice. A server
whose socket was removed makes it anew at SIGUSR1. One that stays deaf is ended only by whoever needs a session now.
All of that only to servers that were started with our own configuration, through verified pidfds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from garrison.errors import GarrisonError
from garrison.light import dataclass
from garrison.system import processes
from garrison.system.processes import ProcessId

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
