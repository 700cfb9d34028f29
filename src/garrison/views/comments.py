"""Comments of the user on lines of an attempt's work: recorded with a judgement, and handled by the next attempt.

The next attempt gets file, lines, their text from git, and the comment. The text was written by an agent, so it is
quoted; file and lines are looked up, never taken from the sender of the comment. `judge` derives the state of a comment
from the lines that the next attempt changed and the answer of its agent.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING

from garrison.agents.quotation import mention, path_name
from garrison.errors import NotFound, UsageError
from garrison.records.comments import ReviewComment, comment_id
from garrison.system.terminal_text import spell_hidden, spell_name
from garrison.values import Value, replace
from garrison.views.diff import CommitRange, FileChange, changed_files, changed_ranges, is_absent, read_lines

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.system.git import Git

MAX_COMMENTS = 50
"""Maximum number of comments of one judgement."""
REASON_CHARACTERS = 12_000
"""Maximum length of a reason with its comments."""
QUOTED, QUOTED_LINES = 200, 12
"""Maximum quoted length of a line, and number of lines of a comment."""
_PLACE = re.compile(r"(?P<path>.+):(?P<sign>-?)(?P<line>[1-9]\d{0,8})(?:-(?P<last>[1-9]\d{0,8}))?", re.DOTALL)


# ---- comments of a judgement ----------------------------------------------------------------------------------------


def parse_comment(place: str, text: str) -> ReviewComment:
    """Return the comment on `FILE:LINE`, `FILE:LINE-LINE`, or on removed lines with `FILE:-LINE`; UsageError."""
    found = _PLACE.fullmatch(place)
    if found is None:
        raise UsageError(f"{place!r:.80} names no line: pass FILE:LINE or FILE:LINE-LINE, or FILE:-LINE for a line "
                         "that was removed")
    sign = -1 if found["sign"] else 1
    first, last = sorted((int(found["line"]), int(found["last"] or found["line"])))
    return ReviewComment(found["path"], sign * first, text, sign * last if last > first else 0)


def find_file(git: Git, change: CommitRange, files: Sequence[FileChange], path: str) -> FileChange:
    """Return the file of a path: a changed one (a renamed file also by its old path), or another of the attempt's tree;
    NotFound.
    """
    found = next((file for file in files if path in (file.path, file.old_path)), None)
    if found is not None:
        return found
    # literal: the path comes from a browser, and git takes `:(glob)*` as a pattern
    listed = git.run("--literal-pathspecs", "ls-tree", "-z", change.head, "--", path, check=False).out.split("\0")[0]
    facts, _, name = listed.partition("\t")
    if name != path or facts.split(" ")[1:2] != ["blob"]:
        raise NotFound(f"attempt {change.attempt} of {change.node} has no file {path!r:.120}; `garrison review "
                       f"{change.node}` lists the changed files")
    blob = facts.split(" ")[2]
    return FileChange(path, "unchanged", old_blob=blob, new_blob=blob)


def take_comments(git: Git, change: CommitRange, given: Sequence[ReviewComment]) -> tuple[ReviewComment, ...]:
    """Return the comments with their lines from git; UsageError, NotFound for a missing file or line.
    """
    if len(given) > MAX_COMMENTS:
        raise UsageError(f"a judgement has at most {MAX_COMMENTS} comments")
    files = changed_files(git, change.base, change.head) if given else ()
    taken = []
    for comment in given:
        if not comment.text.strip():
            raise UsageError(f"the comment on {comment.path}:{comment.line} is empty")
        file = find_file(git, change, files, comment.path)
        lines = read_lines(git, file, comment.line, comment.last or comment.line)
        quoted = tuple(line[:QUOTED] for line in lines[:QUOTED_LINES])
        taken.append(replace(comment, path=file.path, text=comment.text.strip(), quoted=quoted))
    return tuple(taken)


def compose_reason(note: str, comments: Sequence[ReviewComment]) -> str:
    """Return the reason for the next attempt: the note, then each comment with its lines; UsageError if too long.
    """
    if not comments:
        return note.strip()
    parts = [note.strip() or f"see {'the comment' if len(comments) == 1 else f'the {len(comments)} comments'}", ""]
    parts += [_told(number, comment) for number, comment in enumerate(comments, 1)]
    reason = "\n".join(parts)
    if len(reason) > REASON_CHARACTERS:
        raise UsageError(f"the reason with its comments has {len(reason)} characters; at most {REASON_CHARACTERS}")
    return reason


def describe_lines(comment: ReviewComment) -> str:
    """Return the comment's lines in words."""
    lines = comment.lines
    words = f"line {lines[0]}" if len(lines) == 1 else f"lines {lines[0]} to {lines[-1]}"
    return words + (" before the change" if comment.line < 0 else "")


def _told(number: int, comment: ReviewComment) -> str:
    quoted = [mention(line, QUOTED) or "(an empty line)" for line in comment.quoted]
    more = len(comment.lines) - len(quoted)
    quoted += [f"(and {more} more)"] if more > 0 else []
    at = f"- {comment_id(number)}, {path_name(comment.path)}, {describe_lines(comment)}:"
    lines = [f"{at} {quoted[0]}"] if len(quoted) == 1 else [at, *(f"  {line}" for line in quoted)]
    return "\n".join([*lines, *(f"  {line}" for line in comment.text.split("\n"))])


# ---- state of comments ----------------------------------------------------------------------------------------------


class CommentState(StrEnum):
    """State of a comment after the next attempt."""

    WAITING = "waiting"
    """The next attempt has no work yet."""
    OPEN = "open"
    """Its lines are unchanged, and the agent has not answered."""
    OUTDATED = "outdated"
    """Its lines were changed."""
    ANSWERED = "answered"
    """The agent answered it, whether or not it changed the lines."""


class ShownComment(Value):
    """Comment for users, its names and lines spelled out."""

    id: str
    """Its id among the comments of the node: attempt and number."""
    attempt: int
    path: str
    line: int
    last: int
    place: str
    """Its lines in words."""
    quoted: list[str]
    text: str
    state: CommentState
    answer: str = ""
    """Answer of the next attempt's agent."""


def judge(comment: ReviewComment, changed: Sequence[range] | None, answer: str) -> CommentState:
    """Derive the state of a comment. Pure.

    Args:
        changed: lines of the commented file that the next attempt changed; an insertion is the empty range after its
            preceding line; None without a next attempt.
        answer: answer of the next attempt's agent.
    """
    if changed is None:
        return CommentState.WAITING
    if answer.strip():
        return CommentState.ANSWERED
    own = comment.lines
    if comment.line < 0:  # a removed line changes by being restored
        removed = {number for span in changed for number in span}
        return CommentState.OPEN if removed.issuperset(own) else CommentState.OUTDATED
    hit = any(span.start < own.stop and own.start < span.stop if span else own.start <= span.start < own.stop - 1
              for span in changed)
    return CommentState.OUTDATED if hit else CommentState.OPEN


def show_comments(git: Git, change: CommitRange, comments: Sequence[ReviewComment], following: CommitRange | None,
                  answers: Mapping[str, str]) -> list[ShownComment]:
    """Return the comments on an attempt, with their state after the `following` one; GitError if commits are gone.

    Args:
        answers: answers of the following attempt's agent, by `comment_id`.
    """
    # by the older name: a comment follows a file that the next attempt renamed
    now = {file.old_path or file.path: file for file in changed_files(git, change.head, following.head)} \
        if following is not None and comments else {}
    before = {file.path: file for file in changed_files(git, change.base, change.head)} if comments else {}
    shown = []
    for number, comment in enumerate(comments, 1):
        answer = answers.get(comment_id(number), "") if following is not None else ""
        changed = None if following is None else _changed(git, comment, before.get(comment.path), now.get(comment.path))
        shown.append(ShownComment(
            f"{change.attempt}-{number}", change.attempt, spell_name(comment.path), comment.line, comment.last,
            describe_lines(comment), [spell_hidden(line) for line in comment.quoted], comment.text,
            judge(comment, changed, answer), spell_hidden(answer)))
    return shown


def _changed(git: Git, comment: ReviewComment, before: FileChange | None, now: FileChange | None) -> list[range]:
    """Return the lines of a commented file that the following attempt changed."""
    if comment.line > 0:
        return [] if now is None else changed_ranges(git, now.old_blob, now.new_blob)
    if before is None or is_absent(before.old_blob):
        return []
    return changed_ranges(git, before.old_blob, now.new_blob if now is not None else before.new_blob)
