"""What the double of GitHub sends is valid by GitHub's published schema."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

import forge_schemas
from doubles.forge_github import GitHubRoutes
from doubles.forge_state import ForgeState, Issue

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
