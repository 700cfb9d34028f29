"""Gitea and Forgejo, over `requests` (docs/decisions/0011-forges.md says why not a generated client).

They send no ETags, so every read costs. A draft is a pull request whose title begins with `WIP:`. A thread has no id of
its own: it is what stands at the same line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from garrison.forge.errors import NotFound, Refused
from garrison.forge.marker import attach, has_marker
from garrison.forge.model import (
    BaseRules,
    Check,
    CheckState,
    Comment,
    Issue,
    LineComment,
    MergeMethod,
    MergeOutcome,
    MergeResult,
    PullRequest,
    PullState,
    Review,
    Side,
    Verdict,
)
from garrison.forge.reading import as_object, flag, moment, number, optional_number, text, texts
from garrison.forge.requests_transport import RequestsTransport
from garrison.forge.session import Session
from garrison.forge.writing import choose_pull, find_marked, make_once, merge_once

if TYPE_CHECKING:
    from garrison.forge.credentials import Token
    from garrison.forge.etag_cache import EtagCache
    from garrison.forge.model import Location, PullChange, PullDraft, RequestCount

_STATES = {"success": CheckState.PASSED, "warning": CheckState.PASSED, "skipped": CheckState.SKIPPED,
           "pending": CheckState.PENDING}
"""States of a commit status; `failure` and `error` are failures."""
_PUBLISHED = {CheckState.PASSED: "success", CheckState.SKIPPED: "success", CheckState.FAILED: "failure",
              CheckState.PENDING: "pending"}
_VERDICTS = {"APPROVED": Verdict.APPROVED, "REQUEST_CHANGES": Verdict.CHANGES, "COMMENT": Verdict.COMMENT}
"""Reviews that were given; `PENDING` and `REQUEST_REVIEW` were not."""
_DRAFT = re.compile(r"^\s*(?:WIP:|\[WIP\])\s*", re.IGNORECASE)
_LABEL_COLOUR = "#4f6d8f"
_FIND_PAGES = 4
"""Pages of pull requests that are searched: no filter by branch exists."""
_REVIEWS = 50
"""Reviews whose comments are read, a request each: the newest."""
_SIZE = "limit"


class Gitea:
    """One repository on Gitea or Forgejo (`protocol.Forge`)."""

    def __init__(self, location: Location, token: Token, cache: EtagCache | None = None) -> None:
        self.location = location
        transport = RequestsTransport(f"{location.scheme}://{location.host}/api/v1",
                                      {"Authorization": f"token {token.reveal()}"})
        self._session = Session(transport, token, cache)
        self._root = f"/repos/{location.owner}/{location.name}"

    @property
    def requests(self) -> RequestCount:
        """Requests sent so far."""
        return self._session.requests

    def read_anew(self, *, anew: bool) -> None:
        """Send reads without a condition, or no longer."""
        self._session.is_anew = anew

    def read_login(self) -> str:
        return text(as_object(self._session.get("/user")), "login")

    def can_write(self, login: str) -> bool:
        """Return whether a user may push."""
        try:
            found = as_object(self._session.get(f"{self._root}/collaborators/{quote(login, safe='')}/permission"))
        except NotFound:
            return False
        return text(found, "permission") in {"write", "admin", "owner"}

    def find_pull(self, marker: str, head: str) -> PullRequest | None:
        """Return the pull request from the repository's own `head` that has `marker`, else the newest one."""
        found = [_pull(each) for each in self._session.get_pages(f"{self._root}/pulls", {"state": "all"},
                                                                 pages=_FIND_PAGES, size=_SIZE)]
        found.sort(key=lambda each: -each.number)
        return choose_pull([each for each in found if each.head == head and not each.from_fork], marker)

    def read_pull(self, number: int) -> PullRequest:
        return _pull(as_object(self._session.get(f"{self._root}/pulls/{number}")))

    def open_pull(self, draft: PullDraft, marker: str) -> PullRequest:
        """Open a pull request, or return the one that has `marker`."""
        def find() -> PullRequest | None:
            found = self.find_pull(marker, draft.head)
            return found if found is not None and has_marker(found.body, marker) else None

        def make() -> PullRequest:
            return _pull(as_object(self._session.write("POST", f"{self._root}/pulls", {
                "head": draft.head, "base": draft.base, "title": _title(draft.title, draft=draft.draft),
                "body": attach(draft.body, marker)})))

        with self._session.deadline():
            pull = make_once(self._session, find, make)
            if missing := set(draft.labels) - set(pull.labels):
                pull = self._set_labels(pull.number, {*pull.labels, *missing})
            return pull

    def update_pull(self, number: int, change: PullChange) -> PullRequest:
        """Set title, body, labels or base."""
        with self._session.deadline():
            now = self.read_pull(number)
            body: dict[str, Any] = {}
            if change.title not in {None, now.title}:
                body["title"] = _title(change.title or "", draft=now.draft)
            if change.body not in {None, now.body}:
                body["body"] = change.body
            if change.base not in {None, now.base}:
                body["base"] = change.base
            if body:
                now = self._patch(number, body)
            if change.labels is not None and set(change.labels) != set(now.labels):
                now = self._set_labels(number, set(change.labels))
            return now

    def mark_ready(self, number: int) -> PullRequest:
        """Make a draft ready for review."""
        return self._set_draft(number, wanted=False)

    def mark_draft(self, number: int) -> PullRequest:
        """Make it a draft."""
        return self._set_draft(number, wanted=True)

    def _set_draft(self, number: int, *, wanted: bool) -> PullRequest:
        with self._session.deadline():
            now = self.read_pull(number)
            return now if now.draft is wanted else self._patch(number, {"title": _title(now.title, draft=wanted)})

    def close_pull(self, number: int) -> PullRequest:
        """Close it without merging."""
        with self._session.deadline():
            now = self.read_pull(number)
            return self._patch(number, {"state": "closed"}) if now.state is PullState.OPEN else now

    def _patch(self, number: int, body: dict[str, Any]) -> PullRequest:
        return _pull(as_object(self._session.write("PATCH", f"{self._root}/pulls/{number}", body)))

    def _set_labels(self, number: int, names: set[str]) -> PullRequest:
        """Set all labels; those that the repository does not have are created."""
        there = {text(each, "name"): each for each in self._session.get_pages(f"{self._root}/labels", size=_SIZE)}
        for name in sorted(names - set(there)):
            there[name] = as_object(self._session.write("POST", f"{self._root}/labels",
                                                        {"name": name, "color": _LABEL_COLOUR}))
        ids = [_id(there[name]) for name in sorted(names)]
        self._session.write("PUT", f"{self._root}/issues/{number}/labels", {"labels": ids})
        return self.read_pull(number)

    def merge(self, number: int, head_commit: str, method: MergeMethod, message: str = "") -> MergeOutcome:
        """Merge now if the head is still `head_commit`."""
        return self._merge(number, head_commit, method, {"MergeMessageField": message} if message else {})

    def enable_auto_merge(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        """Have the forge merge once its rules are met."""
        return self._merge(number, head_commit, method, {"merge_when_checks_succeed": True})

    def _merge(self, number: int, head_commit: str, method: MergeMethod, options: dict[str, Any]) -> MergeOutcome:
        def send() -> MergeOutcome:
            try:
                self._session.write("POST", f"{self._root}/pulls/{number}/merge",
                                    {"Do": method.value, "head_commit_id": head_commit, **options})
            except Refused as error:
                if "already scheduled" not in error.reason.lower():
                    raise
            after = self.read_pull(number)
            if after.state is PullState.MERGED:
                return MergeOutcome(MergeResult.MERGED, after.merge_commit)
            return MergeOutcome(MergeResult.QUEUED if "merge_when_checks_succeed" in options else MergeResult.UNKNOWN)

        with self._session.deadline():
            return merge_once(lambda: self.read_pull(number), send, head_commit)

    def cancel_auto_merge(self, number: int) -> None:
        """Withdraw `enable_auto_merge`."""
        try:
            self._session.write("DELETE", f"{self._root}/pulls/{number}/merge")
        except NotFound:
            return

    def is_merge_scheduled(self, number: int) -> bool | None:
        """Return None: no answer of the API tells it."""
        return None

    def list_checks(self, commit: str) -> list[Check]:
        """Return the newest status of each context of a commit."""
        with self._session.deadline():
            found: dict[str, tuple[int, Check]] = {}
            for each in self._session.get_pages(f"{self._root}/commits/{commit}/statuses", {"sort": "recentupdate"},
                                                size=_SIZE):
                check = Check(text(each, "context"), commit, _STATES.get(text(each, "status"), CheckState.FAILED),
                              text(each, "description"), text(each, "target_url"))
                if _id(each) >= found.get(check.name, (0, check))[0]:
                    found[check.name] = _id(each), check
            return [check for _, check in found.values()]

    def read_check_log(self, check: Check) -> str:
        """Return the check's summary: a commit status has no log."""
        return check.summary

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str, url: str = "") -> None:
        """Set garrison's own check of a commit."""
        self._session.write("POST", f"{self._root}/statuses/{commit}", {
            "state": _PUBLISHED[state], "context": name, "description": summary[:255], "target_url": url})

    def list_reviews(self, number: int) -> list[Review]:
        """Return the reviews, oldest first."""
        return [Review(str(_id(each)), text(each, "user", "login"),
                       Verdict.DISMISSED if flag(each, "dismissed") else _VERDICTS[text(each, "state")],
                       text(each, "body"), text(each, "commit_id"), moment(each, "submitted_at"), flag(each, "stale"))
                for each in self._reviews(number)]

    def _reviews(self, number: int) -> list[dict[str, Any]]:
        found = self._session.get_pages(f"{self._root}/pulls/{number}/reviews", size=_SIZE)
        return [each for each in found if text(each, "state") in _VERDICTS]

    def list_line_comments(self, number: int) -> list[LineComment]:
        """Return comments on lines, oldest first."""
        with self._session.deadline():
            found = [_line_comment(each, review) for review in self._reviews(number)[-_REVIEWS:]
                     if review.get("comments_count") != 0
                     for each in self._session.get_pages(f"{self._root}/pulls/{number}/reviews/{_id(review)}/comments",
                                                         size=_SIZE)]
            return sorted(found, key=lambda each: int(each.id))

    def reply(self, number: int, thread: str, text: str, marker: str) -> LineComment:
        """Answer at the line of a thread, or return the answer that has `marker`."""
        side, _, rest = thread.partition(":")
        line, _, path = rest.partition(":")

        def find() -> LineComment | None:
            return next((each for each in self.list_line_comments(number) if has_marker(each.text, marker)), None)

        def make() -> LineComment:
            place = {"old_position": int(line)} if side == Side.OLD else {"new_position": int(line)}
            self._session.write("POST", f"{self._root}/pulls/{number}/reviews", {
                "event": "COMMENT", "comments": [{"path": path, "body": attach(text, marker), **place}]})
            found = find()
            return found if found is not None else LineComment("", thread, "", text, path, int(line))

        return make_once(self._session, find, make)

    def resolve(self, number: int, thread: str) -> bool:
        """Mark a thread resolved; False before Gitea 1.26, and on Forgejo."""
        with self._session.deadline():
            first = next((each for each in self.list_line_comments(number) if each.thread == thread), None)
            if first is None:
                raise NotFound(f"pull request {number} has no thread {thread}")
            try:
                self._session.write("POST", f"{self._root}/pulls/comments/{first.id}/resolve")
            except NotFound:
                return False
            return True

    def list_comments(self, number: int, *, pull: bool) -> list[Comment]:
        path = f"{self._root}/issues/{number}/comments"
        return [_comment(each) for each in self._session.get_pages(path, size=_SIZE)]

    def comment(self, number: int, text: str, marker: str, *, pull: bool) -> Comment:
        """Comment, or return the comment that has `marker`."""
        return make_once(
            self._session,
            lambda: find_marked(self.list_comments(number, pull=pull), marker),
            lambda: _comment(as_object(self._session.write("POST", f"{self._root}/issues/{number}/comments",
                                                           {"body": attach(text, marker)}))))

    def read_issue(self, number: int) -> Issue:
        """Return an issue by number."""
        found = as_object(self._session.get(f"{self._root}/issues/{number}"))
        if found.get("pull_request") is not None:
            raise NotFound(f"#{number} is a pull request, not an issue")
        return _issue(found)

    def list_issues(self, *, label: str = "", assignee: str = "") -> list[Issue]:
        """Return the open issues, oldest first."""
        query = {"state": "open", "type": "issues", **({"labels": label} if label else {}),
                 **({"assigned_by": assignee} if assignee else {})}
        found = [_issue(each) for each in self._session.get_pages(f"{self._root}/issues", query, size=_SIZE)
                 if each.get("pull_request") is None]
        # a label that the repository does not have is not a filter
        return sorted((each for each in found if not label or label in each.labels), key=lambda each: each.number)

    def closing_words(self, issue: int) -> str:
        return f"Closes #{issue}"

    def read_branch(self, branch: str) -> str:
        """Return the commit of a branch."""
        try:
            found = as_object(self._session.get(f"{self._root}/branches/{quote(branch, safe='/')}"))
            return text(found, "commit", "id")
        except NotFound:
            return ""

    def read_rules(self, base: str) -> BaseRules:
        """Return the branch's protection and the token's rights."""
        with self._session.deadline():
            repository = as_object(self._session.get(self._root))
            branch = as_object(self._session.get(f"{self._root}/branches/{quote(base, safe='/')}"))
            keys = {MergeMethod.MERGE: "allow_merge_commits", MergeMethod.SQUASH: "allow_squash_merge",
                    MergeMethod.REBASE: "allow_rebase"}
            checks = texts(branch, "status_check_contexts") if flag(branch, "enable_status_check") else ()
            return BaseRules(flag(branch, "protected"), flag(repository, "permissions", "push"), checks,
                             optional_number(branch, "required_approvals") or 0, True,
                             tuple(method for method, key in keys.items() if flag(repository, key)))


def _title(title: str, *, draft: bool) -> str:
    return f"WIP: {_DRAFT.sub('', title)}" if draft else _DRAFT.sub("", title)


def _id(body: dict[str, Any]) -> int:
    return number(body, "id")


def _pull(body: dict[str, Any]) -> PullRequest:
    merged = flag(body, "merged")
    state = PullState.MERGED if merged else PullState.OPEN if text(body, "state") == "open" else PullState.CLOSED
    title, mergeable = text(body, "title"), body.get("mergeable")
    return PullRequest(
        number(body, "number"), text(body, "html_url"), _DRAFT.sub("", title), text(body, "body"), state,
        flag(body, "draft") or bool(_DRAFT.match(title)), text(body, "head", "ref"), text(body, "head", "sha"),
        text(body, "base", "ref"), text(body, "base", "sha"), texts(body, "labels", "name"),
        text(body, "user", "login"), text(body, "merge_commit_sha") if merged else "",
        mergeable if isinstance(mergeable, bool) else None,
        from_fork=body.get("head", {}).get("repo_id") != body.get("base", {}).get("repo_id"))


def _line_comment(body: dict[str, Any], review: dict[str, Any]) -> LineComment:
    new, old = optional_number(body, "position"), optional_number(body, "original_position")
    side = Side.NEW if new is not None or old is None else Side.OLD
    line = new if side is Side.NEW else old
    path = text(body, "path")
    return LineComment(str(_id(body)), f"{side}:{line or 0}:{path}", text(body, "user", "login"), text(body, "body"),
                       path, line, line, side, text(body, "original_commit_id") or text(body, "commit_id"),
                       moment(body, "created_at"), body.get("resolver") is not None, str(_id(review)))


def _comment(body: dict[str, Any]) -> Comment:
    return Comment(str(_id(body)), text(body, "user", "login"), text(body, "body"), moment(body, "created_at"),
                   text(body, "html_url"))


def _issue(body: dict[str, Any]) -> Issue:
    return Issue(number(body, "number"), text(body, "html_url"), text(body, "title"), text(body, "body"),
                 text(body, "user", "login"), text(body, "state") == "open", texts(body, "labels", "name"),
                 texts(body, "assignees", "login"), moment(body, "updated_at"))
