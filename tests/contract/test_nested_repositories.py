"""Repositories made in a worktree by an agent or the user: their configuration runs nothing in garrison's git."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from garrison.node.worktree import has_unsaved_work
from garrison.system.git import Git
from support import git, make_repository

IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@x")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repo")
    Git(tmp_path / "repo").add_worktree(tmp_path / "tree", "tree", "main")
    return tmp_path / "repo"


@pytest.fixture
def tree(repo: Path) -> Path:
    return repo.parent / "tree"


def nest(folder: Path) -> None:
    """Make a repository with a commit, all of whose files pass the filter `evil`."""
    subprocess.run(["git", "init", "-q", folder], check=True)
    (folder / ".gitattributes").write_text("* filter=evil\n")
    (folder / "x").write_text("x")
    git(folder, "add", "-A")
    git(folder, *IDENTITY, "commit", "-qm", "x")


def arm(folder: Path) -> Path:
    """Name a program for the filter; return the file that shows that it ran."""
    marker = folder.parent.parent / "ran"
    git(folder, "config", "filter.evil.clean", f"touch {marker}; cat")
    (folder / "x").write_text("y")
    return marker


def add_link(tree: Path, name: str) -> None:
    subprocess.run(["git", "add", name], cwd=tree, check=True, capture_output=True)
    git(tree, *IDENTITY, "commit", "-qm", "link")


def leave_untracked(tree: Path, name: str) -> None:
    """Leave the repository as it is."""


def add_submodule(tree: Path, name: str) -> None:
    (tree / ".gitmodules").write_text(f'[submodule "{name}"]\n\tpath = {name}\n\turl = ./x\n')
    git(tree, "add", ".gitmodules")
    add_link(tree, name)


def ran_of(ours: Git, tree: Path, marker: Path) -> list[str]:
    """Do all that reads a worktree, the commit of its changes last; return what of it ran the program."""
    ran = []
    for name, act in {"status": lambda: has_unsaved_work(ours, tree, ["main"]),
                      "snapshot": lambda: ours.create_snapshot(tree, "snapshot", timeout=20),
                      "rescue": lambda: ours.save_work(tree, "refs/garrison/rescue/r/n/1", "kept"),
                      "commit": lambda: ours.commit_all(tree, "left")}.items():
        assert act() or name == "commit", f"{name} had work"  # a bare link's commit is kept as it is
        if marker.exists():
            ran.append(name)
            marker.unlink()
    return ran


@pytest.mark.parametrize(("way", "name"), [
    (add_link, "sub"), (add_link, "s\udcffb"), (leave_untracked, "sub"), (leave_untracked, "s\udcffb"),
    (add_submodule, "sub")])
def test_programs_that_a_nested_repository_names_do_not_run(
        repo: Path, tree: Path, way: Callable[[Path, str], None], name: str) -> None:
    nest(tree / name)
    way(tree, name)
    marker = arm(tree / name)
    assert not ran_of(Git(repo), tree, marker)
    git(tree / name, "status")
    assert marker.exists(), "it runs for git commands in that repository"


def test_a_program_named_just_before_each_call_of_git_does_not_run(repo: Path, tree: Path, tmp_path: Path) -> None:
    nest(tree / "sub")
    add_link(tree, "sub")
    nest(tree / "other")
    arm(tree / "sub")
    marker = arm(tree / "other")
    real = subprocess.run(["which", "git"], check=True, capture_output=True, text=True).stdout.strip()
    racer = tmp_path / "bin/git"
    racer.parent.mkdir()
    plant = f"{real} -C {tree}/%s config filter.evil.clean 'touch {marker}; cat'; "
    remove = f"{real} -C {tree}/%s config --unset-all filter.evil.clean; "
    racer.write_text(f"#!/bin/sh\nenv >> {tmp_path}/env\ncase $1 in config) {remove % 'sub'}{remove % 'other'};; "
                     f"*) (unset GIT_DIR GIT_WORK_TREE; {plant % 'sub'}{plant % 'other'});; esac\nexec {real} \"$@\"\n")
    racer.chmod(0o755)
    assert not ran_of(Git(repo, {**os.environ, "PATH": f"{racer.parent}:{os.environ['PATH']}"}), tree, marker)


def test_the_work_in_nested_repositories_is_saved_with_its_history(repo: Path, tree: Path) -> None:
    nest(tree / "sub")
    (tree / "sub/x").write_text("work")
    (tree / "sub/.git/info/exclude").write_text("ignored\n")
    (tree / "sub/ignored").touch()
    ours = Git(repo)
    ref = ours.save_work(tree, "refs/garrison/rescue/r/n/1", "kept")
    assert ours.save_work(tree, "refs/garrison/rescue/r/n/1", "kept") == ref
    kept, head = git(repo, "rev-parse", f"{ref}:sub"), git(tree / "sub", "rev-parse", "HEAD")
    ours.remove_worktree(tree)
    assert git(repo, "show", f"{kept}:x") == "work"
    assert git(repo, "rev-parse", f"{kept}^") == head
    assert git(repo, "ls-tree", "--name-only", kept).split() == [".gitattributes", "x"]
    assert not list((repo / ".git/garrison/nested").iterdir())


def test_an_embedded_submodules_work_is_committed_once(repo: Path, tree: Path) -> None:
    nest(tree / "sub")
    add_submodule(tree, "sub")
    (tree / "sub/x").write_text("work")
    ours = Git(repo)
    assert ours.is_dirty(tree)
    made = ours.commit_all(tree, "left")
    assert made is not None
    assert git(repo, "show", f"{git(repo, 'rev-parse', f'{made}:sub')}:x") == "work"
    assert ours.commit_all(tree, "left") is None
    assert not ours.is_dirty(tree)


def test_links_of_the_index_follow_what_is_in_their_place(repo: Path, tree: Path) -> None:
    for name in ("moved", "removed", "emptied", "filed", "folder/linked"):
        nest(tree / name)
        git(tree, "add", name)
    git(tree, *IDENTITY, "commit", "-qm", "links")
    before = git(tree, "rev-parse", "HEAD:emptied")
    git(tree / "moved", *IDENTITY, "commit", "-q", "--allow-empty", "-m", "more")
    moved = git(tree / "moved", "rev-parse", "HEAD")
    for name in ("removed", "emptied", "filed", "folder"):
        subprocess.run(["rm", "-r", tree / name], check=True)
    (tree / "emptied").mkdir()
    (tree / "filed").write_text("file")
    (tree / "folder").symlink_to("moved")
    made = Git(repo).commit_all(tree, "left")
    assert made is not None
    assert Git(repo).commit_all(tree, "left") is None
    listed = [line.split()[1:] for line in git(repo, "ls-tree", made).splitlines()]
    assert ["commit", moved, "moved"] in listed
    assert ["commit", before, "emptied"] in listed
    assert [kind for kind, _, name in listed if name in ("filed", "folder")] == ["blob", "blob"]
    assert "removed" not in [name for _, _, name in listed]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["HEAD", "packed-refs", "config", "refs/heads/main", "info/exclude"])
def test_a_pipe_in_a_nested_repository_blocks_nothing(repo: Path, tree: Path, name: str) -> None:
    nest(tree / "sub")
    git(tree / "sub", "symbolic-ref", "HEAD", "refs/heads/main")
    pipe = tree / "sub/.git" / name
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    Git(repo).create_snapshot(tree, "snapshot", timeout=20)


def test_an_index_with_a_file_in_place_of_a_repository_asks_it_nothing(repo: Path, tree: Path) -> None:
    nest(tree / "deep/sub")
    add_link(tree, "deep/sub")
    arm(tree / "deep/sub")
    assert list(Git(repo).links(tree)) == ["deep/sub"]


def test_a_few_objects_that_stand_for_ten_million_files_are_not_read(repo: Path, tree: Path) -> None:
    nest(tree / "bomb")
    oid, kind = git(tree / "bomb", "rev-parse", "HEAD:x"), "blob"
    for _ in range(7):
        listed = "".join(f"{'100644' if kind == 'blob' else '040000'} {kind} {oid}\t{name}\n" for name in range(10))
        oid, kind = subprocess.run(["git", "mktree"], cwd=tree / "bomb", input=listed, text=True, check=True,
                                   capture_output=True).stdout.strip(), "tree"
    commit = git(tree / "bomb", *IDENTITY, "commit-tree", oid, "-m", "bomb")
    git(tree / "bomb", "update-ref", "HEAD", commit)
    (tree / "new").write_text("new")
    began = time.monotonic()
    saved = Git(repo).create_snapshot(tree, "saved")
    assert time.monotonic() - began < 30 and git(repo, "show", f"{saved}:new") == "new"
    assert git(repo, "ls-tree", saved, "bomb").startswith("160000 commit "), "its files, without its history"
