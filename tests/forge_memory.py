"""A forge in memory, with the faults of real ones, for tests that need no HTTP.

Its branches are those of a bare repository, so pushes are real. A fault is a name that `Faults.next` returns before a
request: the request is then refused, or carried out without an answer. `Killed` is what a kill -9 of the caller looks
like: the caller runs no further.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from garrison.forge import errors, model
from garrison.forge.marker import has_marker
from garrison.forge.model import (
    CheckState,
    ForgeMerge,
    MergeOutcome,
    PullState,
    RequestCount,
    ReviewVerdict,
)
from garrison.values import replace
from support import git


class Killed(BaseException):
    """The caller was killed before or after a request."""


Fault = Callable[[str], str]
"""Takes the name of a request, returns the fault: '', before, after, 502, lost, limited."""


@dataclass
class World:
    """The forge's own state; people change it directly."""

    bare: Path
    pulls: list[model.ForgePullRequest] = field(default_factory=list)
    checks: dict[str, list[model.Check]] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    reviews: list[model.Review] = field(default_factory=list)
    lines: list[model.LineComment] = field(default_factory=list)
    comments: list[model.Comment] = field(default_factory=list)
    statuses: dict[tuple[str, str], CheckState] = field(default_factory=dict)
    issues: list[model.Issue] = field(default_factory=list)
    writers: set[str] = field(default_factory=lambda: {"garrison", "eve"})
    rules: model.BaseRules = field(default_factory=lambda: model.BaseRules(can_push=True))
    scheduled: bool = False
    lies: bool = False
    """True if it says that it has merged, and has not."""
    made: list[tuple[str, str]] = field(default_factory=list)
    """Everything that was made: kind and what tells it from others."""

    def branch(self, name: str) -> str:
        out = git(self.bare, "for-each-ref", "--format=%(objectname)", f"refs/heads/{name}")
        return out.strip()

    def pull(self, number: int) -> model.ForgePullRequest:
        pull = self.pulls[number - 1]
        return replace(pull, head_commit=self.branch(pull.head))

    def change(self, number: int, **changes: Any) -> None:
        self.pulls[number - 1] = replace(self.pulls[number - 1], **changes)

    def merge(self, number: int, squash: bool = False) -> str:
        """Merge as a forge does; the base may have moved."""
        pull = self.pull(number)
        base = self.branch(pull.base)
        tree = git(self.bare, "merge-tree", "--write-tree", base, pull.head_commit)
        parents = ["-p", base] + ([] if squash else ["-p", pull.head_commit])
        commit = git(self.bare, "-c", "user.name=forge", "-c", "user.email=f@f", "commit-tree", tree, *parents, "-m",
                     f"Merge #{number}")
        if not self.lies:
            git(self.bare, "update-ref", f"refs/heads/{pull.base}", commit)
        self.change(number, state=PullState.MERGED, merge_commit=commit)
        self.made.append(("merge", str(number)))
        return commit


class MemoryForge:
    """A client of the forge."""

    def __init__(self, world: World, fault: Fault = lambda _: "", login: str = "garrison") -> None:
        self.world, self.fault, self.login = world, fault, login
        self.requests = RequestCount()
        self.location = model.Location(model.ForgeKind.GITEA, "forge.test", "o", "r")

    def _do(self, name: str, act: Callable[[], Any]) -> Any:
        self.requests.sent += 1
        match self.fault(name):
            case "before":
                raise Killed
            case "502":
                raise errors.ForgeUnreachable(f"{name}: 502")
            case "refused":
                raise errors.ForgeRefused(f"{name}: it is locked", "locked")
            case "gone":
                raise errors.ForgeNotFound(f"{name}: 404")
            case "forbidden":
                raise errors.Unauthorized(f"{name}: 403: the token lacks a permission", "Forbidden")
            case "limited":
                raise errors.RateLimited(f"{name}: rate limit", 0.0)
            case "after":
                act()
                raise Killed
            case "lost":
                act()
                raise errors.ForgeUnreachable(f"{name}: no answer")
        return act()

    def read_anew(self, *, anew: bool) -> None:
        self.anew = anew

    def read_login(self) -> str:
        return self._do("login", lambda: self.login)

    def can_write(self, login: str) -> bool:
        return self._do("permission", lambda: login in self.world.writers)

    def _found(self, marker: str, head: str) -> model.ForgePullRequest | None:
        own = [pull for pull in self.world.pulls if has_marker(pull.body, marker) or pull.head == head]
        best = next((pull for pull in own if pull.state is PullState.OPEN), own[-1] if own else None)
        return self.world.pull(best.number) if best is not None else None

    def find_pull(self, marker: str, head: str) -> model.ForgePullRequest | None:
        return self._do("find", lambda: self._found(marker, head))

    def read_pull(self, number: int) -> model.ForgePullRequest:
        return self._do("pull", lambda: self.world.pull(number))

    def open_pull(self, draft: model.PullDraft, marker: str) -> model.ForgePullRequest:
        found = self.find_pull(marker, draft.head)
        return found if found is not None and has_marker(found.body, marker) else \
            self._do("open", lambda: self._open(draft))

    def _open(self, draft: model.PullDraft) -> model.ForgePullRequest:
        if any(each.head == draft.head and each.state is PullState.OPEN for each in self.world.pulls):
            raise errors.ForgeRefused("POST /pulls: 409 a pull request already exists", "a pull request already exists")
        number = len(self.world.pulls) + 1
        self.world.pulls.append(model.ForgePullRequest(
            number, f"https://forge.test/{number}", draft.title, draft.body, PullState.OPEN, draft.draft, draft.head,
            "", draft.base, draft.labels, self.login))
        self.world.made.append(("pull", draft.head))
        return self.world.pull(number)

    def set_body(self, number: int, body: str) -> model.ForgePullRequest:
        return self._do("update", lambda: (self.world.change(number, body=body), self.world.pull(number))[1])

    def mark_draft(self, number: int) -> model.ForgePullRequest:
        return self._do("draft", lambda: (self.world.change(number, draft=True), self.world.pull(number))[1])

    def resolve(self, number: int, thread: str) -> bool:
        def act() -> bool:
            self.world.lines[:] = [replace(each, resolved=each.resolved or each.thread == thread)
                                   for each in self.world.lines]
            return True
        return self._do("resolve", act)

    def mark_ready(self, number: int) -> model.ForgePullRequest:
        return self._do("ready", lambda: (self.world.change(number, draft=False), self.world.pull(number))[1])

    def merge(self, number: int, head_commit: str, method: model.MergeMethod) -> MergeOutcome:
        def act() -> MergeOutcome:
            pull = self.world.pull(number)
            if pull.state is not PullState.OPEN:
                return MergeOutcome(ForgeMerge.REFUSED, reason="it is not open")
            if pull.head_commit != head_commit:
                raise errors.Stale(head_commit, pull.head_commit)
            return MergeOutcome(ForgeMerge.MERGED, self.world.merge(number))
        return self._do("merge", act)

    def read_rules(self, base: str) -> model.BaseRules:
        return self._do("rules", lambda: self.world.rules)

    def is_merge_scheduled(self, number: int) -> bool | None:
        return self._do("scheduled", lambda: self.world.scheduled)

    def enable_auto_merge(self, number: int, head_commit: str, method: model.MergeMethod) -> MergeOutcome:
        def act() -> MergeOutcome:
            if self.world.branch(self.world.pulls[number - 1].head) != head_commit:
                raise errors.Stale(head_commit, "")
            self.world.scheduled = True
            return MergeOutcome(ForgeMerge.QUEUED)
        return self._do("auto", act)

    def cancel_auto_merge(self, number: int) -> None:
        self._do("no auto", lambda: setattr(self.world, "scheduled", False))

    def list_checks(self, commit: str) -> list[model.Check]:
        own = [model.Check(name, at, state) for (at, name), state in self.world.statuses.items() if at == commit]
        return self._do("checks", lambda: [*self.world.checks.get(commit, []), *own])

    def read_check_log(self, check: model.Check) -> str:
        return self._do("log", lambda: self.world.logs.get(check.name, check.summary))

    def publish_status(self, commit: str, name: str, state: CheckState, summary: str) -> None:
        self._do("status", lambda: self.world.statuses.__setitem__((commit, name), state))

    def list_reviews(self, number: int) -> list[model.Review]:
        return self._do("reviews", lambda: list(self.world.reviews))

    def list_line_comments(self, number: int) -> list[model.LineComment]:
        return self._do("lines", lambda: list(self.world.lines))

    def list_comments(self, number: int, *, pull: bool) -> list[model.Comment]:
        return self._do("comments", lambda: list(self.world.comments))

    def reply(self, number: int, thread: str, text: str, marker: str) -> model.LineComment:
        if found := next((each for each in self.list_line_comments(number) if has_marker(each.text, marker)), None):
            return found

        def act() -> model.LineComment:
            first = next(each for each in self.world.lines if each.thread == thread)
            reply = replace(first, id=f"r{len(self.world.lines)}", author=self.login, text=text)
            self.world.lines.append(reply)
            self.world.made.append(("reply", marker))
            return reply
        return self._do("reply", act)

    def comment(self, number: int, text: str, marker: str, *, pull: bool) -> model.Comment:
        if found := next((each for each in self.list_comments(number, pull=pull) if has_marker(each.text, marker)),
                         None):
            return found

        def act() -> model.Comment:
            comment = model.Comment(f"g{len(self.world.comments)}", self.login, text)
            self.world.comments.append(comment)
            self.world.made.append(("comment", marker))
            return comment
        return self._do("comment", act)

    def read_issue(self, number: int) -> model.Issue:
        return self._do("issue", lambda: next(each for each in self.world.issues if each.number == number))

    def list_issues(self, label: str) -> list[model.Issue]:
        return self._do("issues", lambda: [each for each in self.world.issues if each.open and label in each.labels])


def approve(world: World, author: str = "eve", commit: str = "") -> None:
    """Approve as a user; the forge reports which commit, if one is given."""
    world.reviews.append(model.Review(f"v{len(world.reviews)}", author, ReviewVerdict.APPROVED, commit=commit))
