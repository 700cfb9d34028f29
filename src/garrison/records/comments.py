"""Comments of the user on lines of an attempt's work, as the merge queue's journal keeps them with the judgement.

They stay with their attempt. What became of one is not recorded: it is read from the next attempt
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
    """Number of the last line of several, of the same sign; 0 for a single line."""
    quoted: tuple[str, ...] = ()
    """The first of these lines, each cut to a bound, as they were."""

    @property
    def lines(self) -> range:
        """Return the numbers of its lines, without their sign."""
        return range(abs(self.line), max(abs(self.line), abs(self.last)) + 1)


def comment_id(number: int) -> str:
    """Return the id by which an agent answers the comment of that number, from 1, of the attempt before its own."""
    return f"comment-{number}"
