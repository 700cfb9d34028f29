"""Terminals: where an orchestrator's program runs, so that it outlives its runner and a person can watch it.

A session is opened under a full name and addressed by ids from then on. It gets exactly the environment it was given.
`tmux.TmuxTerminal` and `process_terminal.ProcessTerminal` implement the protocol; `choose_terminal` selects one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from garrison.errors import Refused, UsageError

KINDS = ("tmux", "process", "auto")
"""Values of `--terminal`."""


@dataclass(frozen=True)
class Session:
    """One open session, as it is kept in a record (`dataclasses.asdict` ↔ `Session(**…)`).

    `pid` is a hint for tmux (the program registers its own) and `ticks` that process's start. `server` is the tmux
    server's pid and start time, because each server counts ids from zero; for a plain process, the boot its pid is of.
    """

    kind: str
    socket: str
    session_id: str
    pane_id: str
    pid: int
    name: str = ""
    ticks: int = field(default=0, compare=False)
    server: str = ""
    log: str = ""


class Terminal(Protocol):
    """Opens, finds, watches and closes our own sessions; never touches others."""

    kind: str

    def open(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Session:
        """Run `argv` with exactly `env` under `name`.

        Raises:
            Refused: a session of that name still runs.
            GarrisonError: the program or the directory is missing, or the terminal failed.
        """
        ...

    def find(self, name: str, marker: str = "") -> Session | None:
        """Return the open session of exactly that name, and of that incarnation's marker if given; it may be dead."""
        ...

    def is_alive(self, session: Session) -> bool:
        """Return whether the session's program still runs."""
        ...

    def exit_code(self, session: Session) -> int | None:
        """Return how its program ended (negative: a signal); None while it runs, or if that cannot be known."""
        ...

    def close(self, session: Session, *, grace: float = 2.0) -> None:
        """End what runs in it (TERM, `grace` seconds, KILL) and remove it. Idempotent."""
        ...

    def capture(self, session: Session, lines: int = 50) -> str:
        """Return the last lines of its output as text; empty if it is gone and left none."""
        ...

    def send(self, session: Session, text: str) -> None:
        """Type `text` (a newline is Enter); Refused where there is no keyboard."""
        ...

    def attach_argv(self, session: Session, *, write: bool = False, title: str = "") -> list[str]:
        """Return the command with which a person watches the session, or with `write` types into it.

        Refused where there is nothing to attach to.

        Args:
            title: shown in the status line.
        """
        ...

    def sessions(self) -> list[Session]:
        """Return all our open sessions."""
        ...

    def shutdown(self) -> None:
        """End the server of the sessions if none is left; otherwise do nothing."""
        ...


def choose_terminal(kind: str, home: Path) -> tuple[Terminal, str]:
    """Return the terminal for `kind` (see `KINDS`) and a note for the user, empty if there is nothing to report.

    Refused for `tmux` where it is missing or too old; `auto` then falls back to plain processes, and the note says so.
    """
    if kind not in KINDS:
        raise UsageError(f"not a terminal: {kind!r}; use one of {', '.join(KINDS)}")
    if kind != "process":
        from garrison.system.tmux_server import supported_version

        if supported_version():
            from garrison.system.tmux import TmuxTerminal

            return TmuxTerminal(home), ""
        if kind == "tmux":
            raise Refused("there is no tmux ≥ 3.2 on PATH; install it, or use --terminal process")
    from garrison.system.process_terminal import ProcessTerminal

    note = "no tmux ≥ 3.2 on PATH: agents run as plain processes, `garrison logs NODE -f` shows what they print"
    return ProcessTerminal(home), note if kind == "auto" else ""


def end_lost_server(home: Path) -> None:
    """End the tmux server of a home that was removed while we ran; do nothing if the home exists."""
    from garrison.system.tmux_server import TmuxServer

    if not (home / "identities").is_dir():
        TmuxServer(home / "run").end()
