"""What users and forges do to a pull request while its run waits, with real processes and a double over HTTP."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from doubles.forge_state import OWN_LOGIN
from forge_place import KINDS, ForgePlace, rework
from support import Node, Place, git, wait_for
from web_support import site

pytestmark = pytest.mark.slow


class Story:
    """A run whose pull request is ready, with a green check."""

    def __init__(self, place: Place, there: ForgePlace, node: Node | None = None) -> None:
        self.place, self.there = place, there
        graph = place.graph(node or Node("work", command=rework("work")))
        self.child = place.launch(graph, "r1", "--land", "pr", "--base", "origin:main", "--max-rework", "9")
        wait_for("it is ready", there.is_ready)
        there.report("success")

    @property
    def status(self) -> str:
        return self.place.command("status", "r1").stdout

    def waits(self, text: str) -> None:
        wait_for(f"it waits: {text}", lambda: text in self.status)

    def reworked(self, attempt: int) -> None:
        """Wait until an attempt's work is pushed and tested."""
        there = self.there
        wait_for("it is pushed", lambda: f"work {attempt}" in git(there.bare, "show", f"{there.branch()}:work.txt"))

    def answers(self) -> list[str]:
        """Return what garrison has answered on lines."""
        return [each.body for each in self.there.repository.lines if each.author == OWN_LOGIN]

    def sync(self) -> None:
        self.place.command("pr", "sync", "r1")

    def merges(self) -> None:
        """Approve the request, and check that it is merged and nothing is lost or doubled."""
        self.there.report("success")
        self.there.approve()
        assert self.place.finish(self.child) == 0, self.place.logs()
        assert self.there.check() == []


@contextmanager
def story(place: Place, kind: str = "gitea", **options: object) -> Iterator[tuple[Story, ForgePlace]]:
    with ForgePlace(place, kind, **options) as there:
        yield Story(place, there), there


def test_another_base_a_draft_and_a_dismissed_review_block_it_until_they_are_undone(place: Place) -> None:
    with story(place) as (run, there):
        pull = there.pulls[-1]
        run.waits("review of #1")
        assert "review of #1" in json.dumps(json.loads(place.command("status", "r1", "--json").stdout))
        git(there.bare, "branch", "next", "main")
        pull.base = "next"
        there.approve()
        run.waits("somebody changed its base to `next`")
        pull.base = "main"
        pull.title = f"WIP: {pull.title}"
        there.approve(state="DISMISSED")
        run.waits("made a draft again on the forge")
        pull.title = pull.title.removeprefix("WIP: ")
        run.waits("review of #1")
        run.merges()
        assert git(there.bare, "rev-parse", "next") == git(there.bare, "rev-parse", "main~1")


def test_a_branch_that_others_remove_or_rewrite_is_left_alone(place: Place) -> None:
    with story(place, "github") as (run, there):
        branch = there.branch()
        before = there.head(branch)
        git(there.bare, "update-ref", "-d", f"refs/heads/{branch}")
        run.waits("somebody removed its branch")
        git(there.bare, "update-ref", f"refs/heads/{branch}", before)
        made = there.commit(branch, "forced.txt", "forced\n", parent=there.head())
        run.waits("somebody rewrote its branch")
        assert there.head(branch) == made
        there.forced.add(before)
        git(there.bare, "update-ref", f"refs/heads/{branch}", before)
        run.merges()


def test_a_closed_and_reopened_request_continues_after_a_resume(place: Place) -> None:
    with story(place, "gitlab") as (run, there):
        pull = there.pulls[-1]
        pull.last_head, pull.state = there.head(pull.head), "closed"
        assert place.finish(run.child) == 1
        assert "reopen it" in run.status
        pull.state = "open"
        run.child = place.resume()
        run.waits("review of #1")
        run.merges()


def test_a_rewritten_base_is_tested_again(place: Place) -> None:
    with story(place) as (run, there):
        made = there.commit("main", "rewritten.txt", "new\n", parent=git(there.bare, "rev-parse", "main"))
        assert made
        amended = git(there.bare, "-c", "user.name=eve", "-c", "user.email=e@e", "commit-tree", f"{made}^{{tree}}",
                      "-p", f"{made}^", "-m", "Amended")
        git(there.bare, "update-ref", "refs/heads/main", amended)
        run.merges()
        assert git(there.bare, "merge-base", amended, "main") == amended


@pytest.mark.parametrize("ahead", [False, True], ids=["as it is", "with a commit on top"])
def test_a_request_that_a_user_merges_onto_a_moved_base_is_tested_afterwards(place: Place, ahead: bool) -> None:
    with story(place, "github") as (run, there):
        run.waits("review of #1")
        there.commit("main", "moved.txt", "moved\n")
        if ahead:
            there.commit(there.branch(), "eve.txt", "eve\n")
        there.server.state.merge(there.repository, there.pulls[-1], "squash", "")
        assert place.finish(run.child) == 0, place.logs()
        assert "landed" in run.status
        [verify] = [place.command("verify", "r1")]
        assert verify.returncode == 0, verify.stdout
        tree = git(there.bare, "rev-parse", "main^{tree}")
        assert tree in place.witness.read_text().split(), "what was merged was tested"


def launch_ready(there: ForgePlace, gate: str) -> subprocess.Popen[bytes]:
    """Launch a run with this gate, and wait until its pull request is ready."""
    graph = there.place.graph(Node("work", command=rework("work")))
    child = there.place.launch(graph, "r1", "--land", "pr", "--base", "origin:main", gate=gate)
    wait_for("it is ready", there.is_ready)
    return child


def test_a_request_that_a_user_merged_onto_a_red_base_lands_nothing(place: Place) -> None:
    with ForgePlace(place) as there:
        child = launch_ready(there, 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; test ! -e moved.txt')
        there.commit("main", "moved.txt", "moved\n")
        there.server.state.merge(there.repository, there.pulls[-1], "merge", "")
        assert place.finish(child) == 1
        status = place.command("status", "r1").stdout
        assert "is merged, but its base was red before" in " ".join(status.split()), status
        assert sum(each["kind"] == "note" for each in place.journal()) < 3, "each note once"


def test_a_base_that_was_broken_and_fixed_is_tested_again(place: Place) -> None:
    with ForgePlace(place) as there:
        child = launch_ready(there, 'test ! -e broken.txt && git rev-parse "HEAD^{tree}" >> "$WITNESS"')
        before = there.head()
        there.commit("main", "broken.txt", "broken\n", parent=before)
        there.report("success")
        there.approve()
        wait_for("the base is found red", lambda: "on the bare" in place.command("status", "r1").stdout)
        git(there.bare, "update-ref", "refs/heads/main", before)
        assert place.finish(child) == 0, place.logs()
        assert there.check() == []


def test_comments_that_are_edited_or_deleted_during_their_rework_are_answered_once_or_not(place: Place) -> None:
    with story(place, "github") as (run, there):
        state = there.server.state
        there.comment_line("name it better", "work.txt")
        run.reworked(2)
        with state.lock:
            there.repository.lines[0].body = "name it much better"
        there.report("success")
        wait_for("it is answered", lambda: any(each.author == OWN_LOGIN for each in there.repository.lines))
        gone = there.comment_line("and this", "work.txt")
        wait_for("a node works on it", lambda: any(
            each["kind"] == "spawn" and each["data"].get("attempt") == 3 for each in place.journal()))
        with state.lock:
            there.repository.lines[:] = [each for each in there.repository.lines if each.id != gone]
        run.reworked(3)
        run.merges()
        assert sum(each.author == OWN_LOGIN for each in there.repository.lines) == 1
        assert there.repository.comments == [], "a deleted comment gets no answer"


@pytest.mark.parametrize("kind", KINDS)
def test_a_forge_that_answers_late_out_of_order_and_twice_loses_and_doubles_nothing(place: Place, kind: str) -> None:
    """Every third read is as before the last change, lists come reversed, or with objects twice."""
    with ForgePlace(place, kind) as there:
        turn = iter(range(10**9))

        def disturb(method: str, path: str) -> str:
            return ("stale", "", "reversed", "", "repeated", "stale", "")[next(turn) % 7] \
                if method == "GET" and ".git/" not in path else ""

        there.server.disturb = disturb
        run = Story(place, there)
        there.comment_line("why?", "work.txt")
        run.reworked(2)
        there.report("success")
        there.commit(there.branch(), "eve.txt", "eve\n")
        there.report("success")
        wait_for("it is answered", lambda: sum(each.author == OWN_LOGIN for each in there.repository.lines) == 1)
        wait_for("the user's commit is merged", lambda: git(place.repo, "rev-parse", there.branch())
                 == there.head(there.branch()))
        run.merges()


def test_a_moved_repository_a_bad_token_and_an_endless_check_block_it_until_they_are_fixed(place: Place) -> None:
    with story(place, "gitlab", check_limit=3) as (run, there):
        for fault, told in (("moved", "the repository has moved"), ("401", "the token is invalid"),
                            ("403-scope", "the token lacks")):
            there.server.disturb = lambda _, path, fault=fault: fault if ".git/" not in path else ""  # type: ignore[misc]
            run.sync()
            run.waits(told)
        there.server.disturb = None
        run.sync()
        run.waits("review of #1")
        there.report("pending", name="slow")
        run.sync()
        run.waits("has not ended")
        there.report("success", name="slow")
        run.merges()


def test_a_rate_limit_is_a_waiting_state_on_every_surface(place: Place) -> None:
    """For the two minutes that the forge names, no request is sent."""
    with story(place, "github") as (run, there):
        run.waits("review of #1")
        there.server.plant("rate-limit", path="/api/")  # git would only say that it got a 403
        run.sync()
        run.waits("rate limited until")
        requests = len(there.server.requests)
        surfaces: dict[str, Callable[[], str]] = {
            "status --json": lambda: place.command("status", "r1", "--json").stdout,
            "why": lambda: place.command("why", "--run", "r1").stdout,
            "events": lambda: place.command("events", "r1").stdout,
            "pr show": lambda: place.command("pr", "show", "r1").stdout,
            "top": lambda: place.command("top", "--once", "--run", "r1", COLUMNS="300").stdout,
            "page": lambda: asyncio.run(page(place)),
        }
        missing = [name for name, read in surfaces.items() if "rate limited until" not in " ".join(read().split())]
        assert (missing, {name: surfaces[name]() for name in missing}) == ([], {})
        assert requests == len(there.server.requests)
        place.command("stop", "r1")
        assert place.finish(run.child) == 130


async def page(place: Place) -> str:
    """Return the state of the run as the page gets it."""
    async with site(place.home) as server:
        return (await server.get("/api/runs/r1")).body.decode()


@pytest.mark.parametrize("kind", KINDS)
def test_the_forge_merges_by_its_own_rules(place: Place, kind: str) -> None:
    with ForgePlace(place, kind, merge="auto") as there:
        there.repository.required["main"], there.repository.approvals["main"] = ["ci"], 1
        run = Story(place, there)
        wait_for("auto-merge is on", lambda: there.pulls[-1].auto)
        there.comment_line("why?", "work.txt")
        wait_for("it is off during the rework", lambda: not there.pulls[-1].auto)
        run.reworked(2)
        wait_for("auto-merge is on again", lambda: there.pulls[-1].auto)
        wait_for("it is answered", lambda: any(each.author == OWN_LOGIN for each in there.repository.lines))
        run.merges()
        puts = [each for each in there.server.requests if each.method in ("PUT", "POST") and "/merge" in each.path
                and each.path.endswith("/merge")]
        assert len(puts) == {"github": 0, "gitlab": 2, "gitea": 2}[kind]


def test_a_webhook_wakes_a_run_that_would_look_much_later(place: Place) -> None:
    with story(place, "gitlab", poll=900) as (run, there):
        server = place.begin("serve", "--port", "0", "--webhooks", log="serve")
        try:
            out = place.root / "serve"
            wait_for("it serves", lambda: "webhooks:" in out.read_text())
            url = re.search(r"webhooks: (\S+),", out.read_text())
            assert url is not None
            secret = (place.home / "web/webhook-secret").read_text().strip()
            run.waits("#1")
            there.approve()
            before = time.monotonic()
            for _ in range(3):  # as a forge repeats a delivery that it takes for lost
                request = urllib.request.Request(url[1], b"{}", {"X-Gitlab-Token": secret}, method="POST")
                assert urllib.request.urlopen(request, timeout=10).status == 202
            assert place.finish(run.child) == 0, place.logs()
            assert time.monotonic() - before < 600
            assert there.check() == []
        finally:
            server.terminate()
            server.wait()


ANSWERS = r"""set -e; cp "$GARRISON_PROMPT_FILE" told.txt; echo "work $GARRISON_ATTEMPT" > work.txt
f=$(grep -o '/[^`]*/feedback.md' told.txt || true); test -z "$f" || cat "$f" > told.txt
for id in $(grep -o '(comment `[^`]*' told.txt | tr -d '`' | cut -d' ' -f2); do
printf '## %s\nDone for %s, see @eve and #1.\n' "$id" "$id"; done > "$(dirname "$GARRISON_NOTES_FILE")/replies.md"
git add -A; git commit -qm "work $GARRISON_ATTEMPT"
"""
"""A node that keeps its prompt and answers each comment."""


@pytest.mark.parametrize(("kind", "size"), [("github", 60), ("gitlab", 60), ("gitea", 60), ("github", 500)])
def test_each_comment_reaches_the_agent_whole_and_is_answered(place: Place, kind: str, size: int) -> None:
    """15 comments on lines, each a paragraph in one line, among praise and a bot's comment; then one is edited. The
    longer ones do not fit into a prompt."""
    with ForgePlace(place, kind) as there:
        run = Story(place, there, Node("work", command=ANSWERS))
        state, number = there.server.state, there.pulls[-1].number
        state.comment(there.repository, number, "LGTM, thanks!", "eve")
        state.comment(there.repository, number, "Deploy preview ready!", "preview-bot")
        run.sync()
        run.waits("review of #1")
        assert "work 1" in git(there.bare, "show", f"{there.branch()}:work.txt"), "no node was sent back"
        there.server.plant("502-before", method="POST", path="git-receive-pack")
        with state.lock:  # no poll finds only some of them
            words = {there.comment_line(f"why {each}? {'abcd ' * size}and the end of {each}", "work.txt"): each
                     for each in range(15)}
        run.reworked(2)
        there.report("success")
        wait_for("all are answered", lambda: len(run.answers()) == 15)
        told = " ".join(git(there.bare, "show", f"{there.branch()}:told.txt").split())
        assert [each for each in words.values() if f"and the end of {each}" not in told] == []
        assert "LGTM" in told and "Deploy preview" not in told
        assert [each for each in words if not any(f"Done for {each}, see `@eve` and `#1`." in body
                                                  for body in run.answers())] == []
        with state.lock:
            there.repository.lines[0].body = "rather do this"
        there.report("success")
        run.reworked(3)
        wait_for("it is answered again", lambda: len(run.answers()) == 16)
        verify = place.command("verify", "r1")
        assert verify.returncode == 0, verify.stdout  # it was tested three times
        assert "held up" not in place.command("events", "r1").stdout, "a push without an answer is repeated"
        run.merges()
        body = there.pulls[-1].body
        assert str(place.root) not in body and " work.txt " in body and "passed" in body
        log = git(there.bare, "log", "--format=%s%n%b", f"{there.head()}^2")
        assert "Merge-Queue" not in log and "Merge " not in log


def test_a_failed_run_is_reported_once_at_the_forge_and_its_request_is_a_draft_again(place: Place) -> None:
    """The guardian is killed before and after each of the two requests for that."""
    with ForgePlace(place, "gitea") as there:
        run = Story(place, there, Node("work", command=f"test $GARRISON_ATTEMPT = 1 || exit 1; {rework('work')}"))
        kills = []

        def disturb(method: str, path: str) -> str:
            tells = path.rstrip("0123456789").endswith(("/comments", "/pulls/", "/issues/1"))
            if method in ("POST", "PATCH") and tells and len(kills) < 3 and there.kill("guardian-crew"):
                kills.append(path)
                return "drop-before" if len(kills) % 2 else ""
            return ""

        there.server.disturb = disturb
        state = there.server.state
        state.comment(there.repository, 1, "@garrison please mend it", "eve")
        run.sync()
        assert place.finish(run.child) == 1, place.logs()
        assert len(kills) >= 2
        own = [each.body for each in there.repository.comments if each.author == OWN_LOGIN]
        assert len(own) == 1 and "The run failed" in own[0] and "garrison resume r1" in own[0]
        assert there.pulls[-1].title.startswith("WIP:") and str(place.root) not in own[0]


def test_a_closed_request_without_its_branch_is_replaced_by_another(place: Place) -> None:
    with story(place, "github") as (run, there):
        pull = there.pulls[-1]
        run.waits("review of #1")
        pull.last_head, pull.state = there.head(pull.head), "closed"
        git(there.bare, "update-ref", "-d", f"refs/heads/{pull.head}")
        assert place.finish(run.child) == 1
        assert "`garrison pr open --again r1`" in " ".join(run.status.split()) and "gone at the forge" in run.status
        again = place.command("pr", "open", "--again", "r1")
        assert again.returncode == 0 and "garrison resume r1" in again.stderr + again.stdout, again.stderr
        run.child = place.resume()
        wait_for("another one is ready", lambda: len(there.pulls) == 2 and there.is_ready())
        there.report("success")
        there.approve()
        assert place.finish(run.child) == 0, place.logs()
        assert there.pulls[1].merged and not there.pulls[0].merged


def test_a_renamed_base_is_reported_with_the_command_that_continues(place: Place) -> None:
    with story(place, "github") as (run, there):
        run.waits("review of #1")
        git(there.bare, "branch", "-m", "main", "trunk")
        there.pulls[-1].base = "trunk"
        run.waits("`garrison pr sync r1 --base trunk`")
        assert place.command("pr", "sync", "r1", "--base", "nowhere").returncode == 1
        assert place.command("pr", "sync", "r1", "--base", "trunk").returncode == 0
        run.waits("review of #1")
        there.approve()
        assert place.finish(run.child) == 0, place.logs()
        assert there.pulls[-1].merged and "Merge #1" in git(there.bare, "log", "-1", "--format=%s", "trunk")
