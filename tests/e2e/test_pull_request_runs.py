"""A run with `land=pr`, with real processes, against the double of a forge over HTTP with real git."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest

from doubles.forge_state import OWN_LOGIN, OWN_TOKEN, Issue
from forge_place import KINDS, ForgePlace, files_with, rework
from garrison.testing.checker.promises import living_processes
from pull_request_storm import Story
from sandbox_support import missing
from support import DEADLINE, Node, git, wait_for

GATE = 'git rev-parse "HEAD^{tree}" >> "$WITNESS"; test -f calc.py'


@pytest.mark.traced
def test_from_the_draft_over_a_red_check_to_the_merge_with_no_token_in_reach_of_an_agent(place):
    """What an agent can read while it works has no token: environment, arguments, home, worktree, configuration."""
    with ForgePlace(place) as there:
        look = f'{{ cat /proc/self/environ; ps -ef; git config -l; }} >> "{place.root}/seen"; '
        graph = place.graph(Node("work", command=look + rework("work")))
        child = place.launch(graph, "r1", "--land", "pr", "--base", "origin:main")
        wait_for("it is ready", there.is_ready)
        there.report("failure", "E   assert work.txt == 1")
        wait_for("the second attempt is pushed",
                 lambda: "work 2" in git(there.bare, "show", f"{there.branch()}:work.txt"))
        there.report("success")
        wait_for("it waits for a review", lambda: "review of #1" in place.command("status", "r1").stdout)
        assert not [path for path in Path("/proc").glob("[0-9]*/cmdline") if OWN_TOKEN.encode() in _read(path)]
        there.approve()
        assert place.finish(child) == 0, place.logs()
        assert there.check() == []
    shown = place.command("pr", "show", "r1").stdout
    assert "check ci: passed" in shown, "the state of the open request is kept after its merge"
    for folder in (place.home, place.trees, place.repo):
        assert files_with(folder, OWN_TOKEN) == []
    seen = (place.root / "seen").read_bytes()
    assert b"GARRISON_NODE" in seen and OWN_TOKEN.encode() not in seen


def _read(path: Path) -> bytes:
    """Return a file of /proc; nothing if its process has ended."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


HUNT = """set +e
{ env; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline; ps -ef; id
git config -l --show-origin; cat .git "$(git rev-parse --git-dir)/config" "$(git rev-parse --git-common-dir)/config"
printf 'protocol=http\\nhost=%s\\n\\n' HOST | GIT_TERMINAL_PROMPT=0 git credential fill
git config --global credential.helper '!cat USER/secret' && printf 'host=HOST\\n\\n' | git credential fill
cat ~/.gitconfig ~/.netrc ~/.git-credentials ~/.config/*/* USER/.gitconfig USER/.netrc USER/secret
find HOME ROOT "$HOME" /run -type f -size -300k ! -name seen.txt -exec cat {} +
git push origin HEAD:refs/heads/stolen; git ls-remote REMOTE
} 2>&1 | tr -cd '\\11\\12\\40-\\176' > seen.txt
git add -A; git commit -qm hunted
"""
"""What a hostile agent does to find the token of the forge: environments of all processes, files, git's helpers."""


@pytest.mark.slow
@pytest.mark.skipif(bool(missing()), reason=missing())
@pytest.mark.parametrize("mode", ["bubblewrap", "landlock"])
def test_an_agent_that_hunts_for_the_token_finds_none(place, mode):
    """The guardian has it in its environment, and the user's git has a helper that gives it."""
    (place.user / "secret").write_text(f"username=x\npassword={OWN_TOKEN}\n")
    git(place.repo, "config", "--file", str(place.user / ".gitconfig"), "credential.helper",
        f"!cat {place.user}/secret")
    (place.user / ".netrc").write_text(f"machine 127.0.0.1 login x password {OWN_TOKEN}\n")
    with ForgePlace(place) as there:
        words = {"HOST": there.server.host, "ROOT": place.root, "HOME": place.home, "USER": place.user,
                 "REMOTE": there.server.remote(there.path)}
        script = HUNT
        for word, value in words.items():
            script = re.sub(rf"(?<![$A-Z]){word}\b", str(value), script)
        place.use_mode(mode)
        child = place.launch(place.graph(Node("work", command=script)), "r1", "--land", "pr", "--base", "origin:main",
                             gate="test -f calc.py")
        wait_for("it is ready", there.is_ready)
        guardian = place.identity("guardian-crew")["pid"]
        assert OWN_TOKEN.encode() in Path(f"/proc/{guardian}/environ").read_bytes(), "there was a token to find"
        seen = git(there.bare, "show", f"{there.branch()}:seen.txt")
        there.report("success")
        there.approve()
        assert place.finish(child) == 0, place.logs()
        assert there.head("stolen") == ""
    assert "GARRISON_NODE" in seen and OWN_TOKEN not in seen, [
        line[:200] for line in seen.splitlines() if OWN_TOKEN in line][:5]


def issue(there: ForgePlace, number: int, label: str = "garrison") -> None:
    with there.server.state.lock:
        there.repository.next_number = max(there.repository.next_number, number + 1)
        there.repository.issues.append(Issue(number, f"Add {number}", f"Please add {number}.", "eve", [label]))


def test_two_concurrent_calls_of_take_start_as_many_runs_as_one_may(place):
    """Issue and run are linked both ways: by one comment on the issue, and by the pull request that closes it."""
    place.use_agent('cp "$GARRISON_PROMPT_FILE" told.txt')
    with ForgePlace(place) as there:
        for number in range(1, 5):
            issue(there, number)
        words = ("take", "--label", "garrison", "--at-most", "2", "--target-dir", place.repo, "--base", "origin:main",
                 "--terminal", "process")
        calls = [place.begin(*words, log=f"take-{number}") for number in range(2)]
        assert [call.wait(DEADLINE) for call in calls] == [0, 0], (place.root / "take-0").read_text()
        runs = sorted(path.name for path in (place.home / "runs").iterdir())
        assert [name.rsplit("-", 1)[0] for name in runs] == ["issue-1", "issue-2"], "the oldest, and two in all"
        wait_for("both are open", lambda: len([pull for pull in there.pulls if not pull.draft]) == 2)
        for run, number in zip(runs, (1, 2), strict=True):
            [link] = [each.body for each in there.repository.comments if each.number == number]
            assert f"`{run}`" in link
            [pull] = [pull for pull in there.pulls if run in pull.head]
            assert f"Closes #{number}" in pull.body
            assert f"Please add {number}." in git(there.bare, "show", f"{pull.head}:told.txt")
        again = place.command(*words)
        assert again.returncode == 0 and "2 unfinished runs from issues, at most 2" in again.stderr + again.stdout
        assert len(there.repository.comments) == 2, "no comment is repeated"
        for run in runs:
            place.command("stop", run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_issue_becomes_a_merged_pull_request_over_a_red_check_and_a_comment(place, kind):
    place.use_agent('cp "$GARRISON_PROMPT_FILE" told.txt')
    with ForgePlace(place, kind) as there:
        issue(there, 7)
        took = place.command("take", "--label", "garrison", "--target-dir", place.repo, "--base", "origin:main",
                              "--terminal", "process", "--json", "--gate", GATE, "--env", "WITNESS")
        assert took.returncode == 0, took.stderr
        [taken] = json.loads(took.stdout)
        run = taken["run"]
        assert taken["issue"] == 7 and run.startswith("issue-7-")

        def told():
            return git(there.bare, "show", f"{there.branch(run)}:told.txt")

        wait_for("it is ready", there.is_ready)
        [pull] = there.pulls
        [link] = there.repository.comments
        assert link.number == 7 and f"`{run}`" in link.body and "Closes #7" in pull.body
        there.report("failure", "E   assert told == 7")
        wait_for("the red check is worked on", lambda: "E   assert told == 7" in told())
        there.report("success")
        there.comment_line("say it in one line", "told.txt")
        wait_for("the comment is worked on", lambda: "say it in one line" in told())
        wait_for("it is answered", lambda: any(each.author == OWN_LOGIN for each in there.repository.lines))
        there.report("success")
        there.approve()
        wait_for("it is merged", lambda: pull.merged)
        wait_for("the run is done", lambda: place.status(run) == "done")
        wait_for("its processes have ended", lambda: not list(living_processes(place.home, run)))
        assert there.check(run) == []
        again = place.command("take", "7", "--target-dir", place.repo, "--base", "origin:main")
        assert f"issue 7 has the run {run}" in again.stdout + again.stderr
        assert len(there.repository.comments) == len(there.pulls) == 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_lost_or_doubled_when_the_guardian_dies_at_its_requests(tmp_path, seed):
    """`python -m tests.pull_request_storm` plays hundreds of such stories."""
    assert Story(seed, tmp_path, most=8).play() == []
