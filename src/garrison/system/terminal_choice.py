"""Choice of a terminal: tmux or plain processes, as `--terminal` says and the machine allows.

The tmux code is imported where it is used: a guardian opens no terminal, and plain processes need none.
"""

from __future__ import annotations

from pathlib import Path

from garrison.errors import Refused, UsageError
from garrison.plugins import PluginGroup, load, offered
from garrison.system.terminal import ProcessTerminal, Terminal

KINDS = ("tmux", "process", "auto")
"""Values of `--terminal`."""


def choose_terminal(kind: str, home: Path) -> tuple[Terminal, str]:
    """Return the terminal for `kind` (see `KINDS`) and a note for the user, empty if there is none.

    Refused for `tmux` if it is missing or too old; `auto` then falls back to plain processes, with a note.
    """
    if kind not in KINDS:
        return _installed_terminal(kind, home), ""
    if kind != "process":
        from garrison.system.tmux_server import supported_version

        if supported_version():
            from garrison.system.tmux import TmuxTerminal

            return TmuxTerminal(home), ""
        if kind == "tmux":
            raise Refused("there is no tmux ≥ 3.2 on PATH; install it, or use --terminal process")
    note = "no tmux ≥ 3.2 on PATH: agents run as plain processes, `garrison logs NODE -f` shows what they print"
    return ProcessTerminal(home), note if kind == "auto" else ""


def _installed_terminal(kind: str, home: Path) -> Terminal:
    """Return the terminal of an installed package; UsageError if there is none with that name, or it fails."""
    terminals = offered(PluginGroup.TERMINALS)
    if kind not in terminals:
        raise UsageError(f"not a terminal: {kind!r}; use one of {', '.join((*KINDS, *terminals))}")
    make = load(PluginGroup.TERMINALS, kind)
    try:
        terminal: Terminal = make(home)
    except Exception as error:  # a package's code may raise anything
        raise UsageError(f"the terminal {kind} cannot be used: {type(error).__name__}: {error}") from error
    return terminal


def end_lost_server(home: Path) -> None:
    """End the tmux server of a home that was removed while we ran; do nothing if the home exists."""
    if not (home / "identities").is_dir():
        from garrison.system.tmux_server import TmuxServer

        TmuxServer(home / "run").end()
