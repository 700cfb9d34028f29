"""GitLab, gitlab.com and self-managed, over python-gitlab's `http_request`.

A merge request is a pull request here, an approval a review, a discussion a thread. A draft is one whose title begins
with `Draft:`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from garrison.forge.checks import tail
from garrison.forge.errors import NotFound, Refused, Unauthorized, Unreachable
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
from garrison.forge.reading import as_object, as_objects, flag, moment, number, objects, optional_number, text, texts
from garrison.forge.session import Answer, Request, Session
from garrison.forge.writing import choose_pull, find_marked, make_once, merge_once

if TYPE_CHECKING:
    from garrison.forge.credentials import Token
    from garrison.forge.etag_cache import EtagCache
    from garrison.forge.model import Location, PullChange, PullDraft, RequestCount

_STATES = {"success": CheckState.PASSED, "failed": CheckState.FAILED, "canceled": CheckState.FAILED,
           "skipped": CheckState.SKIPPED, "manual": CheckState.SKIPPED}
"""States of a job or external status; all others have not ended."""
_PUBLISHED = {CheckState.PASSED: "success", CheckState.SKIPPED: "success", CheckState.FAILED: "failed",
              CheckState.PENDING: "running"}
_PULL_STATES = {"opened": PullState.OPEN, "locked": PullState.OPEN, "merged": PullState.MERGED}
_DRAFT = re.compile(r"^\s*(?:\[draft\]|\(draft\)|draft:|draft - )\s*", re.IGNORECASE)
_DEVELOPER = 30
"""The lowest access level that may push."""
_SOCKET_TIMEOUT = 10.0


class GitLabTransport:
    """python-gitlab's client, without its retries, its waits and its exceptions."""

    def __init__(self, location: Location, token: Token) -> None:
        from gitlab import Gitlab

        # as a bearer: a redirect to another host would take a `PRIVATE-TOKEN` header along
        self._library = Gitlab(f"{location.scheme}://{location.host}", oauth_token=token.reveal(),
                               timeout=_SOCKET_TIMEOUT, user_agent="garrison", retry_transient_errors=False)
        self._library.session.max_redirects = 0
        # without this, ~/.netrc would replace the token
        self._library.session.auth = lambda request: request

    def send(self, request: Request, timeout: float) -> Answer:
        """Send a request; Unreachable if no answer came."""
        import requests
        from gitlab.exceptions import GitlabError, RedirectError

        answers: list[requests.Response] = []
        # the library raises for a status of 300 or more, without the headers that name a rate limit's end
        self._library.session.hooks = {"response": [lambda answer, *_, **__: answers.append(answer)]}
        try:
            self._library.http_request(
                request.method.lower(), request.path, query_data=dict(request.query),
                post_data=dict(request.body) if request.body is not None else None, obey_rate_limit=False,
                timeout=min(timeout, _SOCKET_TIMEOUT), extra_headers=dict(request.headers), max_retries=0)
        except (RedirectError, requests.TooManyRedirects):
            return Answer(301, {}, b"")
        except GitlabError:
            pass
        except (requests.RequestException, OSError) as error:
            raise Unreachable(f"{request.method} {request.path}: {type(error).__name__}") from None
        last = answers[-1]
        return Answer(last.status_code, {name.lower(): value for name, value in last.headers.items()}, last.content)


class GitLab:
    """One project on GitLab (`protocol.Forge`)."""

    def __init__(self, location: Location, token: Token, cache: EtagCache | None = None) -> None:
        self.location = location
        self._session = Session(GitLabTransport(location, token), token, cache)
        self._root = f"/projects/{quote(location.path, safe='')}"

    @property
    def requests(self) -> RequestCount:
        """Requests sent so far."""
        return self._session.requests

    def read_anew(self, *, anew: bool) -> None:
        """Send reads without a condition, or no longer."""
        self._session.is_anew = anew

    def read_login(self) -> str:
        return text(as_object(self._session.get("/user")), "username")

    def can_write(self, login: str) -> bool:
        members = self._session.get_pages(f"{self._root}/members/all", {"query": login}, pages=2)
        return any(text(each, "username") == login and (optional_number(each, "access_level") or 0) >= _DEVELOPER
                   for each in members)

    def find_pull(self, marker: str, head: str) -> PullRequest | None:
        """Return the merge request from the project's own `head` that has `marker`, else the newest one."""
        with self._session.deadline():
            query = {"state": "all", "order_by": "created_at", "sort": "desc", "scope": "all", "source_branch": head}
            from_head = self._session.get_pages(f"{self._root}/merge_requests", query, pages=1)
            return choose_pull([each for each in map(_pull, from_head) if each.head == head and not each.from_fork],
                               marker)

    def read_pull(self, number: int) -> PullRequest:
        return _pull(as_object(self._session.get(f"{self._root}/merge_requests/{number}")))

    def open_pull(self, draft: PullDraft, marker: str) -> PullRequest:
        """Open a merge request, or return the one that has `marker`."""
        def find() -> PullRequest | None:
            found = self.find_pull(marker, draft.head)
            return found if found is not None and has_marker(found.body, marker) else None

        def make() -> PullRequest:
            return _pull(as_object(self._session.write("POST", f"{self._root}/merge_requests", {
                "source_branch": draft.head, "target_branch": draft.base, "labels": ",".join(draft.labels),
                "title": _title(draft.title, draft=draft.draft), "description": attach(draft.body, marker),
                "remove_source_branch": False})))

        with self._session.deadline():
            pull = make_once(self._session, find, make)
            if missing := set(draft.labels) - set(pull.labels):
                pull = self._put(pull.number, {"add_labels": ",".join(sorted(missing))})
            return pull

    def update_pull(self, number: int, change: PullChange) -> PullRequest:
        """Set title, body, labels or base."""
        with self._session.deadline():
            now = self.read_pull(number)
            body: dict[str, Any] = {}
            if change.title not in {None, now.title}:
                body["title"] = _title(change.title or "", draft=now.draft)
            if change.body not in {None, now.body}:
                body["description"] = change.body
            if change.base not in {None, now.base}:
                body["target_branch"] = change.base
            if change.labels is not None and set(change.labels) != set(now.labels):
                body["labels"] = ",".join(change.labels)
            return self._put(number, body) if body else now

    def mark_ready(self, number: int) -> PullRequest:
        """Make a draft ready for review."""
        return self._set_draft(number, wanted=False)

    def mark_draft(self, number: int) -> PullRequest:
        """Make it a draft."""
        return self._set_draft(number, wanted=True)

    def _set_draft(self, number: int, *, wanted: bool) -> PullRequest:
        with self._session.deadline():
            now = self.read_pull(number)
            return now if now.draft is wanted else self._put(number, {"title": _title(now.title, draft=wanted)})

    def close_pull(self, number: int) -> PullRequest:
        """Close it without merging."""
        with self._session.deadline():
            now = self.read_pull(number)
            return self._put(number, {"state_event": "close"}) if now.state is PullState.OPEN else now

    def _put(self, number: int, body: dict[str, Any]) -> PullRequest:
        return _pull(as_object(self._session.write("PUT", f"{self._root}/merge_requests/{number}", body)))

    def merge(self, number: int, head_commit: str, method: MergeMethod, message: str = "") -> MergeOutcome:
        """Merge now if the head is still `head_commit`."""
        words = {"squash_commit_message" if method is MergeMethod.SQUASH else "merge_commit_message": message} \
            if message else {}
        return self._merge(number, head_commit, {"squash": method is MergeMethod.SQUASH, **words})

    def enable_auto_merge(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        """Have the forge merge once its rules are met."""
        return self._merge(number, head_commit, {"squash": method is MergeMethod.SQUASH, "auto_merge": True,
                                                 "merge_when_pipeline_succeeds": True})

    def _merge(self, number: int, head_commit: str, options: dict[str, Any]) -> MergeOutcome:
        def send() -> MergeOutcome:
            done = _pull(as_object(self._session.write(
                "PUT", f"{self._root}/merge_requests/{number}/merge",
                {"sha": head_commit, "should_remove_source_branch": False, **options})))
            if done.state is PullState.MERGED:
                return MergeOutcome(MergeResult.MERGED, done.merge_commit)
            return MergeOutcome(MergeResult.QUEUED if done.auto_merge else MergeResult.UNKNOWN)

        with self._session.deadline():
            return merge_once(lambda: self.read_pull(number), send, head_commit)

    def cancel_auto_merge(self, number: int) -> None:
        """Withdraw `enable_auto_merge`."""
        with self._session.deadline():
            if self.read_pull(number).auto_merge:
                self._session.write("POST",
                                    f"{self._root}/merge_requests/{number}/cancel_merge_when_pipeline_succeeds")

    def is_merge_scheduled(self, number: int) -> bool | None:
        return self.read_pull(number).auto_merge

    def list_checks(self, commit: str) -> list[Check]:
        """Return jobs and external statuses of a commit; the newest of each name."""
        with self._session.deadline():
            found: dict[str, tuple[int, Check]] = {}
            for each in self._session.get_pages(f"{self._root}/repository/commits/{commit}/statuses"):
                check, order = _check(each, commit), number(each, "id")
                if text(each, "sha") in {"", commit} and order >= found.get(check.name, (0, check))[0]:
                    found[check.name] = order, check
            return [check for _, check in found.values()]

    def read_check_log(self, check: Check) -> str:
        """Return the tail of a job's log, or the check's summary."""
        try:
            return tail(self._session.get_text(f"{self._root}/jobs/{check.log_id}/trace")) or check.summary \
                if check.log_id else check.summary
        except (NotFound, Refused, Unauthorized):
            return check.summary

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str, url: str = "") -> None:
        """Set garrison's own check of a commit."""
        try:
            self._session.write("POST", f"{self._root}/statuses/{commit}", {
                "state": _PUBLISHED[state], "name": name, "description": summary[:255],
                **({"target_url": url} if url else {})})
        except Refused as error:
            if "cannot transition" not in error.reason.lower():
                raise  # otherwise it has this state already

    def list_reviews(self, number: int) -> list[Review]:
        """Return approvals, and reviewers who requested changes."""
        with self._session.deadline():
            path = f"{self._root}/merge_requests/{number}"
            found = [(text(each, "user", "username"), Verdict.APPROVED, moment(each, "approved_at"))
                     for each in objects(as_object(self._session.get(f"{path}/approvals")), "approved_by")]
            found += [(text(each, "user", "username"), Verdict.CHANGES, moment(each, "created_at"))
                      for each in self._session.get_pages(f"{path}/reviewers")
                      if text(each, "state") == "requested_changes"]
            pushed = self._pushed(path) if found else []
            return [Review(f"{author}:{verdict.name}", author, verdict, commit=_head_at(pushed, at), at=at)
                    for author, verdict, at in found]

    def _pushed(self, path: str) -> list[tuple[float, str]]:
        """Return when each head was pushed, the oldest first: an approval names no commit."""
        try:
            versions = self._session.get(f"{path}/versions", {"per_page": "100"})
        except (NotFound, Unauthorized, Refused):
            return []
        return sorted(((moment(each, "created_at"), text(each, "head_commit_sha"))
                       for each in reversed(as_objects(versions) if isinstance(versions, list) else [])),
                      key=lambda each: each[0])

    def list_line_comments(self, number: int) -> list[LineComment]:
        return [_line_comment(note, text(thread, "id"))
                for thread in self._session.get_pages(f"{self._root}/merge_requests/{number}/discussions")
                for note in objects(thread, "notes") if note.get("position") is not None and not flag(note, "system")]

    def reply(self, number: int, thread: str, text: str, marker: str) -> LineComment:
        """Answer in a discussion, or return the answer that has `marker`."""
        path = f"{self._root}/merge_requests/{number}/discussions"

        def find() -> LineComment | None:
            discussions = self._session.get_pages(path)
            notes = ((note, each) for each in discussions for note in objects(each, "notes"))
            return next((_line_comment(note, str(each.get("id"))) for note, each in notes
                         if has_marker(str(note.get("body") or ""), marker)), None)

        return make_once(self._session, find, lambda: _line_comment(as_object(self._session.write(
            "POST", f"{path}/{quote(thread, safe='')}/notes", {"body": attach(text, marker)})), thread))

    def resolve(self, number: int, thread: str) -> bool:
        """Mark a discussion resolved."""
        self._session.write("PUT", f"{self._root}/merge_requests/{number}/discussions/{quote(thread, safe='')}",
                            {"resolved": True})
        return True

    def list_comments(self, number: int, *, pull: bool) -> list[Comment]:
        return [_comment(each) for each in self._session.get_pages(self._notes(number, pull),
                                                                   {"sort": "asc", "order_by": "created_at"})
                if not flag(each, "system") and each.get("position") is None]

    def comment(self, number: int, text: str, marker: str, *, pull: bool) -> Comment:
        """Comment, or return the comment that has `marker`."""
        return make_once(
            self._session,
            lambda: find_marked(self.list_comments(number, pull=pull), marker),
            lambda: _comment(as_object(self._session.write("POST", self._notes(number, pull),
                                                           {"body": attach(text, marker)}))))

    def _notes(self, number: int, pull: bool) -> str:
        return f"{self._root}/{'merge_requests' if pull else 'issues'}/{number}/notes"

    def read_issue(self, number: int) -> Issue:
        return _issue(as_object(self._session.get(f"{self._root}/issues/{number}")))

    def list_issues(self, *, label: str = "", assignee: str = "") -> list[Issue]:
        """Return the open issues, oldest first."""
        query = {"state": "opened", "order_by": "created_at", "sort": "asc", "scope": "all",
                 **({"labels": label} if label else {}), **({"assignee_username": assignee} if assignee else {})}
        return [_issue(each) for each in self._session.get_pages(f"{self._root}/issues", query)]

    def closing_words(self, issue: int) -> str:
        return f"Closes #{issue}"

    def read_branch(self, branch: str) -> str:
        """Return the commit of a branch."""
        try:
            return text(as_object(self._session.get(f"{self._root}/repository/branches/{quote(branch, safe='')}")),
                        "commit", "id")
        except NotFound:
            return ""

    def read_rules(self, base: str) -> BaseRules:
        """Return the branch's protection and the project's rules."""
        with self._session.deadline():
            project = as_object(self._session.get(self._root))
            branch = as_object(self._session.get(f"{self._root}/repository/branches/{quote(base, safe='')}"))
            approvals, known = 0, True
            try:
                approvals = optional_number(as_object(self._session.get(f"{self._root}/approvals")),
                                            "approvals_before_merge") or 0
            except (NotFound, Unauthorized, Refused):
                known = False
            levels = [optional_number(project, "permissions", where, "access_level") or 0
                      for where in ("project_access", "group_access")]
            # `rebase_merge` and `ff` merge without a merge commit or only after a rebase
            methods = {"merge": (MergeMethod.MERGE, MergeMethod.SQUASH)}.get(
                text(project, "merge_method"), (MergeMethod.REBASE, MergeMethod.SQUASH))
            return BaseRules(flag(branch, "protected"), max(levels) >= _DEVELOPER, (), approvals, True, methods, known,
                             flag(project, "only_allow_merge_if_all_discussions_are_resolved"))


def _head_at(pushed: list[tuple[float, str]], at: float) -> str:
    """Return the head at a time; empty if that is not known."""
    before = [head for time, head in pushed if at and time <= at]
    return before[-1] if before else ""


def _title(title: str, *, draft: bool) -> str:
    return f"Draft: {_DRAFT.sub('', title)}" if draft else _DRAFT.sub("", title)


def _pull(body: dict[str, Any]) -> PullRequest:
    detailed = text(body, "detailed_merge_status") or text(body, "merge_status")
    state = _PULL_STATES.get(text(body, "state"), PullState.CLOSED)
    mergeable = None if detailed in {"", "unchecked", "checking", "preparing", "cannot_be_merged_recheck"} else \
        detailed not in {"conflict", "cannot_be_merged", "broken_status"} and not flag(body, "has_conflicts")
    merged = text(body, "merge_commit_sha") or text(body, "squash_commit_sha") or text(body, "merged_commit_sha") \
        or text(body, "sha")
    return PullRequest(
        number(body, "iid"), text(body, "web_url"), _DRAFT.sub("", text(body, "title")), text(body, "description"),
        state, flag(body, "draft"), text(body, "source_branch"), text(body, "sha"), text(body, "target_branch"),
        text(body, "diff_refs", "start_sha"), texts(body, "labels", "name"), text(body, "author", "username"),
        merged if state is PullState.MERGED else "", mergeable, flag(body, "merge_when_pipeline_succeeds"),
        body.get("source_project_id") != body.get("target_project_id"))


def _check(body: dict[str, Any], commit: str) -> Check:
    state = _STATES.get(text(body, "status"), CheckState.PENDING)
    if state is CheckState.FAILED and flag(body, "allow_failure"):
        state = CheckState.SKIPPED
    return Check(text(body, "name"), commit, state, text(body, "description"), text(body, "target_url"),
                 str(number(body, "id")))


def _line_comment(note: dict[str, Any], thread: str) -> LineComment:
    new, old = optional_number(note, "position", "new_line"), optional_number(note, "position", "old_line")
    side = Side.OLD if new is None and old is not None else Side.NEW
    path = text(note, "position", "old_path" if side is Side.OLD else "new_path")
    line = old if side is Side.OLD else new
    return LineComment(str(number(note, "id")), thread, text(note, "author", "username"), text(note, "body"), path,
                       line, line, side, text(note, "position", "head_sha"), moment(note, "created_at"),
                       flag(note, "resolved"))


def _comment(body: dict[str, Any]) -> Comment:
    return Comment(str(number(body, "id")), text(body, "author", "username"), text(body, "body"),
                   moment(body, "created_at"))


def _issue(body: dict[str, Any]) -> Issue:
    return Issue(number(body, "iid"), text(body, "web_url"), text(body, "title"), text(body, "description"),
                 text(body, "author", "username"), text(body, "state") == "opened", texts(body, "labels", "name"),
                 texts(body, "assignees", "username"), moment(body, "updated_at"))
