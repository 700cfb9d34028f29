"""Guard of a target: a hook that lets only the queue move it."""

from __future__ import annotations

import subprocess

import pytest
from merge_support import World, check, git

from garrison.errors import Refused
from garrison.merge import commands, guard, landing, recovery
from garrison.merge.records import Configured
from garrison.values import replace


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    commands.reconfigure(world.queue, guard=True)
    world.branch("one", {"one.txt": "x\n"})
    return world


def refused(world, *arguments):
    done = subprocess.run(["git", *arguments], cwd=world.repo, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL)
    return done.returncode != 0 and "a merge queue lands on refs/heads/main" in done.stderr


@pytest.mark.smoke
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
    world.land("one")
    check(world)


def test_a_bypass_of_the_guard_is_recorded_as_foreign_and_entries_are_tested_on_it(world):
    git(world.repo, "-c", "core.hooksPath=/dev/null", "commit", "-q", "--allow-empty", "-m", "past it")
    world.enqueue("one")
    world.land("one")
    check(world, foreign=1)


def test_the_hook_goes_with_the_last_branch_and_doctor_restores_it(world):
    hook = world.repo / ".git/hooks/reference-transaction"
    guard.install(world.queue.git, "refs/heads/other")
    commands.reconfigure(world.queue, guard=False)
    assert not refused(world, "commit", "-q", "--allow-empty", "-m", "x")
    assert hook.exists()
    guard.uninstall(world.queue.git, "refs/heads/other")
    assert not hook.exists()
    commands.reconfigure(world.queue, guard=True)
    hook.unlink()
    assert [found.repaired for found in recovery.repair(world.queue, world.trees)] == [True]
    assert refused(world, "commit", "-q", "--allow-empty", "-m", "x")
    assert recovery.repair(world.queue, world.trees) == []
    world.queue.append(Configured(replace(world.queue.state.config, guard=False)))  # killed half-way
    commands.reconfigure(world.queue, guard=False)
    assert not refused(world, "commit", "-q", "--allow-empty", "-m", "y")


def own_hook(folder, name, log, code=0):
    """Write a hook of the user's, which logs its input."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f'#!/bin/sh\necho "{name} $*" >> {log}\ncat >> {log}\nexit {code}\n'
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return text


@pytest.mark.parametrize("path", ["", ".husky", "elsewhere"])
def test_the_users_own_hooks_still_run(tmp_path, path):
    """In the repository's hooks, in a directory of the checkout, and where the user's configuration points."""
    world, log = World(tmp_path), tmp_path / "log"
    folder = world.repo / path if path == ".husky" else tmp_path / path if path else world.repo / ".git/hooks"
    text = own_hook(folder, "reference-transaction", log)
    own_hook(folder, "pre-commit", log)
    configured = {"": None, ".husky": ".husky", "elsewhere": str(folder)}[path]
    if configured:
        git(world.repo, "config", "core.hooksPath", configured)
    world.branch("one", {"one.txt": "x\n"})
    there = sorted(folder.iterdir())
    commands.reconfigure(world.queue, guard=True)
    log.unlink()
    commands.reconfigure(world.queue, hooks=landing.record(world.queue.git))
    assert refused(world, "commit", "-q", "--allow-empty", "-m", "x")
    assert "pre-commit" in log.read_text()
    git(world.repo, "branch", "another")
    zero = "0" * 40
    assert f"reference-transaction committed\n{zero} {world.start} refs/heads/another\n" in log.read_text()
    world.enqueue("one")
    world.land("one")
    assert f"{world.start} {world.tip()} refs/heads/main" in log.read_text()
    own_hook(folder, "reference-transaction", log, code=1)  # its result counts, unless ours has replaced it
    assert path == "" or "hook" in git_refuses(world, "branch", "third")
    own_hook(folder, "reference-transaction", log)
    commands.reconfigure(world.queue, guard=True)
    commands.reconfigure(world.queue, guard=False)
    assert (folder / "reference-transaction").read_text() == text
    assert git(world.repo, "config", "--get", "core.hooksPath", check=False) == (configured or "")
    assert sorted(folder.iterdir()) == there
    assert not (world.repo / ".git/garrison/hooks").exists()
    assert git(world.repo, "status", "--porcelain") == ("?? .husky/" if path == ".husky" else "")


def git_refuses(world, *arguments):
    done = subprocess.run(["git", *arguments], cwd=world.repo, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def test_hooks_of_a_single_worktree_exclude_the_guard(tmp_path):
    world = World(tmp_path)
    git(world.repo, "config", "extensions.worktreeConfig", "true")
    git(world.repo, "config", "--worktree", "core.hooksPath", "mine")
    with pytest.raises(Refused, match="for this worktree alone"):
        commands.reconfigure(world.queue, guard=True)
    assert not world.queue.state.config.guard
    assert git(world.repo, "config", "--get", "core.hooksPath") == "mine"
    assert git(world.repo, "config", "--local", "--get", "core.hooksPath", check=False) == ""


def test_an_unrecorded_hook_is_not_run_at_a_landing(world, tmp_path):
    """A recorded one runs as it was then, and nothing lands with another in its place."""
    log = tmp_path / "log"
    commands.reconfigure(world.queue, guard=False)
    with pytest.raises(Refused, match="has no executable reference-transaction hook"):
        landing.record(world.queue.git)
    world.branch("before", {"before.txt": "x\n"})
    own_hook(world.repo / ".git/hooks", "reference-transaction", log, code=1)
    world.enqueue("before")
    world.land("before")
    assert not log.exists(), "it was not recorded"
    before = world.tip()
    text = own_hook(world.repo / ".git/hooks", "reference-transaction", log)
    commands.reconfigure(world.queue, hooks=landing.record(world.queue.git))
    hook = world.repo / ".git/hooks/reference-transaction"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path / 'evil'}\n")
    world.enqueue("one")
    wait = world.drain(until="ref_locked")
    assert "is not the one that was recorded with --with-hooks" in wait.text
    assert world.tip() == before
    assert not (tmp_path / "evil").exists()
    hook.write_text(text)
    world.land("one")
    assert f"{before} {world.tip()} refs/heads/main" in log.read_text()
