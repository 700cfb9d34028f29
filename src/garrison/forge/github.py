"""GitHub, github.com and Enterprise Server, over PyGithub's `Requester`.

REST where it exists, since only REST answers can be conditional. GraphQL for what REST cannot: leaving draft,
auto-merge and the state of threads.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from garrison.forge.checks import tail
from garrison.forge.errors import NotFound, RateLimited, Refused, Unauthorized, Unreachable
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
from garrison.forge.protocol import LOG_TAIL
from garrison.forge.reading import as_object, as_objects, flag, moment, number, objects, optional_number, text, texts
from garrison.forge.session import SECONDARY_WAIT, Answer, Request, Session
from garrison.forge.writing import choose_pull, find_marked, make_once, merge_once

if TYPE_CHECKING:
    from garrison.forge.credentials import Token
    from garrison.forge.etag_cache import EtagCache
    from garrison.forge.model import Location, PullChange, PullDraft, RequestCount

_CONCLUSIONS = {"success": CheckState.PASSED, "neutral": CheckState.SKIPPED, "skipped": CheckState.SKIPPED}
"""Conclusions of a check run; all others (failure, timed_out, cancelled, action_required, stale) are failures."""
_STATUSES = {"success": CheckState.PASSED, "pending": CheckState.PENDING}
_PUBLISHED = {CheckState.PASSED: "success", CheckState.SKIPPED: "success", CheckState.FAILED: "failure",
              CheckState.PENDING: "pending"}
_VERDICTS = {"APPROVED": Verdict.APPROVED, "CHANGES_REQUESTED": Verdict.CHANGES, "DISMISSED": Verdict.DISMISSED}
_SOCKET_TIMEOUT = 10
_SUMMARY_LIMIT = 140
_LOG_PIECES = 800
"""Pieces of 64 KiB of a log that are read: 50 MiB."""

_READY = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { id } } }"
_DRAFT = "mutation($id: ID!) { convertPullRequestToDraft(input: {pullRequestId: $id}) { pullRequest { id } } }"
_AUTO = """mutation($id: ID!, $head: GitObjectID!, $method: PullRequestMergeMethod!) {
  enablePullRequestAutoMerge(input: {pullRequestId: $id, expectedHeadOid: $head, mergeMethod: $method}) {
    pullRequest { id } } }"""
_NO_AUTO = "mutation($id: ID!) { disablePullRequestAutoMerge(input: {pullRequestId: $id}) { pullRequest { id } } }"
_THREADS = """query($owner: String!, $name: String!, $number: Int!, $after: String) {
  repository(owner: $owner, name: $name) { pullRequest(number: $number) {
    reviewThreads(first: 100, after: $after) { pageInfo { hasNextPage endCursor }
      nodes { id isResolved comments(first: 1) { nodes { databaseId } } } } } } }"""
_ENQUEUE = """mutation($id: ID!, $head: GitObjectID!) {
  enqueuePullRequest(input: {pullRequestId: $id, expectedHeadOid: $head}) { mergeQueueEntry { id } } }"""
_DEQUEUE = "mutation($id: ID!) { dequeuePullRequest(input: {id: $id}) { mergeQueueEntry { id } } }"
_QUEUED = """query($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) { pullRequest(number: $number) { isInMergeQueue } } }"""
_MERGEABLE_NOW = re.compile(r"\b(?:clean|unstable) status", re.IGNORECASE)
"""Why GitHub refuses auto-merge: nothing is left to wait for."""
_HAS_QUEUE = re.compile(r"merge queue", re.IGNORECASE)
"""Why GitHub refuses a merge: the branch has a queue."""
_RESOLVE = "mutation($id: ID!) { resolveReviewThread(input: {threadId: $id}) { thread { isResolved } } }"
_THREAD_PAGES = 5


class GitHubTransport:
    """PyGithub's requester, without its retries, its pauses between requests and its exceptions."""

    def __init__(self, location: Location, token: Token) -> None:
        from github import Auth
        from github.Requester import Requester

        self._library = Requester(
            auth=Auth.Token(token.reveal()), base_url=api_address(location), timeout=_SOCKET_TIMEOUT,
            user_agent="garrison", per_page=100, verify=True, retry=None, pool_size=None,
            seconds_between_requests=None, seconds_between_writes=None)

    def send(self, request: Request, timeout: float) -> Answer:
        """Send a request; Unreachable if no answer came."""
        import requests

        url = self._library.graphql_url if request.path == "/graphql" else request.path
        try:
            status, headers, output = self._library.requestJson(
                request.method, url, parameters=dict(request.query) or None, headers=dict(request.headers),
                input=dict(request.body) if request.body is not None else None)
            if status == 302 and request.path.endswith("/logs"):
                return fetch_elsewhere(str(headers.get("location", "")), timeout)
        except (requests.RequestException, OSError, RuntimeError, AssertionError) as error:
            raise Unreachable(f"{request.method} {request.path}: {type(error).__name__}") from None
        named = {str(name).lower(): str(value) for name, value in headers.items()}
        return Answer(status, named, output.encode())


def fetch_elsewhere(address: str, timeout: float) -> Answer:
    """Read a log where the forge keeps it, without the token, and only its end."""
    import requests

    kept = b""
    with requests.get(address, timeout=min(timeout, _SOCKET_TIMEOUT), stream=True, allow_redirects=False,
                      auth=lambda request: request) as response:
        for count, piece in enumerate(response.iter_content(65_536)):
            kept = (kept + piece)[-4 * LOG_TAIL:]
            if count >= _LOG_PIECES:
                break
    return Answer(200 if response.status_code == 200 else 404, {}, kept)


def api_address(location: Location) -> str:
    if location.host == "github.com" or location.host.endswith(".ghe.com"):
        return f"https://api.{location.host}"
    return f"{location.scheme}://{location.host}/api/v3"


class GitHub:
    """One repository on GitHub (`protocol.Forge`)."""

    def __init__(self, location: Location, token: Token, cache: EtagCache | None = None) -> None:
        self.location = location
        self._session = Session(GitHubTransport(location, token), token, cache)
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
        return text(found, "permission") in {"admin", "write", "maintain"}

    def find_pull(self, marker: str, head: str) -> PullRequest | None:
        """Return the pull request from the repository's own `head` that has `marker`, else the newest one."""
        with self._session.deadline():
            query = {"state": "all", "sort": "created", "direction": "desc", "head": f"{self.location.owner}:{head}"}
            from_head = self._session.get_pages(f"{self._root}/pulls", query, pages=1)
            return choose_pull([each for each in map(self._pull, from_head)
                                if each.head == head and not each.from_fork], marker)

    def read_pull(self, number: int) -> PullRequest:
        return self._pull(as_object(self._session.get(f"{self._root}/pulls/{number}")))

    def open_pull(self, draft: PullDraft, marker: str) -> PullRequest:
        """Open a pull request, or return the one that has `marker`."""
        def find() -> PullRequest | None:
            found = self.find_pull(marker, draft.head)
            return found if found is not None and has_marker(found.body, marker) else None

        def make() -> PullRequest:
            return self._pull(as_object(self._session.write("POST", f"{self._root}/pulls", {
                "head": draft.head, "base": draft.base, "title": draft.title, "body": attach(draft.body, marker),
                "draft": draft.draft, "maintainer_can_modify": True})))

        with self._session.deadline():
            pull = make_once(self._session, find, make)
            if set(draft.labels) - set(pull.labels):
                self._session.write("POST", f"{self._root}/issues/{pull.number}/labels", {"labels": list(draft.labels)})
                pull = self.read_pull(pull.number)
            return pull

    def update_pull(self, number: int, change: PullChange) -> PullRequest:
        """Set title, body, labels or base."""
        with self._session.deadline():
            now = self.read_pull(number)
            wanted = {"title": change.title, "body": change.body, "base": change.base}
            present = {"title": now.title, "body": now.body, "base": now.base}
            if different := {key: value for key, value in wanted.items() if value not in {None, present[key]}}:
                now = self._pull(as_object(self._session.write("PATCH", f"{self._root}/pulls/{number}", different)))
            if change.labels is not None and set(change.labels) != set(now.labels):
                self._session.write("PUT", f"{self._root}/issues/{number}/labels", {"labels": list(change.labels)})
                now = self.read_pull(number)
            return now

    def mark_ready(self, number: int) -> PullRequest:
        """Make a draft ready for review."""
        return self._set_draft(number, wanted=False)

    def mark_draft(self, number: int) -> PullRequest:
        """Make it a draft."""
        return self._set_draft(number, wanted=True)

    def _set_draft(self, number: int, *, wanted: bool) -> PullRequest:
        with self._session.deadline():
            body = as_object(self._session.get(f"{self._root}/pulls/{number}"))
            if flag(body, "draft") is wanted:
                return self._pull(body)
            self._graphql(_DRAFT if wanted else _READY, {"id": text(body, "node_id")})
            return self.read_pull(number)

    def close_pull(self, number: int) -> PullRequest:
        """Close it without merging."""
        return self._pull(as_object(self._session.write("PATCH", f"{self._root}/pulls/{number}", {"state": "closed"})))

    def merge(self, number: int, head_commit: str, method: MergeMethod, message: str = "") -> MergeOutcome:
        """Merge now if the head is still `head_commit`."""
        def send() -> MergeOutcome:
            words = {"commit_message": message} if message else {}
            body = {"sha": head_commit, "merge_method": method.value, **words}
            done = as_object(self._session.write("PUT", f"{self._root}/pulls/{number}/merge", body))
            if not flag(done, "merged"):
                return MergeOutcome(MergeResult.REFUSED, reason=text(done, "message"))
            return MergeOutcome(MergeResult.MERGED, text(done, "sha"))

        with self._session.deadline():
            return merge_once(lambda: self.read_pull(number), send, head_commit)

    def enable_auto_merge(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        """Have the forge merge once its rules are met."""
        def send() -> MergeOutcome:
            body = as_object(self._session.get(f"{self._root}/pulls/{number}"))
            given = {"id": text(body, "node_id"), "head": head_commit}
            try:
                if body.get("auto_merge") is None and not self._is_in_queue(number):
                    self._graphql(_AUTO, {**given, "method": method.name})
            except Refused as error:
                if not _MERGEABLE_NOW.search(error.reason):
                    raise
                outcome = self.merge(number, head_commit, method)
                if outcome.result is not MergeResult.REFUSED or not _HAS_QUEUE.search(outcome.reason):
                    return outcome
                self._graphql(_ENQUEUE, given)
            return MergeOutcome(MergeResult.QUEUED)

        with self._session.deadline():
            return merge_once(lambda: self.read_pull(number), send, head_commit)

    def cancel_auto_merge(self, number: int) -> None:
        """Withdraw `enable_auto_merge`."""
        with self._session.deadline():
            body = as_object(self._session.get(f"{self._root}/pulls/{number}"))
            if body.get("auto_merge") is not None:
                self._graphql(_NO_AUTO, {"id": text(body, "node_id")})
            elif self._is_in_queue(number):
                self._graphql(_DEQUEUE, {"id": text(body, "node_id")})

    def is_merge_scheduled(self, number: int) -> bool | None:
        return self.read_pull(number).auto_merge or self._is_in_queue(number)

    def _is_in_queue(self, number: int) -> bool:
        asked = {"owner": self.location.owner, "name": self.location.name, "number": number}
        try:
            data = self._graphql(_QUEUED, asked)
        except Refused:  # an Enterprise Server from before merge queues
            return False
        return flag(data, "repository", "pullRequest", "isInMergeQueue")

    def list_checks(self, commit: str) -> list[Check]:
        """Return check runs and commit statuses of a commit."""
        with self._session.deadline():
            runs = self._session.get_pages(f"{self._root}/commits/{commit}/check-runs", {"filter": "latest"},
                                           key="check_runs")
            statuses = self._session.get_pages(f"{self._root}/commits/{commit}/status", key="statuses")
            found = [_check_run(each, commit) for each in runs if text(each, "head_sha") in {"", commit}]
            found += [Check(text(each, "context"), commit, _STATUSES.get(text(each, "state"), CheckState.FAILED),
                            text(each, "description"), text(each, "target_url")) for each in statuses]
            return found

    def read_check_log(self, check: Check) -> str:
        """Return the tail of a job's log, or the check's summary."""
        if not check.log_id:
            return check.summary
        try:
            return tail(self._session.get_text(f"{self._root}/actions/jobs/{check.log_id}/logs")) or check.summary
        except (NotFound, Refused):
            return check.summary  # not a job of Actions, deleted, or kept on a host that gets no token

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str, url: str = "") -> None:
        """Set garrison's own check of a commit."""
        self._session.write("POST", f"{self._root}/statuses/{commit}", {
            "state": _PUBLISHED[state], "context": name, "description": summary[:_SUMMARY_LIMIT],
            **({"target_url": url} if url else {})})

    def list_reviews(self, number: int) -> list[Review]:
        """Return the reviews, oldest first."""
        return [Review(str(each.get("id")), text(each, "user", "login"),
                       _VERDICTS.get(text(each, "state"), Verdict.COMMENT), text(each, "body"),
                       text(each, "commit_id"), moment(each, "submitted_at"))
                for each in self._session.get_pages(f"{self._root}/pulls/{number}/reviews")
                if text(each, "state") != "PENDING"]

    def list_line_comments(self, number: int) -> list[LineComment]:
        """Return comments on lines with their replies."""
        with self._session.deadline():
            found = self._session.get_pages(f"{self._root}/pulls/{number}/comments")
            resolved = {root for _, root, done in self._threads(number) if done} if found else set()
            return [_line_comment(each, resolved) for each in found]

    def reply(self, number: int, thread: str, text: str, marker: str) -> LineComment:
        """Answer in a thread, or return the answer that has `marker`."""
        path = f"{self._root}/pulls/{number}/comments"

        def find() -> LineComment | None:
            return next((each for each in (_line_comment(body, set()) for body in self._session.get_pages(path))
                         if has_marker(each.text, marker)), None)

        return make_once(self._session, find, lambda: _line_comment(as_object(self._session.write(
            "POST", f"{path}/{int(thread)}/replies", {"body": attach(text, marker)})), set()))

    def resolve(self, number: int, thread: str) -> bool:
        """Mark a thread resolved."""
        with self._session.deadline():
            node = next((node for node, root, _ in self._threads(number) if root == thread), "")
            if not node:
                raise NotFound(f"pull request {number} has no thread {thread}")
            self._graphql(_RESOLVE, {"id": node})
            return True

    def list_comments(self, number: int, *, pull: bool) -> list[Comment]:
        return [_comment(each) for each in self._session.get_pages(f"{self._root}/issues/{number}/comments")]

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
        query = {"state": "open", "sort": "created", "direction": "asc", **({"labels": label} if label else {}),
                 **({"assignee": assignee} if assignee else {})}
        return [_issue(each) for each in self._session.get_pages(f"{self._root}/issues", query)
                if each.get("pull_request") is None]

    def closing_words(self, issue: int) -> str:
        return f"Closes #{issue}"

    def read_branch(self, branch: str) -> str:
        """Return the commit of a branch."""
        try:
            found = as_object(self._session.get(f"{self._root}/branches/{quote(branch, safe='/')}"))
            return text(found, "commit", "sha")
        except NotFound:
            return ""

    def read_rules(self, base: str) -> BaseRules:
        """Return branch protection, rulesets and the token's rights."""
        with self._session.deadline():
            repository = as_object(self._session.get(self._root))
            branch = as_object(self._session.get(f"{self._root}/branches/{quote(base, safe='/')}"))
            checks, approvals, known, resolved = _classic_checks(branch), 0, True, False
            for rule in as_objects(self._session.get(f"{self._root}/rules/branches/{quote(base, safe='')}")):
                checks |= {text(each, "context") for each in objects(rule, "parameters", "required_status_checks")}
                approvals = max(approvals, optional_number(rule, "parameters", "required_approving_review_count") or 0)
                resolved |= flag(rule, "parameters", "required_review_thread_resolution")
            if flag(branch, "protected"):
                classic, known = self._protection(base)
                resolved |= flag(classic, "required_conversation_resolution", "enabled")
                checks |= _classic_checks({"protection": classic})
                approvals = max(approvals, optional_number(classic, "required_pull_request_reviews",
                                                           "required_approving_review_count") or 0)
            return BaseRules(flag(branch, "protected") or bool(checks), flag(repository, "permissions", "push"),
                             tuple(sorted(checks)), approvals,
                             flag(repository, "allow_auto_merge") if "allow_auto_merge" in repository else None,
                             _methods(repository), known, resolved)

    def _protection(self, base: str) -> tuple[dict[str, Any], bool]:
        """Return classic branch protection, which only administrators may read, and whether it could be read."""
        try:
            return as_object(self._session.get(f"{self._root}/branches/{quote(base, safe='/')}/protection")), True
        except NotFound:
            return {}, True
        except (Unauthorized, Refused):
            return {}, False

    def _threads(self, number: int) -> list[tuple[str, str, bool]]:
        """Return (node id, id of the first comment, resolved) of each thread."""
        found, after = [], None
        for _ in range(_THREAD_PAGES):
            data = self._graphql(_THREADS, {"owner": self.location.owner, "name": self.location.name,
                                            "number": number, "after": after})
            path = ("repository", "pullRequest", "reviewThreads")
            for each in objects(data, *path, "nodes"):
                first = objects(each, "comments", "nodes")
                found.append((text(each, "id"), str(first[0].get("databaseId")) if first else "",
                              flag(each, "isResolved")))
            if not flag(data, *path, "pageInfo", "hasNextPage"):
                break
            after = text(data, *path, "pageInfo", "endCursor")
        return found

    def _graphql(self, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        answer = as_object(self._session.write("POST", "/graphql", {"query": query, "variables": variables}))
        if errors := objects(answer, "errors"):
            said = "; ".join(text(each, "message") for each in errors)
            what, kind = f"GraphQL: {said}", text(errors[0], "type")
            if kind == "RATE_LIMITED":  # with status 200
                raise RateLimited(what, time.time() + SECONDARY_WAIT)
            if not kind and "extensions" not in errors[0]:  # it gave up: its timeouts look like that
                raise Unreachable(what)
            raise Unauthorized(what, said) if kind == "FORBIDDEN" else Refused(what, said)
        return as_object(answer.get("data"))

    def _pull(self, body: dict[str, Any]) -> PullRequest:
        merged = body.get("merged_at") is not None or flag(body, "merged")
        state = PullState.MERGED if merged else PullState.OPEN if text(body, "state") == "open" else PullState.CLOSED
        mergeable = body.get("mergeable")
        return PullRequest(
            number(body, "number"), text(body, "html_url"), text(body, "title"), text(body, "body"), state,
            flag(body, "draft"), text(body, "head", "ref"), text(body, "head", "sha"), text(body, "base", "ref"),
            text(body, "base", "sha"), texts(body, "labels", "name"), text(body, "user", "login"),
            text(body, "merge_commit_sha") if merged else "",  # before, it is that of a trial merge
            mergeable if isinstance(mergeable, bool) else None, body.get("auto_merge") is not None,
            text(body, "head", "repo", "full_name").lower() != self.location.path.lower())


def _check_run(body: dict[str, Any], commit: str) -> Check:
    done = text(body, "status") == "completed"
    state = _CONCLUSIONS.get(text(body, "conclusion"), CheckState.FAILED) if done else CheckState.PENDING
    summary = "\n".join(part for part in (text(body, "output", "title"), text(body, "output", "summary"),
                                          text(body, "output", "text")) if part)
    log_id = str(number(body, "id")) if text(body, "app", "slug") == "github-actions" else ""
    return Check(text(body, "name"), commit, state, tail(summary), text(body, "html_url"), log_id)


def _line_comment(body: dict[str, Any], resolved: set[str]) -> LineComment:
    own = str(number(body, "id"))
    thread = str(optional_number(body, "in_reply_to_id") or own)
    review = optional_number(body, "pull_request_review_id")
    return LineComment(own, thread, text(body, "user", "login"), text(body, "body"), text(body, "path"),
                       optional_number(body, "line"), optional_number(body, "original_line"),
                       Side.OLD if text(body, "side") == "LEFT" else Side.NEW, text(body, "original_commit_id"),
                       moment(body, "created_at"), thread in resolved, str(review or ""))


def _comment(body: dict[str, Any]) -> Comment:
    return Comment(str(number(body, "id")), text(body, "user", "login"), text(body, "body"),
                   moment(body, "created_at"), text(body, "html_url"))


def _issue(body: dict[str, Any]) -> Issue:
    return Issue(number(body, "number"), text(body, "html_url"), text(body, "title"), text(body, "body"),
                 text(body, "user", "login"), text(body, "state") == "open", texts(body, "labels", "name"),
                 texts(body, "assignees", "login"), moment(body, "updated_at"))


def _classic_checks(branch: dict[str, Any]) -> set[str]:
    required = as_object((branch.get("protection") or {}).get("required_status_checks") or {})
    return {*texts(required, "contexts"), *texts(required, "checks", "context")}


def _methods(repository: dict[str, Any]) -> tuple[MergeMethod, ...]:
    keys = {MergeMethod.MERGE: "allow_merge_commit", MergeMethod.SQUASH: "allow_squash_merge",
            MergeMethod.REBASE: "allow_rebase_merge"}
    return tuple(method for method, key in keys.items() if flag(repository, key))
