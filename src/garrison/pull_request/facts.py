"""Facts about a run's pull request from one poll of forge and repository, and steps to take there. Pure.

The forge is asked for everything at once; `policy.py` decides the next step from these facts and
the journal, and after each step the forge is polled again. So each step is checked before it is taken.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

from garrison.records.pull_request import GivenReview, PullRequestReports, ReportedCheck
from garrison.values import Value


class Relation(StrEnum):
    """Relation of the branch on the forge to the run's own branch."""

    ABSENT = "absent"
    SAME = "same"
    BEHIND = "behind"
    """The run's branch has all of it, and more to push."""
    AHEAD = "ahead"
    """Somebody pushed commits onto it."""
    DIVERGED = "diverged"
    """Somebody pushed commits onto it, and the run has others."""
    REWRITTEN = "rewritten"
    """It lost the commit that garrison pushed last: somebody force-pushed another one."""


class CheckResult(StrEnum):
    """Result of a check on the pull request's head."""

    PENDING = "pending"
    PASSED = "passed"
    FAILED = "failed"


ISSUE = "issue-"
"""Prefix of the id of the run's issue, as a comment: its author has edited it."""


def hash_words(text: str) -> str:
    """Return a hash of a text that ignores changes of white space by a forge."""
    return hashlib.sha256(" ".join(text.split()).encode(errors="replace")).hexdigest()[:8]


class CommitCheck(Value):
    """A check that has reported, or is expected to report, on one commit."""

    name: str
    result: CheckResult
    commit: str
    log: str = ""
    """End of its log or summary, for a failed one."""
    url: str = ""
    owner: str = ""
    """Node that should fix it."""

    @property
    def id(self) -> str:
        """Identify this result: a check that fails again on another commit is another one."""
        return f"check:{self.name}@{self.commit}"

    @property
    def key(self) -> str:
        """Identify its content: the same as its result."""
        return self.id


class RequestComment(Value):
    """A comment on the pull request or on a line of it, or the text of a review; never garrison's own."""

    id: str
    author: str
    text: str
    can_write: bool = False
    """True if its author has write permission to the repository."""
    path: str = ""
    line: int = 0
    requests_changes: bool = False
    resolved: bool = False
    answered: bool = False
    """True if garrison has answered it."""
    owner: str = ""
    is_addressed: bool = False
    """True if it names garrison (`@garrison`)."""
    was: str = ""
    """Where its line was, if it is no longer in the file."""
    before: tuple[tuple[str, str], ...] = ()
    """Author and text of earlier comments in its conversation, by garrison and people with a say."""

    @property
    def key(self) -> str:
        """Identify its present text: an edited comment is another one."""
        return f"{self.id}@{hash_words(self.text)}"

    @property
    def asks(self) -> bool:
        """Return whether it asks for work: others are only shown to agents."""
        return bool(self.path) or self.requests_changes or self.is_addressed


class MergeFacts(Value):
    """A merge that the forge reports, checked in the repository."""

    commit: str
    on_base: bool
    """True if the base has that commit."""
    tree: str = ""
    parent: str = ""
    """The base before it; '' if that is unknown."""
    ahead: str = ""
    """Merged commit, if it is the run's with other commits on top."""


class Facts(Value):
    """Findings of one poll."""

    relation: Relation
    head: str
    """Tip of the branch on the forge, '' if there is none."""
    base: str
    """Tip of the base on the forge."""
    number: int = 0
    """0: there is no pull request for this branch."""
    url: str = ""
    is_open: bool = False
    is_draft: bool = False
    merge: MergeFacts | None = None
    body: str = ""
    checks: tuple[CommitCheck, ...] = ()
    comments: tuple[RequestComment, ...] = ()
    approvals: int = 0
    """Reviews that approve this head, or one that differs only by merges of the base, by people with write permission,
    and were not dismissed."""
    outdated: tuple[str, ...] = ()
    """Authors of approvals of an older head."""
    objections: tuple[str, ...] = ()
    """Authors whose latest review requests changes."""
    reviews: tuple[GivenReview, ...] = ()
    """Latest review of each reviewer except garrison itself."""
    published: str = ""
    """State of garrison's own status on the head: pending, success, failure or ''."""
    tip: str = ""
    """Tip of the run's branch at which `relation` was determined; '' if the branch is gone here."""
    requires_checks: bool = False
    """True if the base's protection requires checks: each of them is in `checks`, whether it has reported or not."""
    required_approvals: int = 0
    """Approvals without which the forge itself does not merge."""
    is_on_base: bool = False
    """True if the base already contains the run's branch."""
    other_base: str = ""
    """Branch that somebody set as the base instead of the run's."""
    auto_merge: bool = False
    """True if the forge merges it by itself once its rules are met; only with `MergeRule.AUTO`."""
    renamed: str = ""
    """With no `base`: its branch's new name, if the forge reports one."""
    issue_gone: str = ""
    """What happened to the run's issue so that work on it must stop; '' for nothing."""
    unresolved: int = 0
    """Conversations that must be resolved, if the base requires that; else 0."""
    requires_resolved: bool = False

    def reports(self) -> PullRequestReports | None:
        """Return checks and reviews for the user; None if this poll read none, as for a request that is not open."""
        if not (self.number and self.is_open and self.base) or self.merge is not None:
            return None
        return PullRequestReports(tuple(ReportedCheck(check.name, check.result, check.url) for check in self.checks),
                                  self.reviews)


class StepKind(StrEnum):
    """Kinds of steps at the forge."""

    PUSH = "push"
    OPEN = "open"
    EDIT = "edit"
    READY = "ready"
    TAKE_IN = "take in"
    REPLY = "reply"
    STATUS = "status"
    MERGE = "merge"
    AUTO_MERGE = "auto-merge"
    NO_AUTO_MERGE = "no auto-merge"
    LEAVE = "leave"
    """Comment why the run failed, and make it a draft again."""


class ForgeStep(Value):
    """One step at the forge."""

    kind: StepKind
    head: str = ""
    """Commit that is pushed, marked, merged or taken in."""
    lease: str = ""
    """Commit that the branch on the forge must still have for a push ('' if it must not exist), or the base for a
    merge."""
    text: str = ""
    """garrison's section of the body, answer, or state of a status."""
    comment: str = ""
    """Key of the comment to answer, or of the failure to report."""
    resolves: bool = False
    """True if the answer settles its conversation."""
