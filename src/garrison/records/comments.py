"""Comments of the user on lines of an attempt's work, as stored with the review in the merge queue's journal.

They stay with their attempt. The outcome of a comment is not recorded: it is read from the next attempt
(`views/comments.py`).
"""

from __future__ import annotations

from garrison.records.record import Record


class ReviewComment(Record):
    """A comment on lines of the newer file, or with a negative `line` of the file before the change."""

    path: str
    """Name of the file, as git has it."""
    line: int
    text: str
    last: int = 0
    """Last line of a range, with the same sign; 0 for a single line."""
    quoted: tuple[str, ...] = ()
    """Text of the first of these lines, each cut to a limit."""

    @property
    def lines(self) -> range:
        """Return the numbers of its lines, without their sign."""
        return range(abs(self.line), max(abs(self.line), abs(self.last)) + 1)


def comment_id(number: int) -> str:
    """Return the id with which an agent answers the comment of that number, from 1, of the previous attempt."""
    return f"comment-{number}"
