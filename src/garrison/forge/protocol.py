"""What garrison needs of a forge.

Every method is one step with a deadline, and raises only `errors.ForgeError`. Reads are conditional: what has not
changed costs nothing of the rate limit. A read that pages ends after `MAX_PAGES` and returns what it has.

Writes that would make a second object (open, comment, reply) take a marker (`marker`). They look for it first, and
after a failure once more; `Unreachable` leaves it open whether the object exists, and calling again settles that. The
other writes set a state, and may be called again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from garrison.forge.model import (
        BaseRules,
        Check,
        CheckState,
        Comment,
        Issue,
        LineComment,
        Location,
        MergeMethod,
        MergeOutcome,
        PullChange,
        PullDraft,
        PullRequest,
        RequestCount,
        Review,
    )

MAX_PAGES = 20
PAGE_SIZE = 100
DEADLINE = 30.0
"""Seconds that a call may take, all its pages and read-backs together."""
LOG_TAIL = 16_000
"""Bytes that `read_check_log` returns at most."""


class Forge(Protocol):
    """One repository on a forge, with one token."""

    location: Location

    @property
    def requests(self) -> RequestCount:
        """Requests that this client has sent."""
        ...

    def read_anew(self, *, anew: bool) -> None:
        """Send reads without a condition from now on, or no longer: a forge may lie about what has not changed."""
        ...

    def read_login(self) -> str:
        """Return the user of the token: the author of what garrison writes."""
        ...

    def can_write(self, login: str) -> bool:
        """Return whether a user may push to the repository; anybody may comment on a public one."""
        ...

    def find_pull(self, marker: str, head: str) -> PullRequest | None:
        """Return the pull request with `marker`, else the newest from branch `head`, in any state; None for none.

        An open one precedes others. A forge may take a moment to list what was just opened (`open_pull`).
        """
        ...

    def read_pull(self, number: int) -> PullRequest:
        ...

    def open_pull(self, draft: PullDraft, marker: str) -> PullRequest:
        """Open a pull request, or return the one that has `marker`, whatever its state."""
        ...

    def update_pull(self, number: int, change: PullChange) -> PullRequest:
        """Set title, body, labels or base; nothing is sent if all are as wanted."""
        ...

    def mark_ready(self, number: int) -> PullRequest:
        """Make a draft ready for review."""
        ...

    def mark_draft(self, number: int) -> PullRequest:
        """Make it a draft."""
        ...

    def close_pull(self, number: int) -> PullRequest:
        """Close it without merging."""
        ...

    def merge(self, number: int, head_commit: str, method: MergeMethod, message: str = "") -> MergeOutcome:
        """Merge now if the head is still `head_commit`; Stale otherwise.

        A merge without an answer is looked at again, so MERGED with its commit also follows a lost answer.
        """
        ...

    def enable_auto_merge(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        """Have the forge merge once its rules are met: QUEUED, or MERGED if they are already. Stale as `merge`.

        A branch with a merge queue gets it there.
        """
        ...

    def cancel_auto_merge(self, number: int) -> None:
        """Withdraw `enable_auto_merge`; no error if there is none."""
        ...

    def is_merge_scheduled(self, number: int) -> bool | None:
        """Return whether the forge merges it by itself later: auto-merge, or its queue; None if it does not tell."""
        ...

    def list_checks(self, commit: str) -> list[Check]:
        """Return the newest result of each check of exactly this commit; `checks.mark_required` adds those to come."""
        ...

    def read_check_log(self, check: Check) -> str:
        """Return the tail of a check's log; its summary if the forge keeps no log or has deleted it."""
        ...

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str, url: str = "") -> None:
        """Set garrison's own check of a commit."""
        ...

    def list_reviews(self, number: int) -> list[Review]:
        """Return the reviews, oldest first."""
        ...

    def list_line_comments(self, number: int) -> list[LineComment]:
        """Return comments on lines with their replies, oldest first."""
        ...

    def reply(self, number: int, thread: str, text: str, marker: str) -> LineComment:
        """Answer in a thread, or return the answer that has `marker`."""
        ...

    def resolve(self, number: int, thread: str) -> bool:
        """Mark a thread resolved; False if the forge cannot."""
        ...

    def list_comments(self, number: int, *, pull: bool) -> list[Comment]:
        """Return the comments on a pull request or issue as a whole, oldest first."""
        ...

    def comment(self, number: int, text: str, marker: str, *, pull: bool) -> Comment:
        """Comment on a pull request or issue, or return the comment that has `marker`."""
        ...

    def read_issue(self, number: int) -> Issue:
        """Return an issue by number; NotFound for a pull request's."""
        ...

    def list_issues(self, *, label: str = "", assignee: str = "") -> list[Issue]:
        """Return the open issues with a label and assignee, oldest first."""
        ...

    def closing_words(self, issue: int) -> str:
        """Return the line that, in a pull request's body, links an issue and closes it with the merge."""
        ...

    def read_branch(self, branch: str) -> str:
        """Return the commit of a branch; empty if there is none. It is the forge's word: fetch to be sure."""
        ...

    def read_rules(self, base: str) -> BaseRules:
        ...
