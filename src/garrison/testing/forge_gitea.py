"""Gitea's and Forgejo's routes of the double, below /api/v1."""

from __future__ import annotations

from typing import Any

from garrison.testing.forge_github import edit, list_pulls, matches
from garrison.testing.forge_state import OWN_LOGIN, ForgeState, Problem, Pull, Repository

_AT = "2026-01-01T00:00:00Z"
_REVIEWS = {
    "APPROVED": "APPROVED",
    "CHANGES_REQUESTED": "REQUEST_CHANGES",
    "COMMENTED": "COMMENT",
    "DISMISSED": "APPROVED",
}


def user(login: str) -> dict[str, Any]:
    """Return a user."""
    return {"id": sum(login.encode()), "login": login, "login_name": login, "full_name": login}


class GiteaRoutes:
    """What a request of Gitea's API gets: (status, body)."""

    def __init__(self, state: ForgeState) -> None:
        self._state = state

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """Answer one request; Problem for a refusal."""
        if path == "/user":
            return 200, user(OWN_LOGIN)
        parts = path.strip("/").split("/")
        repository = self._state.repositories.get("/".join(parts[1:3]))
        if parts[0] != "repos" or repository is None:
            raise Problem(404, "The target couldn't be found.")
        if len(parts) == 3:
            return 200, self._repository(repository)
        handler = {
            "pulls": self._pulls,
            "issues": self._issues,
            "commits": self._statuses,
            "statuses": self._statuses,
            "branches": self._branches,
            "labels": self._labels,
            "collaborators": self._collaborators,
        }.get(parts[3])
        if handler is None:
            raise Problem(404, "Not found.")
        return handler(repository, method, parts[4:], query, body)

    def _pulls(
        self, repository: Repository, method: str, rest: list[str], _query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        state = self._state
        if not rest and method == "POST":
            return 201, self._pull(
                repository,
                state.open_pull(
                    repository, body["head"], body["base"], body["title"], body.get("body") or "", draft=False
                ),
            )
        if not rest:
            return 200, [self._pull(repository, each) for each in list_pulls(repository)]
        if rest[0] == "comments":
            for each in repository.lines:
                each["resolved"] = each["resolved"] or str(each["id"]) == rest[1]
            return 204, None
        pull = state.pull(repository, int(rest[0]))
        if rest[1:] == ["merge"]:
            return self._merge(repository, method, pull, body)
        if rest[1:2] == ["reviews"]:
            return self._reviews(repository, method, pull, rest[2:], body)
        if method == "PATCH":
            edit(state, repository, pull, body)
            return 201, self._pull(repository, pull)
        return 200, self._pull(repository, pull)

    def _merge(self, repository: Repository, method: str, pull: Pull, body: dict[str, Any]) -> tuple[int, Any]:
        state = self._state
        pull.draft = pull.title.upper().startswith("WIP:")
        if method == "DELETE":
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

    def _reviews(
        self, repository: Repository, method: str, pull: Pull, rest: list[str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if method == "POST":
            row = self._state.add(
                repository,
                repository.reviews,
                number=pull.number,
                author=OWN_LOGIN,
                body="",
                state="COMMENTED",
                commit=self._state.pull_head(repository, pull),
            )
            for each in body.get("comments", ()):
                old = each.get("old_position")
                self._state.add(
                    repository,
                    repository.lines,
                    number=pull.number,
                    thread=0,
                    author=OWN_LOGIN,
                    body=each["body"],
                    path=each["path"],
                    line=old or each.get("new_position"),
                    side="old" if old else "new",
                    commit=row["commit"],
                    resolved=False,
                    review=row["id"],
                )
            return 200, self._review(repository, row)
        if rest:
            return 200, [self._line(each) for each in repository.lines if str(each["review"]) == rest[0]]
        return 200, [self._review(repository, each) for each in repository.reviews if each["number"] == pull.number]

    def _issues(
        self, repository: Repository, method: str, rest: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if not rest:
            return 200, [self._issue(each) for each in repository.issues if matches(each, query)]
        number = int(rest[0])
        if rest[1:] == ["comments"]:
            if method == "POST":
                return 201, self._comment(
                    self._state.add(
                        repository, repository.comments, number=number, author=OWN_LOGIN, body=body["body"]
                    )
                )
            return 200, [self._comment(each) for each in repository.comments if each["number"] == number]
        if rest[1:] == ["labels"]:
            self._state.pull(repository, number).labels = [repository.labels[each - 1] for each in body["labels"]]
            return 200, []
        found = next((each for each in repository.issues if each["number"] == number), None)
        if found is None:
            pull = self._state.pull(repository, number)
            row = {
                "number": number,
                "title": pull.title,
                "body": pull.body,
                "author": pull.author,
                "labels": [],
                "assignees": [],
            }
            return 200, {**self._issue(row), "pull_request": {"merged": pull.merged}}
        return 200, self._issue(found)

    def _statuses(
        self, repository: Repository, method: str, rest: list[str], _query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if method == "POST":
            row = self._state.add(
                repository,
                repository.statuses,
                commit=rest[0],
                name=body["context"],
                state=body["state"],
                summary=body.get("description", ""),
                log=None,
            )
            return 201, self._status(row)
        return 200, [self._status(each) for each in reversed(repository.statuses) if each["commit"] == rest[0]]

    def _branches(
        self, repository: Repository, _method: str, rest: list[str], _query: dict[str, str], _body: dict[str, Any]
    ) -> tuple[int, Any]:
        name = "/".join(rest)
        if not (commit := self._state.head_of(repository.path, name)):
            raise Problem(404, "Branch not found")
        required = repository.required.get(name, [])
        return 200, {
            "name": name,
            "commit": {"id": commit},
            "protected": name in repository.required,
            "enable_status_check": bool(required),
            "status_check_contexts": required,
            "required_approvals": repository.approvals.get(name, 0),
            "user_can_push": True,
        }

    def _labels(
        self, repository: Repository, method: str, _rest: list[str], _query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if method == "POST":
            repository.labels.append(body["name"])
            return 201, self._label(repository, body["name"])
        return 200, [self._label(repository, each) for each in repository.labels]

    def _collaborators(
        self, repository: Repository, _method: str, rest: list[str], _query: dict[str, str], _body: dict[str, Any]
    ) -> tuple[int, Any]:
        permission = "write" if rest[0] in repository.writers else "read"
        return 200, {"permission": permission, "role_name": permission, "user": user(rest[0])}

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
            "head": {"ref": pull.head, "sha": state.pull_head(repository, pull), "repo_id": 1, "label": pull.head},
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

    def _review(self, repository: Repository, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "user": user(row["author"]),
            "body": row["body"],
            "commit_id": row["commit"],
            "state": _REVIEWS[row["state"]],
            "dismissed": row["state"] == "DISMISSED",
            "stale": False,
            "submitted_at": _AT,
            "comments_count": sum(each["review"] == row["id"] for each in repository.lines),
        }

    def _line(self, row: dict[str, Any]) -> dict[str, Any]:
        new, old = (row["line"], 0) if row["side"] == "new" else (0, row["line"])
        return {
            "id": row["id"],
            "user": user(row["author"]),
            "body": row["body"],
            "path": row["path"],
            "position": new,
            "original_position": old,
            "commit_id": row["commit"],
            "original_commit_id": row["commit"],
            "created_at": _AT,
            "pull_request_review_id": row["review"],
            "resolver": user("someone") if row["resolved"] else None,
        }

    def _issue(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["number"],
            "number": row["number"],
            "title": row["title"],
            "body": row["body"],
            "state": "open",
            "user": user(row["author"]),
            "labels": [{"id": 1, "name": each} for each in row["labels"]],
            "assignees": [user(each) for each in row["assignees"]],
            "pull_request": None,
            "updated_at": _AT,
        }

    def _comment(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "user": user(row["author"]), "body": row["body"], "created_at": _AT}

    def _status(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "context": row["name"],
            "status": row["state"],
            "description": row["summary"],
            "target_url": "",
            "created_at": _AT,
        }
