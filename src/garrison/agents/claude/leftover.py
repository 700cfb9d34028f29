"""The CLI that somebody ran on a session before us, by pid and start ticks: it must be gone before the session is
resumed, for nothing in the CLI keeps two of them from writing to one transcript."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

from garrison.agents.claude.files import read_json, write_json
from garrison.system import processes

if TYPE_CHECKING:
    from garrison.agents.claude.files import ClaudeFiles

_STEPS = ((signal.SIGTERM, 3.0), (signal.SIGKILL, 2.0))
"""What is sent, and the seconds it is waited for: at a TERM the CLI ends its tools and writes what was said last."""


def note(files: ClaudeFiles, pid: int, life: int) -> None:
    """Record the CLI that runs now; `life` 0: a person's."""
    found = processes.probe(pid)
    if found is not None:
        write_json(files.process, {"pid": pid, "ticks": found.ticks, "boot": processes.boot_id(), "life": life})


def end(files: ClaudeFiles) -> None:
    """End the recorded CLI, if it still runs, and forget it."""
    old = read_json(files.process)
    if old is None:
        return
    for number, seconds in _STEPS if processes.same_boot(str(old.get("boot", ""))) else ():
        if not processes.send(old["pid"], old["ticks"], number):
            break
        until = time.monotonic() + seconds
        while processes.living(old["pid"], old["ticks"]) and time.monotonic() < until:
            time.sleep(0.01)
    files.process.unlink(missing_ok=True)
