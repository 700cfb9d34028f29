"""An agent without a sandbox plants configuration and hooks, forges a result or moves a branch: garrison ignores,
reports and restores."""

from __future__ import annotations

import json
import shutil

import pytest

from support import Node, Place, git, wait_for


def test_what_an_agent_planted_does_not_run_in_garrison_and_is_reported_and_restored(place: Place) -> None:
    evil, marker = place.root / "evil", place.root / "marker"
    evil.write_text(f'#!/bin/sh\ntr "\\\\0" " " < /proc/$PPID/cmdline >> {marker}; echo >> {marker}\n'
                    "[ $# -gt 0 ] || exec cat\n")
    evil.chmod(0o755)
    lines = (f"git config filter.evil.clean {evil}", f"git config core.fsmonitor {evil}",
             f"git config diff.external {evil}", f"git config merge.evil.driver {evil}",
             'echo "* filter=evil merge=evil" > "$(git rev-parse --git-common-dir)/info/attributes"',
             f'cp {evil} "$(git rev-parse --git-common-dir)/hooks/reference-transaction"',
             f'cp {evil} "$(git rev-parse --git-common-dir)/hooks/post-checkout"', f"rm -f {marker}")
    done = place.root / "planted"
    graph = place.graph(
        Node("bad", command=f'mkdir -p "$(git rev-parse --git-common-dir)/info"; {"; ".join(lines)}; touch {done}; '
                            f"echo bad > bad.txt; {place.hold('bad')}"),
        Node("good", command=f"while ! test -e {done}; do sleep 0.05; done; echo good > good.txt"))
    place.configure('mode = "none"\n')
    child = place.launch_until("bad", graph, "r1")
    wait_for("the other node lands", lambda: place.has_landed("good"))
    place.release_to_end(child, "bad")
    assert git(place.repo, "show", "main:bad.txt") == "bad"
    ran = marker.read_text() if marker.exists() else ""
    assert not ran, f"it ran in garrison's git:\n{ran}"
    [warning] = [each for each in json.loads(place.command("status", "r1", "--json").stdout)["warnings"]
                 if each["about"] == "git"][-1:]
    assert "bad" in warning["at_work"]
    violations = [each for each in json.loads(place.command("signals", "list", "--json").stdout)
                  if each["signal_type"] == "VIOLATION"]
    assert {(each["source"]["role"], each["to"], "bad" in each["payload"]["nodes"]) for each in violations} == {
        ("guardian", "launch@r1", True)}
    ending = " ".join((place.root / "out").read_text().splitlines()[-3:])
    assert "git's configuration or hooks were changed" in ending
    assert "core.fsmonitor" in ending
    found = place.command("doctor", "--json")
    assert "git config" in {each["check"] for each in json.loads(found.stdout)}, found.stdout
    place.command("doctor", "--fix")
    assert git(place.repo, "config", "core.fsmonitor", check=False) == ""
    assert not (place.repo / ".git/hooks/reference-transaction").exists()


@pytest.mark.parametrize("may", [False, True])
def test_an_agent_can_push_only_if_its_profile_allows_it(place: Place, may: bool) -> None:
    remote = place.root / "remote"
    git(place.repo, "clone", "-q", "--bare", ".", str(remote))
    git(place.repo, "remote", "add", "origin", str(remote))
    place.configure('mode = "none"\n' + "push = true\n" * may)
    before = git(remote, "rev-parse", "main")
    graph = place.graph(Node("pusher", command=(
        "git config core.fsync > fsync.txt; "
        "git fetch origin && echo x > x.txt && git add -A && git commit -qm x && git push origin HEAD:main || "
        "echo refused > refused.txt")))
    place.run(graph)
    assert (git(remote, "rev-parse", "main") != before) is may
    assert git(place.repo, "show", "main:fsync.txt") == "committed,loose-object,reference"
    assert (git(place.repo, "show", "main:refused.txt", check=False) == "refused") is not may


UNDONE = "orchestrator:undone"


@pytest.mark.parametrize("how", [pytest.param("moved", marks=pytest.mark.slow), "moved, then killed",
                                 pytest.param("removed", marks=pytest.mark.slow)])
def test_a_node_whose_branch_or_worktree_was_taken_away_continues_from_its_last_commit(place: Place, how: str) -> None:
    """Seen: both failed for good, or the foreign commit landed under the node's name."""
    again = f"test ! -e {place.root}/go-victim || {{ echo more >> own.txt; exit 0; }}"
    graph = place.graph(
        Node("victim", command=f"{again}; echo own > own.txt; git add -A; git commit -qm own; {place.hold('victim')}"),
        Node("other", command=f"echo other > other.txt; {place.hold('other')}"))
    is_killed, is_moved = "killed" in how, "moved" in how
    if is_killed:
        place.kill_at(UNDONE, keep_going=False)
    place.configure('mode = "none"\n')
    child = place.launch_until("victim", graph, "r1", GARRISON_RESCAN="0.3")
    place.wait_until_held("other")
    branch, own = "garrison/r1/victim", git(place.repo, "rev-parse", "garrison/r1/victim")
    if is_moved:
        tree = git(place.repo, "rev-parse", "main^{tree}")
        forged = git(place.repo, "commit-tree", tree, "-p", own, "-m", "forged")
        git(place.repo, "update-ref", f"refs/heads/{branch}", forged)
    else:
        shutil.rmtree(next(place.trees.glob("*/r1/victim")))
    place.release("victim")
    if not is_killed:  # otherwise its successor finds the branch where it was
        wait_for("another attempt", lambda: place.nodes()["victim"]["attempt"] == 2)
        assert "at work then: other" in place.nodes()["victim"]["reason"] or place.nodes()["victim"]["reason"] == ""
    place.release_to_end(child, "other")
    assert not is_killed or place.failpoint_kills() == {UNDONE: 1}
    assert git(place.repo, "show", "main:own.txt") == ("own" if is_killed else "own\nmore")
    assert "forged" not in git(place.repo, "log", "--format=%s", "main")
    if is_moved:
        assert "forged" in git(place.repo, "for-each-ref", "--format=%(subject)", "refs/garrison/rescue")


FORGED = {"schema": 1, "run_id": "r1", "node": "other", "attempt": 1, "incarnation": 1, "status": "success",
          "at": "2026-01-01T00:00:00.000000Z", "exit_code": 0, "head": None}


def move(place) -> str:
    """Return shell that moves the branch of `other` to an empty commit on the target."""
    return (f"git -C {place.repo} update-ref refs/heads/garrison/r1/other "
            f"$(git -C {place.repo} commit-tree -p main -m forged 'main^{{tree}}')")


def test_a_forged_result_does_not_count(place):
    """The agent of `other` is killed with a success in its folder: its successor does the work."""
    agent, path = place.root / "agent-of-other", place.home / "runs/r1/nodes/other/1/result.json"
    forge = f"{move(place)}; sleep 0.2; printf '%s' '{json.dumps(FORGED)}' > {path}; kill -9 $(cat {agent})"
    graph = place.graph(
        Node("hostile", before=f"until test -s {agent}; do sleep 0.1; done; {forge}; touch {place.root}/go-other"),
        Node("other", before=place.hold("other").replace("touch", f"echo $$ > {agent}; touch")))
    place.use_mode("none")
    place.run(graph, "r1", "--max-agents", "2")
    place.check_landed("hostile", "other")
    assert json.loads(path.read_text())["head"], "written by its orchestrator"
    assert "was not written by the node's orchestrator" in place.logs()


def test_a_branch_moved_after_the_result_is_put_back(place):
    """While the acceptance of `other` runs, its branch is moved: what its agent committed lands, the rest is saved."""
    graph = place.graph(
        Node("hostile", before=f"until test -e {place.root}/at-other; do sleep 0.1; done; {move(place)}; "
                               f"touch {place.root}/go-other"),
        Node("other", attributes=f'acceptance="{place.hold("other")}"'))
    place.use_mode("none")
    place.run(graph, "r1", "--max-agents", "2")
    place.check_landed("hostile", "other")
    assert "garrison/r1/other was moved to" in place.logs()
    assert git(place.repo, "for-each-ref", "--format=%(subject)", "refs/garrison/rescue") == "forged"
