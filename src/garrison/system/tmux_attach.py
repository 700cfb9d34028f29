"""tmux attach command, and the status line that names the key to detach.

The key it names is the key that is bound. Inside the user's own tmux, that one receives its prefix first, so it is
asked for its prefix and bindings; nothing else is read from or sent to it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from garrison.system.terminal import Session


def attach_argv(session: Session, socket: str, prefix: str, bindings: Sequence[str], title: str, *, write: bool,
                environ: Mapping[str, str]) -> list[str]:
    """Return the command that attaches by id; without `write`, read-only and without resizing the pane.

    Args:
        prefix: prefix key of our server.
        bindings: `list-keys -T prefix` of our server.
        environ: the person's environment.
    """
    keys = detach_keys(prefix, bindings, _outer(environ) if environ.get("TMUX") else None)
    mode = [] if write else ["-r"]
    return ["env", "-u", "TMUX", "tmux", "-S", session.socket or socket, "-N", "-f", os.devnull,
            "set-option", "-t", session.session_id, "status", "on", ";",
            "set-option", "-t", session.session_id, "status-format[0]", status_format(keys, title), ";",
            "attach-session", *mode, "-t", session.session_id]


def status_format(keys: str, title: str) -> str:
    """Return the status line as a tmux format that tells each client whether it may type."""
    mode = "#{?client_readonly,read-only,you may type}"
    return f"#[reverse] {mode} · {literal(keys)} detaches, the agent goes on · {literal(title)} "


def literal(text: str) -> str:
    """Escape `text` for a tmux format: `#` begins no expansion, `%` no date."""
    return text.replace("#", "##").replace("%", "%%")


def detach_keys(prefix: str, bindings: Sequence[str], outer: tuple[str, Sequence[str]] | None) -> str:
    """Return the keys that detach: `C-b d`, or with an `outer` tmux of the same prefix, how to send ours through it.

    Args:
        outer: prefix and bindings of the user's own tmux, None outside of one.
    """
    key = bound(bindings, "detach-client") or ": detach-client"
    through = prefix
    if outer is not None and outer[0] in (prefix, ""):
        through = f"{prefix} {bound(outer[1], 'send-prefix') or prefix}"
    return f"{through} {key}"


def bound(bindings: Sequence[str], command: str) -> str:
    """Return the key to which exactly that command is bound, '' if none.

    A line of `bindings` reads `bind-key [-r] -T prefix KEY COMMAND`.
    """
    for line in bindings:
        words = line.split()
        if len(words) >= 5 and words[-1] == command and words[-4] == "-T":
            return words[-2].removeprefix("\\")
    return ""


def _outer(environ: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return prefix and bindings of the tmux we are in; ('', []) if it does not answer."""
    socket = environ["TMUX"].partition(",")[0]

    def ask(*words: str) -> list[str]:
        return subprocess.run(["tmux", "-N", "-S", socket, *words], capture_output=True, text=True, timeout=5,
                              check=True, stdin=subprocess.DEVNULL).stdout.splitlines()

    try:
        return "".join(ask("show-options", "-gv", "prefix")), ask("list-keys", "-T", "prefix")
    except (OSError, subprocess.SubprocessError):
        return "", []
