"""What the doubles of Gitea, Forgejo and GitLab send has the fields and types that published clients declare.

The clients of Gitea and Forgejo are generated from the OpenAPI descriptions of their programs. GitLab's description
covers few of the routes, so its double is compared with the client that most programs use, which people write.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

import forge_schemas
from doubles.forge_gitea import GiteaRoutes
from doubles.forge_github import GitHubRoutes
from doubles.forge_gitlab import GitLabRoutes
from doubles.forge_state import ForgeState, Issue, Repository
from typescript_types import Types

GITEA = ("gitea-js", "1.23.0")
FORGEJO = ("@llamaduck/forgejo-ts", "15.0.9")
GITLAB = ("@gitbeaker/core", "43.8.0")


BEYOND = re.compile(r"resolved$|approved$|approved_at$|(old|new)_line: |notes\[\]: there is no field position$|"
                    r"target_url: None|group_access: None")
"""What GitLab's documentation has and its client lacks or declares otherwise."""


def fetch(package: tuple[str, str], *, optional: bool) -> Types:
    """Return the declarations of a package (npm, MIT), fetched once."""
    name, version = package
    folder = forge_schemas.CACHE.parent / "types"
    file = folder / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz"
    if not file.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            subprocess.run(["npm", "pack", "--silent", f"{name}@{version}"], cwd=folder, check=True,
                           capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"{name} cannot be fetched: {error}")
    with tarfile.open(file) as archive:
        member = archive.extractfile("package/dist/index.d.ts")
        return Types(member.read().decode(), optional=optional)


@pytest.fixture
def state(tmp_path: Path) -> ForgeState:
    made = ForgeState(tmp_path)
    repository = made.create("o/n")
    commit = made.commit("o/n", "work", "x\n")
    made.commit("o/n", "more", "y\n")
    made.open_pull(repository, "work", "main", "t", "b", draft=False)
    made.report(repository, commit, "ci", "failure", "red", "boom")
    review = made.review(repository, 1, "APPROVED", "a")
    made.review(repository, 1, "CHANGES_REQUESTED", "b")
    first = made.comment_line(repository, 1, "file.txt", 1, "b", "a", review=review.id)
    made.comment_line(repository, 1, "file.txt", 1, "b", "a", side="old", thread=first.id, review=review.id)
    made.comment(repository, 1, "hello", "a")
    repository.issues.append(Issue(9, "t", "b", "a", ["l"], ["a"]))
    return made


def check(types: Types, routes: Any, asked: list[tuple[str, str, dict[str, Any], str]], root: str) -> None:
    """Ask for each (method, path, body) and compare the answer, or each object of its list, with the type."""
    wrong = []
    for method, path, body, wanted in asked:
        _, made = routes.handle(method, f"{root}{path}", {"query": ""}, body)
        assert made not in (None, []), path
        for each in made if isinstance(made, list) else [made]:
            wrong += [f"{method} {path}: {problem}" for problem in types.check(each, wanted)
                      if not BEYOND.search(problem)]
    assert not wrong, "\n".join(dict.fromkeys(wrong))


@pytest.mark.slow
@pytest.mark.parametrize("package", [GITEA, FORGEJO], ids=["gitea", "forgejo"])
def test_the_double_of_gitea_sends_what_the_description_says(state: ForgeState, package: tuple[str, str]) -> None:
    types, routes = fetch(package, optional=True), GiteaRoutes(state)
    repository: Repository = state.repositories["o/n"]
    commit, review = repository.statuses[0].commit, repository.reviews[0].id
    assert types.check({"id": "1", "nothing": 1}, "PullRequest") != [], "it can fail"
    check(types, routes, [
        ("POST", "/pulls", {"head": "more", "base": "main", "title": "t", "body": "b"}, "PullRequest"),
        ("GET", "/pulls", {}, "PullRequest"), ("GET", "/pulls/1", {}, "PullRequest"),
        ("PATCH", "/pulls/1", {"title": "u"}, "PullRequest"),
        ("GET", "/pulls/1/reviews", {}, "PullReview"),
        ("GET", f"/pulls/1/reviews/{review}/comments", {}, "PullReviewComment"),
        ("POST", "/pulls/1/reviews", {"comments": [{"path": "file.txt", "body": "r", "new_position": 1}]},
         "PullReview"),
        ("GET", "/issues", {}, "Issue"), ("GET", "/issues/9", {}, "Issue"), ("GET", "/issues/1", {}, "Issue"),
        ("GET", "/issues/1/comments", {}, "Comment"), ("POST", "/issues/1/comments", {"body": "c"}, "Comment"),
        ("GET", f"/commits/{commit}/statuses", {}, "CommitStatus"),
        ("POST", f"/statuses/{commit}", {"context": "g", "state": "success"}, "CommitStatus"),
        ("GET", "/branches/main", {}, "Branch"), ("GET", "", {}, "Repository"),
        ("POST", "/labels", {"name": "l"}, "Label"), ("GET", "/labels", {}, "Label"),
        ("GET", "/collaborators/a/permission", {}, "RepoCollaboratorPermission"),
    ], "/repos/o/n")
    check(types, routes, [("GET", "/user", {}, "User")], "")


@pytest.mark.slow
def test_the_double_of_gitlab_sends_what_its_client_declares(state: ForgeState) -> None:
    types, routes = fetch(GITLAB, optional=False), GitLabRoutes(state)
    commit, thread = state.repositories["o/n"].statuses[0].commit, state.repositories["o/n"].lines[0].thread
    assert types.check({"id": "1", "nothing": 1}, "ExpandedMergeRequestSchema") != [], "it can fail"
    opened = {"source_branch": "more", "target_branch": "main", "title": "t", "description": "b", "labels": "l"}
    pull, note = "ExpandedMergeRequestSchema", "MergeRequestDiscussionNoteSchema"
    check(types, routes, [
        ("POST", "/merge_requests", opened, pull), ("GET", "/merge_requests", {}, pull),
        ("GET", "/merge_requests/1", {}, pull), ("PUT", "/merge_requests/1", {"title": "u"}, pull),
        ("GET", "/merge_requests/1/notes", {}, "MergeRequestNoteSchema"),
        ("POST", "/merge_requests/1/notes", {"body": "n"}, "MergeRequestNoteSchema"),
        ("GET", "/merge_requests/1/discussions", {}, "DiscussionSchema"),
        ("POST", f"/merge_requests/1/discussions/{thread}/notes", {"body": "r"}, note),
        ("PUT", f"/merge_requests/1/discussions/{thread}", {"resolved": True}, "DiscussionSchema"),
        ("GET", "/merge_requests/1/approvals", {}, "MergeRequestLevelMergeRequestApprovalSchema"),
        ("GET", "/merge_requests/1/reviewers", {}, "MergeRequestReviewerSchema"),
        ("GET", "/issues", {}, "IssueSchemaWithBasicLabels"), ("GET", "/issues/9", {}, "IssueSchemaWithBasicLabels"),
        ("GET", f"/repository/commits/{commit}/statuses", {}, "CommitStatusSchema"),
        ("POST", f"/statuses/{commit}", {"name": "g", "state": "success"}, "CommitStatusSchema"),
        ("GET", "/repository/branches/main", {}, "BranchSchema"),
        ("GET", "/members/all", {}, "SimpleMemberSchema"),
        ("GET", "/approvals", {}, "ProjectLevelMergeRequestApprovalSchema"), ("GET", "", {}, "ProjectSchema"),
    ], "/projects/o%2Fn")
    check(types, routes, [("GET", "/user", {}, "ExpandedUserSchema")], "")


# ---- What the double of GitHub sends is valid by GitHub's published schema


REPOSITORY = "/repos/{owner}/{repo}"


@pytest.mark.slow
def test_the_double_of_github_sends_what_the_schema_says(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    try:
        description = forge_schemas.fetch_description()
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"@octokit/openapi cannot be fetched: {error}")
    state = ForgeState(tmp_path)
    repository = state.create("o/n")
    commit = state.commit("o/n", "work", "x\n")
    state.report(repository, commit, "ci", "failure", log="boom")
    state.report(repository, commit, "bare", "success")
    state.open_pull(repository, "work", "main", "t", "b", draft=False)
    state.review(repository, 1, "APPROVED", "a")
    line = state.comment_line(repository, 1, "file.txt", 1, "b", "a", review=100)
    repository.issues.append(Issue(9, "t", "b", "a", ["l"], ["a"]))
    state.commit("o/n", "more", "y\n")
    routes = GitHubRoutes(state)
    opened = {"head": "more", "base": "main", "title": "t", "body": "b"}
    asked: list[tuple[str, str, str, dict[str, Any]]] = [
        ("POST", "/pulls", "/pulls", opened), ("GET", "/pulls", "/pulls", {}),
        ("GET", "/pulls/{pull_number}", "/pulls/1", {}),
        ("POST", "/issues/{issue_number}/labels", "/issues/1/labels", {"labels": ["l"]}),
        ("GET", "/pulls/{pull_number}/reviews", "/pulls/1/reviews", {}),
        ("GET", "/pulls/{pull_number}/comments", "/pulls/1/comments", {}),
        ("POST", "/pulls/{pull_number}/comments/{comment_id}/replies", f"/pulls/1/comments/{line.id}/replies",
         {"body": "r"}),
        ("POST", "/issues/{issue_number}/comments", "/issues/1/comments", {"body": "c"}),
        ("GET", "/issues/{issue_number}/comments", "/issues/1/comments", {}),
        ("GET", "/issues", "/issues", {}), ("GET", "/issues/{issue_number}", "/issues/9", {}),
        ("GET", "/commits/{ref}/check-runs", f"/commits/{commit}/check-runs", {}),
        ("GET", "/commits/{ref}/status", f"/commits/{commit}/status", {}),
        ("POST", "/statuses/{sha}", f"/statuses/{commit}", {"context": "g", "state": "success"}),
        ("GET", "/branches/{branch}", "/branches/main", {}), ("GET", "", "", {}),
        ("GET", "/collaborators/{username}/permission", "/collaborators/a/permission", {}),
        ("PUT", "/pulls/{pull_number}/merge", "/pulls/1/merge", {}), ("GET", "/pulls/{pull_number}", "/pulls/1", {}),
    ]
    wrong = []
    components = {"components": {"schemas": forge_schemas.to_json_schema(description["components"]["schemas"])}}
    for method, template, path, body in asked:
        status, made = routes.handle(method, "/repos/o/n" + path, {}, body)
        operation = description["paths"][REPOSITORY + template][method.lower()]
        schema = operation["responses"][str(status)]["content"]["application/json"]["schema"]
        checker = jsonschema.Draft7Validator({**components, **forge_schemas.to_json_schema(schema)})
        for error in checker.iter_errors(made):
            best = jsonschema.exceptions.best_match([error])
            wrong.append(f"{method} {path}: {'/'.join(map(str, best.absolute_path))}: {best.message[:100]}")
    assert not wrong, "\n".join(wrong)
