"""A gate that a branch cannot change: files that it names come from the target."""

from __future__ import annotations

import pytest
from merge_support import World, git

from garrison.ends import LandingNote
from garrison.merge import commands
from garrison.merge.entry import EntryOptions
from garrison.merge.queue import MergeQueue


def gate(world, *patterns):
    commands.reconfigure(world.queue, gate="sh ci/gate.sh", no_gate=False, gate_from_target=patterns)


def test_a_branch_that_changes_its_gate_is_tested_with_the_targets_and_the_verdict_names_the_files(tmp_path):
    world = World(tmp_path, gate=None)
    world.branch("main", {"ci/gate.sh": "test ! -e bad && test ! -e ci/sitecustomize.py\n", "ci/list": "1\n"})
    git(world.repo, "reset", "-q", "--hard")
    gate(world)
    cheat = {"ci/gate.sh": "exit 0\n", "bad": "x\n"}
    world.add("cheat", cheat)
    world.drain()
    assert world.entry("cheat").status == "landed"  # the escape, without the setting
    git(world.repo, "reset", "-q", "--hard", "main~1")
    git(world.repo, "update-ref", "refs/heads/main", git(world.repo, "rev-parse", "HEAD"))
    gate(world, "ci/**")
    world.add("again", {**cheat, "other": "x\n"})
    world.drain()
    entry = world.entry("again")
    assert entry.status == "rejected", entry
    assert "tested with the target's ci/gate.sh, which the branch changes" in entry.reason
    world.add("fine", {"ci/gate.sh": "exit 1\n", "ci/sitecustomize.py": "x\n", "ci/list": None, "good": "x\n"})
    world.drain()
    entry = world.entry("fine")
    assert entry.status == "landed", entry
    assert entry.reason == "tested with the target's ci/gate.sh, ci/list, ci/sitecustomize.py, which the branch changes"
    assert git(world.repo, "show", "main:ci/gate.sh") == "exit 1", "what lands is the branch, as it is"
    world.add("plain", {"plain": "x\n"})
    with pytest.raises(AssertionError, match="base_red"):  # from then on the target's gate is the new one
        world.drain()
    assert world.entry("plain").status != "landed"


@pytest.mark.parametrize("sandbox", [pytest.param("none", marks=pytest.mark.slow), "bubblewrap"])
def test_the_set_up_of_a_branch_changes_no_file_of_the_targets_gate(tmp_path, monkeypatch, sandbox):
    monkeypatch.setenv("GARRISON_SANDBOX", sandbox)
    world = World(tmp_path, gate=None)
    world.branch("main", {"ci/gate.sh": "test ! -e bad && test ! -e ci/planted && test ! -e ci/added && test -e made\n",
                          "setup.sh": "touch made\n", ".gitignore": "made\nci/planted\n", "ci/in/list": "1\n"})
    git(world.repo, "reset", "-q", "--hard")
    commands.reconfigure(world.queue, gate="sh ci/gate.sh", no_gate=False, gate_from_target=("ci/**",),
                         setup="sh setup.sh")
    cheat = "touch made ci/planted; chmod 644 ci/gate.sh; echo 'exit 0' > ci/gate.sh; rm -r ci/in; ln -s / ci/in\n"
    world.branch("cheat", {"setup.sh": cheat, "bad": "x\n", "pyproject.toml": "\n"})
    world.branch("fine", {"setup.sh": cheat, "ci/added": "x\n", "good": "x\n", "pyproject.toml": "# other\n"})
    for name, status in (("cheat", "rejected"), ("fine", "landed")):
        world.enqueue(name)
        world.drain()
        assert world.entry(name).status == status, world.entry(name).reason
        assert "tested with the target's ci/" in world.entry(name).reason
    assert "ci/planted" in world.entry("fine").reason


@pytest.mark.parametrize(("changes", "status"), [
    ((), "rejected"), ((LandingNote("gate", "ask", 1, ("check.sh",)),), "landed"), (None, "landed")])
def test_the_scripts_of_a_gate_come_from_the_target_unless_a_user_approved_their_change(tmp_path, changes, status):
    """A user approved the change, or enqueued the branch. A change that was not noticed, since the gate was another
    one then, does not count."""
    world = World(tmp_path, gate=None)
    world.branch("main", {"check.sh": "sh ci/more.sh\n", "ci/more.sh": "test ! -e bad\n"})
    git(world.repo, "reset", "-q", "--hard")
    commands.reconfigure(world.queue, gate="sh check.sh", no_gate=False)
    world.branch("cheat", {"check.sh": "exit 0\n", "ci/more.sh": "exit 0\n", "bad": "x\n"})
    world.queue.enqueue("r", "cheat", 1, "cheat", recipient="runner-cheat@r",
                        options=EntryOptions(approval=bool(changes), changes=changes))
    if changes:
        assert world.entry("cheat").awaits_approval
        commands.approve(world.queue, world.entry("cheat").id)
    world.drain()
    entry = world.entry("cheat")
    assert (entry.status, entry.changes) == (status, changes), entry.reason
    if changes == ():
        assert "tested with the target's check.sh, ci/more.sh, which the branch changes" in entry.reason
    with world.queue.lock():
        world.queue.compact()
    assert MergeQueue(world.home, world.repo).entry(entry.id) == entry


def test_a_verdict_counts_only_with_the_files_of_the_target_that_it_was_given_with(tmp_path):
    world = World(tmp_path, gate=None)
    world.branch("main", {"ci/gate.sh": "exit 0\n"})
    git(world.repo, "reset", "-q", "--hard")
    gate(world, "ci/**")
    world.branch("b", {"new": "x\n"})
    queue = world.queue
    runs = world.processor().gates
    before = runs.book(queue.state.config).whole.key
    world.branch("main", {"plain": "x\n"})
    assert runs.book(queue.state.config).whole.key == before
    world.branch("main", {"ci/gate.sh": "exit 1\n"})
    assert runs.book(queue.state.config).whole.key != before


def test_a_commit_that_a_user_moved_the_target_to_is_reported_as_untested(world):
    world.add("moved", {"moved": "x\n"})
    world.add("merged", {"merged": "x\n"})
    git(world.repo, "merge", "-q", "--ff-only", "moved")
    git(world.repo, "merge", "-q", "--no-ff", "-m", "by hand", "merged")
    world.drain()
    for name in ("moved", "merged"):
        assert world.entry(name).status == "landed"
        assert world.entry(name).reason == "already in main, where this queue did not put it: not tested here"
