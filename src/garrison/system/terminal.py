"""The terminal seam: where an orchestrator's program runs so that it outlives its runner and a person can watch it.

A session is opened under a full name, from then on addressed by ids. It gets exactly the environment it was given.
`tmux.TmuxTerminal` and `plain.PlainTerminal` implement the seam; `choose_terminal` picks one and says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from garrison.errors import Refused, UsageError

KINDS = ("tmux", "process", "auto")
"""What `--terminal` may say."""


@dataclass(frozen=True)
class Session:
    """One open session, to be kept in a record (`dataclasses.asdict` ↔ `Session(**…)`).

    `pid` is a hint for tmux (the program registers its own). `ticks` is that process's start, `server` the tmux
    server's pid and start time: ids are counted anew by each server; of a plain process, the boot its pid is of.
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
    """Opens, finds, watches and closes sessions that are ours, and never touches others."""

    kind: str

    def open(self, name: str, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | Path, log: Path) -> Session:
        """Run `argv` with exactly `env` under `name`. Refused while a session of that name still runs.

        GarrisonError if the program or the directory is missing, or the terminal fails.
        """
        ...

    def find(self, name: str, marker: str = "") -> Session | None:
        """The open session of exactly that name, and of that life marker if given; it may no longer be alive."""
        ...

    def alive(self, session: Session) -> bool:
        """Whether the session's program still runs."""
        ...

    def exit_code(self, session: Session) -> int | None:
        """How its program ended (negative: a signal); None while it runs, or if nobody can know."""
        ...

    def close(self, session: Session, *, grace: float = 2.0) -> None:
        """End what runs in it (TERM, `grace` seconds, KILL) and remove it. Idempotent."""
        ...

    def capture(self, session: Session, lines: int = 50) -> str:
        """The last lines of its output as text; empty if it is gone and left none."""
        ...

    def send(self, session: Session, text: str) -> None:
        """Type `text` (a newline is Enter). Refused where there is no keyboard."""
        ...

    def attach_argv(self, session: Session, *, write: bool = False, title: str = "") -> list[str]:
        """The command with which a person watches the session, or types into it with `write`; `title` says whose it is.

        Refused where there is nothing to attach to.
        """
        ...

    def sessions(self) -> list[Session]:
        """All our open sessions."""
        ...

    def shutdown(self) -> None:
        """End what serves the sessions, if none is left; else do nothing."""
        ...


def choose_terminal(kind: str, home: Path) -> tuple[Terminal, str]:
    """The terminal for `kind` (tmux, process or auto) and a note for the user, empty if there is nothing to say.

    Refused for tmux where there is none that serves; auto then falls back to plain processes and the note says so.
    """
    from garrison.system.process_terminal import PlainTerminal
    from garrison.system.tmux import TmuxTerminal
    from garrison.system.tmux_server import available

    if kind not in KINDS:
        raise UsageError(f"not a terminal: {kind!r}; use one of {', '.join(KINDS)}")
    if kind == "process":
        return PlainTerminal(home), ""
    if available():
        return TmuxTerminal(home), ""
    if kind == "tmux":
        raise Refused("there is no tmux ≥ 3.2 on PATH; install it, or use --terminal process")
    return PlainTerminal(home), ("no tmux ≥ 3.2 on PATH: agents run as plain processes, `garrison logs NODE -f` shows "
                                 "what they print")


def abandon(home: Path) -> None:
    """End what serves the sessions of a home that was removed under us; a home that is there is left alone."""
    from garrison.system.tmux_server import end_lost_server

    if not (home / "identities").is_dir():
        end_lost_server(home)
