"""What a set-up leaves behind is not taken for work: not by us, not by an agent's own `git add -A`."""

from __future__ import annotations

from garrison.system.git import Git
from garrison.system.worktree_files import hide_setup_output
from support import git


def test_only_whole_untracked_directories_are_hidden(repo):
    (repo / "src").mkdir()
    (repo / "src/code.py").write_text("x = 1\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "Add a module")
    for name in ("env/bin", "src/made.egg-info", "odd [name]"):
        (repo / name).mkdir(parents=True)
        (repo / name / "tool").write_text("made by the set-up\n")
    (repo / "made.lock").write_text("pinned\n")
    (repo / "src/new.py").write_text("y = 1\n")
    assert hide_setup_output(Git(repo), repo) == ["env/", "odd [name]/", "src/made.egg-info/"]
    git(repo, "add", "-A")
    assert git(repo, "diff", "--cached", "--name-only").splitlines() == ["made.lock", "src/new.py"]
    assert hide_setup_output(Git(repo), repo) == []


def test_a_directory_with_its_own_ignore_rules_is_hidden_whole(repo):
    (repo / "env").mkdir()
    (repo / "env/.gitignore").write_text("cache")
    (repo / "env/tool").write_text("made\n")
    hide_setup_output(Git(repo), repo)
    git(repo, "add", "-A")
    assert git(repo, "status", "--porcelain") == ""
