"""Locks that a killed git left: only those are removed that no living git can have made."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from garrison.system.git import Git, damage
from garrison.system.git.repository import GitError
from support import git, make_repository

OLD = damage.LOCK_SECONDS + 5
AT_ONCE = -1.0
"""Age at which even a lock that was just made may be abandoned."""


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repo")
    git(tmp_path / "repo", "branch", "garrison/r/a")
    git(tmp_path / "repo", "branch", "topic")
    return tmp_path / "repo"


def leave(repo: Path, name: str, seconds: float = OLD) -> Path:
    """Make a lock as a git leaves it that was killed so many seconds ago."""
    lock = repo / ".git" / f"{name}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    os.utime(lock, (time.time() - seconds,) * 2)
    return lock


def test_an_old_lock_without_a_possible_owner_is_abandoned(repo: Path) -> None:
    """One of garrison's own refs waits less long."""
    for name in ("packed-refs", "config", "refs/heads/topic", "refs/heads/garrison/r/a"):
        lock = leave(repo, name)
        assert damage.find_locks(repo / ".git") == [lock]
        assert damage.remove_locks([lock], repo / ".git") == [lock]
        assert not lock.exists()
        assert damage.remove_locks([lock], repo / ".git") == []
    young = damage.OWN_LOCK_SECONDS + 5
    leave(repo, "refs/heads/topic", young)
    own = leave(repo, "refs/heads/garrison/r/a", young)
    leave(repo, "refs/garrison/x", 0)
    assert damage.find_locks(repo / ".git") == [own]


def test_a_lock_stays_while_a_git_process_older_than_it_lives(repo: Path, tmp_path: Path) -> None:
    """One that came later, or works elsewhere, did not make it; one in a worktree is one of the repository."""
    assert damage.find_locks(repo / ".git") == []
    git(repo, "worktree", "add", "-q", str(tmp_path / "tree"), "topic")
    make_repository(tmp_path / "other")
    (tmp_path / "tree/below").mkdir()
    for where in (repo, tmp_path / "tree/below"):
        with subprocess.Popen(["git", "cat-file", "--batch"], cwd=where, stdin=subprocess.PIPE) as reader:
            lock = leave(repo, "packed-refs")
            assert damage.find_locks(repo / ".git") == [lock], "the reader is younger"
            lock = leave(repo, "packed-refs", 0)
            assert damage.find_locks(repo / ".git", AT_ONCE) == []
            assert damage.remove_locks([lock], repo / ".git", AT_ONCE) == []
            assert not damage.is_abandoned(lock, repo / ".git", AT_ONCE)
            elsewhere = leave(tmp_path / "other", "packed-refs", 0)
            assert reader.poll() is None
            assert damage.find_locks(tmp_path / "other/.git", AT_ONCE) == [elsewhere]
        assert damage.find_locks(repo / ".git", AT_ONCE) == [lock]
        lock.unlink()


def test_git_s_messages_name_what_is_removed_and_other_files_stay(repo: Path, tmp_path: Path) -> None:
    index = leave(repo, "index")
    outside = tmp_path / "refs.lock"
    outside.touch()
    os.utime(outside, (0, 0))
    for lock in (index, outside):
        said = f"fatal: Unable to create '{lock}': File exists.\n\nAnother git process seems to be running"
        assert not damage.remove_named(said, repo, repo / ".git")
        assert lock.exists()
    lock = leave(repo, "config")
    assert damage.remove_named("error: could not lock config file .git/config: File exists", repo,
                                        repo / ".git")
    assert not lock.exists()


def test_what_would_fail_at_an_abandoned_lock_continues(repo: Path, tmp_path: Path) -> None:
    """Regression: a run that had landed never ended, since its branches could not be deleted."""
    ours, tip = Git(repo), git(repo, "rev-parse", "main")
    git(repo, "pack-refs", "--all")
    leave(repo, "packed-refs")
    ours.delete_refs(["refs/heads/topic"])
    assert ours.branch_tip("topic") is None
    leave(repo, "refs/heads/main")
    assert ours.update_ref("refs/heads/main", tip, tip, message="m")
    leave(repo, "refs/heads/garrison/r/a")
    ours.add_worktree(tmp_path / "tree", "garrison/r/a", "main")
    assert ours.head(tmp_path / "tree") == tip
    git(repo, "gc", "-q", "--prune=now")


def test_a_lock_that_is_not_abandoned_is_not_taken_away(repo: Path) -> None:
    ours, lock = Git(repo), leave(repo, "refs/heads/topic", 0)
    ours.retry_seconds = 0.2
    assert not ours.update_ref("refs/heads/topic", git(repo, "rev-parse", "main"), message="m")
    with pytest.raises(GitError, match="cannot lock ref"):
        ours.delete_refs(["refs/heads/topic"])
    assert lock.exists()
