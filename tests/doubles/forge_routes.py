"""What the doubles of the three forges share: a table of routes each, and what is done there on all of them.

A row is method, path below the repository with `{names}`, and the method of the class that answers. What a forge calls
things, and how it sends them, is in its class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import unquote

from doubles.forge_state import Comment, ForgeState, Issue, LineComment, Problem, Pull, Repository, Review, Status

Reply = tuple[int, Any]
"""Status and body."""
Rows = tuple[tuple[str, str, str], ...]
AT = "2026-01-01T00:00:00Z"


@dataclass
class Call:
    """A request to a repository."""

    repository: Repository
    query: Mapping[str, str]
    body: dict[str, Any]
    named: Mapping[str, str] = field(default_factory=dict)
    """What the path names."""

    @property
    def number(self) -> int:
        return int(self.named["number"])


class Routes:
    """What a request of one forge's API gets: (status, body)."""

    root: ClassVar = r"/repos/(?P<path>[^/]+/[^/]+)"
    rows: ClassVar[Rows]
    missing: ClassVar = "Not Found"

    def __init__(self, state: ForgeState) -> None:
        self._state = state

    def __init_subclass__(cls) -> None:
        cls.table = [(method, re.compile(cls.root + re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path).replace(
            "(?P<branch>[^/]+)", "(?P<branch>.+)")), name) for method, path, name in cls.rows]

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
        """Answer one request; Problem for a refusal."""
        if path == "/user":
            return 200, self.own_user()
        for wanted, pattern, name in self.table:
            found = pattern.fullmatch(path.rstrip("/")) if method == wanted else None
            repository = self._state.repositories.get(unquote(found["path"])) if found else None
            if found and repository is not None:
                named = {key: unquote(value) for key, value in found.groupdict().items()}
                answer: Reply = getattr(self, name)(Call(repository, query, body, named))
                return answer
        raise Problem(404, self.missing)

    # ---- on all of them

    def list_pulls(self, call: Call) -> Reply:
        """Show them, newest first; a hidden one is shown after some lists."""
        shown = []
        for each in reversed(call.repository.pulls):
            if each.hidden:
                each.hidden -= 1
            elif self.is_asked_for(each, call.query):
                shown.append(self.listed_pull(call.repository, each))
        return 200, shown

    def is_asked_for(self, pull: Pull, query: Mapping[str, str]) -> bool:
        return True

    def listed_pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        return self.pull(repository, pull)

    def read_pull(self, call: Call) -> Reply:
        return 200, self.pull(call.repository, self.pull_of(call))

    def pull_of(self, call: Call) -> Pull:
        return self._state.pull(call.repository, call.number)

    def edit_pull(self, call: Call) -> Reply:
        """Change title, body, base and state of a pull request."""
        pull, body = self.pull_of(call), call.body
        pull.title, pull.body = body.get("title", pull.title), body.get("body", pull.body)
        pull.base = body.get("base", pull.base)
        if body.get("state") == "closed" and pull.state == "open":
            pull.last_head = self._state.pull_head(call.repository, pull)
            pull.state = "closed"
        return 200, self.pull(call.repository, pull)

    def list_reviews(self, call: Call) -> Reply:
        return 200, [self.review(call.repository, each) for each in self.reviews_of(call)]

    def reviews_of(self, call: Call) -> list[Review]:
        return [each for each in call.repository.reviews if each.number == call.number]

    def lines_of(self, call: Call) -> list[LineComment]:
        return [each for each in call.repository.lines if each.number == call.number]

    def list_comments(self, call: Call) -> Reply:
        return 200, [self.comment(each) for each in call.repository.comments if each.number == call.number]

    def add_comment(self, call: Call) -> Reply:
        return 201, self.comment(self._state.comment(call.repository, call.number, call.body["body"]))

    def list_issues(self, call: Call) -> Reply:
        label = call.query.get("labels", "")
        return 200, [self.issue(each) for each in call.repository.issues
                     if not each.closed and (not label or label in each.labels)]

    def read_issue(self, call: Call) -> Reply:
        found = next((each for each in call.repository.issues if each.number == call.number), None)
        return 200, self.issue(found) if found is not None else self.pull_as_issue(self.pull_of(call))

    def pull_as_issue(self, pull: Pull) -> dict[str, Any]:
        return {**self.issue(Issue(pull.number, pull.title, pull.body, pull.author)), "pull_request": {}}

    def report(self, call: Call) -> Reply:
        made = self._state.report(call.repository, call.named["commit"], call.body["context"], call.body["state"],
                                  call.body.get("description", ""))
        return 201, self.status(made)

    def branch_of(self, call: Call) -> tuple[str, str]:
        """Return name and commit of a branch."""
        name = call.named["branch"]
        if commit := self._state.head_of(call.repository.path, name):
            return name, commit
        raise Problem(404, "Branch not found")

    def read_permission(self, call: Call) -> Reply:
        permission = "write" if call.named["login"] in call.repository.writers else "read"
        return 200, self.permission(permission, call.named["login"])

    def read_log(self, call: Call) -> Reply:
        found = next((each for each in call.repository.statuses if str(each.id) == call.named["id"]), None)
        if found is None or not found.log:
            raise Problem(404, self.missing)
        return 200, found.log

    # ---- in the words of each

    def own_user(self) -> dict[str, Any]: ...
    def pull(self, repository: Repository, pull: Pull) -> dict[str, Any]: ...
    def review(self, repository: Repository, row: Review) -> dict[str, Any]: ...
    def comment(self, row: Comment) -> dict[str, Any]: ...
    def issue(self, row: Issue) -> dict[str, Any]: ...
    def status(self, row: Status) -> dict[str, Any]: ...
    def permission(self, permission: str, login: str) -> dict[str, Any]: ...
