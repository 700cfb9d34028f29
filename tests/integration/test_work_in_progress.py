"""What agents have changed so far, in a real repository: bounded, cached, and nothing is written."""

from __future__ import annotations

from pathlib import Path

from garrison.records.run import Launch
from garrison.views.work_in_progress import ChangedSoFar, measure_changes
from support import git


def test_committed_and_uncommitted_changes_and_new_files_count(repo: Path, tmp_path: Path) -> None:
    base, tree = git(repo, "rev-parse", "HEAD"), tmp_path / "tree"
    git(repo, "worktree", "add", "-q", "-b", "work", str(tree))
    launch = Launch("r1", "crew", str(repo), "main", "", str(tmp_path))
    assert measure_changes(launch, tree, base) == ChangedSoFar(0, 0, 0, 0)
    (tree / "calc.py").write_text("def add(a, b):\n    return b + a\n")
    git(tree, "commit", "-qam", "second")
    (tree / "calc.py").write_text("def add(a, b):\n    return b + a\n# third\n")
    (tree / "new.txt").write_text("new\n")
    index = Path(git(tree, "rev-parse", "--git-dir"), "index")
    before = index.read_bytes()
    assert measure_changes(launch, tree, base) == ChangedSoFar(1, 2, 1, 1)
    assert index.read_bytes() == before, "nothing is written"
    assert measure_changes(launch, tmp_path / "gone", base) is None


def test_the_agents_configuration_runs_nothing(repo: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for name in ("diff.external", "core.fsmonitor", "core.pager", "diff.evil.textconv", "filter.evil.clean"):
        git(repo, "config", name, f"touch {trap}; cat")
    (repo / ".gitattributes").write_text("* diff=evil filter=evil\n")
    (repo / "calc.py").write_text("three\n")
    git(repo, "diff", "--shortstat")
    assert trap.exists(), "git alone would run it"
    trap.unlink()
    launch = Launch("r1", "crew", str(repo), "main", "", str(tmp_path))
    found = measure_changes(launch, repo, git(repo, "rev-parse", "HEAD"))
    assert not trap.exists() and found is not None and found.files == 1
