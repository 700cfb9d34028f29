"""Gitea's and Forgejo's routes of the double, below /api/v1."""

from __future__ import annotations

from typing import Any

from doubles.forge_routes import AT, Call, Reply, Routes
from doubles.forge_state import OWN_LOGIN, Comment, Issue, LineComment, Problem, Pull, Repository, Review, Status

_REVIEWS = {
    "APPROVED": "APPROVED",
    "CHANGES_REQUESTED": "REQUEST_CHANGES",
    "COMMENTED": "COMMENT",
    "DISMISSED": "APPROVED",
}


def user(login: str) -> dict[str, Any]:
    return {"id": sum(login.encode()), "login": login, "login_name": login, "full_name": login}


class GiteaRoutes(Routes):
    """Gitea's and Forgejo's."""

    rows = (
        ("GET", "", "read_repository"),
        ("GET", "/pulls", "list_pulls"), ("POST", "/pulls", "open_pull"), ("GET", "/pulls/{number}", "read_pull"),
        ("PATCH", "/pulls/{number}", "edit_pull"), ("POST", "/pulls/comments/{id}/resolve", "resolve"),
        ("POST", "/pulls/{number}/merge", "merge"), ("DELETE", "/pulls/{number}/merge", "withdraw"),
        ("GET", "/pulls/{number}/reviews", "list_reviews"), ("POST", "/pulls/{number}/reviews", "add_review"),
        ("GET", "/pulls/{number}/reviews/{id}/comments", "list_lines"),
        ("GET", "/issues", "list_issues"), ("GET", "/issues/{number}", "read_issue"),
        ("GET", "/issues/{number}/comments", "list_comments"), ("POST", "/issues/{number}/comments", "add_comment"),
        ("PUT", "/issues/{number}/labels", "label_it"),
        ("GET", "/commits/{commit}/statuses", "list_statuses"), ("POST", "/statuses/{commit}", "report"),
        ("GET", "/branches/{branch}", "read_branch"),
        ("GET", "/labels", "list_labels"), ("POST", "/labels", "add_label"),
        ("GET", "/collaborators/{login}/permission", "read_permission"))
    missing = "The target couldn't be found."

    def own_user(self) -> dict[str, Any]:
        return user(OWN_LOGIN)

    def read_repository(self, call: Call) -> Reply:
        return 200, {
            "id": 1,
            "name": call.repository.path.rpartition("/")[2],
            "full_name": call.repository.path,
            "permissions": {"admin": False, "push": True, "pull": True},
            "allow_merge_commits": True,
            "allow_squash_merge": True,
            "allow_rebase": True,
        }

    def open_pull(self, call: Call) -> Reply:
        given = call.body
        pull = self._state.open_pull(call.repository, given["head"], given["base"], given["title"],
                                     given.get("body") or "", draft=False)
        return 201, self.pull(call.repository, pull)

    def resolve(self, call: Call) -> Reply:
        for each in call.repository.lines:
            each.resolved = each.resolved or str(each.id) == call.named["id"]
        return 204, None

    def withdraw(self, call: Call) -> Reply:
        pull = self.pull_of(call)
        if not pull.auto:
            raise Problem(404, "not scheduled")
        pull.auto = ""
        return 204, None

    def merge(self, call: Call) -> Reply:
        state, repository, body, pull = self._state, call.repository, call.body, self.pull_of(call)
        pull.draft = pull.title.upper().startswith("WIP:")
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

    def add_review(self, call: Call) -> Reply:
        made = self._state.review(call.repository, call.number, "COMMENTED")
        for given in call.body.get("comments", ()):
            old = given.get("old_position")
            self._state.comment_line(call.repository, call.number, given["path"], old or given.get("new_position"),
                                     given["body"], side="old" if old else "new", review=made.id)
        return 200, self.review(call.repository, made)

    def list_lines(self, call: Call) -> Reply:
        return 200, [self.line(each) for each in call.repository.lines if str(each.review) == call.named["id"]]

    def label_it(self, call: Call) -> Reply:
        known = call.repository.labels
        self.pull_of(call).labels = [known[each - 1] for each in call.body["labels"]]
        return 200, []

    def pull_as_issue(self, pull: Pull) -> dict[str, Any]:
        return {**super().pull_as_issue(pull), "pull_request": {"merged": pull.merged}}

    def list_statuses(self, call: Call) -> Reply:
        return 200, [self.status(each) for each in reversed(call.repository.statuses)
                     if each.commit == call.named["commit"]]

    def read_branch(self, call: Call) -> Reply:
        name, commit = self.branch_of(call)
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

    def list_labels(self, call: Call) -> Reply:
        return 200, [self._label(call.repository, each) for each in call.repository.labels]

    def add_label(self, call: Call) -> Reply:
        call.repository.labels.append(call.body["name"])
        return 201, self._label(call.repository, call.body["name"])

    def permission(self, permission: str, login: str) -> dict[str, Any]:
        return {"permission": permission, "role_name": permission, "user": user(login)}

    def _label(self, repository: Repository, name: str) -> dict[str, Any]:
        known = repository.labels.index(name) + 1 if name in repository.labels else 0
        return {"id": known, "name": name, "color": "ededed", "description": ""}

    def pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
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
            "created_at": AT,
        }

    def review(self, repository: Repository, row: Review) -> dict[str, Any]:
        return {
            "id": row.id,
            "user": user(row.author),
            "body": row.body,
            "commit_id": row.commit,
            "state": _REVIEWS[row.state],
            "dismissed": row.state == "DISMISSED",
            "stale": False,
            "submitted_at": AT,
            "comments_count": sum(each.review == row.id for each in repository.lines),
        }

    def line(self, row: LineComment) -> dict[str, Any]:
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
            "created_at": AT,
            "pull_request_review_id": row.review,
            "resolver": user("someone") if row.resolved else None,
        }

    def issue(self, row: Issue) -> dict[str, Any]:
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
            "updated_at": AT,
        }

    def comment(self, row: Comment) -> dict[str, Any]:
        return {"id": row.id, "user": user(row.author), "body": row.body, "created_at": AT}

    def status(self, row: Status) -> dict[str, Any]:
        return {
            "id": row.id,
            "context": row.name,
            "status": row.state,
            "description": row.summary,
            "target_url": "",
            "created_at": AT,
        }
