"""Choice of a terminal: tmux or plain processes, as `--terminal` says and the machine allows.

What speaks with tmux is imported by those who use it: a guardian opens no terminal, and plain processes need none.
"""

from __future__ import annotations

from pathlib import Path

from garrison.errors import Refused, UsageError
from garrison.system.terminal import ProcessTerminal, Terminal

KINDS = ("tmux", "process", "auto")
"""Values of `--terminal`."""


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
    note = "no tmux ≥ 3.2 on PATH: agents run as plain processes, `garrison logs NODE -f` shows what they print"
    return ProcessTerminal(home), note if kind == "auto" else ""


def end_lost_server(home: Path) -> None:
    """End the tmux server of a home that was removed while we ran; do nothing if the home exists."""
    if not (home / "identities").is_dir():
        from garrison.system.tmux_server import TmuxServer

        TmuxServer(home / "run").end()
