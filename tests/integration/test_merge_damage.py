"""Damage to the objects of a dead processor's candidate: the next one builds it again, and lands it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from merge_support import World, check, drive, git, run_in_child

from garrison.system import failpoint
from garrison.system.git.repository import DURABLE, GitResult, Repository


def _die_at(world: World, point: str) -> None:
    failpoint.here = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None
    drive(world.processor())


def candidate_killed_at(world: World, point: str) -> list[Path]:
    """Enqueue two branches whose merge makes new trees and blobs, kill the processor at `point`; return the loose files
    that only the candidate needs."""
    lines = [f"{number}\n" for number in range(10)]
    world.branch("a", {"lines.txt": "".join(["first\n", *lines[1:]]), "dir/a": "a"})
    world.branch("b", {"lines.txt": "".join([*lines[:9], "last\n"]), "dir/b": "b"})
    world.enqueue("a")
    world.drain()
    world.enqueue("b")
    assert run_in_child(_die_at, world, point) == -signal.SIGKILL
    commit = git(world.repo, "for-each-ref", "--format=%(objectname)", "refs/garrison/mq/").splitlines()
    entry = world.entry("b")
    names = git(world.repo, "rev-list", "--objects", *commit, "^main", f"^{entry.oid}").splitlines()
    return [world.repo / ".git/objects" / name[:2] / name[2:40] for name in names]


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "empty": lambda data: b"", "torn": lambda data: data[:len(data) // 2], "zeros": lambda data: bytes(len(data)),
    "garbage": lambda data: b"garbage" * 9, "deleted": lambda data: None}


@pytest.mark.parametrize("point", ["candidate", "verdict", "landing"])
@pytest.mark.parametrize("way", ["empty", "garbage", *(pytest.param(way, marks=pytest.mark.slow)
                                                     for way in ("torn", "zeros", "deleted"))])
def test_a_damaged_object_of_a_candidate_makes_a_new_candidate(world: World, point: str, way: str) -> None:
    """Seen to stand still for ever, or to land a commit that git cannot read, for each of them."""
    files = candidate_killed_at(world, point)
    assert len(files) == 4, "the commit, two trees, the merged file"
    for path in files:
        new = DAMAGE[way](path.read_bytes())
        path.chmod(0o600)
        path.unlink() if new is None else path.write_bytes(new)
    world.land("b")
    assert git(world.repo, "show", "main:lines.txt").splitlines()[::9] == ["first", "last"]
    assert git(world.repo, "fsck", "--full", "--no-dangling") == ""
    check(world)


@pytest.mark.parametrize("which", range(4))
def test_one_damaged_object_alone_is_found(world: World, which: int) -> None:
    """Git reads none of these before it moves the target."""
    path = sorted(candidate_killed_at(world, "landing"))[which]
    path.chmod(0o600)
    path.write_bytes(b"")
    world.land("b")
    assert git(world.repo, "fsck", "--full", "--no-dangling") == ""
    check(world)


def test_landed_objects_and_refs_are_synced_when_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured on ext4: 4 ms more for a commit, 16 ms more for the ref."""
    real, written = Repository.run, []

    def run(self: Repository, *arguments: str, **options: Any) -> GitResult:
        in_scratch = arguments[0] == "merge-tree" and arguments[-1] == "--stdin"
        if arguments[0] in ("hash-object", "update-ref", "merge-tree") and not in_scratch:
            written.append((arguments[0], options.get("durable", False)))
        return real(self, *arguments, **options)

    monkeypatch.setattr(Repository, "run", run)
    world = World(tmp_path)
    world.add("a", {"a": "a"})
    world.land("a")
    assert set(written) == {("merge-tree", True), ("hash-object", True), ("update-ref", True)}
    assert "core.fsync=committed,loose-object,reference" in DURABLE
