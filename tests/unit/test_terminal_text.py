"""Text for a terminal: cleaning of what agents wrote, and width."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.system import terminal_text
from garrison.system.terminal_text import OutputFilter, clean, clean_lines, fit, spell_hidden, width, wrap

HOSTILE = [
    ("\x1b[31mred\x1b[0m", "red"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1b]52;c;AAAA\x9cclip", "clip"),
    ("\x1bP1$r0m\x1b\\dcs", "dcs"),
    ("\x9b2Jc1", "c1"),
    ("\x1b]0;never ended", "0;never ended"),
    ("\x1b[2J\x1b[H\x1bcgone", "gone"),
    ("a\tb\r\nc  d", "a b c d"),
    ("bell\x07 back\x08space\x00\x7f", "bell backspace"),
    ("\u202egpj.exe\u2066", "gpj.exe"),
    ("\ud800lone", "\ufffdlone"),
    ("\x1b\x1b[0m[31mtwice", "[31mtwice"),
    ("line\u2028two", "line two"),
]


@pytest.mark.parametrize(("text", "words"), HOSTILE)
def test_clean_removes_escape_sequences_and_controls(text: str, words: str) -> None:
    assert clean(text) == words


@given(st.text(st.characters(max_codepoint=0x2100), max_size=60))
def test_no_control_character_passes(text: str) -> None:
    for line in (clean(text), *clean_lines(text)):
        assert all(letter >= " " and not "\x7f" <= letter <= "\x9f" for letter in line.replace("\t", " ")), line


@pytest.mark.parametrize(("text", "spelled"), [
    ("\tplain \u00e9 \u6f22\r\n\n", "\tplain \u00e9 \u6f22\r\n\n"),
    ("\x1b]0;; rm -r x;\x07", "‹U+001B›]0;; rm -r x;‹U+0007›"),
    ("a\rb", "a‹U+000D›b"), ("\u202e\u200b\U000e0041", "‹U+202E›‹U+200B›‹U+E0041›")])
def test_hidden_characters_are_spelled_out(text: str, spelled: str) -> None:
    assert spell_hidden(text) == spelled
    assert clean_lines(spelled) == spelled.replace("\r", "").rstrip("\n").split("\n")


def test_a_file_name_becomes_one_line_and_lines_keep_their_indentation() -> None:
    assert terminal_text.spell_name("a\tb\n.py\u202e\x1b[2J") == "a‹U+0009›b‹U+000A›.py‹U+202E›‹U+001B›[2J"
    assert clean_lines("one\r\n  \x1b[1mtwo\x1b[0m\n10%\r20%\n\n") == ["one", "  two", "10%", "20%"]


def test_width_is_counted_in_columns() -> None:
    assert (width("abc"), width("日本"), width("e\u0301")) == (3, 4, 1)
    assert [fit("日本語", columns) for columns in (6, 5, 4, 1, 0)] == ["日本語", "日本…", "日…", "…", ""]
    assert terminal_text.pad("日", 4) == "日  "


def test_a_command_stays_on_one_line_if_it_fits() -> None:
    assert wrap("it failed: `a b --c d` tries again", 20) == ["it failed:", "`a b --c d` tries", "again"]
    assert wrap("it failed: `a b --c d` tries", 9) == ["it", "failed:", "`a b --c", "d` tries"]


@given(st.text("ab日 e\u0301-`", max_size=80), st.integers(4, 20))
def test_wrapped_lines_fit_and_are_complete(text: str, columns: int) -> None:
    lines = wrap(text, columns)
    assert all(width(line) <= columns for line in lines)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("printed, shown", [
    (b"\x1b[1;31mred\x1b[0m\x1b[K\n", b"\x1b[1;31mred\x1b[0m\x1b[K\n"),
    (b"a\x1b]52;c;ZXZpbA==\x07b", b"ab"),
    (b"a\x1b]0;title\x1b\\b\x1bP$q\x1b\\c", b"abc"),
    (b"a\x1b[2J\x1b[6n\x1b[c\x1bcb\x9b\x0e", b"ab\x9b"),
    (b"a\x1b]unfinished\nb", b"a\nb"),
    ("ü \u009b5n x".encode(), "ü 5n x".encode()),
    (b"10%\r20%\r\n\ttab", b"10%\r20%\r\n\ttab"),
])
def test_only_colours_in_the_output_of_a_program_reach_a_terminal(printed: bytes, shown: bytes) -> None:
    """Regression: `garrison logs` passed on an agent's order to change the clipboard."""
    assert OutputFilter().filter(printed) == shown
    byte_by_byte = OutputFilter()
    assert b"".join(byte_by_byte.filter(printed[at:at + 1]) for at in range(len(printed))) == shown
