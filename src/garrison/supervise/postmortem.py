"""What a life died of, in words. Pure: what verdict, kernel and terminal told goes in, one line comes out."""

from __future__ import annotations

import signal

KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
"""Exit codes of a killed process, as its parent sees it and as a shell says it."""
TERMINAL_GONE = "its terminal is gone"
"""Why an orchestrator ended that heard SIGHUP."""
KEEPER_GONE = "its keeper, the process above it in its terminal, was killed"
"""Why, when it was not the terminal that went first: a keeper ends of itself only after its orchestrator."""


def cause(verdict: str, *, code: int | None = None, memory: bool = False, server_died: bool = False) -> str:
    """The verdict, and what is known beyond it. `code`: exit code, negative for a signal, None if unknown; `memory`:
    the kernel killed something for memory meanwhile; `server_died`: the tmux server of its session is gone."""
    if server_died:
        return f"the tmux server died; {verdict}"
    return f"{verdict}: {told}" if (told := ending(code, memory=memory)) else verdict


def ending(code: int | None, *, memory: bool = False) -> str:
    """An exit in words; empty if nothing is known of it."""
    if memory and (code is None or code in KILLED):
        return "killed, probably out of memory (the kernel's count of such kills grew meanwhile)"
    if code is None:
        return ""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def hung_up(reason: str, *, server_died: bool) -> str:
    """Why an orchestrator ended in order that nobody had asked to: its terminal went, or its server with it."""
    if reason != TERMINAL_GONE:
        return reason
    return "the tmux server died" if server_died else "its tmux session was closed"
