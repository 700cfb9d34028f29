"""GitHub's routes of the double: REST below /api/v3 and the few GraphQL operations that the client uses.

Bodies are filled into templates that hold every field that GitHub's published schema requires.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
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


@cache
def _templates() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        Path(__file__).with_name("forge_templates.json").read_text(encoding="utf-8")
    )
    return found


def fill(template: str, /, **values: Any) -> dict[str, Any]:
    made: dict[str, Any] = copy.deepcopy(_templates()[template])
    return {**made, **values}


def user(login: str) -> dict[str, Any]:
    return fill("simple-user", login=login, id=sum(login.encode()))


class GitHubRoutes:
    """What a request of GitHub's API gets: (status, body)."""

    def __init__(self, state: ForgeState) -> None:
        self._state = state

    def handle(self, method: str, path: str, query: dict[str, str], body: dict[str, Any]) -> Reply:
        """Answer one request; Problem for a refusal."""
        if path == "/graphql":
            return 200, self._graphql(body)
        if path == "/user":
            return 200, fill("public-user", **{**user(OWN_LOGIN), "user_view_type": "public"})
        parts = path.strip("/").split("/")
        repository = self._state.repositories.get("/".join(parts[1:3]))
        if parts[0] != "repos" or repository is None:
            raise Problem(404, "Not Found")
        if len(parts) == 3:
            return 200, self._repository(repository, full=True)
        handlers = {
            "pulls": self._pulls,
            "issues": self._issues,
            "commits": self._commits,
            "statuses": self._statuses,
            "branches": self._branches,
            "rules": self._rules,
            "collaborators": self._collaborators,
            "actions": self._actions,
        }
        return dispatch(handlers, parts[3], Call(repository, method, parts[4:], query, body), "Not Found")

    def _pulls(self, call: Call) -> Reply:
        state = self._state
        if not call.rest and call.method == "POST":
            try:
                pull = state.open_pull(
                    call.repository,
                    call.body["head"],
                    call.body["base"],
                    call.body["title"],
                    call.body.get("body") or "",
                    draft=call.body.get("draft", False),
                )
            except Problem as problem:
                raise Problem(422, problem.message) from None
            return 201, self._pull(call.repository, pull)
        if not call.rest:
            return 200, [
                self._pull(call.repository, each, simple=True)
                for each in list_pulls(call.repository)
                if call.query.get("head", "").partition(":")[2] in {"", each.head}
            ]
        pull = state.pull(call.repository, int(call.rest[0]))
        if call.rest[1:] == ["merge"]:
            given = call.body
            made = state.merge(
                call.repository,
                pull,
                given.get("merge_method", "merge"),
                given.get("sha", ""),
                lie=given.get("lie", ""),
            )
            return 200, fill(
                "pull-request-merge-result", sha=made, merged=True, message="Pull Request successfully merged"
            )
        if call.rest[1:] == ["reviews"]:
            return 200, [self._review(each) for each in call.repository.reviews if each.number == pull.number]
        if call.rest[1:2] == ["comments"] and call.method == "POST":
            first = next((each for each in call.repository.lines if str(each.id) == call.rest[2]), None)
            if first is None:
                raise Problem(404, "Not Found")
            return 201, self._line(state.answer_line(call.repository, first, call.body["body"]))
        if call.rest[1:] == ["comments"]:
            return 200, [self._line(each) for each in call.repository.lines if each.number == pull.number]
        if call.method == "PATCH":
            edit(state, call.repository, pull, call.body)
        return 200, self._pull(call.repository, pull)

    def _issues(self, call: Call) -> Reply:
        if not call.rest:
            return 200, [self._issue(each) for each in call.repository.issues if matches(each, call.query)]
        number = int(call.rest[0])
        if call.rest[1:] == ["comments"]:
            if call.method == "POST":
                return 201, self._comment(self._state.comment(call.repository, number, call.body["body"]))
            return 200, [self._comment(each) for each in call.repository.comments if each.number == number]
        if call.rest[1:] == ["labels"]:
            pull = self._state.pull(call.repository, number)
            pull.labels = sorted({*(pull.labels if call.method == "POST" else ()), *call.body["labels"]})
            return 200, [self._label(each) for each in pull.labels]
        found = next((each for each in call.repository.issues if each.number == number), None)
        if found is None:
            pull = self._state.pull(call.repository, number)
            return 200, {
                **self._issue(pull_as_issue(pull)),
                "pull_request": {"diff_url": None, "html_url": None, "patch_url": None, "url": None},
            }
        return 200, self._issue(found)

    def _commits(self, call: Call) -> Reply:
        newest = self._state.newest_statuses(call.repository, call.rest[0])
        if call.rest[1] == "check-runs":
            runs = [self._run(each) for each in newest if each.log is not None]
            return 200, {"total_count": len(runs), "check_runs": runs}
        bare = [self._status(each) for each in newest if each.log is None]
        states = {each["state"] for each in bare}
        combined = "failure" if "failure" in states else "success" if states == {"success"} else "pending"
        return 200, fill(
            "combined-commit-status", state=combined, statuses=bare, sha=call.rest[0], total_count=len(bare)
        )

    def _statuses(self, call: Call) -> Reply:
        given = call.body
        made = self._state.report(
            call.repository, call.rest[0], given["context"], given["state"], given.get("description", "")
        )
        return 201, self._status(made)

    def _branches(self, call: Call) -> Reply:
        if call.rest[-1] == "protection":
            raise Problem(403, "Resource not accessible by personal access token")
        name = "/".join(call.rest)
        if not (commit := self._state.head_of(call.repository.path, name)):
            raise Problem(404, "Branch not found")
        made = fill("branch-with-protection", name=name, protected=name in call.repository.required)
        made["commit"] = {**made["commit"], "sha": commit}
        checks = {"contexts": call.repository.required.get(name, []), "checks": []}
        made["protection"] = {"required_status_checks": checks}
        return 200, made

    def _rules(self, call: Call) -> Reply:
        approvals = call.repository.approvals.get(call.rest[-1], 0)
        parameters = {
            "required_approving_review_count": approvals,
            "dismiss_stale_reviews_on_push": False,
            "require_code_owner_review": False,
            "require_last_push_approval": False,
            "required_review_thread_resolution": False,
        }
        return 200, [{"type": "pull_request", "parameters": parameters}] if approvals else []

    def _collaborators(self, call: Call) -> Reply:
        permission = "write" if call.rest[0] in call.repository.writers else "read"
        return 200, fill("repository-collaborator-permission", permission=permission, role_name=permission, user=None)

    def _actions(self, call: Call) -> Reply:
        found = next((each for each in call.repository.statuses if str(each.id) == call.rest[1]), None)
        if found is None or not found.log:
            raise Problem(404, "Not Found")
        return 200, found.log

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

    def _pull(self, repository: Repository, pull: Pull, *, simple: bool = False) -> dict[str, Any]:
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
            "merged_at": _AT if pull.merged else None,
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

    def _issue(self, row: Issue) -> dict[str, Any]:
        return fill(
            "issue",
            number=row.number,
            title=row.title,
            body=row.body,
            user=user(row.author),
            state="closed" if row.closed else "open",
            labels=[self._label(each) for each in row.labels],
            assignees=[user(each) for each in row.assignees],
            updated_at=_AT,
        )

    def _comment(self, row: Comment) -> dict[str, Any]:
        return fill("issue-comment", id=row.id, user=user(row.author), body=row.body)

    def _review(self, row: Review) -> dict[str, Any]:
        return fill(
            "pull-request-review",
            id=row.id,
            user=user(row.author),
            body=row.body,
            state=row.state,
            commit_id=row.commit,
            submitted_at=_AT,
        )

    def _line(self, row: LineComment) -> dict[str, Any]:
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
            "created_at": _AT,
            "updated_at": _AT,
            "permissions": {},
            "events": [],
        }
        return made

    def _status(self, row: Status) -> dict[str, Any]:
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
