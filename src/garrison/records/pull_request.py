"""Pull request of a run: its states, what the guardian's journal stores, and the reports of the last poll.

The forge is the authority on the pull request; the journal stores what the forge does not know: which commit was pushed
last, which comments a node was sent back for, and what was reported to the user. Checks and reviews are stored only for
views, in a file that the next poll replaces: nothing is decided by them later.
"""

from __future__ import annotations

from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from garrison.errors import ForbiddenTransition, RecordError
from garrison.records import atomic
from garrison.records.record import Record, decode
from garrison.values import Value

if TYPE_CHECKING:
    from pathlib import Path


class PullRequestState(StrEnum):
    """State of a run's pull request."""

    PUSHING = "pushing"
    DRAFT = "draft"
    """It is open as a draft until the run's own gate has passed."""
    WAITING_FOR_CHECKS = "waiting for checks"
    WAITING_FOR_REVIEW = "waiting for review"
    REWORKING = "reworking"
    """A node works on a red check or on comments."""
    READY_TO_MERGE = "ready to merge"
    MERGING = "merging"
    MERGED = "merged"
    CLOSED = "closed"
    """The user closed it without a merge."""
    HELD_UP = "held up"
    """It waits for the user, for the reason that is recorded."""


_S = PullRequestState
_OPEN = frozenset({_S.PUSHING, _S.DRAFT, _S.WAITING_FOR_CHECKS, _S.WAITING_FOR_REVIEW, _S.READY_TO_MERGE})
_ANYONE = frozenset({_S.MERGED, _S.CLOSED, _S.HELD_UP})
"""States that users can put it into at any time."""

TRANSITIONS: dict[PullRequestState, frozenset[PullRequestState]] = {
    _S.PUSHING: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
    _S.DRAFT: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
    _S.WAITING_FOR_CHECKS: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
    _S.WAITING_FOR_REVIEW: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
    _S.REWORKING: _OPEN | _ANYONE | {_S.MERGING},
    _S.READY_TO_MERGE: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
    _S.MERGING: _OPEN | _ANYONE | {_S.REWORKING},
    _S.MERGED: frozenset({_S.HELD_UP}),
    _S.CLOSED: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
    _S.HELD_UP: _OPEN | _ANYONE | {_S.REWORKING, _S.MERGING},
}
"""State → the states that may follow; it leaves `closed` and `blocked` when users reopen or repair it."""


def check_transition(old: str, new: str) -> None:
    """Raise ForbiddenTransition unless a pull request may go from state `old` ('' before the first) to `new`."""
    if old and old != new and PullRequestState(new) not in TRANSITIONS[PullRequestState(old)]:
        raise ForbiddenTransition("the pull request", old, new, TRANSITIONS[PullRequestState(old)])


NO_AUTO = NOT_READY = "none"
"""Value that revokes `auto` or `ready` in a record, where an empty field means no change."""


class PullRequest(Record):
    """The journal's state of a run's pull request; `state` is '' before the first step."""

    state: str = ""
    number: int = 0
    url: str = ""
    head: str = ""
    """Commit last seen as the tip of the branch on the forge, pushed by garrison or merged in."""
    ready: str = ""
    """Tested commit for which it was marked as ready for review; `NOT_READY` once garrison made it a draft again."""
    auto: str = ""
    """Tested commit for which the forge's auto-merge was seen on; `NO_AUTO` once garrison has withdrawn it."""
    reason: str = ""
    since: str = ""
    """Time of the last change of state, UTC."""
    taken: dict[str, int] = msgspec.field(default_factory=dict)
    """Id of a check or comment that a node was sent back for → the landing's attempt at that time."""
    returns: dict[str, int] = msgspec.field(default_factory=dict)
    """Node → number of times it was sent back since the user resumed the run."""
    owners: dict[str, str] = msgspec.field(default_factory=dict)
    """Key of a comment → the node that was sent back for it."""
    heads: dict[str, str] = msgspec.field(default_factory=dict)
    """Key of a comment → the head at that time."""
    told: str = ""
    """The failure of the run that was last reported on the forge."""

    def describe(self) -> str:
        """Describe what it waits for; '' before the first step."""
        if not self.state:
            return ""
        name = f"pull request #{self.number}" if self.number else "the pull request"
        return f"{name}: {_WORDS.get(PullRequestState(self.state), self.state)}" + (
            f" ({without_number(self.reason, self.number)})" if self.reason else "")

    def may_stay(self, node: str, landing: int) -> bool:
        """Return whether a node need not change anything in its present attempt, since it was sent back for comments or
        checks: a comment may ask a question, and a check may be red by chance.

        Args:
            landing: number of the landing that was tested last.
        """
        return any(owner == node and self.taken.get(key) == landing for key, owner in self.owners.items())

    @property
    def needs_person(self) -> bool:
        return self.state in (_S.HELD_UP, _S.WAITING_FOR_REVIEW, _S.READY_TO_MERGE)

    def waits_for(self) -> str:
        """Return what the run waits for, '' while garrison itself is working on it."""
        number = f"#{self.number}" if self.number else "the pull request"
        why = f" ({self.reason})" if self.reason else ""
        match self.state:
            case _S.WAITING_FOR_REVIEW:
                return f"review of {number}{why}"
            case _S.WAITING_FOR_CHECKS:
                return f"checks of {number}{why}"
            case _S.READY_TO_MERGE:
                return f"you to merge {number}"
            case _S.HELD_UP:
                return f"you: {number} is held up: {self.reason}"
            case _S.CLOSED | _S.MERGED | _S.REWORKING:
                return ""
        return f"the forge: {self.reason}" if self.reason else ""


def without_number(reason: str, number: int) -> str:
    """Return a reason without the number of the request, where that is already shown."""
    return reason.replace(f"pull request #{number}: ", "", 1)


_WORDS = {_S.PUSHING: "its branch is pushed", _S.DRAFT: "a draft until the gate has passed",
          _S.READY_TO_MERGE: "ready to merge"}
"""State → its description, where that is not its own word."""


class ReportedCheck(Value):
    """A check of the pull request's head, as the forge last reported it."""

    name: str
    result: str
    """`pending`, `passed` or `failed`."""
    url: str = ""

    def describe(self) -> str:
        return f"check {self.name}: {self.result}{f' {self.url}' if self.url else ''}"


class GivenReview(Value):
    """The last review of one reviewer."""

    author: str
    word: str
    """`approved`, `changes requested`, `comment` or `dismissed`."""
    is_outdated: bool = False
    """True for an approval of an older head, which no longer counts."""
    counts: bool = True
    """False if its author may not write to the repository."""

    def describe(self) -> str:
        remark = "of an older commit" if self.is_outdated else "" if self.counts else "without write permission"
        return f"review by {self.author}: {self.word}{f', {remark}' if remark else ''}"


class PullRequestReports(Value):
    """Checks and reviews from the last poll of an open pull request (`runs/RUN/forge/reports.json`)."""

    checks: tuple[ReportedCheck, ...] = ()
    reviews: tuple[GivenReview, ...] = ()


def reports_file(root: Path) -> Path:
    """Return the path of the reports; `root` is the run's folder."""
    return root / "forge" / "reports.json"


def read_reports(root: Path) -> PullRequestReports:
    """Return the reports of the last poll; none if the file is unreadable or absent, as in older homes."""
    path = reports_file(root)
    with suppress(RecordError, OSError):
        return decode(PullRequestReports, atomic.read(path) or b"{}", path)
    return PullRequestReports()
