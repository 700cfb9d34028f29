"""A confined agent's work in a real run: what it commits lands, whatever is killed, and what it exchanges arrives."""

from __future__ import annotations

import pytest

from sandbox_support import missing
from support import Node, Place, git

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
WORK = """set -e
echo one > one.txt; git add one.txt; git commit -qm one; git commit -q --amend -m "one, amended"
git branch mine; git tag mine; echo x >> calc.py; git stash -q; git update-ref refs/heads/main HEAD
folder=$(dirname "$GARRISON_PROMPT_FILE"); ls "$folder" > seen.txt; cat "$GARRISON_CONTEXT_FILE" > context.txt
echo forged > "$folder/result.json" 2>/dev/null || true
echo forged > "$GARRISON_PROMPT_FILE" 2>/dev/null || echo "prompt kept" >> seen.txt
echo "half is done" > "$GARRISON_NOTES_FILE"; echo '{"notes": "reported"}' > "$GARRISON_RESULT_FILE"
"""


def test_what_a_confined_agent_commits_and_leaves_lands_and_nothing_else(place: Place) -> None:
    child = place.launch(place.graph(Node("a", command=WORK)), gate="test -f calc.py")
    assert place.finish(child) == 0, place.logs()
    assert git(place.repo, "show", "main:one.txt") == "one"
    assert "one, amended" in git(place.repo, "log", "--format=%s", "main")
    seen = git(place.repo, "show", "main:seen.txt").splitlines()
    assert sorted(seen[:-1]) == ["agent", "context.json", "prompt.md", "signals.jsonl"]
    assert seen[-1] == "prompt kept"
    refs = git(place.repo, "for-each-ref", "--format=%(refname)").splitlines()
    assert not [ref for ref in refs if "mine" in ref or "stash" in ref]
    assert place.hook("orchestrator-a")["resumption_instructions"].strip() == "half is done"
    assert "forged" not in (place.home / "runs/r1/nodes/a/1/result.json").read_text()
    assert not list(place.trees.rglob("*")), "no worktree, no git view and no home of the agent's is left"


@pytest.mark.slow
def test_the_orchestrator_is_killed_at_each_step_of_a_collection_and_nothing_is_lost_or_doubled(place: Place) -> None:
    steps = [f"collect:{step}" for step in ("imported", "pending", "moved", "followed", "indexed")]
    commits = "; ".join(f"git log --format=%s | grep -qx {name} || {{ echo {name} > {name}; git add -A; "
                        f"git commit -qm {name}; }}"
                        for name in ("c1", "c2", "c3"))
    graph = place.graph(Node("a", command=f"set -e; {commits}; echo left > left.txt"))
    points = ",".join(steps)
    child = place.launch(graph, gate="test -f calc.py", GARRISON_FAILPOINT=points)
    assert place.finish(child, resumes=20) == 0, place.logs()
    subjects = git(place.repo, "log", "--format=%s", "--no-merges", "main").splitlines()
    assert [subjects.count(name) for name in ("c1", "c2", "c3", "a")] == [1, 1, 1, 1]
    assert git(place.repo, "show", "main:left.txt") == "left"
    fired = {path.name.rpartition(".")[0] for path in place.fired.iterdir()}
    assert fired == set(steps)
    git(place.repo, "fsck", "--strict")
