"""An agent's work is kept while it works, its runner going on beating; what landed needs no snapshot any more."""

from __future__ import annotations

from support import Node, git, wait_for


def test_work_is_kept_at_intervals_and_outlives_the_agent_that_loses_it(place):
    place.env["GARRISON_RESCUE_EVERY"] = "0.3"
    node = Node("a", before=f"echo half > half.txt; {place.hold('half')}; rm half.txt; {place.hold('lost')}")
    child = place.launch(place.graph(node))
    place.wait_until_held("half")
    first = "refs/garrison/rescue/r1/a/1-live-1"
    wait_for("a snapshot", lambda: git(place.repo, "rev-parse", "--verify", "-q", first, check=False))
    place.release("half")
    place.wait_until_held("lost")
    done = place.command("rescue", "show", "a", "--run", "r1", "--patch")
    assert (done.returncode, "+half" in done.stdout) == (0, True), done.stderr
    done = place.command("rescue", "restore", "r1/a/1-live-1", "--into", place.root / "again")
    assert done.returncode == 0, done.stderr
    assert (place.root / "again/half.txt").read_text() == "half\n"
    git(place.repo, "worktree", "remove", "--force", str(place.root / "again"))
    place.kill("runner-a")  # its successor goes on with it
    place.release("lost")
    assert place.finish(child) == 0, place.logs()
    place.check("a")
    assert git(place.repo, "for-each-ref", "refs/garrison/rescue") == "", "it has landed"
    assert "nothing was saved in the repositories of this home's runs" in place.command("rescue", "list").stderr
    assert place.command("rescue", "show", "a").returncode == 1
