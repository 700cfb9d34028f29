"""GitLab's routes of the double, below /api/v4."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from garrison.testing.forge_github import edit, list_pulls, matches
from garrison.testing.forge_state import OWN_LOGIN, ForgeState, Problem, Pull, Repository

_AT = "2026-01-01T00:00:00.000Z"
_STATES = {"success": "success", "failure": "failed", "pending": "running"}


def user(login: str) -> dict[str, Any]:
    """Return a user."""
    return {
        "id": sum(login.encode()),
        "username": login,
        "name": login,
        "state": "active",
        "web_url": f"http://127.0.0.1/{login}",
    }


class GitLabRoutes:
    """What a request of GitLab's API gets: (status, body)."""

    def __init__(self, state: ForgeState) -> None:
        self._state = state

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> tuple[int, Any]:
        """Answer one request; Problem for a refusal."""
        if path == "/user":
            return 200, user(OWN_LOGIN)
        parts = path.strip("/").split("/")
        repository = self._state.repositories.get(unquote(parts[1]) if len(parts) > 1 else "")
        if parts[0] != "projects" or repository is None:
            raise Problem(404, "404 Project Not Found")
        if len(parts) == 2:
            return 200, {
                "id": 1,
                "path_with_namespace": repository.path,
                "merge_method": "merge",
                "permissions": {"project_access": {"access_level": 30}, "group_access": None},
            }
        handler = {
            "merge_requests": self._requests,
            "issues": self._issues,
            "repository": self._repository,
            "statuses": self._statuses,
            "jobs": self._jobs,
            "members": self._members,
            "approvals": self._approvals,
        }.get(parts[2])
        if handler is None:
            raise Problem(404, "404 Not Found")
        return handler(repository, method, parts[3:], query, body)

    def _requests(
        self, repository: Repository, method: str, rest: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        state = self._state
        if not rest and method == "POST":
            pull = state.open_pull(
                repository,
                body["source_branch"],
                body["target_branch"],
                body["title"],
                body.get("description") or "",
                draft=False,
            )
            pull.labels = [each for each in body.get("labels", "").split(",") if each]
            return 201, self._pull(repository, pull)
        if not rest:
            return 200, [
                self._pull(repository, each)
                for each in list_pulls(repository)
                if query.get("source_branch", each.head) == each.head
            ]
        pull = state.pull(repository, int(rest[0]))
        pull.draft = pull.title.startswith("Draft:")
        if rest[1:] == ["merge"]:
            return self._merge(repository, pull, body)
        if rest[1:] == ["cancel_merge_when_pipeline_succeeds"]:
            pull.auto = ""
            return 201, self._pull(repository, pull)
        if rest[1:2] in (["notes"], ["discussions"], ["approvals"], ["reviewers"]):
            return self._talk(repository, method, pull, rest[1:], body)
        if method == "PUT":
            self._edit(repository, pull, body)
        return 200, self._pull(repository, pull)

    def _edit(self, repository: Repository, pull: Pull, body: dict[str, Any]) -> None:
        named = {"title": "title", "description": "body", "target_branch": "base"}
        changed = {ours: body[theirs] for theirs, ours in named.items() if theirs in body}
        edit(self._state, repository, pull, {**changed, **({"state": "closed"} if "state_event" in body else {})})
        if "labels" in body:
            pull.labels = [each for each in body["labels"].split(",") if each]
        pull.labels = sorted({*pull.labels, *(each for each in body.get("add_labels", "").split(",") if each)})

    def _merge(self, repository: Repository, pull: Pull, body: dict[str, Any]) -> tuple[int, Any]:
        state = self._state
        if body.get("sha") and body["sha"] != state.pull_head(repository, pull):
            raise Problem(409, "SHA does not match HEAD of source branch")
        if body.get("auto_merge") and state.obstacle(repository, pull):
            if why := state.obstacle(repository, pull, later=True):
                raise Problem(405, why)
            pull.auto = "merge"
            return 200, self._pull(repository, pull)
        state.merge(
            repository,
            pull,
            "squash" if body.get("squash") else "merge",
            body.get("sha", ""),
            lie=body.get("lie", ""),
        )
        return 200, self._pull(repository, pull)

    def _talk(
        self, repository: Repository, method: str, pull: Pull, rest: list[str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if rest[0] == "notes":
            return self._notes(repository, method, pull.number, body)
        reviews = [each for each in repository.reviews if each["number"] == pull.number]
        if rest[0] == "approvals":
            approved = [
                {"user": user(each["author"]), "approved_at": _AT} for each in reviews if each["state"] == "APPROVED"
            ]
            return 200, {"approved_by": approved, "approved": bool(approved)}
        if rest[0] == "reviewers":
            return 200, [
                {"user": user(each["author"]), "state": "requested_changes", "created_at": _AT}
                for each in reviews
                if each["state"] == "CHANGES_REQUESTED"
            ]
        rows = [each for each in repository.lines if each["number"] == pull.number]
        if len(rest) > 1:
            thread = [each for each in rows if str(each["thread"]) == rest[1]]
            if not thread:
                raise Problem(404, "404 Discussion Not Found")
            if method == "PUT":
                for each in thread:
                    each["resolved"] = body["resolved"]
                return 200, {"id": rest[1], "individual_note": False, "notes": [self._line(each) for each in thread]}
            kept = {key: thread[0][key] for key in ("number", "thread", "path", "line", "side", "commit", "review")}
            row = self._state.add(
                repository, repository.lines, **kept, author=OWN_LOGIN, body=body["body"], resolved=False
            )
            return 201, self._line(row)
        threads = dict.fromkeys(each["thread"] for each in rows)
        return 200, [
            {
                "id": str(thread),
                "individual_note": False,
                "notes": [self._line(each) for each in rows if each["thread"] == thread],
            }
            for thread in threads
        ]

    def _issues(
        self, repository: Repository, method: str, rest: list[str], query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        if rest[1:] == ["notes"]:
            return self._notes(repository, method, int(rest[0]), body)
        rows = [
            each for each in repository.issues if (each["number"] == int(rest[0]) if rest else matches(each, query))
        ]
        if rest and not rows:
            raise Problem(404, "404 Issue Not Found")
        made = [
            {
                "id": each["number"],
                "iid": each["number"],
                "title": each["title"],
                "description": each["body"],
                "state": "opened",
                "author": user(each["author"]),
                "labels": each["labels"],
                "updated_at": _AT,
                "assignees": [user(name) for name in each["assignees"]],
                "web_url": "http://127.0.0.1/",
            }
            for each in rows
        ]
        return 200, made[0] if rest else made

    def _notes(self, repository: Repository, method: str, number: int, body: dict[str, Any]) -> tuple[int, Any]:
        if method == "POST":
            return 201, self._note(
                self._state.add(repository, repository.comments, number=number, author=OWN_LOGIN, body=body["body"])
            )
        return 200, [self._note(each) for each in repository.comments if each["number"] == number]

    def _repository(
        self, repository: Repository, _method: str, rest: list[str], _query: dict[str, str], _body: dict[str, Any]
    ) -> tuple[int, Any]:
        if rest[0] == "branches":
            name = unquote(rest[1])
            if not (commit := self._state.head_of(repository.path, name)):
                raise Problem(404, "404 Branch Not Found")
            return 200, {"name": name, "commit": {"id": commit}, "protected": name in repository.required}
        return 200, [self._status(each) for each in repository.statuses if each["commit"] == rest[1]]

    def _statuses(
        self, repository: Repository, _method: str, rest: list[str], _query: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Any]:
        state = {theirs: ours for ours, theirs in _STATES.items()}[body["state"]]
        now = {each["name"]: each["state"] for each in self._state.newest_statuses(repository, rest[0])}
        if now.get(body["name"]) == state:
            raise Problem(400, "Cannot transition status via :run from :running")
        return 201, self._status(
            self._state.add(
                repository,
                repository.statuses,
                commit=rest[0],
                name=body["name"],
                state=state,
                summary=body.get("description", ""),
                log=None,
            )
        )

    def _jobs(
        self, repository: Repository, _method: str, rest: list[str], _query: dict[str, str], _body: dict[str, Any]
    ) -> tuple[int, Any]:
        found = next((each for each in repository.statuses if str(each["id"]) == rest[0]), None)
        if found is None or not found["log"]:
            raise Problem(404, "404 Not Found")
        return 200, found["log"]

    def _members(
        self, repository: Repository, _method: str, _rest: list[str], query: dict[str, str], _body: dict[str, Any]
    ) -> tuple[int, Any]:
        return 200, [{**user(each), "access_level": 30} for each in repository.writers if query["query"] in each]

    def _approvals(
        self, repository: Repository, _method: str, _rest: list[str], _query: dict[str, str], _body: dict[str, Any]
    ) -> tuple[int, Any]:
        return 200, {"approvals_before_merge": max(repository.approvals.values(), default=0)}

    def _pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        pull.draft = pull.title.startswith("Draft:")
        state = "merged" if pull.merged else "opened" if pull.state == "open" else "closed"
        conflict = pull.state == "open" and "conflict" in self._state.obstacle(repository, pull)
        return {
            "id": 1000 + pull.number,
            "iid": pull.number,
            "title": pull.title,
            "description": pull.body,
            "state": state,
            "draft": pull.draft,
            "source_branch": pull.head,
            "target_branch": pull.base,
            "sha": self._state.pull_head(repository, pull),
            "labels": pull.labels,
            "author": user(pull.author),
            "source_project_id": 1,
            "target_project_id": 1,
            "merge_when_pipeline_succeeds": bool(pull.auto),
            "merge_commit_sha": pull.merge_commit or None,
            "has_conflicts": conflict,
            "detailed_merge_status": "conflict" if conflict else "mergeable",
            "diff_refs": {"start_sha": self._state.head_of(repository.path, pull.base)},
            "web_url": f"http://127.0.0.1/{repository.path}/-/merge_requests/{pull.number}",
        }

    def _line(self, row: dict[str, Any]) -> dict[str, Any]:
        new, old = (row["line"], None) if row["side"] == "new" else (None, row["line"])
        position = {
            "new_path": row["path"],
            "old_path": row["path"],
            "new_line": new,
            "old_line": old,
            "head_sha": row["commit"],
            "position_type": "text",
        }
        return {
            **self._note(row),
            "type": "DiffNote",
            "position": position,
            "resolvable": True,
            "resolved": row["resolved"],
        }

    def _note(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "author": user(row["author"]),
            "body": row["body"],
            "created_at": _AT,
            "system": False,
        }

    def _status(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": row["id"],
            "sha": row["commit"],
            "name": row["name"],
            "status": _STATES[row["state"]],
            "description": row["summary"],
            "target_url": None,
            "allow_failure": False,
            "created_at": _AT,
        }
