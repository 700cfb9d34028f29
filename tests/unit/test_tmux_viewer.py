"""Keys of a terminal emulator, as they are given to a pane's program."""

from __future__ import annotations

import pytest

from garrison.system.tmux_viewer import Keys, read_keys


@pytest.mark.parametrize(("typed", "keys"), [
    ("", []),
    ("hé;\x03", [Keys("hé;\x03")]),
    ("a\x1bOA\x1b[Db", [Keys("a"), Keys(name="Up"), Keys(name="Left"), Keys("b")]),
    ("\x1b", [Keys("\x1b")]),
    ("\x1b[3~", [Keys("\x1b[3~")]),
    ("x\0", [Keys("x"), Keys(name="C-Space")]),
    ("1\x1b[200~a\n\x1b[A\x1b[201~\r", [Keys("1"), Keys(pasted="a\n\x1b[A"), Keys("\r")]),
    ("\x1b[200~open", [Keys("\x1b[200~open")]),
])
def test_cursor_keys_have_names_and_a_paste_stays_whole(typed: str, keys: list[Keys]) -> None:
    assert list(read_keys(typed)) == keys
