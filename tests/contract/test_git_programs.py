"""Filters and merge drivers of the user's whose program is the agent's: outside with mode `none`, else confined."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.run.git_record import confined_command, runs_outside, trust_present
from garrison.sandbox.place import MODE_VARIABLE, Mode, Rights
from garrison.sandbox.probe import machine
from garrison.system.git import Git
from support import commit_all, git, make_repository, write_program

pytestmark = pytest.mark.skipif(not machine().bubblewrap, reason=machine().refusal or "bubblewrap works")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    make_repository(tmp_path / "repo")
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "repo"


def program(folder: Path, text: str) -> None:
    """Leave a program that marks that it ran, copies a secret and continues with `text`."""
    outside = folder.parent
    (folder / "tools").mkdir(exist_ok=True)
    write_program(folder / "tools/run", f"#!/bin/sh\ntouch {outside}/ran\ncat {outside}/secret\n{text}\n")


def launched(repo: Path, mode: Mode) -> Git:
    """Record what is configured as a launch does."""
    home = repo.parent / "home"
    ours = Git(repo, home=home, environ={**Git(repo).environment, MODE_VARIABLE: mode})
    trust_present(home, ours, lambda _: None)
    return ours


COMMANDS = ["./tools/run %f", "sh tools/run", "PYTHONPATH= python3 -m tool"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("mode", [Mode.NONE, Mode.BUBBLEWRAP])
def test_a_filter_in_the_repository_runs_where_the_agent_may(repo: Path, command: str, mode: Mode) -> None:
    git(repo, "config", "filter.f.clean", command)
    tree, ours = repo.parent / "tree", launched(repo, mode)
    ours.add_worktree(tree, "tree", "main")
    program(tree, "sed s/a/b/")
    (tree / "tool.py").write_text("import os; os.execv('tools/run', ['run'])\n")
    (tree / ".gitattributes").write_text("*.txt filter=f\n")
    (tree / "it's %d.txt").write_text("a\n")
    made = ours.commit_all(tree, "left")
    content = git(repo, "show", f"{made}:it's %d.txt")
    if mode is Mode.NONE:
        assert ((repo.parent / "ran").exists(), content) == (True, "secretb")
    else:
        assert ((repo.parent / "ran").exists(), content) == (False, "b")


@pytest.mark.parametrize("mode", [Mode.NONE, Mode.BUBBLEWRAP])
@pytest.mark.parametrize("command", ["./tools/run %O %A %B %P '100%%'", "./tools/run %O %A %B %P x"])
def test_a_merge_driver_in_the_repository_runs_where_the_agent_may(repo: Path, mode: Mode, command: str) -> None:
    git(repo, "config", "merge.m.driver", command)
    (repo / ".gitattributes").write_text("*.txt merge=m\n")
    (repo / "it's a.txt").write_text("base\n")
    program(repo, f'cat "$1" "$3" >> "$2"; echo "$4 $5" >> "$2"; mv "$2" "$2.new"; mv "$2.new" "$2"; '
                  f'test ! -e {repo}/.git/config || touch {repo}/read; exit 0')
    (repo / "tools/run").write_text((repo / "tools/run").read_text().replace("/secret", "/secret >&2"))
    commit_all(repo, "base")
    git(repo, "branch", "other")
    for branch in ("main", "other"):
        git(repo, "checkout", "-q", branch)
        (repo / "it's a.txt").write_text(f"{branch}\n")
        git(repo, "commit", "-qam", branch)
    git(repo, "checkout", "-q", "main")
    ours = launched(repo, mode)
    merged = ours.merge_tree("main", "other")
    assert merged.tree is not None, merged
    last = "it's a.txt " + ("100%" if "100" in command else "x")
    assert git(repo, "show", f"{merged.tree}:it's a.txt").split("\n") == ["main", "base", "other", last]
    assert (repo.parent / "ran").exists() is (repo / "read").exists() is (mode is Mode.NONE)


def test_what_a_merge_driver_prints_is_not_taken_for_the_merged_tree(repo: Path) -> None:
    git(repo, "config", "merge.m.driver", f"echo {git(repo, 'rev-parse', 'HEAD^{tree}')}")
    (repo / ".gitattributes").write_text("*.txt merge=m\n")
    commit_all(repo, "base")
    git(repo, "branch", "other")
    for branch in ("main", "other"):
        git(repo, "checkout", "-q", branch)
        (repo / "a.txt").write_text(f"{branch}\n")
        commit_all(repo, branch)
    merged = launched(repo, Mode.BUBBLEWRAP).merge_tree("main", "other")
    assert merged.tree is not None
    assert git(repo, "ls-tree", "--name-only", merged.tree, "a.txt") == "a.txt"


def test_percent_signs_of_a_process_filter_stay_as_they_are() -> None:
    line = confined_command("filter.x.process", "run 100%", Rights(), {"PATH": "/bin", "HOME": "/root"}, machine())
    assert line.endswith("'run 100%' git")


@pytest.mark.parametrize(("command", "is_outside"), [
    ("git-lfs clean -- %f", True), ("git lfs filter-process", True), ('"/usr/bin/git-crypt" clean', True),
    ("git merge-file -L a %A %O %B", True), ("git-lfs clean; ./x", False), ("./git-lfs clean", False),
    ("/repo/bin/git-lfs clean", False), ("git-lfs clean $(./x)", False), ("python3 -m nbstripout", False)])
def test_programs_of_the_machine_that_need_the_git_directory_stay_outside(command: str, is_outside: bool) -> None:
    assert runs_outside(command, Path("/repo")) is is_outside
