"""A gate that a branch cannot change: files that it names come from the target."""

from __future__ import annotations

from merge_support import World, git

from garrison.merge import commands


def gate(world, *patterns):
    commands.reconfigure(world.queue, gate="sh ci/gate.sh", no_gate=False, gate_from_target=patterns)


def test_a_branch_that_changes_its_gate_is_tested_with_the_target_s_and_the_verdict_says_so(tmp_path):
    world = World(tmp_path, gate=None)
    world.branch("main", {"ci/gate.sh": "test ! -e bad && test ! -e ci/sitecustomize.py\n", "ci/list": "1\n"})
    git(world.repo, "reset", "-q", "--hard")
    gate(world)
    cheat = {"ci/gate.sh": "exit 0\n", "bad": "x\n"}
    world.branch("cheat", cheat)
    world.enqueue("cheat")
    world.drain()
    assert world.entry("cheat").status == "landed"  # the escape, without the setting
    git(world.repo, "reset", "-q", "--hard", "main~1")
    git(world.repo, "update-ref", "refs/heads/main", git(world.repo, "rev-parse", "HEAD"))
    gate(world, "ci/**")
    world.branch("again", {**cheat, "other": "x\n"})
    world.enqueue("again")
    world.drain()
    entry = world.entry("again")
    assert entry.status == "rejected", entry
    assert "tested with the target's ci/gate.sh, which the branch changes" in entry.reason
    world.branch("fine", {"ci/gate.sh": "exit 1\n", "ci/sitecustomize.py": "x\n", "ci/list": None, "good": "x\n"})
    world.enqueue("fine")
    world.drain()
    entry = world.entry("fine")
    assert entry.status == "landed", entry
    assert entry.reason == "tested with the target's ci/gate.sh, ci/list, ci/sitecustomize.py, which the branch changes"
    assert git(world.repo, "show", "main:ci/gate.sh") == "exit 1", "what lands is the branch, as it is"
    world.branch("plain", {"plain": "x\n"})
    world.enqueue("plain")
    world.drain()
    assert world.entry("plain").status != "landed", "from then on the target's gate is the new one"
