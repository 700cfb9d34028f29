"""A repository on a forge: what garrison needs from it, and how all forges do it.

Every method is one step with a deadline, and raises only `errors.ForgeError`. Reads are conditional: what has not
changed does not count against the rate limit. A read that pages ends after `MAX_PAGES` and returns what it has.

Writes that would make a second object (open, comment, reply) take a marker (`marker`). They look for it first, and
after a failure once more: a forge may have carried out a request that it did not answer, and may list a new object only
some reads later. After `Unreachable` it is unknown whether the object exists; calling again settles that. The other
writes set a state, and are safe to repeat.

Each forge (`github`, `gitlab`, `gitea`) has a table of routes and words, the shapes of its answers, and what it does
differently.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar
from urllib.parse import quote

from garrison.backoff import Backoff
from garrison.forge.errors import ForgeError, ForgeNotFound, ForgeRefused, ForgeUnreachable, Stale
from garrison.forge.marker import attach, has_marker
from garrison.forge.model import (
    BaseRules,
    Check,
    CheckState,
    Comment,
    ForgeMerge,
    ForgePullRequest,
    Issue,
    LineComment,
    MergeMethod,
    MergeOutcome,
    PullDraft,
    PullState,
    RequestCount,
    Review,
    ReviewVerdict,
)
from garrison.forge.transport import NOTHING, PAUSES, Connections, ForgeSession
from garrison.values import Value, replace

if TYPE_CHECKING:
    from garrison.forge.credentials import Token
    from garrison.forge.model import Location
    from garrison.forge.transport import Body, EtagCache, Query

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

LOOKS = 4
"""Searches for an object after a write that may have made it."""
_VERDICTS = {"APPROVED": ReviewVerdict.APPROVED, "CHANGES_REQUESTED": ReviewVerdict.CHANGES,
             "REQUEST_CHANGES": ReviewVerdict.CHANGES,
             "DISMISSED": ReviewVerdict.DISMISSED, "COMMENTED": ReviewVerdict.COMMENT, "COMMENT": ReviewVerdict.COMMENT}
"""Submitted reviews; `PENDING` and `REQUEST_REVIEW` are not."""


class Sent(Protocol[T_co]):
    """The shape of an answer that one of garrison's records is made from."""

    def record(self) -> T_co: ...


class Present(Value):
    """An object whose content does not matter."""


class User(Value):
    """A user; GitLab calls the name `username`."""

    login: str = ""
    username: str = ""

    @property
    def name(self) -> str:
        return self.login or self.username


class Label(Value):
    """A label; GitLab sends its name alone."""

    name: str = ""
    id: int = 0


class Named(Value):
    """A repository; only its name matters."""

    full_name: str = ""


class RepositoryBranch(Value):
    """A side of a pull request: a branch of some repository."""

    ref: str = ""
    sha: str = ""
    repo: Named = Named()
    repo_id: int = 0
    """Only Gitea sends it."""


class PullBody(Value):
    """A pull request as GitHub and Gitea send it."""

    number: int
    html_url: str = ""
    title: str = ""
    body: str = ""
    user: User = User()
    state: str = ""
    draft: bool = False
    merged: bool = False
    merged_at: str = ""
    merge_commit_sha: str = ""
    head: RepositoryBranch = RepositoryBranch()
    base: RepositoryBranch = RepositoryBranch()
    labels: tuple[Label | str, ...] = ()
    auto_merge: Present | None = None
    node_id: str = ""

    def record(self) -> ForgePullRequest:
        """Convert it to garrison's record, with the title unchanged."""
        is_merged, head, base = self.merged or bool(self.merged_at), self.head, self.base
        state = PullState.MERGED if is_merged else PullState.OPEN if self.state == "open" else PullState.CLOSED
        return ForgePullRequest(
            self.number, self.html_url, self.title, self.body, state, self.draft, head.ref, head.sha, base.ref,
            names(self.labels), self.user.name,
            self.merge_commit_sha if is_merged else "",  # before, it is the commit of a trial merge
            self.auto_merge is not None,
            (head.repo_id, head.repo.full_name) != (base.repo_id, base.repo.full_name))


class IssueBody(Value):
    """An issue as GitHub and Gitea send it; a pull request is one as well."""

    number: int
    html_url: str = ""
    title: str = ""
    body: str = ""
    user: User = User()
    state: str = ""
    labels: tuple[Label | str, ...] = ()
    pull_request: Present | None = None

    @property
    def is_pull(self) -> bool:
        return self.pull_request is not None

    def record(self) -> Issue:
        """Convert it to garrison's record; NotFound for a pull request."""
        if self.is_pull:
            raise ForgeNotFound(f"#{self.number} is a pull request, not an issue")
        return Issue(self.number, self.html_url, self.title, self.body, self.user.name,
                     self.state in {"open", "opened"}, names(self.labels))


class CommentBody(Value):
    """A comment on the pull request as a whole; GitLab also lists system notes and comments on lines."""

    id: int
    user: User = User()
    author: User = User()
    body: str = ""
    system: bool = False
    position: Present | None = None

    def record(self) -> Comment:
        return Comment(str(self.id), self.user.name or self.author.name, self.body)


class StatusBody(Value):
    """A status of a commit, or a job of GitLab; the newest of a name counts."""

    id: int = 0
    context: str = ""
    name: str = ""
    sha: str = ""
    state: str = ""
    status: str = ""
    description: str = ""
    target_url: str = ""
    allow_failure: bool = False


class ReviewBody(Value):
    """A review as GitHub and Gitea send it."""

    id: int
    user: User = User()
    state: str = ""
    body: str = ""
    commit_id: str = ""
    submitted_at: str = ""
    dismissed: bool = False
    stale: bool = False
    comments_count: int = 1

    @property
    def is_given(self) -> bool:
        return self.state in _VERDICTS

    def record(self) -> Review:
        return Review(str(self.id), self.user.name,
                      ReviewVerdict.DISMISSED if self.dismissed else _VERDICTS[self.state],
                      self.body, self.commit_id, moment(self.submitted_at), self.stale)


class Permission(Value):
    """A user's permission on a repository."""

    permission: str = ""


class PushRight(Value):
    """Right to push, as GitHub and Gitea state it with the repository."""

    push: bool = False


class RouteTable(Value, kw_only=True):
    """Routes of a forge, relative to its API or the repository, and words that differ between forges."""

    api: str
    authorization: str
    """How a request passes the token."""
    root: str = "/repos/{location.owner}/{location.name}"
    pulls: str = "pulls"
    statuses: str = "commits/{}/statuses"
    newest_first: Query = NOTHING
    """Parameters that list them, newest first."""
    log: str = ""
    """Log of a check by its id; empty if there are none."""
    size: str = "per_page"
    pages: int = 1
    """Pages of pull requests that are searched for a branch."""
    search: Query = NOTHING
    """Parameters that list pull requests of any state, newest first."""
    edit: str = "PATCH"
    body: str = "body"
    """Field of a pull request's text."""
    status_name: str = "context"
    summary: int = 255
    """Characters of a status's text."""
    open_issues: Query = NOTHING
    """Parameters that list the open issues, oldest first."""
    states: Mapping[str, CheckState]
    other: CheckState
    """How a status of any other state counts."""
    published: Mapping[CheckState, str]
    draft: str = ""
    """Prefix of the title of a draft; empty if the forge has real drafts."""
    drafts: re.Pattern[str] = re.compile(r"(?!)")
    """Prefixes that mark the title of a draft."""


class Forge(ABC):
    """One repository on a forge, with one token."""

    table: ClassVar[RouteTable]
    pull_body: ClassVar[type[Sent[ForgePullRequest]]] = PullBody
    issue_body: ClassVar[type[IssueBody]] = IssueBody
    unreadable: ClassVar[tuple[type[ForgeError], ...]] = (ForgeNotFound, ForgeRefused)
    """Failures that mean that a log was deleted or is not readable for us."""

    def __init__(self, location: Location, token: Token, cache: EtagCache | None = None,
                 pauses: Backoff = PAUSES) -> None:
        self.location = location
        authorization = f"{self.table.authorization} {token.reveal()}"
        self._session = ForgeSession(Connections(self._address(), authorization), token, cache, size=self.table.size,
                                     pauses=pauses)
        self._root = self.table.root.format(location=location, path=quote(location.path, safe=""))
        self._pulls = f"{self._root}/{self.table.pulls}"

    def _address(self) -> str:
        return f"{self.location.scheme}://{self.location.host}{self.table.api}"

    @property
    def requests(self) -> RequestCount:
        """Requests sent by this client."""
        return self._session.requests

    def read_anew(self, *, anew: bool) -> None:
        """Turn unconditional reads on or off: a forge may be wrong about what has not changed."""
        self._session.is_anew = anew

    # --- people -------------------------------------------------------------------------------------------------------

    def read_login(self) -> str:
        """Return the token's user: the author of what garrison writes."""
        return self._session.get(User, "/user").name

    def can_write(self, login: str) -> bool:
        """Return whether a user may push to the repository; anybody may comment on a public one."""
        try:
            found = self._session.get(Permission, f"{self._root}/collaborators/{quote(login, safe='')}/permission")
        except ForgeNotFound:
            return False
        return found.permission in {"admin", "maintain", "owner", "write"}

    # --- pull requests ------------------------------------------------------------------------------------------------

    def find_pull(self, marker: str, head: str) -> ForgePullRequest | None:
        """Return the pull request with `marker`, else the newest from the repository's own branch `head`, in any state.

        An open one precedes others. A forge may take a moment to list what was just opened (`open_pull`).
        """
        with self._session.deadline():
            found = map(self._pull, self._session.get_pages(
                self.pull_body, self._pulls, {**self.table.search, **self._from_branch(head)}, pages=self.table.pages))
            # newest first; never one from a fork, since anyone may put a marker into it
            own = sorted((each for each in found if each.head == head and not each.from_fork),
                         key=lambda each: -each.number)
        marked = [each for each in own if has_marker(each.body, marker)]
        opened = [each for each in marked or own if each.state is PullState.OPEN]
        return next(iter((*opened, *marked, *own)), None)

    def _from_branch(self, head: str) -> Query:
        """Return the parameters that filter pull requests by branch; none if the forge has no such filter."""
        return {}

    def _pull(self, body: Sent[ForgePullRequest]) -> ForgePullRequest:
        pull, drafts = body.record(), self.table.drafts
        return replace(pull, title=drafts.sub("", pull.title), draft=pull.draft or bool(drafts.match(pull.title)))

    def read_pull(self, number: int) -> ForgePullRequest:
        return self._pull(self._session.get(self.pull_body, f"{self._pulls}/{number}"))

    def open_pull(self, draft: PullDraft, marker: str) -> ForgePullRequest:
        """Open a pull request, or return the one that has `marker`, whatever its state."""
        def find() -> ForgePullRequest | None:
            found = self.find_pull(marker, draft.head)
            return found if found is not None and has_marker(found.body, marker) else None

        def make() -> ForgePullRequest:
            return self._pull(self._session.write(self.pull_body, "POST", self._pulls, self._opening(draft, marker)))

        with self._session.deadline():
            pull = make_once(self._session, find, make)
            if set(draft.labels) - set(pull.labels):
                self._set_labels(pull.number, {*pull.labels, *draft.labels})
                pull = self.read_pull(pull.number)
            return pull

    def _opening(self, draft: PullDraft, marker: str) -> Body:
        return {"head": draft.head, "base": draft.base, "title": self._title(draft.title, draft=draft.draft),
                "body": attach(draft.body, marker)}

    @abstractmethod
    def _set_labels(self, number: int, wanted: Collection[str]) -> None:
        """Set all labels of a pull request."""

    def set_body(self, number: int, body: str) -> ForgePullRequest:
        """Set the text of a pull request; send nothing if it is already so."""
        with self._session.deadline():
            now = self.read_pull(number)
            return now if now.body == body else self._edit(number, {self.table.body: body})

    def _edit(self, number: int, body: Body) -> ForgePullRequest:
        return self._pull(self._session.write(self.pull_body, self.table.edit, f"{self._pulls}/{number}", body))

    def mark_ready(self, number: int) -> ForgePullRequest:
        """Make a draft ready for review."""
        return self._set_draft(number, wanted=False)

    def mark_draft(self, number: int) -> ForgePullRequest:
        """Make it a draft."""
        return self._set_draft(number, wanted=True)

    def _set_draft(self, number: int, *, wanted: bool) -> ForgePullRequest:
        with self._session.deadline():
            now = self.read_pull(number)
            return now if now.draft is wanted else self._edit(number, {"title": self._title(now.title, draft=wanted)})

    def _title(self, title: str, *, draft: bool) -> str:
        return f"{self.table.draft if draft else ''}{self.table.drafts.sub('', title)}"

    # --- merging ------------------------------------------------------------------------------------------------------

    def merge(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        """Merge now if the head is still `head_commit`; Stale otherwise.

        A merge without an answer is checked again, so a lost answer also results in MERGED with its commit.
        """
        return self._merge_once(number, head_commit, method, later=False)

    def enable_auto_merge(self, number: int, head_commit: str, method: MergeMethod) -> MergeOutcome:
        """Have the forge merge once its rules are met: QUEUED, or MERGED if they already are. Stale as in `merge`.

        A branch with a merge queue gets the pull request queued.
        """
        return self._merge_once(number, head_commit, method, later=True)

    @abstractmethod
    def _merge(self, number: int, head_commit: str, method: MergeMethod, *, later: bool) -> MergeOutcome: ...

    def _merge_once(self, number: int, head_commit: str, method: MergeMethod, *, later: bool) -> MergeOutcome:
        """Check whether it is merged, else send the merge, and check again if no answer came."""
        with self._session.deadline():
            if (settled := _settled(self.read_pull(number), head_commit)) is not None:
                return settled
            try:
                return self._merge(number, head_commit, method, later=later)
            # Refused too: "already merged" is the answer to a merge whose first answer was lost.
            except (ForgeUnreachable, ForgeRefused) as error:
                try:
                    after = self.read_pull(number)
                except ForgeError:
                    return MergeOutcome(ForgeMerge.UNKNOWN, reason=str(error))
                if (settled := _settled(after, head_commit)) is not None:
                    return settled
                if isinstance(error, ForgeRefused):
                    return MergeOutcome(ForgeMerge.REFUSED, reason=error.reason)
                return MergeOutcome(ForgeMerge.UNKNOWN, reason=str(error))

    @abstractmethod
    def cancel_auto_merge(self, number: int) -> None:
        """Withdraw `enable_auto_merge`; no error if there is none."""

    @abstractmethod
    def is_merge_scheduled(self, number: int) -> bool | None:
        """Return whether the forge will merge it by itself (auto-merge or its queue); None if it does not say."""

    @abstractmethod
    def read_rules(self, base: str) -> BaseRules: ...

    # --- checks -------------------------------------------------------------------------------------------------------

    def list_checks(self, commit: str) -> list[Check]:
        """Return the newest result of each check of exactly this commit; `mark_required` adds missing ones."""
        with self._session.deadline():
            rows = self._session.get_pages(StatusBody, f"{self._root}/{self.table.statuses.format(commit)}",
                                           self.table.newest_first)
        newest = {each.context or each.name: each for each in sorted(rows, key=lambda each: each.id)
                  if each.sha in {"", commit}}
        return [self._status(each, commit) for each in newest.values()]

    def _status(self, body: StatusBody, commit: str) -> Check:
        state = self.table.states.get(body.state or body.status, self.table.other)
        if state is CheckState.FAILED and body.allow_failure:
            state = CheckState.SKIPPED
        return Check(body.context or body.name, commit, state, body.description, body.target_url)

    def read_check_log(self, check: Check) -> str:
        """Return the tail of a check's log; its summary if the forge has no log (any more)."""
        if not check.log_id:
            return check.summary
        try:
            return self._session.get_log(f"{self._root}/{self.table.log.format(check.log_id)}") or check.summary
        except self.unreadable:
            return check.summary

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str) -> None:
        """Set garrison's own check of a commit."""
        self._session.tell("POST", f"{self._root}/statuses/{commit}", {
            "state": self.table.published[state], self.table.status_name: name,
            "description": summary[:self.table.summary]})

    # --- reviews ------------------------------------------------------------------------------------------------------

    def list_reviews(self, number: int) -> list[Review]:
        """Return the reviews, oldest first."""
        return [each.record() for each in self._reviews(number)]

    def _reviews(self, number: int) -> list[ReviewBody]:
        found = self._session.get_pages(ReviewBody, f"{self._pulls}/{number}/reviews")
        return [each for each in found if each.is_given]

    @abstractmethod
    def list_line_comments(self, number: int) -> list[LineComment]:
        """Return comments on lines with their replies, oldest first."""

    def _said_at_lines(self, number: int) -> list[LineComment]:
        """Return comments on lines, without their resolved state."""
        return self.list_line_comments(number)

    def reply(self, number: int, thread: str, text: str, marker: str) -> LineComment:
        """Answer in a thread, or return the answer that has `marker`."""
        def find() -> LineComment | None:
            return next((each for each in self._said_at_lines(number) if has_marker(each.text, marker)), None)

        def make() -> LineComment:
            made = self._reply(number, thread, attach(text, marker)) or find()
            return made or LineComment("", thread, "", text, "", 0)

        return make_once(self._session, find, make)

    @abstractmethod
    def _reply(self, number: int, thread: str, text: str) -> LineComment | None:
        """Answer in a thread; None if the forge does not return the new comment."""

    @abstractmethod
    def resolve(self, number: int, thread: str) -> bool:
        """Mark a thread resolved; False if the forge does not support that."""

    # --- comments and issues ------------------------------------------------------------------------------------------

    def list_comments(self, number: int, *, pull: bool) -> list[Comment]:
        """Return the comments on a pull request or issue as a whole, oldest first."""
        return [each.record() for each in self._session.get_pages(CommentBody, self._comments(number, pull=pull))
                if not each.system and each.position is None]

    def _comments(self, number: int, *, pull: bool) -> str:
        return f"{self._root}/issues/{number}/comments"

    def comment(self, number: int, text: str, marker: str, *, pull: bool) -> Comment:
        """Comment on a pull request or issue, or return the comment that has `marker`."""
        def find() -> Comment | None:
            return next((each for each in self.list_comments(number, pull=pull) if has_marker(each.text, marker)), None)

        def make() -> Comment:
            return self._session.write(CommentBody, "POST", self._comments(number, pull=pull),
                                       {"body": attach(text, marker)}).record()

        return make_once(self._session, find, make)

    def read_issue(self, number: int) -> Issue:
        """Return an issue by number; ForgeNotFound for a pull request, or an issue that the token may not read."""
        try:
            found = self._session.get(self.issue_body, f"{self._root}/issues/{number}")
        except ForgeNotFound as error:
            raise ForgeNotFound(f"{self.location.path} has no issue {number} that this token may read; give one that "
                                "is open there") from error
        return found.record()

    def list_issues(self, label: str) -> list[Issue]:
        """Return the open issues with a label, oldest first."""
        rows = self._session.get_pages(self.issue_body, f"{self._root}/issues",
                                       {**self.table.open_issues, "labels": label})
        return sorted((each.record() for each in rows if not each.is_pull), key=lambda each: each.number)


def make_once(session: ForgeSession, find: Callable[[], T | None], make: Callable[[], T]) -> T:
    """Return the object that `find` returns, else create it.

    Raises:
        Unreachable: no answer, and the object was not seen. It may exist: call again.
    """
    with session.deadline():
        if (found := find()) is not None:
            return found
        try:
            return make()
        except (ForgeUnreachable, ForgeRefused) as error:
            # Refused too: "already exists" is the answer to a write whose first answer was lost
            found = look_repeatedly(session, find)
            if found is None:
                raise error from None
            return found


def look_repeatedly(session: ForgeSession, find: Callable[[], T | None]) -> T | None:
    """Search for an object a few times until it is listed; None if it is not, or the forge does not answer."""
    for look in range(LOOKS):
        if look and not session.pause(session.pauses.delay(look)):
            return None
        try:
            if (found := find()) is not None:
                return found
        except ForgeUnreachable:
            continue
    return None


def _settled(pull: ForgePullRequest, head_commit: str) -> MergeOutcome | None:
    """Return the outcome if it is final; Stale if the head is another commit."""
    if pull.state is PullState.MERGED:
        return MergeOutcome(ForgeMerge.MERGED, pull.merge_commit)
    if pull.state is PullState.CLOSED:
        return MergeOutcome(ForgeMerge.REFUSED, reason="the pull request is closed")
    if pull.head_commit != head_commit:
        raise Stale(head_commit, pull.head_commit)
    return None


def names(labels: Iterable[Label | str]) -> tuple[str, ...]:
    return tuple(each if isinstance(each, str) else each.name for each in labels)


def moment(text: str) -> float:
    """Return a time in seconds since 1970; 0 if it is invalid."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
