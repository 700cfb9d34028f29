"""GitHub, github.com and Enterprise Server.

REST where possible, since only REST answers can be conditional. GraphQL for what REST cannot do: leaving draft,
auto-merge and the state of threads.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

from garrison.forge.client import Forge, Present, PullBody, PushRight, RouteTable, StatusBody, User
from garrison.forge.errors import ForgeNotFound, ForgeRefused, ForgeUnreachable, RateLimited, Unauthorized
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
    Side,
)
from garrison.forge.transport import SECONDARY_WAIT, tail
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Collection

    from garrison.forge.transport import Body, Query

_CONCLUSIONS = {"success": CheckState.PASSED, "neutral": CheckState.SKIPPED, "skipped": CheckState.SKIPPED}
"""Conclusions of a check run; all others (failure, timed_out, cancelled, action_required, stale) are failures."""
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


TABLE = RouteTable(
    api="/api/v3", authorization="token", log="actions/jobs/{}/logs", summary=140,
    search={"state": "all", "sort": "created", "direction": "desc"},
    open_issues={"state": "open", "sort": "created", "direction": "asc"},
    states={"success": CheckState.PASSED, "pending": CheckState.PENDING}, other=CheckState.FAILED,
    published={CheckState.PASSED: "success", CheckState.SKIPPED: "success", CheckState.FAILED: "failure",
               CheckState.PENDING: "pending"})


class _Merged(Value):
    merged: bool = False
    sha: str = ""
    message: str = ""


class _App(Value):
    slug: str = ""


class _Output(Value):
    title: str = ""
    summary: str = ""
    text: str = ""


class _CheckRun(Value):
    id: int
    name: str = ""
    head_sha: str = ""
    status: str = ""
    conclusion: str = ""
    html_url: str = ""
    output: _Output = _Output()
    app: _App = _App()

    def record(self, commit: str) -> Check:
        """Convert it to garrison's record."""
        state = CheckState.PENDING if self.status != "completed" else \
            _CONCLUSIONS.get(self.conclusion, CheckState.FAILED)
        said = "\n".join(part for part in (self.output.title, self.output.summary, self.output.text) if part)
        return Check(self.name, commit, state, tail(said), self.html_url,
                     str(self.id) if self.app.slug == "github-actions" else "")


class _LineBody(Value):
    """A comment on a line, or a reply to one."""

    id: int
    in_reply_to_id: int = 0
    pull_request_review_id: int = 0
    user: User = User()
    body: str = ""
    path: str = ""
    line: int = 0
    original_line: int = 0
    side: str = ""
    original_commit_id: str = ""

    def record(self, resolved: Collection[int] = ()) -> LineComment:
        """Convert it to garrison's record; `resolved` are the first comments of resolved threads."""
        first = self.in_reply_to_id or self.id
        return LineComment(str(self.id), str(first), self.user.name, self.body, self.path, self.line or None,
                           self.original_line or None, Side.OLD if self.side == "LEFT" else Side.NEW,
                           self.original_commit_id, first in resolved, str(self.pull_request_review_id or ""))


class _RepositoryBody(Value):
    permissions: PushRight = PushRight()
    allow_merge_commit: bool = False
    allow_squash_merge: bool = False
    allow_rebase_merge: bool = False


class _RequiredCheck(Value):
    context: str = ""


class _RequiredChecks(Value):
    contexts: tuple[str, ...] = ()
    checks: tuple[_RequiredCheck, ...] = ()

    @property
    def names(self) -> set[str]:
        return {*self.contexts, *(each.context for each in self.checks)}


class _RequiredReviews(Value):
    required_approving_review_count: int = 0


class _Switch(Value):
    enabled: bool = False


class _Protection(Value):
    required_status_checks: _RequiredChecks = _RequiredChecks()
    required_pull_request_reviews: _RequiredReviews = _RequiredReviews()
    required_conversation_resolution: _Switch = _Switch()


class _BranchBody(Value):
    protected: bool = False
    protection: _Protection = _Protection()


class _Parameters(Value):
    required_status_checks: tuple[_RequiredCheck, ...] = ()
    required_approving_review_count: int = 0
    required_review_thread_resolution: bool = False


class _Rule(Value):
    parameters: _Parameters = _Parameters()


class _FirstComment(Value, rename="camel"):
    database_id: int = 0


class _FirstComments(Value):
    nodes: tuple[_FirstComment, ...] = ()


class _Thread(Value, rename="camel"):
    id: str
    is_resolved: bool = False
    comments: _FirstComments = _FirstComments()

    @property
    def first(self) -> int:
        return self.comments.nodes[0].database_id if self.comments.nodes else 0


class _Page(Value, rename="camel"):
    has_next_page: bool = False
    end_cursor: str = ""


class _Threads(Value, rename="camel"):
    nodes: tuple[_Thread, ...] = ()
    page_info: _Page = _Page()


class _Asked(Value, rename="camel"):
    review_threads: _Threads = _Threads()
    is_in_merge_queue: bool = False


class _AskedRepository(Value, rename="camel"):
    pull_request: _Asked = _Asked()


class _Data(Value):
    repository: _AskedRepository = _AskedRepository()


class _GraphError(Value):
    message: str = ""
    type: str = ""
    extensions: Present | None = None


class _GraphAnswer(Value):
    data: _Data = _Data()
    errors: tuple[_GraphError, ...] = ()


class GitHub(Forge):
    """One repository on GitHub."""

    table = TABLE
    pull_body = PullBody

    def _address(self) -> str:
        # Hosts of ghe.com have their API at api.NAME.ghe.com, as github.com has.
        return f"https://api.{self.location.host}" if self._is_cloud() else super()._address()

    def _is_cloud(self) -> bool:
        return self.location.host == "github.com" or self.location.host.endswith(".ghe.com")

    def _from_branch(self, head: str) -> Query:
        return {"head": f"{self.location.owner}:{head}"}

    def _opening(self, draft: PullDraft, marker: str) -> Body:
        return {**super()._opening(draft, marker), "draft": draft.draft, "maintainer_can_modify": True}

    def _set_labels(self, number: int, wanted: Collection[str]) -> None:
        self._session.tell("PUT", f"{self._root}/issues/{number}/labels", {"labels": sorted(wanted)})

    def _set_draft(self, number: int, *, wanted: bool) -> ForgePullRequest:
        with self._session.deadline():
            now = self._read(number)
            if now.draft is not wanted:
                self._ask(_DRAFT if wanted else _READY, id=now.node_id)
                now = self._read(number)
            return self._pull(now)

    def _read(self, number: int) -> PullBody:
        return self._session.get(PullBody, f"{self._pulls}/{number}")

    def _merge(self, number: int, head_commit: str, method: MergeMethod, *, later: bool) -> MergeOutcome:
        if later:
            return self._merge_later(number, head_commit, method)
        done = self._session.write(_Merged, "PUT", f"{self._pulls}/{number}/merge",
                                   {"sha": head_commit, "merge_method": method.value})
        return MergeOutcome(ForgeMerge.MERGED, done.sha) if done.merged else \
            MergeOutcome(ForgeMerge.REFUSED, reason=done.message)

    def _merge_later(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        now = self._read(number)
        try:
            if now.auto_merge is None and not self._is_in_queue(number):
                self._ask(_AUTO, id=now.node_id, head=head_commit, method=method.name)
        except ForgeRefused as error:
            if not _MERGEABLE_NOW.search(error.reason):
                raise
            outcome = self.merge(number, head_commit, method)
            if outcome.result is not ForgeMerge.REFUSED or not _HAS_QUEUE.search(outcome.reason):
                return outcome
            self._ask(_ENQUEUE, id=now.node_id, head=head_commit)
        return MergeOutcome(ForgeMerge.QUEUED)

    def cancel_auto_merge(self, number: int) -> None:
        """Turn auto-merge off, or take it out of the merge queue."""
        with self._session.deadline():
            now = self._read(number)
            if now.auto_merge is not None:
                self._ask(_NO_AUTO, id=now.node_id)
            elif self._is_in_queue(number):
                self._ask(_DEQUEUE, id=now.node_id)

    def is_merge_scheduled(self, number: int) -> bool:
        with self._session.deadline():
            return self.read_pull(number).auto_merge or self._is_in_queue(number)

    def _is_in_queue(self, number: int) -> bool:
        try:
            return self._ask_about(_QUEUED, number).is_in_merge_queue
        except ForgeRefused:  # an Enterprise Server without merge queues
            return False

    def list_checks(self, commit: str) -> list[Check]:
        """Return check runs and commit statuses, the newest of each name."""
        with self._session.deadline():
            path = f"{self._root}/commits/{commit}"
            runs = self._session.get_pages(_CheckRun, f"{path}/check-runs", {"filter": "latest"}, key="check_runs")
            statuses = self._session.get_pages(StatusBody, f"{path}/status", key="statuses")
            return [*(each.record(commit) for each in runs if each.head_sha in {"", commit}),
                    *(self._status(each, commit) for each in statuses)]

    def list_line_comments(self, number: int) -> list[LineComment]:
        """Return comments on lines; only GraphQL says which threads are resolved."""
        with self._session.deadline():
            found = self._line_bodies(number)
            resolved = {each.first for each in self._threads(number) if each.is_resolved} if found else ()
            return [each.record(resolved) for each in found]

    def _line_bodies(self, number: int) -> list[_LineBody]:
        return self._session.get_pages(_LineBody, f"{self._pulls}/{number}/comments")

    def _said_at_lines(self, number: int) -> list[LineComment]:
        return [each.record() for each in self._line_bodies(number)]

    def _reply(self, number: int, thread: str, text: str) -> LineComment:
        return self._session.write(_LineBody, "POST", f"{self._pulls}/{number}/comments/{int(thread)}/replies",
                                   {"body": text}).record()

    def resolve(self, number: int, thread: str) -> bool:
        """Mark a thread resolved, by its GraphQL id."""
        with self._session.deadline():
            node = next((each.id for each in self._threads(number) if str(each.first) == thread), "")
            if not node:
                raise ForgeNotFound(f"pull request {number} has no thread {thread}")
            self._ask(_RESOLVE, id=node)
            return True

    def read_rules(self, base: str) -> BaseRules:
        """Return classic branch protection and rulesets together, and the token's rights."""
        with self._session.deadline():
            repository = self._session.get(_RepositoryBody, self._root)
            branch = self._session.get(_BranchBody, f"{self._root}/branches/{quote(base, safe='/')}")
            rules = [each.parameters for each in self._session.get(
                list[_Rule], f"{self._root}/rules/branches/{quote(base, safe='')}")]
            classic, is_known = self._protection(base) if branch.protected else (_Protection(), True)
        checks = {each.context for rule in rules for each in rule.required_status_checks}
        for required in (branch.protection.required_status_checks, classic.required_status_checks):
            checks |= required.names
        methods = {MergeMethod.MERGE: repository.allow_merge_commit, MergeMethod.SQUASH: repository.allow_squash_merge,
                   MergeMethod.REBASE: repository.allow_rebase_merge}
        return BaseRules(
            repository.permissions.push, tuple(sorted(checks - {""})),
            max(classic.required_pull_request_reviews.required_approving_review_count,
                *(each.required_approving_review_count for each in rules), 0),
            tuple(method for method, is_allowed in methods.items() if is_allowed), is_known,
            classic.required_conversation_resolution.enabled
            or any(each.required_review_thread_resolution for each in rules))

    def _protection(self, base: str) -> tuple[_Protection, bool]:
        """Return classic branch protection, which only administrators may read, and whether it was readable."""
        try:
            return self._session.get(_Protection, f"{self._root}/branches/{quote(base, safe='/')}/protection"), True
        except ForgeNotFound:
            return _Protection(), True
        except (Unauthorized, ForgeRefused):
            return _Protection(), False

    def _threads(self, number: int) -> list[_Thread]:
        found: list[_Thread] = []
        after = None
        for _ in range(_THREAD_PAGES):
            page = self._ask_about(_THREADS, number, after=after).review_threads
            found += page.nodes
            if not page.page_info.has_next_page:
                break
            after = page.page_info.end_cursor
        return found

    def _ask_about(self, query: str, number: int, **given: str | None) -> _Asked:
        asked = {"owner": self.location.owner, "name": self.location.name, "number": number, **given}
        return self._ask(query, **asked).repository.pull_request

    def _ask(self, query: str, **variables: str | int | None) -> _Data:
        # On an Enterprise Server it is not below the /api/v3 of REST.
        path = "/graphql" if self._is_cloud() else f"{self.location.scheme}://{self.location.host}/api/graphql"
        answer = self._session.write(_GraphAnswer, "POST", path, {"query": query, "variables": variables})
        if answer.errors:
            first, said = answer.errors[0], "; ".join(each.message for each in answer.errors)
            what = f"GraphQL: {said}"
            if first.type == "RATE_LIMITED":  # with status 200
                raise RateLimited(what, time.time() + SECONDARY_WAIT)
            if not first.type and first.extensions is None:  # it gave up: this is how its timeouts look
                raise ForgeUnreachable(what)
            raise Unauthorized(what, said) if first.type == "FORBIDDEN" else ForgeRefused(what, said)
        return answer.data
