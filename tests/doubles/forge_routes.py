"""What the routes of the three doubles share: a request in parts, and what they do to a pull request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from doubles.forge_state import ForgeState, Issue, Problem, Pull, Repository

Reply = tuple[int, Any]
"""Status and body."""


@dataclass
class Call:
    """A request to a repository."""

    repository: Repository
    method: str
    rest: list[str]
    """Parts of the path behind the kind of object."""
    query: dict[str, str]
    body: dict[str, Any]


def dispatch(handlers: Mapping[str, Callable[[Call], Reply]], kind: str, call: Call, missing: str) -> Reply:
    """Answer by the handler of a kind of object; Problem 404 for an unknown one."""
    handler = handlers.get(kind)
    if handler is None:
        raise Problem(404, missing)
    return handler(call)


def pull_as_issue(pull: Pull) -> Issue:
    return Issue(pull.number, pull.title, pull.body, pull.author)


def list_pulls(repository: Repository) -> list[Pull]:
    """Return what a list shows, newest first; a hidden one is shown after some lists."""
    shown = []
    for each in reversed(repository.pulls):
        if each.hidden:
            each.hidden -= 1
        else:
            shown.append(each)
    return shown


def matches(issue: Issue, query: dict[str, str]) -> bool:
    label = query.get("labels", "")
    person = query.get("assignee") or query.get("assignee_username") or query.get("assigned_by") or ""
    return not issue.closed and (not label or label in issue.labels) and (not person or person in issue.assignees)


def edit(state: ForgeState, repository: Repository, pull: Pull, body: dict[str, Any]) -> None:
    """Change title, body, base and state of a pull request."""
    pull.title, pull.body = body.get("title", pull.title), body.get("body", pull.body)
    pull.base = body.get("base", pull.base)
    if body.get("state") == "closed" and pull.state == "open":
        pull.last_head = state.pull_head(repository, pull)
        pull.state = "closed"
