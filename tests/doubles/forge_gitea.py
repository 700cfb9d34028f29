"""Gitea's and Forgejo's routes of the double, below /api/v1."""

from __future__ import annotations

from typing import Any

from doubles.forge_routes import Call, Reply, dispatch, edit, list_pulls, matches, pull_as_issue
from doubles.forge_state import (
    OWN_LOGIN,
    Comment,
    ForgeState,
    Issue,
    LineComment,
    Problem,
    Pull,
    Repository,
    Review,
    Status,
)

_AT = "2026-01-01T00:00:00Z"
_REVIEWS = {
    "APPROVED": "APPROVED",
    "CHANGES_REQUESTED": "REQUEST_CHANGES",
    "COMMENTED": "COMMENT",
    "DISMISSED": "APPROVED",
}


def user(login: str) -> dict[str, Any]:
    return {"id": sum(login.encode()), "login": login, "login_name": login, "full_name": login}


class GiteaRoutes:
    """What a request of Gitea's API gets: (status, body)."""

    def __init__(self, state: ForgeState) -> None:
        self._state = state

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
        """Answer one request; Problem for a refusal."""
        if path == "/user":
            return 200, user(OWN_LOGIN)
        parts = path.strip("/").split("/")
        repository = self._state.repositories.get("/".join(parts[1:3]))
        if parts[0] != "repos" or repository is None:
            raise Problem(404, "The target couldn't be found.")
        if len(parts) == 3:
            return 200, self._repository(repository)
        handlers = {
            "pulls": self._pulls,
            "issues": self._issues,
            "commits": self._statuses,
            "statuses": self._statuses,
            "branches": self._branches,
            "labels": self._labels,
            "collaborators": self._collaborators,
        }
        return dispatch(handlers, parts[3], Call(repository, method, parts[4:], query, body), "Not found.")

    def _pulls(self, call: Call) -> Reply:
        state = self._state
        if not call.rest and call.method == "POST":
            given = call.body
            pull = state.open_pull(
                call.repository, given["head"], given["base"], given["title"], given.get("body") or "", draft=False
            )
            return 201, self._pull(call.repository, pull)
        if not call.rest:
            return 200, [self._pull(call.repository, each) for each in list_pulls(call.repository)]
        if call.rest[0] == "comments":
            for each in call.repository.lines:
                each.resolved = each.resolved or str(each.id) == call.rest[1]
            return 204, None
        pull = state.pull(call.repository, int(call.rest[0]))
        if call.rest[1:] == ["merge"]:
            return self._merge(call, pull)
        if call.rest[1:2] == ["reviews"]:
            return self._reviews(call, pull)
        if call.method == "PATCH":
            edit(state, call.repository, pull, call.body)
            return 201, self._pull(call.repository, pull)
        return 200, self._pull(call.repository, pull)

    def _merge(self, call: Call, pull: Pull) -> Reply:
        state, repository, body = self._state, call.repository, call.body
        pull.draft = pull.title.upper().startswith("WIP:")
        if call.method == "DELETE":
            if not pull.auto:
                raise Problem(404, "not scheduled")
            pull.auto = ""
            return 204, None
        expected = body.get("head_commit_id", "")
        if expected and expected != state.pull_head(repository, pull):
            raise Problem(409, "head out of date")
        if body.get("merge_when_checks_succeed") and state.obstacle(repository, pull):
            if why := state.obstacle(repository, pull, later=True):
                raise Problem(405, why)
            if pull.auto:
                raise Problem(409, "the pull request is already scheduled to auto merge when checks succeed")
            pull.auto = body["Do"]
            return 201, None
        state.merge(repository, pull, body["Do"], expected, lie=body.get("lie", ""))
        return 200, None

    def _reviews(self, call: Call, pull: Pull) -> Reply:
        if call.method == "POST":
            made = self._state.review(call.repository, pull.number, "COMMENTED")
            for given in call.body.get("comments", ()):
                old = given.get("old_position")
                self._state.comment_line(
                    call.repository,
                    pull.number,
                    given["path"],
                    old or given.get("new_position"),
                    given["body"],
                    side="old" if old else "new",
                    review=made.id,
                )
            return 200, self._review(call.repository, made)
        if call.rest[2:]:
            return 200, [self._line(each) for each in call.repository.lines if str(each.review) == call.rest[2]]
        reviews = [each for each in call.repository.reviews if each.number == pull.number]
        return 200, [self._review(call.repository, each) for each in reviews]

    def _issues(self, call: Call) -> Reply:
        if not call.rest:
            return 200, [self._issue(each) for each in call.repository.issues if matches(each, call.query)]
        number = int(call.rest[0])
        if call.rest[1:] == ["comments"]:
            if call.method == "POST":
                return 201, self._comment(self._state.comment(call.repository, number, call.body["body"]))
            return 200, [self._comment(each) for each in call.repository.comments if each.number == number]
        if call.rest[1:] == ["labels"]:
            known = call.repository.labels
            self._state.pull(call.repository, number).labels = [known[each - 1] for each in call.body["labels"]]
            return 200, []
        found = next((each for each in call.repository.issues if each.number == number), None)
        if found is None:
            pull = self._state.pull(call.repository, number)
            return 200, {**self._issue(pull_as_issue(pull)), "pull_request": {"merged": pull.merged}}
        return 200, self._issue(found)

    def _statuses(self, call: Call) -> Reply:
        if call.method == "POST":
            given = call.body
            made = self._state.report(
                call.repository, call.rest[0], given["context"], given["state"], given.get("description", "")
            )
            return 201, self._status(made)
        return 200, [self._status(each) for each in reversed(call.repository.statuses) if each.commit == call.rest[0]]

    def _branches(self, call: Call) -> Reply:
        name = "/".join(call.rest)
        if not (commit := self._state.head_of(call.repository.path, name)):
            raise Problem(404, "Branch not found")
        required = call.repository.required.get(name, [])
        return 200, {
            "name": name,
            "commit": {"id": commit},
            "protected": name in call.repository.required,
            "enable_status_check": bool(required),
            "status_check_contexts": required,
            "required_approvals": call.repository.approvals.get(name, 0),
            "user_can_push": True,
        }

    def _labels(self, call: Call) -> Reply:
        if call.method == "POST":
            call.repository.labels.append(call.body["name"])
            return 201, self._label(call.repository, call.body["name"])
        return 200, [self._label(call.repository, each) for each in call.repository.labels]

    def _collaborators(self, call: Call) -> Reply:
        permission = "write" if call.rest[0] in call.repository.writers else "read"
        return 200, {"permission": permission, "role_name": permission, "user": user(call.rest[0])}

    def _label(self, repository: Repository, name: str) -> dict[str, Any]:
        known = repository.labels.index(name) + 1 if name in repository.labels else 0
        return {"id": known, "name": name, "color": "ededed", "description": ""}

    def _repository(self, repository: Repository) -> dict[str, Any]:
        return {
            "id": 1,
            "name": repository.path.rpartition("/")[2],
            "full_name": repository.path,
            "permissions": {"admin": False, "push": True, "pull": True},
            "allow_merge_commits": True,
            "allow_squash_merge": True,
            "allow_rebase": True,
        }

    def _pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        state = self._state
        pull.draft = pull.title.upper().startswith("WIP:")
        return {
            "id": pull.number,
            "number": pull.number,
            "title": pull.title,
            "body": pull.body,
            "state": pull.state,
            "draft": pull.draft,
            "merged": pull.merged,
            "merge_commit_sha": pull.merge_commit or None,
            "head": {"ref": pull.head, "sha": state.pull_head(repository, pull), "repo_id": 2 if pull.fork else 1,
                     "label": pull.head},
            "base": {
                "ref": pull.base,
                "sha": state.head_of(repository.path, pull.base),
                "repo_id": 1,
                "label": pull.base,
            },
            "labels": [self._label(repository, each) for each in pull.labels],
            "user": user(pull.author),
            "mergeable": pull.state == "open" and "conflict" not in state.obstacle(repository, pull),
            "html_url": f"http://127.0.0.1/{repository.path}/pulls/{pull.number}",
            "created_at": _AT,
        }

    def _review(self, repository: Repository, row: Review) -> dict[str, Any]:
        return {
            "id": row.id,
            "user": user(row.author),
            "body": row.body,
            "commit_id": row.commit,
            "state": _REVIEWS[row.state],
            "dismissed": row.state == "DISMISSED",
            "stale": False,
            "submitted_at": _AT,
            "comments_count": sum(each.review == row.id for each in repository.lines),
        }

    def _line(self, row: LineComment) -> dict[str, Any]:
        new, old = (row.line, 0) if row.side == "new" else (0, row.line)
        return {
            "id": row.id,
            "user": user(row.author),
            "body": row.body,
            "path": row.path,
            "position": new,
            "original_position": old,
            "commit_id": row.commit,
            "original_commit_id": row.commit,
            "created_at": _AT,
            "pull_request_review_id": row.review,
            "resolver": user("someone") if row.resolved else None,
        }

    def _issue(self, row: Issue) -> dict[str, Any]:
        return {
            "id": row.number,
            "number": row.number,
            "title": row.title,
            "body": row.body,
            "state": "closed" if row.closed else "open",
            "user": user(row.author),
            "labels": [{"id": 1, "name": each} for each in row.labels],
            "assignees": [user(each) for each in row.assignees],
            "pull_request": None,
            "updated_at": _AT,
        }

    def _comment(self, row: Comment) -> dict[str, Any]:
        return {"id": row.id, "user": user(row.author), "body": row.body, "created_at": _AT}

    def _status(self, row: Status) -> dict[str, Any]:
        return {
            "id": row.id,
            "context": row.name,
            "status": row.state,
            "description": row.summary,
            "target_url": "",
            "created_at": _AT,
        }
