"""Which keys a person is told to press to leave a session."""

from __future__ import annotations

import pytest

from garrison.system.terminal import TerminalSession
from garrison.system.tmux import attach_argv, bound, detach_keys, status_format

OURS = ["bind-key    -T prefix C-b     send-prefix", "bind-key    -T prefix d       detach-client",
        "bind-key    -T prefix D       choose-client -Z"]
USERS = ["bind-key -T prefix C-a send-prefix", "bind-key -r -T prefix x detach-client"]


@pytest.mark.parametrize(("prefix", "bindings", "outer", "keys"), [
    ("C-b", OURS, None, "C-b d"),
    ("C-b", OURS, ("C-b", OURS), "C-b C-b d"),
    ("C-b", OURS, ("C-a", USERS), "C-b d"),
    ("C-b", OURS, ("C-b", []), "C-b C-b d"),
    ("C-b", OURS, ("", []), "C-b C-b d"),
    ("C-b", OURS, ("C-b", ["bind-key -T prefix b send-prefix"]), "C-b b d"),
    ("C-q", ["bind-key -T prefix \\; detach-client"], None, "C-q ;"),
    ("C-b", [], None, "C-b : detach-client"),
])
def test_detach_keys(prefix: str, bindings: list[str], outer: tuple[str, list[str]] | None, keys: str) -> None:
    assert detach_keys(prefix, bindings, outer) == keys


def test_only_an_exact_binding_counts() -> None:
    assert bound(["bind-key -T prefix e display detach-client", *OURS], "detach-client") == "d"


def test_the_status_line_names_the_session_literally() -> None:
    line = status_format("C-b d", "run r1 · a#{pid} 100%")
    assert "C-b d detaches" in line
    assert "a##{pid} 100%%" in line


def test_attaching_is_read_only_and_by_id() -> None:
    session = TerminalSession("tmux", "/s", "$3", "%7", 1, "orchestrator-a@r1")
    argv = attach_argv(session, "", "C-b", OURS, "t", write=False, environ={})
    assert argv[argv.index("attach-session"):] == ["attach-session", "-r", "-t", "$3"]
    assert "-r" not in attach_argv(session, "", "C-b", OURS, "t", write=True, environ={})
    assert argv[:3] == ["env", "-u", "TMUX"]
