"""What agents have changed so far, in a real repository: bounded, cached, and nothing is written."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from garrison.records.run import Launch
from garrison.views.work_in_progress import ChangedSoFar, measure_changes


def git(*words: str, cwd: Path) -> str:
    return subprocess.run(["git", *words], cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    made = tmp_path / "repo"
    made.mkdir()
    git("init", "-q", "-b", "main", cwd=made)
    git("config", "user.email", "a@b", cwd=made)
    git("config", "user.name", "a", cwd=made)
    (made / "old.txt").write_text("one\ntwo\n")
    git("add", "-A", cwd=made)
    git("commit", "-qm", "first", cwd=made)
    return made


def test_committed_and_uncommitted_changes_and_new_files_count(repo: Path, tmp_path: Path) -> None:
    base, tree = git("rev-parse", "HEAD", cwd=repo), tmp_path / "tree"
    git("worktree", "add", "-q", "-b", "work", str(tree), cwd=repo)
    launch = Launch("r1", "crew", str(repo), "main", "", str(tmp_path))
    assert measure_changes(launch, tree, base) == ChangedSoFar(0, 0, 0, 0)
    (tree / "old.txt").write_text("one\nzwei\n")
    git("commit", "-qam", "second", cwd=tree)
    (tree / "old.txt").write_text("one\nzwei\ndrei\n")
    (tree / "new.txt").write_text("new\n")
    index = (Path(git("rev-parse", "--git-dir", cwd=tree)) / "index").read_bytes()
    assert measure_changes(launch, tree, base) == ChangedSoFar(1, 2, 1, 1)
    assert (Path(git("rev-parse", "--git-dir", cwd=tree)) / "index").read_bytes() == index, "nothing is written"
    assert measure_changes(launch, tmp_path / "gone", base) is None


def test_the_agents_configuration_runs_nothing(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for name in ("diff.external", "core.fsmonitor", "core.pager", "diff.evil.textconv", "filter.evil.clean"):
        git("config", name, f"touch {trap}; cat", cwd=repo)
    (repo / ".gitattributes").write_text("* diff=evil filter=evil\n")
    (repo / "old.txt").write_text("three\n")
    git("diff", "--shortstat", cwd=repo)
    assert trap.exists(), "git alone would run it"
    trap.unlink()
    launch = Launch("r1", "crew", str(repo), "main", "", str(tmp_path))
    found = measure_changes(launch, repo, git("rev-parse", "HEAD", cwd=repo))
    assert not trap.exists() and found is not None and found.files == 1
