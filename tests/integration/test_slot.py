"""Gate slots on a real repository: a slot outlives what it was made from."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from garrison.merge.slot import acquire, clear
from garrison.system.git import Git


def repository(path: Path, text: str) -> Git:
    path.mkdir()
    (path / "a.txt").write_text(text)
    for words in (["init", "-q", "-b", "main"], ["add", "-A"],
                  ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=path, check=True)
    return Git(path)


def test_a_slot_of_a_repository_that_was_made_anew_is_made_anew(tmp_path: Path) -> None:
    first = repository(tmp_path / "repo", "old\n")
    slot = acquire(first, tmp_path / "trees")
    slot.prepare("main")
    slot.release()
    shutil.rmtree(tmp_path / "repo")
    second = repository(tmp_path / "repo", "new\n")
    slot = acquire(second, tmp_path / "trees")
    slot.prepare("main")
    assert (slot.path / "a.txt").read_text() == "new\n"
    slot.release()


def test_slots_are_cleared_but_not_under_somebody(tmp_path: Path) -> None:
    git = repository(tmp_path / "repo", "text\n")
    folder = tmp_path / "trees" / "key"
    held, left = acquire(git, folder), acquire(git, folder)
    for slot in (held, left):
        slot.prepare("main")
    left.release()
    clear(git, folder)
    assert (held.path.is_dir(), left.path.exists()) == (True, False)
    held.release()
    clear(git, folder)
    assert not folder.exists()
    assert [tree.path for tree in git.worktrees()] == [tmp_path / "repo"]
