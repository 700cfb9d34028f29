"""Work that a confined agent committed in its git view, where garrison saves, removes and continues worktrees."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from garrison.processes import snapshots
from garrison.processes.worktree import (
    OrphanedWorktree,
    Worktree,
    adopt_commits,
    collect_commits,
    save_and_remove,
    save_worktree,
)
from garrison.records.run import Task
from garrison.sandbox.collect import enter
from garrison.sandbox.git_view import GitView, sandbox_folder
from garrison.system.git import Git
from sandbox_support import missing, run_inside
from support import git, make_repository

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
BRANCH = "garrison/run/node"
TASK = Task("run", "node", 1)


@pytest.fixture
def repo(tmp_path):
    path = tmp_path / "repo"
    make_repository(path)
    return path


@pytest.fixture
def node(repo, tmp_path):
    return worktree_of(repo, tmp_path, TASK)


def worktree_of(repo, tmp_path, task):
    folder = tmp_path / f"attempt{task.attempt}"
    folder.mkdir(exist_ok=True)
    launch = SimpleNamespace(onto="main", run_id="run", lock_files=(), adhoc=False)
    return Worktree(Git(repo), launch, task, tmp_path / "trees" / "node", BRANCH, folder, lambda ref: None)


def work(node, script, owner="1"):
    """Run the script of a confined agent in the node's worktree."""
    return run_inside(node.path, enter(GitView(node.git, node.path), owner), script).stdout.strip()


def tip(repo):
    return git(repo, "rev-parse", f"refs/heads/{BRANCH}")


def test_a_failed_nodes_commits_and_files_are_under_its_rescue_ref(repo, node):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo a > a; git add a; git commit -qm a; echo b > b")
    ref = node.save("left when it failed")
    assert git(repo, "ls-tree", "--name-only", ref).split() == ["a", "b", "calc.py", "notes.txt"]
    assert git(repo, "log", "--format=%s", f"{ref}~1", "-1") == "a"
    node.remove()
    assert not sandbox_folder(node.path).exists()
    assert not node.path.parent.exists(), "nothing is left in the folder of worktrees"


def tip_of_main(repo):
    return git(repo, "rev-parse", "main")


def test_an_interval_snapshot_has_the_commits_of_a_working_agent(repo, node, capsys, tmp_path):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo a > a; git add a; git commit -qm a")
    argv = ["--repo", str(repo), "--tree", str(node.path), "--stem", "refs/garrison/rescue/run/node/1-live",
            "--base", "main", "--home", str(tmp_path / "home")]
    assert snapshots.main(argv) == 0
    ref = capsys.readouterr().out.strip()
    assert git(repo, "log", "-1", "--format=%s", ref) == "a"


def test_a_successor_continues_in_its_predecessors_view(repo, node):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo a > a; git add a; git commit -qm a; echo s > calc.py; git stash -q; git branch mine")
    assert work(node, "git stash list; git branch --list mine").splitlines() == ["stash@{0}: WIP on garrison/run/node: "
                                                                                 + git(repo, "rev-parse", "--short",
                                                                                       BRANCH) + " a", "  mine"]
    assert git(repo, "log", "-1", "--format=%s", BRANCH) == "a"
    git(node.path, "commit", "-q", "--allow-empty", "-m", "a person's")
    assert work(node, "git log -1 --format=%s") == "a person's"
    assert not git(repo, "stash", "list")


def test_a_later_attempt_begins_in_a_view_of_its_own_with_the_merge_to_finish(repo, node, tmp_path):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo mine > calc.py; git commit -qam mine")
    (repo / "calc.py").write_text("theirs\n")
    git(repo, "commit", "-qam", "theirs")
    second = worktree_of(repo, tmp_path, replace(TASK, attempt=2, rework="merge"))
    second.prepare(tip_of_main(repo), is_new_attempt=True, agent_alive=False)
    found = work(second, "git status --porcelain; git log -1 --format=%s MERGE_HEAD; git log -1 --format=%s main", "2")
    assert found.splitlines() == ["UU calc.py", "theirs", "theirs"]
    work(second, "echo both > calc.py; git add calc.py; git commit -qm both", "2")
    assert collect_commits(second.git, second.path, "run", "node", 2) == ""
    assert len(git(repo, "log", "-1", "--format=%P", BRANCH).split()) == 2
    assert git(second.path, "status", "--porcelain") == ""
    work(second, "git reset -q --hard HEAD~1; git merge -q --no-edit main || true; echo again > calc.py", "2")
    collect_commits(second.git, second.path, "run", "node", 2)
    second.git.commit_all(second.path, "left uncommitted")
    assert len(git(repo, "log", "-1", "--format=%P", BRANCH).split()) == 2
    assert git(repo, "show", f"{BRANCH}:calc.py") == "again"


def test_a_dropped_attempts_commits_are_saved_before_a_fresh_one(repo, node, tmp_path):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo a > a; git add a; git commit -qm a")
    second = worktree_of(repo, tmp_path, replace(TASK, attempt=2, rework="fresh"))
    second.prepare(tip_of_main(repo), is_new_attempt=True, agent_alive=False)
    assert git(repo, "log", "-1", "--format=%s", "refs/garrison/rescue/run/node/1") == "a"
    assert tip(repo) == tip_of_main(repo)
    assert work(second, "git log -1 --format=%s", "2") == "Begin"


def test_commits_that_cannot_be_on_the_branch_are_saved(repo, node):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo a > a; git add a; git commit -qm a")
    git(repo, "update-ref", f"refs/heads/{BRANCH}", git(repo, "commit-tree", "-m", "theirs", "main^{tree}"))
    reason = collect_commits(node.git, node.path, "run", "node", 1)
    assert "refs/garrison/rescue/run/node/1-branch" in reason
    assert git(repo, "log", "-1", "--format=%s", "refs/garrison/rescue/run/node/1-branch") == "a"
    assert adopt_commits(node.git, node.path, BRANCH).startswith("it left its branch")


def test_what_git_refuses_keeps_no_files_from_being_saved(repo, node):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, f"echo a > a; git add a; git commit -qm a; rm -rf {repo}/.git/objects/??; mkfifo {repo}/.git/x; "
               f"rm {repo}/.git/worktrees/node/HEAD; mkfifo {repo}/.git/worktrees/node/HEAD; chmod 0 {repo}/.git/refs")
    ref = save_worktree(node.git, node.path, "run", "node", 1, "left")
    assert "a" in git(repo, "ls-tree", "--name-only", ref).split()
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    assert work(node, "git log -1 --format=%s") == "Begin"
    node.remove()
    assert not sandbox_folder(node.path).exists()


def test_a_worktree_that_a_killed_run_left_is_collected_before_it_is_removed(repo, node):
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    work(node, "echo a > a; git add a; git commit -qm a")
    orphan = OrphanedWorktree(node.path, "run", "node", "tree")
    save_and_remove(node.git, orphan, 1)
    assert git(repo, "log", "-1", "--format=%s", BRANCH) == "a"
    assert not sandbox_folder(node.path).exists()
