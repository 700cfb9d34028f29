"""GitLab's routes of the double, below /api/v4."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from doubles.forge_routes import Call, Reply, Routes
from doubles.forge_state import OWN_LOGIN, Comment, Issue, LineComment, Problem, Pull, Repository, Status

_AT = "2026-01-01T00:00:00.000Z"
_STATES = {"success": "success", "failure": "failed", "pending": "running"}


def _moment(number: int) -> str:
    """Return the time at which a request got its head of this number."""
    return f"2026-01-01T00:{number // 60:02}:{number % 60:02}.000Z"


def user(login: str) -> dict[str, Any]:
    return {
        "id": sum(login.encode()),
        "username": login,
        "name": login,
        "state": "active",
        "web_url": f"http://127.0.0.1/{login}",
    }


class GitLabRoutes(Routes):
    """GitLab's."""

    root = "/projects/(?P<path>[^/]+)"
    rows = (
        ("GET", "", "read_project"),
        ("GET", "/merge_requests", "list_pulls"), ("POST", "/merge_requests", "open_pull"),
        ("GET", "/merge_requests/{number}", "read_pull"), ("PUT", "/merge_requests/{number}", "edit_pull"),
        ("PUT", "/merge_requests/{number}/merge", "merge"),
        ("POST", "/merge_requests/{number}/cancel_merge_when_pipeline_succeeds", "withdraw"),
        ("GET", "/merge_requests/{number}/versions", "list_versions"),
        ("GET", "/merge_requests/{number}/approvals", "list_approvals"),
        ("GET", "/merge_requests/{number}/reviewers", "list_reviewers"),
        ("GET", "/merge_requests/{number}/discussions", "list_discussions"),
        ("PUT", "/merge_requests/{number}/discussions/{thread}", "resolve"),
        ("POST", "/merge_requests/{number}/discussions/{thread}/notes", "answer"),
        ("GET", "/merge_requests/{number}/notes", "list_comments"),
        ("POST", "/merge_requests/{number}/notes", "add_comment"),
        ("GET", "/issues", "list_issues"), ("GET", "/issues/{number}", "read_issue"),
        ("GET", "/issues/{number}/notes", "list_comments"), ("POST", "/issues/{number}/notes", "add_comment"),
        ("GET", "/repository/branches/{branch}", "read_branch"),
        ("GET", "/repository/commits/{commit}/statuses", "list_statuses"), ("POST", "/statuses/{commit}", "report"),
        ("GET", "/jobs/{id}/trace", "read_log"), ("GET", "/members/all", "list_members"),
        ("GET", "/approvals", "read_approvals"))
    missing = "404 Not Found"

    def own_user(self) -> dict[str, Any]:
        return user(OWN_LOGIN)

    def read_project(self, call: Call) -> Reply:
        return 200, {
            "id": 1,
            "path_with_namespace": call.repository.path,
            "merge_method": "merge",
            "permissions": {"project_access": {"access_level": 30}, "group_access": None},
        }

    def is_asked_for(self, pull: Pull, query: Mapping[str, str]) -> bool:
        return query.get("source_branch", pull.head) == pull.head

    def open_pull(self, call: Call) -> Reply:
        given = call.body
        pull = self._state.open_pull(call.repository, given["source_branch"], given["target_branch"], given["title"],
                                     given.get("description") or "", draft=False)
        pull.labels = [each for each in given.get("labels", "").split(",") if each]
        return 201, self.pull(call.repository, pull)

    def edit_pull(self, call: Call) -> Reply:
        given, pull = call.body, self.pull_of(call)
        named = {"title": "title", "description": "body", "target_branch": "base"}
        changed = {ours: given[theirs] for theirs, ours in named.items() if theirs in given}
        if "labels" in given:
            pull.labels = sorted(each for each in given["labels"].split(",") if each)
        return super().edit_pull(replace(call, body={
            **changed, **({"state": "closed"} if "state_event" in given else {})}))

    def merge(self, call: Call) -> Reply:
        state, repository, body, pull = self._state, call.repository, call.body, self.pull_of(call)
        pull.draft = pull.title.startswith("Draft:")
        if body.get("sha") and body["sha"] != state.pull_head(repository, pull):
            raise Problem(409, "SHA does not match HEAD of source branch")
        if body.get("auto_merge") and state.obstacle(repository, pull):
            if why := state.obstacle(repository, pull, later=True):
                raise Problem(405, why)
            pull.auto = "merge"
        else:
            state.merge(repository, pull, "squash" if body.get("squash") else "merge", body.get("sha", ""),
                        lie=body.get("lie", ""))
        return 200, self.pull(repository, pull)

    def withdraw(self, call: Call) -> Reply:
        pull = self.pull_of(call)
        pull.auto = ""
        return 201, self.pull(call.repository, pull)

    def heads(self, call: Call) -> list[str]:
        """Return the heads that the request had, as far as reviews tell."""
        head = self._state.pull_head(call.repository, self.pull_of(call))
        return list(dict.fromkeys([*(each.commit for each in self.reviews_of(call)), head]))

    def list_versions(self, call: Call) -> Reply:
        return 200, [{"id": at, "head_commit_sha": head, "created_at": _moment(at)}
                     for at, head in enumerate(self.heads(call))][::-1]

    def list_approvals(self, call: Call) -> Reply:
        heads = self.heads(call)
        approved = [{"user": user(each.author), "approved_at": _moment(heads.index(each.commit))}
                    for each in self.reviews_of(call) if each.state == "APPROVED"]
        return 200, {"approved_by": approved, "approved": bool(approved)}

    def list_reviewers(self, call: Call) -> Reply:
        return 200, [{"user": user(each.author), "state": "requested_changes", "created_at": _AT}
                     for each in self.reviews_of(call) if each.state == "CHANGES_REQUESTED"]

    def list_discussions(self, call: Call) -> Reply:
        rows = self.lines_of(call)
        threads = dict.fromkeys(each.thread for each in rows)
        return 200, [self._discussion([each for each in rows if each.thread == first]) for first in threads]

    def notes_of(self, call: Call) -> list[LineComment]:
        if notes := [each for each in self.lines_of(call) if str(each.thread) == call.named["thread"]]:
            return notes
        raise Problem(404, "404 Discussion Not Found")

    def resolve(self, call: Call) -> Reply:
        notes = self.notes_of(call)
        for each in notes:
            each.resolved = call.body["resolved"]
        return 200, self._discussion(notes)

    def answer(self, call: Call) -> Reply:
        first = self.notes_of(call)[0]
        return 201, self.line(self._state.answer_line(call.repository, first, call.body["body"]))

    def pull_as_issue(self, pull: Pull) -> dict[str, Any]:
        raise Problem(404, "404 Issue Not Found")

    def read_branch(self, call: Call) -> Reply:
        name, commit = self.branch_of(call)
        return 200, {"name": name, "commit": {"id": commit}, "protected": name in call.repository.required}

    def list_statuses(self, call: Call) -> Reply:
        return 200, [self.status(each) for each in call.repository.statuses if each.commit == call.named["commit"]]

    def report(self, call: Call) -> Reply:
        state, name = {theirs: ours for ours, theirs in _STATES.items()}[call.body["state"]], call.body["name"]
        now = {each.name: each.state for each in self._state.newest_statuses(call.repository, call.named["commit"])}
        if now.get(name) == state:
            raise Problem(400, "Cannot transition status via :run from :running")
        return super().report(replace(call, body={**call.body, "context": name, "state": state}))

    def list_members(self, call: Call) -> Reply:
        found = [each for each in call.repository.writers if call.query["query"] in each]
        return 200, [{**user(each), "access_level": 30} for each in found]

    def read_approvals(self, call: Call) -> Reply:
        return 200, {"approvals_before_merge": max(call.repository.approvals.values(), default=0)}

    def issue(self, row: Issue) -> dict[str, Any]:
        return {
            "id": row.number,
            "iid": row.number,
            "title": row.title,
            "description": row.body,
            "state": "closed" if row.closed else "opened",
            "author": user(row.author),
            "labels": row.labels,
            "updated_at": _AT,
            "assignees": [user(name) for name in row.assignees],
            "web_url": "http://127.0.0.1/",
        }

    def _discussion(self, notes: list[LineComment]) -> dict[str, Any]:
        return {"id": str(notes[0].thread), "individual_note": False, "notes": [self.line(each) for each in notes]}

    def pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
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

    def line(self, row: LineComment) -> dict[str, Any]:
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
            **self.comment(row),
            "type": "DiffNote",
            "position": position,
            "resolvable": True,
            "resolved": row.resolved,
        }

    def comment(self, row: Comment) -> dict[str, Any]:
        return {
            "id": row.id,
            "author": user(row.author),
            "body": row.body,
            "created_at": _AT,
            "system": False,
        }

    def status(self, row: Status) -> dict[str, Any]:
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
