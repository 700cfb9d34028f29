"""GitHub's routes of the double: REST below /api/v3 and the few GraphQL operations that the client uses.

Bodies are filled into templates that hold every field that GitHub's published schema requires.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from doubles.forge_routes import AT, Call, Reply, Routes
from doubles.forge_state import OWN_LOGIN, Comment, Issue, LineComment, Problem, Pull, Repository, Review, Status


@cache
def _templates() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(__file__).with_name("forge_templates.json").read_text(encoding="utf-8"))
    return found


def fill(template: str, /, **values: Any) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(_templates()[template])
    return {**made, **values}


def user(login: str) -> dict[str, Any]:
    return fill("simple-user", login=login, id=sum(login.encode()))


class GitHubRoutes(Routes):
    """GitHub's."""

    rows = (
        ("GET", "", "read_repository"),
        ("GET", "/pulls", "list_pulls"), ("POST", "/pulls", "open_pull"), ("GET", "/pulls/{number}", "read_pull"),
        ("PATCH", "/pulls/{number}", "edit_pull"), ("PUT", "/pulls/{number}/merge", "merge"),
        ("GET", "/pulls/{number}/reviews", "list_reviews"), ("GET", "/pulls/{number}/comments", "list_lines"),
        ("POST", "/pulls/{number}/comments/{id}/replies", "answer_line"),
        ("GET", "/issues", "list_issues"), ("GET", "/issues/{number}", "read_issue"),
        ("GET", "/issues/{number}/comments", "list_comments"), ("POST", "/issues/{number}/comments", "add_comment"),
        ("POST", "/issues/{number}/labels", "label_it"), ("PUT", "/issues/{number}/labels", "label_it"),
        ("GET", "/commits/{commit}/check-runs", "list_runs"), ("GET", "/commits/{commit}/status", "list_statuses"),
        ("POST", "/statuses/{commit}", "report"), ("GET", "/branches/{name}/protection", "read_protection"),
        ("GET", "/branches/{branch}", "read_branch"), ("GET", "/rules/branches/{branch}", "list_rules"),
        ("GET", "/collaborators/{login}/permission", "read_permission"),
        ("GET", "/actions/jobs/{id}/logs", "read_log"))

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
        return (200, self._graphql(body)) if path == "/graphql" else super().handle(method, path, query, body)

    def own_user(self) -> dict[str, Any]:
        return fill("public-user", **{**user(OWN_LOGIN), "user_view_type": "public"})

    def read_repository(self, call: Call) -> Reply:
        return 200, self._repository(call.repository, full=True)

    def is_asked_for(self, pull: Pull, query: Mapping[str, str]) -> bool:
        return query.get("head", "").partition(":")[2] in {"", pull.head}

    def listed_pull(self, repository: Repository, pull: Pull) -> dict[str, Any]:
        return self.pull(repository, pull, simple=True)

    def open_pull(self, call: Call) -> Reply:
        given = call.body
        try:
            pull = self._state.open_pull(call.repository, given["head"], given["base"], given["title"],
                                         given.get("body") or "", draft=given.get("draft", False))
        except Problem as problem:
            raise Problem(422, problem.message) from None
        return 201, self.pull(call.repository, pull)

    def merge(self, call: Call) -> Reply:
        given = call.body
        made = self._state.merge(call.repository, self.pull_of(call), given.get("merge_method", "merge"),
                                 given.get("sha", ""), lie=given.get("lie", ""))
        return 200, fill("pull-request-merge-result", sha=made, merged=True,
                         message="Pull Request successfully merged")

    def list_lines(self, call: Call) -> Reply:
        return 200, [self.line(each) for each in self.lines_of(call)]

    def answer_line(self, call: Call) -> Reply:
        first = next((each for each in call.repository.lines if str(each.id) == call.named["id"]), None)
        if first is None:
            raise Problem(404, "Not Found")
        return 201, self.line(self._state.answer_line(call.repository, first, call.body["body"]))

    def pull_as_issue(self, pull: Pull) -> dict[str, Any]:
        return {**super().pull_as_issue(pull),
                "pull_request": {"diff_url": None, "html_url": None, "patch_url": None, "url": None}}

    def label_it(self, call: Call) -> Reply:
        pull = self.pull_of(call)
        pull.labels = sorted(call.body["labels"])
        return 200, [self._label(each) for each in pull.labels]

    def list_runs(self, call: Call) -> Reply:
        newest = self._state.newest_statuses(call.repository, call.named["commit"])
        runs = [self._run(each) for each in newest if each.log is not None]
        return 200, {"total_count": len(runs), "check_runs": runs}

    def list_statuses(self, call: Call) -> Reply:
        newest = self._state.newest_statuses(call.repository, call.named["commit"])
        bare = [self.status(each) for each in newest if each.log is None]
        states = {each["state"] for each in bare}
        combined = "failure" if "failure" in states else "success" if states == {"success"} else "pending"
        return 200, fill("combined-commit-status", state=combined, statuses=bare, sha=call.named["commit"],
                         total_count=len(bare))

    def read_protection(self, call: Call) -> Reply:
        raise Problem(403, "Resource not accessible by personal access token")

    def read_branch(self, call: Call) -> Reply:
        name, commit = self.branch_of(call)
        made = fill("branch-with-protection", name=name, protected=name in call.repository.required)
        made["commit"] = {**made["commit"], "sha": commit}
        checks = {"contexts": call.repository.required.get(name, []), "checks": []}
        made["protection"] = {"required_status_checks": checks}
        return 200, made

    def list_rules(self, call: Call) -> Reply:
        approvals = call.repository.approvals.get(call.named["branch"], 0)
        parameters = {
            "required_approving_review_count": approvals,
            "dismiss_stale_reviews_on_push": False,
            "require_code_owner_review": False,
            "require_last_push_approval": False,
            "required_review_thread_resolution": False,
        }
        return 200, [{"type": "pull_request", "parameters": parameters}] if approvals else []

    def permission(self, permission: str, login: str) -> dict[str, Any]:
        return fill("repository-collaborator-permission", permission=permission, role_name=permission, user=None)

    def _graphql(self, body: dict[str, Any]) -> dict[str, Any]:
        query, given = body["query"], body["variables"]
        if "reviewThreads" in query:
            repository = self._state.repositories[f"{given['owner']}/{given['name']}"]
            rows = [each for each in repository.lines if each.number == given["number"] and each.thread == each.id]
            nodes = [
                {
                    "id": f"T:{repository.path}:{each.id}",
                    "isResolved": each.resolved,
                    "comments": {"nodes": [{"databaseId": each.id}]},
                }
                for each in rows
            ]
            threads = {"nodes": nodes, "pageInfo": {"hasNextPage": False, "endCursor": None}}
            return {"data": {"repository": {"pullRequest": {"reviewThreads": threads}}}}
        if "isInMergeQueue" in query:
            repository = self._state.repositories[f"{given['owner']}/{given['name']}"]
            waits = bool(self._state.pull(repository, given["number"]).auto) and bool(repository.merge_queue)
            return {"data": {"repository": {"pullRequest": {"isInMergeQueue": waits}}}}
        kind, path, number = given["id"].split(":")
        repository = self._state.repositories[path]
        if kind == "T":
            for each in repository.lines:
                each.resolved = each.resolved or str(each.thread) == number
            return {"data": {"resolveReviewThread": {"thread": {"isResolved": True}}}}
        pull = self._state.pull(repository, int(number))
        if "enablePullRequestAutoMerge" in query:
            if given["head"] != self._state.pull_head(repository, pull):
                return {"data": None, "errors": [{"message": "Head sha does not match", "type": "UNPROCESSABLE"}]}
            if not self._state.obstacle(repository, pull):
                return {
                    "data": None,
                    "errors": [{"message": "Pull request is in clean status", "type": "UNPROCESSABLE"}],
                }
            pull.auto = given["method"].lower()
        elif "enqueuePullRequest" in query:
            pull.auto = "queue"
            self._state.save()
        elif "disablePullRequestAutoMerge" in query or "dequeuePullRequest" in query:
            pull.auto = ""
        else:
            pull.draft = "convertPullRequestToDraft" in query
        return {"data": {"done": {"pullRequest": {"id": given["id"]}}}}

    def _repository(self, repository: Repository, *, full: bool = False) -> dict[str, Any]:
        owner, _, name = repository.path.rpartition("/")
        permissions = {"admin": False, "push": True, "pull": True, "maintain": False, "triage": True}
        made = fill(
            "full-repository",
            name=name,
            full_name=repository.path,
            owner=user(owner),
            permissions=permissions,
            allow_merge_commit=True,
            allow_squash_merge=True,
            allow_rebase_merge=True,
            allow_auto_merge=True,
            has_downloads=True,
        )
        return (
            made if full else {key: made[key] for key in made if key not in {"organization", "security_and_analysis"}}
        )

    def pull(self, repository: Repository, pull: Pull, *, simple: bool = False) -> dict[str, Any]:
        state = self._state
        made = fill("pull-request-simple" if simple else "pull-request")
        sides = {}
        for side, branch, commit in (
            ("head", pull.head, state.pull_head(repository, pull)),
            ("base", pull.base, state.head_of(repository.path, pull.base)),
        ):
            sides[side] = {
                **made[side],
                "ref": branch,
                "sha": commit,
                "repo": {
                    **self._repository(repository),
                    **({"full_name": "mallory/fork"} if pull.fork and side == "head" else {}),
                },
                "user": user(pull.author),
                "label": f"{repository.path.partition('/')[0]}:{branch}",
            }
        auto = {"enabled_by": user(OWN_LOGIN), "merge_method": pull.auto, "commit_title": "", "commit_message": ""}
        own: dict[str, Any] = (
            {}
            if simple
            else {
                "merged": pull.merged,
                "mergeable": pull.state != "open" or "conflict" not in state.obstacle(repository, pull),
            }
        )
        return {
            **made,
            **sides,
            **own,
            "number": pull.number,
            "title": pull.title,
            "body": pull.body,
            "draft": pull.draft,
            "state": pull.state,
            "node_id": f"P:{repository.path}:{pull.number}",
            "user": user(pull.author),
            "labels": [self._label(each) for each in pull.labels],
            "auto_merge": auto if pull.auto not in {"", "queue"} else None,
            "merged_at": AT if pull.merged else None,
            "merge_commit_sha": pull.merge_commit or None,
            "html_url": f"http://127.0.0.1/{repository.path}/pull/{pull.number}",
        }

    def _label(self, name: str) -> dict[str, Any]:
        return {
            "id": sum(name.encode()),
            "node_id": "L",
            "url": "http://127.0.0.1/",
            "name": name,
            "description": None,
            "color": "ededed",
            "default": False,
        }

    def issue(self, row: Issue) -> dict[str, Any]:
        return fill(
            "issue",
            number=row.number,
            title=row.title,
            body=row.body,
            user=user(row.author),
            state="closed" if row.closed else "open",
            labels=[self._label(each) for each in row.labels],
            assignees=[user(each) for each in row.assignees],
            updated_at=AT,
        )

    def comment(self, row: Comment) -> dict[str, Any]:
        return fill("issue-comment", id=row.id, user=user(row.author), body=row.body)

    def review(self, repository: Repository, row: Review) -> dict[str, Any]:
        return fill(
            "pull-request-review",
            id=row.id,
            user=user(row.author),
            body=row.body,
            state=row.state,
            commit_id=row.commit,
            submitted_at=AT,
        )

    def line(self, row: LineComment) -> dict[str, Any]:
        first = {} if row.thread == row.id else {"in_reply_to_id": row.thread}
        return fill(
            "pull-request-review-comment",
            id=row.id,
            user=user(row.author),
            body=row.body,
            path=row.path,
            line=row.line,
            original_line=row.line,
            commit_id=row.commit,
            original_commit_id=row.commit,
            side="LEFT" if row.side == "old" else "RIGHT",
            pull_request_review_id=row.review or None,
            **first,
        )

    def _run(self, row: Status) -> dict[str, Any]:
        done = row.state != "pending"
        made = fill(
            "check-run",
            id=row.id,
            name=row.name,
            head_sha=row.commit,
            app=None,
            status="completed" if done else "in_progress",
            conclusion=row.state if done else None,
        )
        made["output"] = {**made["output"], "title": row.name, "summary": row.summary}
        # a check run's app decides whether there is a log
        made["app"] = {
            "id": 1,
            "slug": "github-actions",
            "node_id": "A",
            "owner": user("github"),
            "name": "GitHub Actions",
            "description": "",
            "external_url": "http://127.0.0.1/",
            "html_url": "http://127.0.0.1/",
            "created_at": AT,
            "updated_at": AT,
            "permissions": {},
            "events": [],
        }
        return made

    def status(self, row: Status) -> dict[str, Any]:
        return fill(
            "status",
            id=row.id,
            context=row.name,
            state=row.state,
            description=row.summary,
            target_url=None,
            creator=user(OWN_LOGIN),
            avatar_url=None,
        )
