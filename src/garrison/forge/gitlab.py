"""GitLab, gitlab.com and self-managed.

A merge request is a pull request here, an approval a review, a discussion a thread. A draft's title starts with
`Draft:`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from garrison.forge.client import Forge, IssueBody, Present, RouteTable, StatusBody, User, moment
from garrison.forge.errors import ForgeNotFound, ForgeRefused, Unauthorized
from garrison.forge.marker import attach
from garrison.forge.model import (
    BaseRules,
    Check,
    CheckState,
    ForgeMerge,
    ForgePullRequest,
    LineComment,
    MergeMethod,
    MergeOutcome,
    PullDraft,
    PullState,
    Review,
    ReviewVerdict,
    Side,
)
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from garrison.forge.transport import Body, Query

_DEVELOPER = 30
"""The lowest access level that may push."""
TABLE = RouteTable(
    # as a bearer: a `PRIVATE-TOKEN` header would be forwarded by a redirect to another host
    api="/api/v4", authorization="Bearer", root="/projects/{path}", pulls="merge_requests",
    statuses="repository/commits/{}/statuses", log="jobs/{}/trace",
    search={"state": "all", "order_by": "created_at", "sort": "desc", "scope": "all"},
    edit="PUT", body="description", status_name="name",
    open_issues={"state": "opened", "order_by": "created_at", "sort": "asc", "scope": "all"},
    states={"success": CheckState.PASSED, "failed": CheckState.FAILED, "canceled": CheckState.FAILED,
            "skipped": CheckState.SKIPPED, "manual": CheckState.SKIPPED},
    other=CheckState.PENDING,
    published={CheckState.PASSED: "success", CheckState.SKIPPED: "success", CheckState.FAILED: "failed",
               CheckState.PENDING: "running"},
    draft="Draft: ", drafts=re.compile(r"^\s*(?:\[draft\]|\(draft\)|draft:|draft - )\s*", re.IGNORECASE))


class _MergeRequest(Value):
    iid: int
    web_url: str = ""
    title: str = ""
    description: str = ""
    state: str = ""
    draft: bool = False
    source_branch: str = ""
    target_branch: str = ""
    source_project_id: int = 0
    target_project_id: int = 0
    sha: str = ""
    labels: tuple[str, ...] = ()
    author: User = User()
    merge_commit_sha: str = ""
    squash_commit_sha: str = ""
    merged_commit_sha: str = ""
    merge_when_pipeline_succeeds: bool = False

    def record(self) -> ForgePullRequest:
        """Convert it to garrison's record; `locked` counts as open: it is being merged."""
        state = {"opened": PullState.OPEN, "locked": PullState.OPEN, "merged": PullState.MERGED}.get(
            self.state, PullState.CLOSED)
        merged = self.merge_commit_sha or self.squash_commit_sha or self.merged_commit_sha or self.sha
        return ForgePullRequest(
            self.iid, self.web_url, self.title, self.description, state, self.draft, self.source_branch, self.sha,
            self.target_branch, self.labels, self.author.name, merged if state is PullState.MERGED else "",
            self.merge_when_pipeline_succeeds, self.source_project_id != self.target_project_id)


class _GitLabIssue(IssueBody, kw_only=True):
    number: int = msgspec.field(name="iid")
    html_url: str = msgspec.field(default="", name="web_url")
    body: str = msgspec.field(default="", name="description")
    user: User = msgspec.field(default=User(), name="author")


class _Member(Value):
    """A member of the project, or a membership of the token's user."""

    username: str = ""
    access_level: int = 0


class _Approval(Value):
    user: User = User()
    approved_at: str = ""


class _Approvals(Value):
    """The approvals of a merge request, or those that the project requires."""

    approved_by: tuple[_Approval, ...] = ()
    approvals_before_merge: int = 0


class _Reviewer(Value):
    user: User = User()
    state: str = ""
    created_at: str = ""


class _Version(Value):
    """A head that was pushed."""

    created_at: str = ""
    head_commit_sha: str = ""


class _PositionBody(Value):
    new_path: str = ""
    old_path: str = ""
    new_line: int = 0
    old_line: int = 0
    head_sha: str = ""


class _Note(Value):
    """A note of a discussion; without a line it is about the whole merge request."""

    id: int
    author: User = User()
    body: str = ""
    system: bool = False
    resolved: bool = False
    position: _PositionBody | None = None

    def record(self, thread: str) -> LineComment:
        """Convert it to garrison's record."""
        at = self.position or _PositionBody()
        side = Side.OLD if at.old_line and not at.new_line else Side.NEW
        line = (at.old_line if side is Side.OLD else at.new_line) or None
        return LineComment(str(self.id), thread, self.author.name, self.body,
                           at.old_path if side is Side.OLD else at.new_path, line, line, side, at.head_sha,
                           self.resolved)


class _Discussion(Value):
    id: str
    notes: tuple[_Note, ...] = ()


class _Permissions(Value):
    """Permissions of the token's user, by membership of the project and of its group."""

    project_access: _Member = _Member()
    group_access: _Member = _Member()


class _ProjectBody(Value):
    merge_method: str = ""
    permissions: _Permissions = _Permissions()
    only_allow_merge_if_all_discussions_are_resolved: bool = False


class GitLab(Forge):
    """One project on GitLab."""

    table = TABLE
    pull_body = _MergeRequest
    issue_body = _GitLabIssue
    unreadable = (ForgeNotFound, ForgeRefused, Unauthorized)

    def can_write(self, login: str) -> bool:
        members = self._session.get_pages(_Member, f"{self._root}/members/all", {"query": login}, pages=2)
        # `query` matches parts of names and addresses as well.
        return any(each.username == login and each.access_level >= _DEVELOPER for each in members)

    def _from_branch(self, head: str) -> Query:
        return {"source_branch": head}

    def _opening(self, draft: PullDraft, marker: str) -> Body:
        return {"source_branch": draft.head, "target_branch": draft.base, "labels": ",".join(draft.labels),
                "title": self._title(draft.title, draft=draft.draft), "description": attach(draft.body, marker),
                "remove_source_branch": False}

    def _set_labels(self, number: int, wanted: Collection[str]) -> None:
        self._edit(number, {"labels": ",".join(sorted(wanted))})

    def _merge(self, number: int, head_commit: str, method: MergeMethod, *, later: bool) -> MergeOutcome:
        # GitLab 17.11 renamed the longer one to `auto_merge`; a server ignores unknown names.
        done = self._session.write(_MergeRequest, "PUT", f"{self._pulls}/{number}/merge", {
            "sha": head_commit, "should_remove_source_branch": False, "squash": method is MergeMethod.SQUASH,
            **({"auto_merge": True, "merge_when_pipeline_succeeds": True} if later else {})}).record()
        if done.state is PullState.MERGED:
            return MergeOutcome(ForgeMerge.MERGED, done.merge_commit)
        return MergeOutcome(ForgeMerge.QUEUED if done.auto_merge else ForgeMerge.UNKNOWN)

    def cancel_auto_merge(self, number: int) -> None:
        with self._session.deadline():
            if self.read_pull(number).auto_merge:
                self._session.tell("POST", f"{self._pulls}/{number}/cancel_merge_when_pipeline_succeeds")

    def is_merge_scheduled(self, number: int) -> bool:
        return self.read_pull(number).auto_merge

    def _status(self, body: StatusBody, commit: str) -> Check:
        return replace(super()._status(body, commit), log_id=str(body.id))

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str) -> None:
        """Set garrison's own check of a commit; GitLab refuses one that already has this state, which is fine."""
        try:
            super().publish_status(commit, name, state, summary)
        except ForgeRefused as error:
            if "cannot transition" not in error.reason.lower():
                raise

    def list_reviews(self, number: int) -> list[Review]:
        """Return approvals, and reviewers who requested changes."""
        with self._session.deadline():
            path = f"{self._pulls}/{number}"
            found = [(each.user.name, ReviewVerdict.APPROVED, moment(each.approved_at))
                     for each in self._session.get(_Approvals, f"{path}/approvals").approved_by]
            found += [(each.user.name, ReviewVerdict.CHANGES, moment(each.created_at))
                      for each in self._session.get_pages(_Reviewer, f"{path}/reviewers")
                      if each.state == "requested_changes"]
            pushed = self._pushed(path) if found else []
            return [Review(f"{author}:{verdict.name}", author, verdict, commit=_head_at(pushed, at), at=at)
                    for author, verdict, at in found]

    def _pushed(self, path: str) -> list[tuple[float, str]]:
        """Return when each head was pushed, oldest first: an approval names no commit."""
        try:
            versions = self._session.get(list[_Version], f"{path}/versions", {"per_page": "100"})
        except (ForgeNotFound, Unauthorized, ForgeRefused):
            return []
        # They come newest first: reversed, the later of two within one second stays the later.
        return sorted(((moment(each.created_at), each.head_commit_sha) for each in reversed(versions)),
                      key=lambda each: each[0])

    def _notes(self, number: int) -> Iterator[tuple[_Note, str]]:
        for discussion in self._session.get_pages(_Discussion, f"{self._pulls}/{number}/discussions"):
            for note in discussion.notes:
                yield note, discussion.id

    def list_line_comments(self, number: int) -> list[LineComment]:
        return [note.record(thread) for note, thread in self._notes(number)
                if note.position is not None and not note.system]

    def _said_at_lines(self, number: int) -> list[LineComment]:
        return [note.record(thread) for note, thread in self._notes(number)]

    def _reply(self, number: int, thread: str, text: str) -> LineComment:
        path = f"{self._thread(number, thread)}/notes"
        return self._session.write(_Note, "POST", path, {"body": text}).record(thread)

    def resolve(self, number: int, thread: str) -> bool:
        self._session.tell("PUT", self._thread(number, thread), {"resolved": True})
        return True

    def _thread(self, number: int, thread: str) -> str:
        return f"{self._pulls}/{number}/discussions/{quote(thread, safe='')}"

    def _comments(self, number: int, *, pull: bool) -> str:
        return f"{self._root}/{'merge_requests' if pull else 'issues'}/{number}/notes"

    def read_rules(self, base: str) -> BaseRules:
        """Return the project's rules."""
        with self._session.deadline():
            project = self._session.get(_ProjectBody, self._root)
            self._session.get(Present, f"{self._root}/repository/branches/{quote(base, safe='')}")
            approvals, is_known = 0, True
            try:
                approvals = self._session.get(_Approvals, f"{self._root}/approvals").approvals_before_merge
            except (ForgeNotFound, Unauthorized, ForgeRefused):
                is_known = False
        granted = project.permissions
        # `rebase_merge` and `ff` merge without a merge commit or only after a rebase
        first = MergeMethod.MERGE if project.merge_method == "merge" else MergeMethod.REBASE
        return BaseRules(max(granted.project_access.access_level, granted.group_access.access_level) >= _DEVELOPER, (),
                         approvals, (first, MergeMethod.SQUASH), is_known,
                         project.only_allow_merge_if_all_discussions_are_resolved)


def _head_at(pushed: list[tuple[float, str]], at: float) -> str:
    """Return the head at a time; empty if unknown."""
    before = [head for time, head in pushed if at and time <= at]
    return before[-1] if before else ""
