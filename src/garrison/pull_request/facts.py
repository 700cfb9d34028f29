"""Facts about a run's pull request, as one look at forge and repository found them, and steps to take there. Pure.

The forge is asked for everything at once; `policy.py` decides the next step from these facts and
the journal, and after each step the forge is asked again. So every step is looked for before it is taken.
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
    """It lost the commit that garrison pushed last: somebody forced another onto it."""


class CheckResult(StrEnum):
    """Result of a check on the pull request's head."""

    PENDING = "pending"
    PASSED = "passed"
    FAILED = "failed"


ISSUE = "issue-"
"""Beginning of the id of the run's issue, as a comment: its author has edited it."""


def hash_words(text: str) -> str:
    """Return what tells a text from others, whatever white space a forge makes of it."""
    return hashlib.sha256(" ".join(text.split()).encode(errors="replace")).hexdigest()[:8]


class CommitCheck(Value):
    """A check that reported, or is expected to, on one commit."""

    name: str
    result: CheckResult
    commit: str
    log: str = ""
    """End of its log or summary, of a failed one."""
    url: str = ""
    owner: str = ""
    """Node that is to mend it."""

    @property
    def id(self) -> str:
        """Identifies this result: a check that fails again on another commit is another one."""
        return f"check:{self.name}@{self.commit}"

    @property
    def key(self) -> str:
        """Identify what it says: the same as its result."""
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
    """Where its line was, if it is not a line of the file any more."""
    before: tuple[tuple[str, str], ...] = ()
    """Author and text of what was said before it in its conversation, by garrison and those who are heard."""

    @property
    def key(self) -> str:
        """Identify its present text: an edited comment is another one."""
        return f"{self.id}@{hash_words(self.text)}"

    @property
    def asks(self) -> bool:
        """Return whether it asks for work: others are shown to an agent, and send nobody back."""
        return bool(self.path) or self.requests_changes or self.is_addressed


class MergeFacts(Value):
    """A merge that the forge reports, as the repository sees it."""

    commit: str
    on_base: bool
    """True if the base has that commit."""
    tree: str = ""
    parent: str = ""
    """The base before it; '' if that is unknown."""
    ahead: str = ""
    """Commit that was merged, if it is the run's with commits of people on top."""


class Facts(Value):
    """What one look found."""

    relation: Relation
    head: str
    """Tip of the branch on the forge, '' if there is none."""
    base: str
    """Tip of the base on the forge."""
    number: int = 0
    """0: there is no pull request of this branch."""
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
    """Authors whose approval is of an older head."""
    objections: tuple[str, ...] = ()
    """Authors whose latest review requests changes."""
    reviews: tuple[GivenReview, ...] = ()
    """The last word of each who reviewed, but garrison itself."""
    published: str = ""
    """State of garrison's own status on the head: pending, success, failure or ''."""
    tip: str = ""
    """Tip of the run's branch with which `relation` was found; '' if the branch is gone here."""
    requires_checks: bool = False
    """True if the base's protection names checks: each of them is among `checks`, whether it has reported or not."""
    required_approvals: int = 0
    """Approvals without which the forge itself does not merge."""
    is_on_base: bool = False
    """True if the base has the run's branch already."""
    other_base: str = ""
    """Branch that somebody made the base instead of the run's."""
    auto_merge: bool = False
    """True if the forge merges it by itself once its rules are met; only with `MergeRule.AUTO`."""
    renamed: str = ""
    """With no `base`: what its branch is called now, as far as the forge tells."""
    issue_gone: str = ""
    """What happened to the issue of the run, which is no longer to be worked on; '' for nothing."""
    unresolved: int = 0
    """Conversations that somebody has to resolve, where the base requires that; else 0."""
    requires_resolved: bool = False

    def reports(self) -> PullRequestReports | None:
        """Return checks and reviews for the user; None if this look read none, as of a request that is not open."""
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
    """Say why the run failed, and make it a draft again."""


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
