"""Comments of the user on lines of a change, as the reason of its rejection.

The next attempt gets file, line, the line's text as git has it, and the comment. The text was written by an agent,
so it is quoted; file and line are looked up, never taken from whoever sends the comment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.agents.quotation import mention, path_name
from garrison.errors import NotFound, UsageError
from garrison.values import Value
from garrison.views.diff import changed_files, read_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from garrison.system.git import Git
    from garrison.views.changes import Change
    from garrison.views.diff import FileChange

MAX_COMMENTS = 50
"""Most comments of one rejection."""
REASON_CHARACTERS = 12_000
"""Longest reason with its comments."""
QUOTED = 200
"""Characters of a line that are quoted."""


class Comment(Value):
    """A comment on a line of the newer file, or with a negative number on one of the older file."""

    path: str
    line: int
    text: str


def parse_place(place: str) -> tuple[str, int]:
    """Return file and line of `FILE:LINE`; UsageError."""
    path, _, number = place.rpartition(":")
    if not path or not number.removeprefix("-").isdecimal() or int(number) == 0:
        raise UsageError(f"{place!r:.80} names no line: pass FILE:LINE, or FILE:-LINE for a line that was removed")
    return path, int(number)


def find_file(files: Sequence[FileChange], path: str) -> FileChange:
    """Return the changed file of a path, the old one of a renamed file too; NotFound."""
    found = next((file for file in files if path in (file.path, file.old_path)), None)
    if found is None:
        raise NotFound(f"{path!r:.120} was not changed; `garrison review` lists the changed files")
    return found


def compose_reason(git: Git, change: Change, note: str, comments: Sequence[Comment]) -> str:
    """Return the reason of a rejection: the note, then each comment with its line; UsageError, NotFound."""
    if not comments:
        return note.strip()
    if len(comments) > MAX_COMMENTS:
        raise UsageError(f"a rejection has at most {MAX_COMMENTS} comments")
    files = changed_files(git, change.base, change.head)
    parts = [note.strip() or f"see {'the comment' if len(comments) == 1 else f'the {len(comments)} comments'}", ""]
    for comment in comments:
        if not comment.text.strip():
            raise UsageError(f"the comment on {comment.path}:{comment.line} is empty")
        file = find_file(files, comment.path)
        quoted = mention(read_line(git, file, comment.line), QUOTED) or "(an empty line)"
        where = f"line {abs(comment.line)}" + (" before the change" if comment.line < 0 else "")
        text = comment.text.strip().replace("\n", "\n  ")
        parts.append(f"- {path_name(file.path)}, {where}: {quoted}\n  {text}")
    reason = "\n".join(parts)
    if len(reason) > REASON_CHARACTERS:
        raise UsageError(f"the reason with its comments has {len(reason)} characters; at most {REASON_CHARACTERS}")
    return reason
