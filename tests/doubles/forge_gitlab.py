"""GitLab's routes of the double, below /api/v4."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from doubles.forge_routes import Call, Reply, dispatch, edit, list_pulls, matches
from doubles.forge_state import (
    OWN_LOGIN,
    Comment,
    ForgeState,
    LineComment,
    Problem,
    Pull,
    Repository,
    Status,
)

_AT = "2026-01-01T00:00:00.000Z"
_STATES = {"success": "success", "failure": "failed", "pending": "running"}


def _moment(number: int) -> str:
    """Return the time at which a request got its head of this number."""
    return f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z"


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

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
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
        handlers = {
            "merge_requests": self._requests,
            "issues": self._issues,
            "repository": self._repository,
            "statuses": self._statuses,
            "jobs": self._jobs,
            "members": self._members,
            "approvals": self._approvals,
        }
        return dispatch(handlers, parts[2], Call(repository, method, parts[3:], query, body), "404 Not Found")

    def _requests(self, call: Call) -> Reply:
        state = self._state
        if not call.rest and call.method == "POST":
            pull = state.open_pull(
                call.repository,
                call.body["source_branch"],
                call.body["target_branch"],
                call.body["title"],
                call.body.get("description") or "",
                draft=False,
            )
            pull.labels = [each for each in call.body.get("labels", "").split(",") if each]
            return 201, self._pull(call.repository, pull)
        if not call.rest:
            return 200, [
                self._pull(call.repository, each)
                for each in list_pulls(call.repository)
                if call.query.get("source_branch", each.head) == each.head
            ]
        pull = state.pull(call.repository, int(call.rest[0]))
        pull.draft = pull.title.startswith("Draft:")
        if call.rest[1:] == ["merge"]:
            return self._merge(call.repository, pull, call.body)
        if call.rest[1:] == ["cancel_merge_when_pipeline_succeeds"]:
            pull.auto = ""
            return 201, self._pull(call.repository, pull)
        if call.rest[1:2] in (["notes"], ["discussions"], ["approvals"], ["reviewers"], ["versions"]):
            return self._talk(call, pull, *call.rest[1:])
        if call.method == "PUT":
            self._edit(call.repository, pull, call.body)
        return 200, self._pull(call.repository, pull)

    def _edit(self, repository: Repository, pull: Pull, body: dict[str, Any]) -> None:
        named = {"title": "title", "description": "body", "target_branch": "base"}
        changed = {ours: body[theirs] for theirs, ours in named.items() if theirs in body}
        edit(self._state, repository, pull, {**changed, **({"state": "closed"} if "state_event" in body else {})})
        if "labels" in body:
            pull.labels = [each for each in body["labels"].split(",") if each]
        pull.labels = sorted({*pull.labels, *(each for each in body.get("add_labels", "").split(",") if each)})

    def _merge(self, repository: Repository, pull: Pull, body: dict[str, Any]) -> Reply:
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

    def _talk(self, call: Call, pull: Pull, kind: str, thread: str = "", *_: str) -> Reply:
        if kind == "notes":
            return self._notes(call, pull.number)
        reviews = [each for each in call.repository.reviews if each.number == pull.number]
        heads = list(dict.fromkeys([*(each.commit for each in reviews), self._state.pull_head(call.repository, pull)]))
        if kind == "versions":
            return 200, [
                {"id": at, "head_commit_sha": head, "created_at": _moment(at)} for at, head in enumerate(heads)
            ][::-1]
        if kind == "approvals":
            approved = [
                {"user": user(each.author), "approved_at": _moment(heads.index(each.commit))}
                for each in reviews
                if each.state == "APPROVED"
            ]
            return 200, {"approved_by": approved, "approved": bool(approved)}
        if kind == "reviewers":
            return 200, [
                {"user": user(each.author), "state": "requested_changes", "created_at": _AT}
                for each in reviews
                if each.state == "CHANGES_REQUESTED"
            ]
        rows = [each for each in call.repository.lines if each.number == pull.number]
        if thread:
            notes = [each for each in rows if str(each.thread) == thread]
            if not notes:
                raise Problem(404, "404 Discussion Not Found")
            if call.method == "PUT":
                for each in notes:
                    each.resolved = call.body["resolved"]
                return 200, self._discussion(notes)
            return 201, self._line(self._state.answer_line(call.repository, notes[0], call.body["body"]))
        threads = dict.fromkeys(each.thread for each in rows)
        return 200, [self._discussion([each for each in rows if each.thread == first]) for first in threads]

    def _discussion(self, notes: list[LineComment]) -> dict[str, Any]:
        return {
            "id": str(notes[0].thread),
            "individual_note": False,
            "notes": [self._line(each) for each in notes],
        }

    def _issues(self, call: Call) -> Reply:
        if call.rest[1:] == ["notes"]:
            return self._notes(call, int(call.rest[0]))
        rows = [
            each
            for each in call.repository.issues
            if (each.number == int(call.rest[0]) if call.rest else matches(each, call.query))
        ]
        if call.rest and not rows:
            raise Problem(404, "404 Issue Not Found")
        made = [
            {
                "id": each.number,
                "iid": each.number,
                "title": each.title,
                "description": each.body,
                "state": "closed" if each.closed else "opened",
                "author": user(each.author),
                "labels": each.labels,
                "updated_at": _AT,
                "assignees": [user(name) for name in each.assignees],
                "web_url": "http://127.0.0.1/",
            }
            for each in rows
        ]
        return 200, made[0] if call.rest else made

    def _notes(self, call: Call, number: int) -> Reply:
        if call.method == "POST":
            return 201, self._note(self._state.comment(call.repository, number, call.body["body"]))
        return 200, [self._note(each) for each in call.repository.comments if each.number == number]

    def _repository(self, call: Call) -> Reply:
        if call.rest[0] == "branches":
            name = unquote(call.rest[1])
            if not (commit := self._state.head_of(call.repository.path, name)):
                raise Problem(404, "404 Branch Not Found")
            return 200, {"name": name, "commit": {"id": commit}, "protected": name in call.repository.required}
        return 200, [self._status(each) for each in call.repository.statuses if each.commit == call.rest[1]]

    def _statuses(self, call: Call) -> Reply:
        state = {theirs: ours for ours, theirs in _STATES.items()}[call.body["state"]]
        now = {each.name: each.state for each in self._state.newest_statuses(call.repository, call.rest[0])}
        if now.get(call.body["name"]) == state:
            raise Problem(400, "Cannot transition status via :run from :running")
        made = self._state.report(
            call.repository, call.rest[0], call.body["name"], state, call.body.get("description", "")
        )
        return 201, self._status(made)

    def _jobs(self, call: Call) -> Reply:
        found = next((each for each in call.repository.statuses if str(each.id) == call.rest[0]), None)
        if found is None or not found.log:
            raise Problem(404, "404 Not Found")
        return 200, found.log

    def _members(self, call: Call) -> Reply:
        found = [each for each in call.repository.writers if call.query["query"] in each]
        return 200, [{**user(each), "access_level": 30} for each in found]

    def _approvals(self, call: Call) -> Reply:
        return 200, {"approvals_before_merge": max(call.repository.approvals.values(), default=0)}

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
            "source_project_id": 2 if pull.fork else 1,
            "target_project_id": 1,
            "merge_when_pipeline_succeeds": bool(pull.auto),
            "merge_commit_sha": pull.merge_commit or None,
            "has_conflicts": conflict,
            "detailed_merge_status": "conflict" if conflict else "mergeable",
            "diff_refs": {"start_sha": self._state.head_of(repository.path, pull.base)},
            "web_url": f"http://127.0.0.1/{repository.path}/-/merge_requests/{pull.number}",
        }

    def _line(self, row: LineComment) -> dict[str, Any]:
        new, old = (row.line, None) if row.side == "new" else (None, row.line)
        position = {
            "new_path": row.path,
            "old_path": row.path,
            "new_line": new,
            "old_line": old,
            "head_sha": row.commit,
            "position_type": "text",
        }
        return {
            **self._note(row),
            "type": "DiffNote",
            "position": position,
            "resolvable": True,
            "resolved": row.resolved,
        }

    def _note(self, row: Comment) -> dict[str, Any]:
        return {
            "id": row.id,
            "author": user(row.author),
            "body": row.body,
            "created_at": _AT,
            "system": False,
        }

    def _status(self, row: Status) -> dict[str, Any]:
        return {
            "id": row.id,
            "sha": row.commit,
            "name": row.name,
            "status": _STATES[row.state],
            "description": row.summary,
            "target_url": None,
            "allow_failure": False,
            "created_at": _AT,
        }
