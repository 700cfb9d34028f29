"""Targets of a remote: read by ls-remote, moved by a push with a lease."""

from __future__ import annotations

import pytest
from merge_support import World, drive, git, until

from garrison.ends import Wait
from garrison.errors import Refused, UsageError
from garrison.merge import commands
from garrison.merge.queue import MergeQueue
from garrison.merge.target import check_target
from garrison.records import journal
from garrison.system.git import GitError


@pytest.fixture
def world(tmp_path):
    """Return a world whose queue lands on main of the bare repository `origin`; the local main is not involved."""
    world = World(tmp_path)
    world.remote = tmp_path / "origin.git"
    git(tmp_path, "clone", "-q", "--bare", str(world.repo), str(world.remote))
    git(world.repo, "remote", "add", "origin", str(world.remote))
    world.queue = MergeQueue(world.home, world.repo, "origin:main")
    world.queue.configure(world.config)
    world.branch("one", {"one.txt": "x\n"})
    return world


def processor(world):
    return world.processor(MergeQueue(world.home, world.repo, "origin:main", token="test"))


def drain(world, until="empty"):
    made = processor(world)
    try:
        return drive(made, until)
    finally:
        made.close()


def tip(world):
    return git(world.remote, "rev-parse", "main")


def move(world, name="other"):
    """Push as someone else."""
    oid = world.branch(name, {f"{name}.txt": "x\n"}, start=tip(world))
    git(world.repo, "push", "-q", "-f", "origin", f"{name}:main")
    return oid


def refusal(made):
    step = made.step()
    return step if isinstance(step, Wait) and step.kind == "ref_locked" else None


def kinds(world):
    return [record.kind for record in journal.read_all(world.queue.path)]


@pytest.mark.smoke
def test_a_branch_lands_on_the_remote_and_no_local_ref_moves(world):
    one = world.enqueue("one")
    drain(world)
    assert world.queue.entry(one.id).status == "landed"
    assert tip(world) == world.queue.entry(one.id).commit
    assert git(world.remote, "show", "main:one.txt") == "x"
    assert world.tip() == world.start
    assert git(world.repo, "status", "--porcelain") == ""


def test_a_foreign_push_in_between_is_recorded_and_entries_are_tested_on_it(world, monkeypatch):
    world.enqueue("one")
    made = processor(world)
    swap, others = made.writer.branch.swap, []

    def late(old, new, message):
        if not others:
            others.append(move(world))
        return swap(old, new, message)

    monkeypatch.setattr(made.writer.branch, "swap", late)
    drive(made)
    made.close()
    assert kinds(world).count("foreign") == 1
    assert world.entry("one").status == "landed"
    assert git(world.remote, "rev-parse", "main^1") == others[0]
    assert world.gates() == 2


@pytest.mark.parametrize("arrived", [True, False])
def test_a_push_whose_answer_was_lost_is_settled_by_the_remote(world, monkeypatch, arrived):
    """The processor was killed amid its push, and its successor asks the remote."""
    world.enqueue("one")
    made = processor(world)
    swap = made.writer.branch.swap

    def cut(old, new, message):
        if arrived:
            assert swap(old, new, message) == ""
        raise KeyboardInterrupt

    monkeypatch.setattr(made.writer.branch, "swap", cut)
    with pytest.raises(KeyboardInterrupt):
        drive(made)
    made.close()
    assert world.queue.state.landing
    drain(world)
    assert world.entry("one").status == "landed"
    assert tip(world) == world.entry("one").commit
    assert git(world.remote, "rev-list", "--count", "--first-parent", f"{world.start}..main") == "1"


def test_a_remote_that_is_unreachable_or_refuses_is_tried_again(world):
    world.enqueue("one")
    away = world.remote.with_name("away.git")
    world.remote.rename(away)
    with pytest.raises(GitError, match="ls-remote"):
        drain(world)
    away.rename(world.remote)
    hook = world.remote / "hooks/pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    made = processor(world)
    found = until(lambda: refusal(made), "a refusal")
    made.close()
    assert "origin did not accept main" in found.text
    assert world.queue.state.landing
    hook.unlink()
    drain(world)
    assert tip(world) == world.entry("one").commit


def test_bad_target_names_are_refused_and_a_remote_is_not_guarded(world):
    for name in ("", "-x", ":main", "origin:", "origin:-x"):
        with pytest.raises(UsageError, match="not a branch"):
            MergeQueue(world.home, world.repo, name)
    with pytest.raises(Refused, match="no remote nowhere"):
        check_target(world.queue.git, "nowhere:main")
    check_target(world.queue.git, "origin:main")
    with pytest.raises(Refused, match="on its server"):
        commands.reconfigure(world.queue, guard=True)
    git(world.remote, "update-ref", "-d", "refs/heads/main")
    world.enqueue("one")
    assert "origin:main" in drain(world, "no_target").text
