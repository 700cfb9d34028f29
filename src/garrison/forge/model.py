"""Records that a forge returns, the same for all forges.

Times are seconds since 1970. Ids are opaque strings of the forge.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from garrison.values import Value, replace


class ForgeKind(StrEnum):
    """Program that a forge runs. `gitea` serves Forgejo too."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"


class Location(Value):
    """A repository on a forge."""

    kind: ForgeKind
    host: str
    """Host name, with its port if that is not the scheme's default."""
    owner: str
    """User, organisation, or groups joined with `/`."""
    name: str
    scheme: str = "https"

    @property
    def path(self) -> str:
        return f"{self.owner}/{self.name}"


class PullState(StrEnum):
    """State of a pull request; GitLab's `locked` is `OPEN`."""

    OPEN = "open"
    CLOSED = "closed"
    MERGED = "merged"


class ForgePullRequest(Value):
    """A pull request, or merge request."""

    number: int
    url: str
    title: str
    """Without the prefix that marks a draft on GitLab and Gitea."""
    body: str
    state: PullState
    draft: bool
    head: str
    """Branch to merge."""
    head_commit: str
    base: str
    labels: tuple[str, ...] = ()
    author: str = ""
    merge_commit: str = ""
    """The commit on the base, once it is merged."""
    auto_merge: bool = False
    """True if the forge will merge it by itself once its rules are met."""
    from_fork: bool = False
    """True if the head is a branch of another repository."""


class CheckState(StrEnum):
    """State of a check of a commit."""

    PENDING = "pending"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Skipped, neutral, or manual: neither for nor against."""


class Check(Value):
    """The newest result of one check (check run, job or commit status) of one commit."""

    name: str
    commit: str
    state: CheckState
    summary: str = ""
    url: str = ""
    log_id: str = ""
    """Argument of `read_check_log`; empty if the forge has no log of it."""
    required: bool | None = None
    """None if the token may not read the base's rules."""


class ReviewVerdict(StrEnum):
    """Verdict of a review."""

    APPROVED = "approved"
    CHANGES = "changes requested"
    COMMENT = "comment"
    DISMISSED = "dismissed"


class Review(Value):
    """A review of a pull request; on GitLab, an approval."""

    id: str
    author: str
    verdict: ReviewVerdict
    text: str = ""
    commit: str = ""
    """The head that was reviewed; empty if the forge does not say."""
    at: float = 0.0
    stale: bool = False
    """True if the forge says that it does not count for the current head."""


class Side(StrEnum):
    """Side of the diff that a comment is on."""

    OLD = "old"
    NEW = "new"


class LineComment(Value):
    """A comment on a line, or a reply to one."""

    id: str
    thread: str
    """Argument of `reply` and `resolve`; the same for all comments of a thread."""
    author: str
    text: str
    path: str
    line: int | None
    """Line of the current diff; None if the line is gone."""
    original_line: int | None = None
    """Line at `commit`."""
    side: Side = Side.NEW
    commit: str = ""
    """The commit that was commented on."""
    resolved: bool = False
    review: str = ""
    """The review that it belongs to, if any."""


class Comment(Value):
    """A comment on a pull request or issue as a whole."""

    id: str
    author: str
    text: str


class Issue(Value):
    """An issue; never a pull request."""

    number: int
    url: str
    title: str
    text: str
    author: str
    open: bool
    labels: tuple[str, ...] = ()


class MergeMethod(StrEnum):
    """How the forge merges."""

    MERGE = "merge"
    SQUASH = "squash"
    REBASE = "rebase"


class ForgeMerge(StrEnum):
    """Outcome of a request to merge."""

    MERGED = "merged"
    """`commit` is on the base, as the forge says: compare its tree with what was tested."""
    QUEUED = "queued"
    """The forge will merge once its rules are met: poll again."""
    REFUSED = "refused"
    """Nothing was merged; `reason` says why."""
    UNKNOWN = "unknown"
    """No answer, and reading did not settle it: read again before anything else."""


class MergeOutcome(Value):
    """Result of a request to merge."""

    result: ForgeMerge
    commit: str = ""
    reason: str = ""


class BaseRules(Value):
    """Rules of a base branch, and the token's permissions on the repository."""

    can_push: bool
    """True if the token may write to the repository."""
    required_checks: tuple[str, ...] = ()
    required_approvals: int = 0
    methods: tuple[MergeMethod, ...] = ()
    """Methods that the repository allows; empty if the forge does not say."""
    known: bool = True
    """False if the token may not read the rules: the other fields are what it could read."""
    requires_resolved: bool = False
    """True if every conversation must be resolved before a merge; Gitea has no such rule."""


class PullDraft(Value):
    """Content of a pull request to open."""

    head: str
    base: str
    title: str
    body: str
    """With the marker (`marker.attach`)."""
    labels: tuple[str, ...] = ()
    draft: bool = True


@dataclass
class RequestCount:
    """Requests sent by a client."""

    sent: int = 0
    not_modified: int = 0
    """How many of them were answered with 304, which does not count against the rate limit."""


def mark_required(checks: list[Check], commit: str, rules: BaseRules) -> list[Check]:
    """Return the checks with `required` set, and required ones that have not reported as pending."""
    named = {each.name for each in checks}
    missing = [Check(name, commit, CheckState.PENDING, "has not reported", required=True)
               for name in rules.required_checks if name not in named]
    known = rules.known or None
    return [replace(each, required=True if each.name in rules.required_checks else known and False)
            for each in checks] + missing
