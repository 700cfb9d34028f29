"""Keys of a terminal emulator, as they are given to a pane's program."""

from __future__ import annotations

import pytest

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
