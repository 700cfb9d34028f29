"""Gitea and Forgejo.

They send no ETags, so every read counts. A draft is a pull request whose title starts with `WIP:`. A thread has no id:
it is all comments at the same line.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import quote

from garrison.forge.client import Forge, Label, Present, PushRight, RouteTable, User
from garrison.forge.errors import ForgeNotFound, ForgeRefused
from garrison.forge.model import (
    BaseRules,
    CheckState,
    ForgeMerge,
    Issue,
    LineComment,
    MergeMethod,
    MergeOutcome,
    PullState,
    Side,
)
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection

_LABEL_COLOUR = "#4f6d8f"
_REVIEWS = 50
"""Number of newest reviews whose comments are read, with one request each."""
TABLE = RouteTable(
    api="/api/v1", authorization="token", newest_first={"sort": "recentupdate"}, size="limit",
    pages=4,  # there is no filter by branch
    search={"state": "all"}, open_issues={"state": "open", "type": "issues"},
    states={"success": CheckState.PASSED, "warning": CheckState.PASSED, "skipped": CheckState.SKIPPED,
            "pending": CheckState.PENDING},
    other=CheckState.FAILED,
    published={CheckState.PASSED: "success", CheckState.SKIPPED: "success", CheckState.FAILED: "failure",
               CheckState.PENDING: "pending"},
    draft="WIP: ", drafts=re.compile(r"^\s*(?:WIP:|\[WIP\])\s*", re.IGNORECASE))


class _LineBody(Value):
    id: int
    user: User = User()
    body: str = ""
    path: str = ""
    position: int = 0
    original_position: int = 0
    commit_id: str = ""
    original_commit_id: str = ""
    resolver: Present | None = None

    def record(self, review: int) -> LineComment:
        """Convert it to garrison's record."""
        side = Side.OLD if self.original_position and not self.position else Side.NEW
        line = (self.original_position if side is Side.OLD else self.position) or None
        return LineComment(str(self.id), f"{side}:{line or 0}:{self.path}", self.user.name, self.body, self.path, line,
                           line, side, self.original_commit_id or self.commit_id, self.resolver is not None,
                           str(review))


class _RepositoryBody(Value):
    permissions: PushRight = PushRight()
    allow_merge_commits: bool = False
    allow_squash_merge: bool = False
    allow_rebase: bool = False


class _BranchBody(Value):
    enable_status_check: bool = False
    status_check_contexts: tuple[str, ...] = ()
    required_approvals: int = 0


class Gitea(Forge):
    """One repository on Gitea or Forgejo."""

    table = TABLE

    def _set_labels(self, number: int, wanted: Collection[str]) -> None:
        """Set all labels; create those that the repository lacks."""
        there = {each.name: each for each in self._session.get_pages(Label, f"{self._root}/labels")}
        for name in sorted(set(wanted) - set(there)):
            there[name] = self._session.write(Label, "POST", f"{self._root}/labels",
                                              {"name": name, "color": _LABEL_COLOUR})
        self._session.tell("PUT", f"{self._root}/issues/{number}/labels",
                           {"labels": [there[name].id for name in sorted(wanted)]})

    def _merge(self, number: int, head_commit: str, method: MergeMethod, *, later: bool) -> MergeOutcome:
        try:
            self._session.tell("POST", f"{self._pulls}/{number}/merge", {
                "Do": method.value, "head_commit_id": head_commit,
                **({"merge_when_checks_succeed": True} if later else {})})
        except ForgeRefused as error:
            # By an earlier request whose answer was lost.
            if "already scheduled" not in error.reason.lower():
                raise
        after = self.read_pull(number)
        if after.state is PullState.MERGED:
            return MergeOutcome(ForgeMerge.MERGED, after.merge_commit)
        return MergeOutcome(ForgeMerge.QUEUED if later else ForgeMerge.UNKNOWN)

    def cancel_auto_merge(self, number: int) -> None:
        with suppress(ForgeNotFound):
            self._session.tell("DELETE", f"{self._pulls}/{number}/merge")

    def is_merge_scheduled(self, number: int) -> None:
        """Return None: the API does not say."""

    def list_line_comments(self, number: int) -> list[LineComment]:
        """Return the comments on lines of the newest reviews, oldest first."""
        with self._session.deadline():
            path = f"{self._pulls}/{number}/reviews"
            found = [each.record(review.id) for review in self._reviews(number)[-_REVIEWS:] if review.comments_count
                     for each in self._session.get_pages(_LineBody, f"{path}/{review.id}/comments")]
            return sorted(found, key=lambda each: int(each.id))

    def _reply(self, number: int, thread: str, text: str) -> None:
        """Answer at the line of a thread, through a review, whose response does not return the comment."""
        side, _, rest = thread.partition(":")
        line, _, path = rest.partition(":")
        self._session.tell("POST", f"{self._pulls}/{number}/reviews", {"event": "COMMENT", "comments": [
            {"path": path, "body": text, "old_position" if side == Side.OLD else "new_position": int(line)}]})

    def resolve(self, number: int, thread: str) -> bool:
        """Mark a thread resolved; False before Gitea 1.26, and on Forgejo."""
        with self._session.deadline():
            first = next((each for each in self.list_line_comments(number) if each.thread == thread), None)
            if first is None:
                raise ForgeNotFound(f"pull request {number} has no thread {thread}")
            try:
                self._session.tell("POST", f"{self._pulls}/comments/{first.id}/resolve")
            except ForgeNotFound:
                return False
            return True

    def list_issues(self, label: str) -> list[Issue]:
        # a label that the repository lacks does not filter
        return [each for each in super().list_issues(label) if label in each.labels]

    def read_rules(self, base: str) -> BaseRules:
        """Return the branch's protection and the token's rights."""
        with self._session.deadline():
            repository = self._session.get(_RepositoryBody, self._root)
            branch = self._session.get(_BranchBody, f"{self._root}/branches/{quote(base, safe='/')}")
        methods = {MergeMethod.MERGE: repository.allow_merge_commits, MergeMethod.SQUASH: repository.allow_squash_merge,
                   MergeMethod.REBASE: repository.allow_rebase}
        return BaseRules(repository.permissions.push,
                         branch.status_check_contexts if branch.enable_status_check else (), branch.required_approvals,
                         tuple(method for method, is_allowed in methods.items() if is_allowed))
