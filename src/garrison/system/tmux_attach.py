"""Attaching to a session of ours: the command line, and the status line that says how to leave. Pure but for one look.

The rule of this file: the key that is named is the key that is bound. Inside a tmux of the user's, that one hears its
prefix first; it is asked for its keys, and nothing else is asked or told to it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from garrison.system.terminal import Session


def attach_argv(session: Session, socket: str, prefix: str, bindings: Sequence[str], title: str, *, write: bool,
                environ: Mapping[str, str]) -> list[str]:
    """The command that attaches by id; without `write`, read-only and without resizing the pane.

    `prefix` and `bindings` (`list-keys -T prefix`) are those of our server; `environ` is the person's.
    """
    keys = detach_keys(prefix, bindings, _outer(environ) if environ.get("TMUX") else None)
    mode = [] if write else ["-r"]
    return ["env", "-u", "TMUX", "tmux", "-S", session.socket or socket, "-N", "-f", os.devnull,
            "set-option", "-t", session.session_id, "status", "on", ";",
            "set-option", "-t", session.session_id, "status-format[0]", status_format(keys, title), ";",
            "attach-session", *mode, "-t", session.session_id]


def status_format(keys: str, title: str) -> str:
    """The whole status line as a tmux format; each client is told whether it may type. Pure."""
    said = "#{?client_readonly,read-only,you may type}"
    return f"#[reverse] {said} · {literal(keys)} detaches, the agent goes on · {literal(title)} "


def literal(text: str) -> str:
    """`text` where a tmux format is read: `#` begins nothing, `%` is no part of a date. Pure."""
    return text.replace("#", "##").replace("%", "%%")


def detach_keys(prefix: str, bindings: Sequence[str], outer: tuple[str, Sequence[str]] | None) -> str:
    """What to press: `C-b d`, or within an `outer` tmux (its prefix and bindings) that has the same prefix, how to get
    ours through it. Pure."""
    key = bound(bindings, "detach-client") or ": detach-client"
    through = prefix
    if outer is not None and outer[0] in (prefix, ""):
        through = f"{prefix} {bound(outer[1], 'send-prefix') or prefix}"
    return f"{through} {key}"


def bound(bindings: Sequence[str], command: str) -> str:
    """The key to which exactly that command is bound, '' if none; a line reads `bind-key [-r] -T prefix KEY COMMAND`.
    Pure."""
    for line in bindings:
        words = line.split()
        if len(words) >= 5 and words[-1] == command and words[-4] == "-T":
            return words[-2].removeprefix("\\")
    return ""


def _outer(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Prefix and bindings of the tmux we are in; ('', []) if it cannot be asked."""
    socket = environ["TMUX"].partition(",")[0]

    def ask(*words: str) -> list[str]:
        return subprocess.run(["tmux", "-N", "-S", socket, *words], capture_output=True, text=True, timeout=5,
                              check=True, stdin=subprocess.DEVNULL).stdout.splitlines()

    try:
        return "".join(ask("show-options", "-gv", "prefix")), ask("list-keys", "-T", "prefix")
    except (OSError, subprocess.SubprocessError):
        return "", []
