"""What a set-up made in a gate slot, after a gate of one branch and before that of the next."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from garrison.merge.setup_output import compare, find_made
from garrison.merge.slots import Slot, acquire_slot
from garrison.system.git import Git
from support import commit_all, copy_of, git, make_repository


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    """Return a slot in which a set-up made a folder that git ignores."""
    slot = acquire_slot(Git(copy_of(make, tmp_path / "repo")), tmp_path / "slots")
    slot.prepare("main~2")
    set_up(slot)
    return slot


def make(repo: Path) -> None:
    make_repository(repo)
    (repo / ".gitignore").write_text(".venv/\ntarget/\n")
    commit_all(repo, "ignore")
    for name in ("other", "third"):
        (repo / name).write_text(name)
        commit_all(repo, name)
        git(repo, "branch", name)


def set_up(slot: Slot) -> None:
    slot.begin_setup()
    (slot.path / ".venv/lib").mkdir(parents=True)
    (slot.path / ".venv/lib/tool.py").write_text("tool")
    slot.record_setup("key")


def state(slot: Slot) -> tuple[str, list[str]]:
    """Return the key of the set-up that need not run again, and what is in its folder."""
    files = sorted(str(path.relative_to(slot.path)) for path in (slot.path / ".venv").rglob("*") if path.is_file())
    return slot.memory.setup_key, files


def add(slot: Slot) -> None:
    (slot.path / ".venv/sitecustomize.py").write_text("raise SystemExit(0)")
    (slot.path / ".venv/lib/new/deep").mkdir(parents=True)
    (slot.path / ".venv/lib/new/deep/x").touch()


def change(slot: Slot) -> None:
    tool = slot.path / ".venv/lib/tool.py"
    before = tool.stat()
    tool.write_text("evil")
    os.utime(tool, ns=(before.st_atime_ns, before.st_mtime_ns))


def delete(slot: Slot) -> None:
    (slot.path / ".venv/lib/tool.py").unlink()


def link(slot: Slot) -> None:
    outside = slot.path.parent / "outside"
    (slot.path / ".venv").rename(outside)
    (slot.path / ".venv").symlink_to(outside)


def test_files_that_a_gate_adds_are_gone_for_the_next_branch(slot: Slot) -> None:
    add(slot)
    slot.prepare("other")
    assert state(slot) == ("key", [".venv/lib/tool.py"])


@pytest.mark.parametrize("deed", [change, delete, link])
def test_set_up_runs_again_where_a_gate_changed_what_it_made(slot: Slot, deed: Callable[[Slot], None]) -> None:
    deed(slot)
    slot.prepare("other")
    assert state(slot) == ("", [])
    assert not os.path.lexists(slot.path / ".venv")
    assert deed is not link or (slot.path.parent / "outside/lib/tool.py").exists()


def test_caches_of_gates_stay_and_the_same_tree_keeps_all(slot: Slot) -> None:
    (slot.path / "target").mkdir()
    (slot.path / "target/cache").touch()
    add(slot)
    slot.prepare("main~2")
    assert (slot.path / ".venv/sitecustomize.py").exists()
    slot.prepare("other")
    assert (slot.path / "target/cache").exists()
    assert not (slot.path / ".venv/sitecustomize.py").exists()
    slot.begin_setup()
    set_up(slot)
    (slot.path / "target/cache").write_text("changed")
    slot.prepare("third")
    assert (state(slot), (slot.path / "target/cache").exists()) == (("key", [".venv/lib/tool.py"]), True)


def test_what_a_failed_set_up_left_does_not_stay(slot: Slot) -> None:
    slot.begin_setup()
    assert not (slot.path / ".venv").exists(), "the set-up of other lock files"
    (slot.path / ".venv").mkdir()
    (slot.path / ".venv/evil").touch()
    slot.release()
    again = acquire_slot(slot.git, slot.path.parent)
    assert again.path == slot.path
    again.prepare("other")
    assert state(again) == ("", [])


def test_uppermost_additions_are_named_and_earlier_output_counts() -> None:
    before = {"v": (0, 0), "v/a": (1, 5)}
    assert compare(before, {**before, "v/b": (0, 0), "v/b/c": (2, 6), "v/d": (3, 6)}) == (True, ["v/b", "v/d"])
    assert compare(before, {"v": (0, 0), "v/a": (1, 6)}) == (False, [])
    assert find_made(["old/", "venv/"], ["old/", "venv/", "new"], ["venv/"]) == ("venv/", "new")
