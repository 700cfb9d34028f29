"""Keys that a terminal emulator sends to a pane's program, and keys that detach from a session."""

from __future__ import annotations

import pytest

from garrison.system.terminal import TerminalSession
from garrison.system.tmux import attach_argv, bound, detach_keys, status_format
from garrison.system.tmux_viewer import TypedKeys, read_keys


@pytest.mark.parametrize(("typed", "keys"), [
    ("", []),
    ("hé;\x03", [TypedKeys("hé;\x03")]),
    ("a\x1bOA\x1b[Db", [TypedKeys("a"), TypedKeys(name="Up"), TypedKeys(name="Left"), TypedKeys("b")]),
    ("\x1b", [TypedKeys("\x1b")]),
    ("\x1b[3~", [TypedKeys("\x1b[3~")]),
    ("x\0", [TypedKeys("x"), TypedKeys(name="C-Space")]),
    ("1\x1b[200~a\n\x1b[A\x1b[201~\r", [TypedKeys("1"), TypedKeys(pasted="a\n\x1b[A"), TypedKeys("\r")]),
    ("\x1b[200~open", [TypedKeys("\x1b[200~open")]),
])
def test_cursor_keys_have_names_and_a_paste_stays_whole(typed: str, keys: list[TypedKeys]) -> None:
    assert list(read_keys(typed)) == keys


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
def test_the_keys_that_detach(prefix: str, bindings: list[str], outer: tuple[str, list[str]] | None,
                              keys: str) -> None:
    assert detach_keys(prefix, bindings, outer) == keys
    assert bound(["bind-key -T prefix e display detach-client", *OURS], "detach-client") == "d", "an exact binding"


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
