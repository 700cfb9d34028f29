"""Work that a confined agent committed in its git view, where garrison saves, removes and continues worktrees."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest

from garrison.errors import GarrisonError
from garrison.node import snapshots
from garrison.node.worktree import (
    AttemptWorktree,
    OrphanedWorktree,
    collect_commits,
    lend_worktree,
    save_and_remove,
    save_worktree,
    undo_foreign_move,
)
from garrison.records.run import Task
from garrison.sandbox.collect import enter
from garrison.sandbox.git_view import REPOSITORY, GitView
from garrison.sandbox.place import sandbox_folder
from garrison.system import failpoint
from garrison.system.git import Git
from garrison.values import replace
from sandbox_support import missing, run_inside
from support import commit_all, git

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
BRANCH = "garrison/run/node"
TASK = Task("run", "node", 1)


@pytest.fixture
def node(repo, tmp_path):
    made = worktree_of(repo, tmp_path, TASK)
    made.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    return made


def worktree_of(repo, tmp_path, task):
    folder = tmp_path / f"attempt{task.attempt}"
    folder.mkdir(exist_ok=True)
    launch = SimpleNamespace(onto="main", run_id="run", lock_files=(), adhoc=False)
    return AttemptWorktree(Git(repo), launch, task, tmp_path / "trees" / "node", BRANCH, folder, lambda ref: None)


def work(node, script, owner="1"):
    """Run the script of a confined agent in the node's worktree."""
    return run_inside(node.path, enter(GitView(node.git, node.path), owner), script).stdout.strip()


def tip_of_main(repo):
    return git(repo, "rev-parse", "main")


def tip(repo):
    return git(repo, "rev-parse", f"refs/heads/{BRANCH}")


def test_a_failed_nodes_commits_and_files_are_under_its_rescue_ref(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a; echo b > b")
    ref = node.save("left when it failed")
    assert git(repo, "ls-tree", "--name-only", ref).split() == ["a", "b", "calc.py", "notes.txt"]
    assert git(repo, "log", "--format=%s", f"{ref}~1", "-1") == "a"
    node.remove()
    assert not sandbox_folder(node.path).exists()
    assert not node.path.parent.exists(), "nothing is left in the folder of worktrees"


def test_an_interval_snapshot_has_the_commits_of_a_working_agent(repo, node, capsys, tmp_path):
    work(node, "echo a > a; git add a; git commit -qm a")
    argv = ["--repo", str(repo), "--tree", str(node.path), "--stem", "refs/garrison/rescue/run/node/1-live",
            "--base", "main", "--home", str(tmp_path / "home")]
    assert snapshots.main(argv) == 0
    ref = capsys.readouterr().out.strip()
    assert git(repo, "log", "-1", "--format=%s", ref) == "a"


def test_a_successor_continues_in_its_predecessors_view(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a; echo s > calc.py; git stash -q; git branch mine")
    assert work(node, "git stash list; git branch --list mine").splitlines() == ["stash@{0}: WIP on garrison/run/node: "
                                                                                 + git(repo, "rev-parse", "--short",
                                                                                       BRANCH) + " a", "  mine"]
    assert git(repo, "log", "-1", "--format=%s", BRANCH) == "a"
    git(node.path, "commit", "-q", "--allow-empty", "-m", "the user's")
    assert work(node, "git log -1 --format=%s") == "the user's"
    assert not git(repo, "stash", "list")


def test_commits_in_a_partial_clone_are_collected_without_what_was_never_fetched_and_with_no_gap(repo, tmp_path):
    for name in ("docs/a", "docs/b", "src/c"):
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(f"{name}\n")
    commit_all(repo, "more")
    git(repo, "config", "uploadpack.allowFilter", "true")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", "--filter=blob:none", "--sparse", f"file://{repo}", "clone")
    git(clone, "sparse-checkout", "set", "src")

    def count_missing():
        return git(clone, "rev-list", "--objects", "--all", "--missing=print").count("?")

    lacking, node = count_missing(), worktree_of(clone, tmp_path, TASK)
    assert lacking == 2
    node.prepare(tip_of_main(clone), is_new_attempt=False, agent_alive=False)
    work(node, "echo mine > src/c; git rm -q --sparse docs/a; git commit -qam mine")
    assert collect_commits(node.git, node.path, "run", "node", 1) == ""
    assert git(clone, "diff", "--name-status", "main", BRANCH).split() == ["D", "docs/a", "M", "src/c"]
    work(node, r"t=$(printf '100644 blob %040d\tx\n' 7 | git mktree --missing); git reset -q --soft "
               r"$(git commit-tree -p HEAD -m gap $t)")
    with pytest.raises(GarrisonError, match=r"did not receive expected object 0{39}7"):
        collect_commits(node.git, node.path, "run", "node", 1)
    assert git(clone, "log", "-1", "--format=%s", BRANCH) == "mine"
    assert count_missing() == lacking


def test_a_later_attempt_starts_in_its_own_view_with_the_merge_to_finish(repo, node, tmp_path):
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
    work(node, "echo a > a; git add a; git commit -qm a")
    second = worktree_of(repo, tmp_path, replace(TASK, attempt=2, rework="fresh"))
    second.prepare(tip_of_main(repo), is_new_attempt=True, agent_alive=False)
    assert git(repo, "log", "-1", "--format=%s", "refs/garrison/rescue/run/node/1") == "a"
    assert tip(repo) == tip_of_main(repo)
    assert work(second, "git log -1 --format=%s", "2") == "Begin"


def test_commits_that_cannot_be_on_the_branch_are_saved(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a")
    git(repo, "update-ref", f"refs/heads/{BRANCH}", git(repo, "commit-tree", "-m", "theirs", "main^{tree}"))
    reason = collect_commits(node.git, node.path, "run", "node", 1)
    assert "refs/garrison/rescue/run/node/1-branch" in reason
    assert git(repo, "log", "-1", "--format=%s", "refs/garrison/rescue/run/node/1-branch") == "a"
    assert tip(repo) != tip_of_main(repo), "another's commit is not overwritten"
    assert "was moved to" in undo_foreign_move(node.git, TASK, node.path, BRANCH)
    assert collect_commits(node.git, node.path, "run", "node", 1) == ""
    assert git(repo, "log", "-1", "--format=%s", BRANCH) == "a"
    assert git(repo, "log", "-1", "--format=%s", "refs/garrison/rescue/run/node/1-moved") == "theirs"


def test_what_an_agent_does_to_its_branch_is_never_a_move_from_elsewhere(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a")
    for script in ("git checkout -q --detach; git commit -q --allow-empty -m d", "git branch -f garrison/run/node HEAD",
                   "git commit -q --allow-empty -m e; git branch -f garrison/run/node; git switch -q garrison/run/node",
                   "git reset -q --hard HEAD~1; git commit -q --allow-empty -m f",
                   "git commit -q --amend --allow-empty -m g"):
        work(node, script)
        assert collect_commits(node.git, node.path, "run", "node", 1) == ""
        assert undo_foreign_move(node.git, TASK, node.path, BRANCH) == "", script
    assert git(repo, "log", "-1", "--format=%s", BRANCH) == "g"
    git(node.path, "commit", "-q", "--allow-empty", "-m", "the user's, in the worktree")
    assert undo_foreign_move(node.git, TASK, node.path, BRANCH) == ""


def test_a_refusal_by_git_does_not_keep_files_from_being_saved(repo, node):
    work(node, f"echo a > a; git add a; git commit -qm a; cd {REPOSITORY}; rm -rf objects/??; mkfifo x; "
               "rm HEAD; mkfifo HEAD; chmod 0 refs")
    ref = save_worktree(node.git, node.path, "run", "node", 1, "left")
    assert "a" in git(repo, "ls-tree", "--name-only", ref).split()
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    assert work(node, "git log -1 --format=%s") == "Begin"
    node.remove()
    assert not sandbox_folder(node.path).exists()


def test_a_worktree_that_a_killed_run_left_is_collected_before_it_is_removed(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a")
    orphan = OrphanedWorktree(node.path, "run", "node", "tree")
    save_and_remove(node.git, orphan, 1)
    assert git(repo, "log", "-1", "--format=%s", BRANCH) == "a"
    assert not sandbox_folder(node.path).exists()


def test_an_agents_stash_and_other_branches_are_saved_when_its_worktree_goes(repo, node):
    work(node, "git switch -qc side; echo s > s; git add s; git commit -qm side; git switch -q -; git branch same; "
               "echo t > calc.py; git stash -q; git switch -qc packed; git commit -q --allow-empty -m packed; "
               "git switch -q -; git pack-refs --all; git reset -q --hard; git clean -qfd")
    node.save_rest()
    node.remove()
    kept = git(repo, "for-each-ref", "--format=%(refname) %(subject)", "refs/garrison/rescue/run/node").splitlines()
    assert sorted(line.split(" ", 1)[1].partition(":")[0] for line in kept) == ["WIP on garrison/run/node", "packed",
                                                                                "side"]
    assert all("/1-other" in line for line in kept)


def test_commits_of_a_worktree_that_vanished_are_on_its_branch_and_in_the_next_worktree(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a")
    for how, content in (("removed", "a"), ("unregistered", "a\nmore")):
        shutil.rmtree(node.path)
        if how == "unregistered":
            git(repo, "worktree", "prune")
        assert node.save("left when it failed") == ""
        node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
        assert git(repo, "log", "-1", "--format=%s", BRANCH) == "a"
        assert work(node, "git status --porcelain; cat a") == content
        work(node, "echo more >> a; git commit -q --amend -am a")
        git(node.path, "checkout", "-q", "--", ".")


def test_a_user_who_takes_over_commits_to_the_repository_and_the_agent_continues_there(repo, node):
    work(node, "echo a > a; git add a; git commit -qm a")
    with lend_worktree(node.git, node.path, "run", "node", 1):
        assert git(node.path, "log", "-1", "--format=%s") == "a"
        git(node.path, "commit", "-q", "--allow-empty", "-m", "the user's")
    mounts = GitView(node.git, node.path).mounts()
    assert run_inside(node.path, mounts, "git log -1 --format=%s; git status --porcelain").stdout == "the user's\n"
    run_inside(node.path, mounts, "git commit -q --allow-empty -m more")
    assert collect_commits(node.git, node.path, "run", "node", 1) == ""
    assert git(repo, "log", "-2", "--format=%s", BRANCH).splitlines() == ["more", "the user's"]


def test_objects_of_git_lfs_come_out_if_they_are_what_their_names_say(repo, node):
    (repo / ".git/lfs/objects").mkdir(parents=True)
    work(node, f"""
      o=$(printf big | sha256sum | cut -d' ' -f1)
      d={REPOSITORY}/lfs/objects/$(echo $o | cut -c1-2)/$(echo $o | cut -c3-4); mkdir -p $d; printf big > $d/$o
      test -d /run/garrison/git/0/lfs; printf '*.bin filter=lfs\\n' > .gitattributes
      printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize 3\\n' $o > a.bin
      git add .; git commit -qm big; echo $o > name""")
    name = (node.path / "name").read_text().strip()
    collect_commits(node.git, node.path, "run", "node", 1)
    assert (repo / ".git/lfs/objects" / name[:2] / name[2:4] / name).read_text() == "big"
    forged = "0" * 64
    work(node, f"mkdir -p {REPOSITORY}/lfs/objects/00/00; echo x > {REPOSITORY}/lfs/objects/00/00/{forged}; "
               "git commit -q --allow-empty -m forged")
    with pytest.raises(GarrisonError, match="does not match its name"):
        collect_commits(node.git, node.path, "run", "node", 1)
    assert not (repo / ".git/lfs/objects/00/00" / forged).exists()


def test_a_lock_that_a_killed_git_left_on_the_branch_keeps_no_worktree_from_being_made(repo, tmp_path):
    """Seen in a soak: the runner was killed while git made the worktree, and no successor could make it."""
    node = worktree_of(repo, tmp_path, TASK)
    node.git.retry_seconds = 0.2
    lock = repo / f".git/refs/heads/{BRANCH}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    node.prepare(tip_of_main(repo), is_new_attempt=False, agent_alive=False)
    assert not lock.exists()
    assert node.git.branch_tip(BRANCH) == tip_of_main(repo)


@pytest.mark.parametrize("again", [False, True], ids=["once", "alongside one that runs"])
def test_objects_that_a_gc_takes_before_their_ref_exists_are_collected_again(repo, node, monkeypatch, again):
    """The agent's git directory has all; a ref without its objects would break the user's own `git gc` for ever."""
    work(node, "echo a > a; git add a; git commit -qm a; echo b > b; git add b; git commit -qm b")
    calls = []

    def collected(point):
        if point == "collect:imported":
            calls.append(git(repo, "gc", "--quiet", "--force", "--prune=now"))
            (repo / ".git/gc.pid").write_text(f"{os.getpid()} host" if again else "0")

    def ended(self, *words, **more):
        (repo / ".git/gc.pid").unlink()
        return snapshot(self, *words, **more)

    snapshot = Git.create_snapshot
    monkeypatch.setattr(Git, "create_snapshot", ended)
    monkeypatch.setattr(failpoint, "here", collected)
    assert node.save("left when it failed") and len(calls) == 2
    assert git(repo, "log", "--format=%s", BRANCH).split()[:2] == ["b", "a"]
    assert git(repo, "fsck", "--no-dangling") == "" and not list((repo / ".git/objects/pack").glob("*.keep"))
