"""Text for the user's terminal: sanitize it, measure it, fit and wrap it to a width.

Reasons, labels and log tails are written by agents and count as hostile: `clean` removes escape sequences, control
characters and changes of writing direction; `OutputFilter` removes all but colours from what a program prints. Widths
are in columns: a wide character has two, a combining one none.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SEQUENCES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor, modes
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-~]?")
"""Linear time: of a string that is not terminated before the next one, only the start is removed."""
_CONTROLS = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_HIDDEN = re.compile("[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
                     "\ufeff\U000e0000-\U000e0fff]|\r(?!\n)")
_HIDDEN_ONES = re.compile(f"(?:{_HIDDEN.pattern})+")
_OBEYED = re.compile(f"\x1b\\[[0-9;:]*m|{_HIDDEN.pattern}")
"""Pattern of `spell_obeyed`: a change of colours first, which it keeps."""
_CONCEALED = re.compile(r"\x1b\[(?:[0-9;:]*[;:])?0*8m|\x1b\[0*8[;:]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_SPACES = re.compile("[\\s\x1c-\x1f\x85\u2028\u2029]+")

_HARMLESS = re.compile(rb"\x1b\[[0-9;:]*[mK]")
_SEQUENCES_IN_BYTES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\|(?=\n))|\x1b[ -/]+[0-~]|\x1b[0-Z\\`-~]"
    rb"|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xaa-\xae]|\xe2\x81[\xa6-\xa9]|[\x00-\x06\x0b-\x0c\x0e-\x1a\x1c-\x1f\x7f]")
_UNFINISHED = re.compile(rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\n]{0,4096}\x1b?|[ -/]*)?"
                         rb"|\xc2|\xd8|\xe2[\x80\x81]?)\Z")


class OutputFilter:
    """Filter of a program's output for a terminal, block by block: only colours pass of what a terminal obeys.

    Agents' output counts as hostile: a sequence may change the clipboard or the title, or make the terminal type.
    """

    def __init__(self) -> None:
        self._rest = b""

    def filter(self, block: bytes) -> bytes:
        """Return the part of the output so far that may be shown; an unfinished sequence is kept back."""
        block = self._rest + block
        unfinished = _UNFINISHED.search(block)
        end = unfinished.start() if unfinished else len(block)
        self._rest = block[end:]
        return _SEQUENCES_IN_BYTES.sub(_keep_harmless, block[:end])


def _keep_harmless(found: re.Match[bytes]) -> bytes:
    return found[0] if _HARMLESS.fullmatch(found[0]) else b""


def clean(text: str) -> str:
    """Return `text` as one line without escape sequences and control characters, runs of blanks collapsed."""
    text = _SEQUENCES.sub("", _SPACES.sub(" ", text))
    return _SPACES.sub(" ", _SURROGATES.sub("\ufffd", _CONTROLS.sub("", text))).strip()


def clean_lines(text: str) -> list[str]:
    """Return the lines of `text` without escape sequences and control characters; `\\r` starts a line too.

    Indentation and tabs are kept, blank lines at the end dropped.
    """
    text = _SEQUENCES.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    lines = [_SURROGATES.sub("\ufffd", _CONTROLS.sub("", line))
             for line in re.split("[\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]", text)]
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def list_some(names: Sequence[str], most: int) -> str:
    """Return names in a line, and how many more than `most` there are: `a, b and 3 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def shorten(line: str, limit: int) -> str:
    """Return a line of at most `limit` characters; a longer one keeps its start and its last `end` characters."""
    end = limit // 3
    return line if len(line) <= limit else f"{line[:limit - end - 1].rstrip()}…{line[-end:].lstrip()}"


def spell_hidden(text: str) -> str:
    """Return `text` with each character that a terminal would interpret or hide spelled out, as `‹U+001B›`.

    For text that the user must judge: `clean` removes an escape sequence with its content.
    """
    return _HIDDEN_ONES.sub(lambda found: "".join(map(_spelled, found[0])), text)


@cache
def _spelled(char: str) -> str:
    return f"‹U+{ord(char):04X}›"


def spell_obeyed(text: str) -> str:
    """Return `text` as `spell_hidden` does, but keep its colours, except those that hide text."""
    def spell(found: re.Match[str]) -> str:
        if found[0].endswith("m") and len(found[0]) > 1:
            return "" if _CONCEALED.match(found[0]) else found[0]
        return spell_hidden(found[0])

    return text if text.isascii() and text.isprintable() else _OBEYED.sub(spell, text)


def spell_name(name: str) -> str:
    """Return the name of a file as `spell_hidden` does, with tabs and line breaks also spelled out: `‹U+000A›`."""
    return re.sub("[\t\n\r]", lambda found: _spelled(found[0]), spell_hidden(name))


def format_size(count: int, least: str = "B") -> str:
    """Return a readable size: 812 B, 4.2 kB, 17 MB; `least` is the unit for single bytes. Pure."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} {least}"


def width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_columns, text))


@cache
def _columns(character: str) -> int:
    import unicodedata

    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1


def fit(text: str, columns: int) -> str:
    """Cut `text` with `…` so that it takes at most `columns`."""
    if width(text) <= columns:
        return text
    if columns <= 0:
        return ""
    return _head(text, columns - 1) + "…"


def _head(text: str, columns: int) -> str:
    """Return the longest prefix of `text` that takes at most `columns`."""
    used = 0
    for position, character in enumerate(text):
        used += _columns(character)
        if used > columns:
            return text[:position]
    return text


def pad(text: str, columns: int) -> str:
    """Pad `text` with blanks up to `columns`."""
    return text + " " * (columns - width(text))


def wrap(text: str, columns: int) -> list[str]:
    """Break `text` into lines of at most `columns` (at least 2), at blanks, or within a wider word.

    A command in backticks that fits in a line is not broken, so that it can be copied.
    """
    lines = [""]
    for word in _words(text, columns):
        for part in _parts(word, max(2, columns)):
            joined = f"{lines[-1]} {part}" if lines[-1] else part
            if width(joined) <= columns:
                lines[-1] = joined
            else:
                lines.append(part)
    return [line for line in lines if line]


def _words(text: str, columns: int) -> Iterator[str]:
    held: list[str] = []
    is_open = False
    for word in text.split(" "):
        held.append(word)
        is_open ^= word.count("`") % 2 == 1
        if not is_open:
            joined = " ".join(held)
            yield from [joined] if width(joined) <= columns else held
            held = []
    yield from held


def _parts(word: str, columns: int) -> Iterator[str]:
    begin = used = 0
    for position, character in enumerate(word):
        if used + _columns(character) > columns:
            yield word[begin:position]
            begin, used = position, 0
        used += _columns(character)
    yield word[begin:]
