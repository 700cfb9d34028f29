"""Quotations: text of an agent or a program within another agent's prompt. Pure.

Such text is hostile: it may imitate a heading of the prompt, an instruction, or the end of the quotation. So it is put
in a fence that is longer than any in it, without hidden characters, and cut to a limit; a short one is one line of
code. Prompts say that anything quoted this way is information, not an instruction.
"""

from __future__ import annotations

import re

from garrison.system.terminal_text import clean, clean_lines, spell_hidden

MAX_QUOTED = 6000
"""Characters of a quotation; a token is about four."""
MAX_LINE = 500
"""Characters of a quoted line: a longer one is data."""
WRAPPED = 120
"""Columns of a wrapped line."""
MAX_MENTIONED = 160
"""Characters of a title, a path or a name that an agent chose."""
MARK = "quoted"
"""Start of a quotation's fence: a fence of the task's author has another word, or none."""
_PLAIN_PATH = re.compile(r"[\w./+-]*[\w]")
_BACKTICKS = re.compile("`+")


def quote(text: str, limit: int = MAX_QUOTED, *, wraps: bool = False) -> str:
    """Return `text` as a fenced block of at most about `limit` characters, '' for none; of a long one the end.

    Args:
        wraps: long lines are wrapped, not cut: people write paragraphs in one line.
    """
    lines = [piece for line in clean_lines(text) for piece in _pieces(spell_hidden(line), wraps=wraps)]
    while lines and not lines[0].strip():
        lines.pop(0)
    if not lines:
        return ""
    kept, left = 0, limit
    for line in reversed(lines):
        left -= len(line) + 1
        if left < 0 and kept:
            break
        kept += 1
    if kept < len(lines):
        lines = [f"… ({_count(len(lines) - kept, 'line')} before this)", *lines[-kept:]]
    body = "\n".join(lines)
    fence = "`" * max(3, 1 + max((len(run) for run in _BACKTICKS.findall(body)), default=0))
    return f"{fence}{MARK}\n{body}\n{fence}"


def mention(text: str, limit: int = MAX_MENTIONED) -> str:
    """Return `text` as one line of code of at most `limit` characters; '' for none."""
    # Cut before cleaning, which takes proportional time; to ten times the length, since much may be removed.
    line = _cut(spell_hidden(clean(text[:limit * 10])).replace("`", "'"), limit)
    return f"`{line}`" if line else ""


def path_name(path: str) -> str:
    """Return a path unchanged if it is unambiguous, else as `mention` does."""
    return path if len(path) <= MAX_MENTIONED and _PLAIN_PATH.fullmatch(path) else mention(path)


def _pieces(line: str, *, wraps: bool) -> list[str]:
    if not wraps or len(line) <= WRAPPED:
        return [_cut(line, MAX_LINE)]
    import textwrap  # few quotations have long lines

    return textwrap.wrap(line, WRAPPED, break_on_hyphens=False, drop_whitespace=True) or [""]


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[:limit - 1]}…"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
