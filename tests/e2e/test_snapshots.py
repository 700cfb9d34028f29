"""Snapshots save an agent's work while it works; they are removed once it has landed."""

from __future__ import annotations

from support import Node, git, wait_for


def test_work_is_saved_at_intervals_and_can_be_restored_after_the_agent_removed_it(place):
    place.env["GARRISON_RESCUE_EVERY"] = "0.3"
    node = Node("a", before=f"echo half > half.txt; {place.hold('half')}; rm half.txt; {place.hold('lost')}")
    child = place.launch_until("half", place.graph(node))
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
    place.kill("runner-a")  # its successor continues them
    place.release_to_end(child, "lost")
    place.check("a")
    assert git(place.repo, "for-each-ref", "refs/garrison/rescue") == "", "it has landed"
    assert "nothing was saved in the repositories of this home's runs" in place.command("rescue", "list").stderr
    assert place.command("rescue", "show", "a").returncode == 1
