"""Sparse checkouts and partial clones: worktrees and gate slots have the files of the user's patterns, and no other is
fetched, changed or lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from garrison.errors import UsageError
from garrison.merge.slots import acquire_slot
from garrison.system.git import Git
from support import commit_all, copy_of, git

FILES = ("docs/a", "docs/in/b", "src/c", "lib/d", "top")
CONE = ("sparse-checkout", "set", "src")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    return copy_of(make, tmp_path / "repo")


def make(path: Path) -> None:
    path.mkdir()
    git(path, "init", "-q", "-b", "main")
    for name, value in (("user.name", "A"), ("user.email", "a@x")):
        git(path, "config", name, value)
    for name in FILES:
        (path / name).parent.mkdir(exist_ok=True, parents=True)
        (path / name).write_text(f"{name}\n" * 40)
    commit_all(path, "begin")


def open_git(repo: Path, setting: str = "") -> Git:
    home = repo.parent / "home"
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f"[worktrees]\nsparse = {setting}\n" if setting else "")
    return Git(repo, home=home)


def files(tree: Path) -> set[str]:
    found = (path.relative_to(tree) for path in tree.rglob("*") if path.is_file())
    return {str(name) for name in found if name.parts[0] != ".git"}


@pytest.mark.parametrize(("own", "setting", "expected"), [
    ([CONE], "", {"src/c", "top"}),
    ([("sparse-checkout", "set", "--no-cone", "/docs/*", "!/docs/in/")], '"inherit"', {"docs/a"}),
    ([CONE], '"full"', set(FILES)),
    ([], "", set(FILES)),
    ([CONE, ("sparse-checkout", "disable")], "", set(FILES)),
    ([], '["lib", "docs/in"]', {"lib/d", "docs/a", "docs/in/b", "top"}),
    ([CONE], '["/docs/*", "!/docs/in/"]', {"docs/a"}),
])
def test_a_worktree_has_the_files_of_the_users_patterns_or_of_the_setting(repo, own, setting, expected):
    for command in own:
        git(repo, *command)
    before = files(repo), git(repo, "status", "--porcelain")
    ours, tree = open_git(repo, setting), repo.parent / "tree"
    ours.add_worktree(tree, "work", "main")
    assert files(tree) == expected
    assert not ours.is_dirty(tree) and ours.head(tree) == git(repo, "rev-parse", "main")
    assert ours.worktrees()[-1].branch == "work"
    assert not (ours.git_dir(tree) / "locked").exists()
    ours.add_worktree(tree, "work", "main")  # taken over as it is
    assert not list(repo.parent.glob("tree.left*"))
    assert (files(repo), git(repo, "status", "--porcelain")) == before
    git(tree, "sparse-checkout", "disable")
    assert files(tree) == set(FILES)


def test_work_outside_the_patterns_is_committed_and_saved_and_nothing_that_is_not_there_is_lost(repo):
    git(repo, *CONE)
    ours, tree = open_git(repo), repo.parent / "tree"
    ours.add_worktree(tree, "work", "main")
    (tree / "docs").mkdir()
    (tree / "docs/new").write_text("new\n")
    (tree / "docs/a").write_text("mine\n")
    (tree / "src/c").write_text("mine\n")
    assert ours.is_dirty(tree)
    snapshot = ours.create_snapshot(tree, "saved")
    commit = ours.commit_all(tree, "work")
    for made in (snapshot, commit):
        assert git(repo, "diff", "--name-status", "main", made).split() == [
            "M", "docs/a", "A", "docs/new", "M", "src/c"]
    assert not ours.is_dirty(tree)


def test_a_setting_that_says_nothing_is_refused(repo):
    for wrong in ('"some"', "[]", '["a\\nb"]', "true"):
        with pytest.raises(UsageError, match="should be \"inherit\", \"full\" or a list of folders"):
            open_git(repo, wrong).add_worktree(repo.parent / "tree", "work", "main")


def test_a_slot_is_made_again_after_the_patterns_change_and_a_file_of_the_target_is_restored_outside_them(repo):
    git(repo, *CONE)
    ours, commit = open_git(repo), git(repo, "rev-parse", "main")
    slot = acquire_slot(ours, repo.parent / "slots")
    for patterns, expected in ((None, {"src/c", "top"}), ("docs", {"docs/a", "docs/in/b", "top"})):
        if patterns:
            git(repo, "sparse-checkout", "set", patterns)
        for _ in range(2):
            slot.prepare(commit)
            assert files(slot.path) == expected
            (slot.path / "kept").touch()
    assert not (slot.path / "src").exists()
    git(repo, "sparse-checkout", "set", "src", "docs")
    (repo / "docs/a").write_text("changed\n")
    git(repo, "commit", "-qam", "change")
    git(repo, "sparse-checkout", "set", "src")
    slot.prepare("main")
    assert slot.restore_from(commit, "main", ("docs/**",)) == ["docs/a"]
    assert (slot.path / "docs/a").read_text().startswith("docs/a")
    slot.prepare("main")
    assert files(slot.path) == {"src/c", "top"}
    slot.release()


def missing(repo: Path) -> set[str]:
    """Return the objects that a partial clone has not."""
    return {line for line in git(repo, "rev-list", "--objects", "--all", "--missing=print").split()
            if line.startswith("?")}


@pytest.mark.parametrize("setting", ["", '["src"]'])
def test_in_a_partial_clone_no_worktree_slot_or_merge_fetches_what_no_pattern_needs(repo, setting):
    git(repo, "config", "uploadpack.allowFilter", "true")
    git(repo, "branch", "other")
    clone = repo.parent / "clone"
    subprocess.run(["git", "clone", "-q", "--filter=blob:none", "--sparse", f"file://{repo}", str(clone)], check=True)
    for name, value in (("user.name", "A"), ("user.email", "a@x")):
        git(clone, "config", name, value)
    git(clone, *CONE)
    lacking = missing(clone)
    assert len(lacking) == 3
    ours, tree = open_git(clone, setting), clone.parent / "tree"
    ours.add_worktree(tree, "work", "main")
    assert files(tree) == {"src/c", "top"}
    (tree / "src/c").write_text("mine\n")
    (tree / "docs").mkdir()
    (tree / "docs/new").write_text("new\n")
    commit = ours.commit_all(tree, "work")
    assert commit and ours.create_snapshot(tree, "saved")
    merged = ours.merge_tree("main", commit)
    slot = acquire_slot(ours, clone.parent / "slots")
    slot.prepare(commit)
    assert files(slot.path) == {"src/c", "top"}
    slot.release()
    assert merged.tree == git(clone, "rev-parse", f"{commit}^{{tree}}")
    assert missing(clone) == lacking

