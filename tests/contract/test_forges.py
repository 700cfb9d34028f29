"""The three clients of forges against the double: one suite for all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.forge_server import ForgeServer
from doubles.forge_state import OWN_LOGIN, OWN_TOKEN, Issue, Repository
from garrison.backoff import Backoff
from garrison.forge.client import Forge
from garrison.forge.credentials import Token, git_environment
from garrison.forge.errors import ForgeNotFound, ForgeUnreachable, RateLimited, Stale, Unauthorized
from garrison.forge.marker import attach, make_marker
from garrison.forge.model import CheckState, ForgeMerge, MergeMethod, PullDraft, PullState, ReviewVerdict, Side
from garrison.forge.remote import parse_remote
from garrison.pull_request.access import open_forge
from garrison.values import replace

KINDS = ("github", "gitlab", "gitea")
MARKER = make_marker("run-1", "pull")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForgeServer]:
    with ForgeServer(tmp_path_factory.mktemp("forge")) as running:
        yield running


class Place:
    """A client, and the repository that it sees on the double."""

    def __init__(self, server: ForgeServer, kind: str, name: str, cache: Path | None) -> None:
        self.server, self.state, self.path = server, server.state, f"{kind}/{name}"
        self.repository: Repository = self.state.create(self.path)
        self.location = parse_remote(server.remote(self.path), kind)
        self.forge: Forge = open_forge(self.location, Token(OWN_TOKEN), cache, Backoff(0.001))
        self.commit = self.state.commit(self.path, "work", "changed\n")

    def open(self, **changes: object) -> int:
        draft = PullDraft("work", "main", "Add it", "Body", ("garrison",), **changes)
        return self.forge.open_pull(draft, MARKER).number


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, server: ForgeServer, tmp_path: Path) -> Iterator[Place]:
    name = request.node.name.partition("[")[0].removeprefix("test_")[:60]
    yield Place(server, request.param, name + str(len(server.state.repositories)), tmp_path)
    for fault in server.faults:
        fault.times = 0


def test_a_pull_request_is_opened_edited_made_ready_and_merged(place: Place) -> None:
    forge = place.forge
    place.state.commit(place.path, "theirs", "theirs\n")
    theirs = place.state.open_pull(place.repository, "theirs", "main", "Mine", attach("Adopt me", MARKER), draft=False)
    assert forge.find_pull(MARKER, "work") is None, "anybody may write a marker"
    theirs.head, theirs.fork = "work", True
    assert forge.find_pull(MARKER, "work") is None, "and call a branch of a fork like ours"
    number = place.open()
    assert number != theirs.number
    pull = forge.read_pull(number)
    assert (pull.title, pull.draft, pull.head_commit, pull.labels) == ("Add it", True, place.commit, ("garrison",))
    assert place.open() == number
    changed = forge.set_body(number, "Better")
    assert (changed.title, changed.body, changed.draft, changed.labels) == ("Add it", "Better", True, ("garrison",))
    forge.set_body(number, attach("Body", MARKER))
    assert not forge.mark_ready(number).draft
    assert not forge.mark_ready(number).draft
    done = forge.merge(number, place.commit, MergeMethod.MERGE)
    assert (done.result, done.commit) == (ForgeMerge.MERGED, place.state.head_of(place.path, "main"))
    assert forge.merge(number, place.commit, MergeMethod.MERGE) == done
    found = forge.find_pull(MARKER, "work")
    assert (found.state, found.merge_commit) == (PullState.MERGED, done.commit)


@pytest.mark.parametrize("fault", ["502-before", "502-after", "drop-before", "drop-after", "unlisted", "not-json"])
def test_one_pull_request_and_one_comment_exist_even_if_the_answer_is_lost(place: Place, fault: str) -> None:
    place.server.plant(fault, method="POST", path=place.path.rpartition("/")[2])
    for _ in range(3):
        try:
            number = place.open()
            break
        except ForgeUnreachable:
            continue
    assert len(place.repository.pulls) == 1
    if fault != "unlisted":
        place.server.plant(fault, method="POST", path=place.path.rpartition("/")[2])
    marker = make_marker("run-1", "summary")
    for _ in range(3):
        try:
            place.forge.comment(number, "Summary", marker, pull=True)
            break
        except ForgeUnreachable:
            continue
    assert [each.body for each in place.repository.comments] == [f"Summary\n\n{marker}"]


@pytest.mark.parametrize(("fault", "result"), [("502-after", ForgeMerge.MERGED), ("drop-after", ForgeMerge.MERGED),
                                               ("502-before", ForgeMerge.UNKNOWN)])
def test_a_merge_whose_answer_is_lost_is_looked_at(place: Place, fault: str, result: ForgeMerge) -> None:
    number = place.open(draft=False)
    place.server.plant(fault, path=f"/{number}/merge")
    assert place.forge.merge(number, place.commit, MergeMethod.SQUASH).result is result
    assert place.forge.merge(number, place.commit, MergeMethod.SQUASH).result is ForgeMerge.MERGED
    main = place.state.head_of(place.path, "main")
    assert place.state.git(place.path, "rev-list", "--count", main) == "2"


def test_a_moved_head_is_not_merged(place: Place) -> None:
    number = place.open(draft=False)
    moved = place.state.commit(place.path, "work", "other\n")
    with pytest.raises(Stale) as caught:
        place.forge.merge(number, place.commit, MergeMethod.MERGE)
    assert caught.value.actual == moved
    assert not place.repository.pulls[0].merged


def test_a_protected_base_refuses_with_a_reason_and_auto_merge_waits_for_its_check(place: Place) -> None:
    place.repository.required["main"] = ["garrison"]
    number = place.open(draft=False)
    refused = place.forge.merge(number, place.commit, MergeMethod.MERGE)
    assert refused.result is ForgeMerge.REFUSED
    assert "garrison" in refused.reason
    assert place.forge.read_rules("main").can_push
    assert place.forge.enable_auto_merge(number, place.commit, MergeMethod.MERGE).result is ForgeMerge.QUEUED
    place.forge.publish_status(place.commit, "garrison", CheckState.PENDING, "testing")
    assert [each.state for each in place.forge.list_checks(place.commit)] == [CheckState.PENDING]
    place.forge.publish_status(place.commit, "garrison", CheckState.PENDING, "testing")
    place.forge.publish_status(place.commit, "garrison", CheckState.PASSED, "tested")
    assert place.forge.read_pull(number).state is PullState.MERGED
    assert place.forge.merge(number, place.commit, MergeMethod.MERGE).result is ForgeMerge.MERGED


def test_checks_are_the_newest_of_exactly_the_commit(place: Place) -> None:
    report = place.state.report
    for state, log in (("success", None), ("failure", "line 1\nboom\n")):
        report(place.repository, place.commit, "ci", state, "red", log)
    report(place.repository, "f" * 40, "other", "failure")
    (check,) = place.forge.list_checks(place.commit)
    assert (check.name, check.state, check.commit) == ("ci", CheckState.FAILED, place.commit)
    assert place.forge.read_check_log(check) in {"line 1\nboom\n", "red"}


def test_reviews_and_comments_on_lines_are_answered_once(place: Place) -> None:
    number = place.open(draft=False)
    review = place.state.review(place.repository, number, "CHANGES_REQUESTED", "ann")
    place.state.comment_line(place.repository, number, "file.txt", 1, "Why?", "ann", review=review.id)
    assert [(each.author,
             each.verdict) for each in place.forge.list_reviews(number)] == [("ann", ReviewVerdict.CHANGES)]
    (comment,) = place.forge.list_line_comments(number)
    assert (comment.text, comment.path, comment.line, comment.side, comment.commit, comment.resolved) == (
        "Why?", "file.txt", 1, Side.NEW, place.commit, False)
    marker = make_marker("run-1", "reply", comment.id)
    for _ in range(2):
        place.forge.reply(number, comment.thread, "Fixed", marker)
    texts = [each.text for each in place.forge.list_line_comments(number)]
    assert texts == ["Why?", f"Fixed\n\n{marker}"]
    assert place.forge.resolve(number, comment.thread)
    assert place.forge.list_line_comments(number)[0].resolved
    assert place.forge.read_login() == OWN_LOGIN
    assert place.forge.can_write(OWN_LOGIN)
    assert not place.forge.can_write("ann")


def test_an_approval_names_the_commit_that_was_looked_at(place: Place) -> None:
    """GitLab's name none: it is the head at that time."""
    number, first = place.open(draft=False), place.commit
    place.state.review(place.repository, number, "APPROVED", "ann")
    second = place.state.commit(place.path, "work", "other\n")
    assert {each.author: each.commit for each in place.forge.list_reviews(number)} == {"ann": first}
    place.state.review(place.repository, number, "APPROVED", "bob")
    place.state.commit(place.path, "work", "more\n")
    assert {each.author: each.commit for each in place.forge.list_reviews(number)} == {"ann": first, "bob": second}


def test_issues_are_found_by_number_and_label(place: Place) -> None:
    number = place.open()
    for extra, label in ((100, "agent"), (101, "other")):
        place.repository.issues.append(Issue(extra, "Bug", "Text", "ann", [label], [OWN_LOGIN]))
    assert [each.number for each in place.forge.list_issues("agent")] == [100]
    issue = place.forge.read_issue(100)
    assert (issue.title, issue.text, issue.author, issue.labels) == ("Bug", "Text", "ann", ("agent",))
    place.forge.comment(100, "Begun", make_marker("run-1", "begun"), pull=False)
    assert len(place.forge.list_comments(100, pull=False)) == 1
    place.repository.issues[0].closed = True
    assert not place.forge.read_issue(100).open and place.forge.list_issues("agent") == []
    with pytest.raises(ForgeNotFound):
        place.forge.read_issue(number)
    with pytest.raises(ForgeNotFound, match=r"has no issue 999 that this token may read; give one"):
        place.forge.read_issue(999)


def test_failures_are_told_apart_and_none_names_the_token(place: Place) -> None:
    for fault, kind in (("rate-limit", RateLimited), ("secondary-limit", RateLimited), ("401", Unauthorized),
                        ("403-scope", Unauthorized), ("502-before", ForgeUnreachable), ("not-json", ForgeUnreachable)):
        place.server.plant(fault)
        with pytest.raises(kind) as caught:
            place.forge.read_pull(1)
        assert OWN_TOKEN not in f"{caught.value} {caught.value.__cause__}"
    with pytest.raises(ForgeNotFound):
        place.forge.read_pull(999)


def test_the_users_proxy_is_used_and_a_netrc_does_not_replace_the_token(
        place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine forge.invalid login x password y\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    location = replace(place.location, host="forge.invalid")
    monkeypatch.setenv("http_proxy", place.server.host)
    assert open_forge(location, Token(OWN_TOKEN)).read_login() == OWN_LOGIN
    monkeypatch.setenv("no_proxy", "forge.invalid")
    with pytest.raises(ForgeUnreachable):
        open_forge(location, Token(OWN_TOKEN)).read_login()
    monkeypatch.delenv("no_proxy")
    monkeypatch.setenv("http_proxy", "socks4://me:secret@127.0.0.1:1")
    told = r"the proxy for forge\.invalid in the environment cannot be used"
    with pytest.raises(ForgeUnreachable, match=told) as caught:
        open_forge(location, Token(OWN_TOKEN))
    assert "secret" not in f"{caught.value} {caught.value.__cause__}"


def test_unchanged_answers_are_read_from_the_cache(place: Place) -> None:
    number = place.open()
    place.forge.read_pull(number)
    before = place.forge.requests.not_modified
    pull = place.forge.read_pull(number)
    assert place.forge.requests.not_modified - before == (0 if place.path.startswith("gitea") else 1)
    again = open_forge(place.location, Token(OWN_TOKEN), None).read_pull(number)
    assert again == pull
    place.forge.set_body(number, "New")
    assert place.forge.read_pull(number).body == "New"


@pytest.mark.parametrize("place", ["github"], indirect=True)
def test_git_pushes_with_the_token_and_without_it_does_not(place: Place, tmp_path: Path) -> None:
    quiet = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_TERMINAL_PROMPT": "0"}
    clone = tmp_path / "clone"
    with_token = {**quiet, **git_environment(place.location, Token(OWN_TOKEN))}
    refused = subprocess.run(["git", "clone", "-q", place.server.remote(place.path), clone], env=quiet, check=False,
                             capture_output=True)
    assert refused.returncode != 0
    subprocess.run(["git", "clone", "-q", place.server.remote(place.path), clone], env=with_token, check=True)
    subprocess.run(["git", "-C", clone, "push", "-q", "origin", "HEAD:refs/heads/pushed"], env=with_token, check=True)
    assert place.state.head_of(place.path, "pushed") == place.state.head_of(place.path, "main")
    assert OWN_TOKEN not in (clone / ".git/config").read_text(encoding="utf-8")


@pytest.mark.parametrize("fault", ["lie-nothing", "lie-tree"])
def test_a_merge_that_the_forge_reports_wrongly_is_checked_against_the_base(place: Place, fault: str) -> None:
    number = place.open(draft=False)
    before = place.state.head_of(place.path, "main")
    place.server.plant(fault, path=f"/{number}/merge")
    done = place.forge.merge(number, place.commit, MergeMethod.MERGE)
    assert done.result is ForgeMerge.MERGED
    moved = place.state.head_of(place.path, "main")
    tree = place.state.git(place.path, "rev-parse", f"{moved}^{{tree}}")
    tested = place.state.git(place.path, "rev-parse", f"{place.commit}^{{tree}}")
    assert (moved == before) is (fault == "lie-nothing")
    assert tree != tested


def test_a_restart_of_the_double_keeps_its_state(tmp_path: Path) -> None:
    with ForgeServer(tmp_path) as first:
        Place(first, "gitea", "n", None).open()
    with ForgeServer(tmp_path) as second:
        assert [each.number for each in second.state.repositories["gitea/n"].pulls] == [1]


def test_auto_merge_is_turned_on_once_and_withdrawn(place: Place) -> None:
    place.repository.required["main"] = ["ci"]
    number, forge = place.open(draft=False), place.forge
    told = None if place.path.startswith("gitea") else True
    assert not forge.is_merge_scheduled(number)
    for _ in range(2):
        assert forge.enable_auto_merge(number, place.commit, MergeMethod.MERGE).result is ForgeMerge.QUEUED
        assert forge.is_merge_scheduled(number) is told
    for _ in range(2):
        forge.cancel_auto_merge(number)
        assert not forge.is_merge_scheduled(number)
    forge.publish_status(place.commit, "ci", CheckState.PASSED, "green")
    assert forge.read_pull(number).state is PullState.OPEN
    assert forge.enable_auto_merge(number, place.commit, MergeMethod.MERGE).result is ForgeMerge.MERGED, "at once"


@pytest.mark.parametrize("place", ["github"], indirect=True)
def test_a_branch_with_a_merge_queue_gets_the_pull_request_there(place: Place) -> None:
    place.repository.merge_queue = True
    number = place.open(draft=False)
    refused = place.forge.merge(number, place.commit, MergeMethod.MERGE)
    assert (refused.result, "merge queue" in refused.reason) == (ForgeMerge.REFUSED, True)
    place.repository.required["main"] = ["ci"]
    assert place.forge.enable_auto_merge(number, place.commit, MergeMethod.MERGE).result is ForgeMerge.QUEUED
    place.forge.cancel_auto_merge(number)
    place.repository.required.clear()  # nothing is left to wait for: GitHub refuses auto-merge then
    assert place.forge.enable_auto_merge(number, place.commit, MergeMethod.MERGE).result is ForgeMerge.QUEUED
    assert place.forge.read_pull(number).state is PullState.MERGED


def test_pages_in_another_order_or_with_repetitions_change_nothing(place: Place) -> None:
    number = place.open(draft=False)
    for state in ("failure", "success"):
        place.state.report(place.repository, place.commit, "ci", state)
    place.forge.comment(number, "One", make_marker("run-1", "one"), pull=True)
    for fault in ("reversed", "repeated"):
        place.server.plant(fault, 50, method="GET", path=place.path.rpartition("/")[2])
        assert place.open(draft=False) == number
        assert {each.state for each in place.forge.list_checks(place.commit)} == {CheckState.PASSED}
        place.forge.comment(number, "One", make_marker("run-1", "one"), pull=True)
        place.server.faults.clear()
    assert len(place.repository.comments) == len(place.repository.pulls) == 1
