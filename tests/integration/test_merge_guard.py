"""The guard of a target: a hook that lets only the queue move it."""

from __future__ import annotations

import subprocess

import pytest
from merge_support import World, check, git

from garrison.errors import Refused
from garrison.merge import asked, guard, mending


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    asked.reconfigure(world.queue, guard=True)
    world.branch("one", {"one.txt": "x\n"})
    return world


def refused(world, *arguments):
    done = subprocess.run(["git", *arguments], cwd=world.repo, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    return done.returncode != 0 and "a merge queue lands on refs/heads/main" in done.stderr


def test_only_the_queue_moves_the_target(world):
    world.queue.git.check_movable("main")
    git(world.repo, "branch", "another")
    git(world.repo, "config", "receive.denyCurrentBranch", "ignore")
    for arguments in (("commit", "-q", "--allow-empty", "-m", "x"), ("update-ref", "refs/heads/main", "one"),
                      ("update-ref", "-d", "refs/heads/main"), ("push", "-q", ".", "one:main"),
                      ("reset", "-q", "--hard", "one")):
        assert refused(world, *arguments), arguments
    assert world.tip() == world.start
    git(world.repo, "reset", "-q", "--hard")
    git(world.repo, "gc", "-q", "--prune=now")
    assert "refs/heads/main" in (world.repo / ".git/packed-refs").read_text()
    for arguments in (("update-ref", "-d", "refs/heads/main", world.start), ("update-ref", "refs/heads/main", "one")):
        assert refused(world, *arguments), arguments
    git(world.repo, "branch", "-f", "another", "one")
    world.enqueue("one")
    world.drain()
    assert world.entry("one").status == "landed"
    check(world)


def test_a_bypass_is_foreign_and_what_lands_is_tested_on_it(world):
    git(world.repo, "-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "past it")
    world.enqueue("one")
    world.drain()
    assert world.entry("one").status == "landed"
    check(world, foreign=1)


def test_it_goes_with_the_last_branch_and_comes_back_by_the_doctor(world):
    hook = world.repo / ".git/hooks/reference-transaction"
    guard.put_up(world.queue.git, "refs/heads/other")
    asked.reconfigure(world.queue, guard=False)
    assert not refused(world, "commit", "-q", "--allow-empty", "-m", "x")
    assert hook.exists()
    guard.take_down(world.queue.git, "refs/heads/other")
    assert not hook.exists()
    asked.reconfigure(world.queue, guard=True)
    hook.unlink()
    assert [found.mended for found in mending.mend(world.queue, world.trees)] == [True]
    assert refused(world, "commit", "-q", "--allow-empty", "-m", "x")
    assert mending.mend(world.queue, world.trees) == []


def test_the_users_own_hooks_are_left_alone(tmp_path):
    world = World(tmp_path)
    hook = world.repo / ".git/hooks/reference-transaction"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(Refused, match="a hook of your own"):
        asked.reconfigure(world.queue, guard=True)
    assert hook.read_text() == "#!/bin/sh\nexit 0\n"
    hook.unlink()
    git(world.repo, "config", "core.hooksPath", ".husky")
    with pytest.raises(Refused, match=r"core.hooksPath is \.husky"):
        asked.reconfigure(world.queue, guard=True)
    assert not world.queue.state.config.guard
    assert not (world.repo / ".husky").exists()
