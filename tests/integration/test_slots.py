"""Gate slots and worktree numbers on real repositories, whatever gates and agents did in them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from merge_support import World, git

from garrison.doctor import cleanup
from garrison.doctor.fixes import remove_folder
from garrison.merge.slots import acquire_slot, claim_number, read_pid, remove_idle_slots, remove_void_claims
from garrison.system.git import Git


def repository(path: Path, text: str) -> Git:
    path.mkdir()
    (path / "a.txt").write_text(text)
    git(path, "init", "-q", "-b", "main")
    commit_all(path)
    return Git(path)


def commit_all(path: Path) -> None:
    git(path, "add", "-A")
    git(path, "commit", "-qm", "all")


def test_a_slot_of_a_repository_that_was_made_again_is_made_again(tmp_path: Path) -> None:
    first = repository(tmp_path / "repo", "old\n")
    slot = acquire_slot(first, tmp_path / "trees")
    slot.prepare("main")
    slot.release()
    shutil.rmtree(tmp_path / "repo")
    second = repository(tmp_path / "repo", "new\n")
    slot = acquire_slot(second, tmp_path / "trees")
    slot.prepare("main")
    assert (slot.path / "a.txt").read_text() == "new\n"
    slot.release()


def test_a_slot_whose_removal_was_killed_leaves_nothing(tmp_path: Path) -> None:
    """Regression: its files stayed in `slot-1.left-1`, which nothing removed."""
    kit = repository(tmp_path / "repo", "text\n")
    slot = acquire_slot(kit, tmp_path / "trees")
    slot.prepare("main")
    (slot.path / ".git").unlink()
    slot.prepare("main")
    assert (slot.path / ".git").exists()
    assert [path.name for path in (tmp_path / "trees").iterdir() if "left" in path.name] == []
    slot.release()


def test_idle_slots_are_removed_and_used_ones_stay(tmp_path: Path) -> None:
    kit = repository(tmp_path / "repo", "text\n")
    folder = tmp_path / "trees" / "key"
    held, left = acquire_slot(kit, folder), acquire_slot(kit, folder)
    for slot in (held, left):
        slot.prepare("main")
    left.release()
    remove_idle_slots(kit, folder)
    assert (held.path.is_dir(), left.path.exists()) == (True, False)
    held.release()
    remove_idle_slots(kit, folder)
    assert not folder.exists()
    assert [tree.path for tree in kit.worktrees()] == [tmp_path / "repo"]


def count_calls(kit: Git, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    real = kit.run
    monkeypatch.setattr(kit, "run", lambda *words, **more: (calls.append(words[0]), real(*words, **more))[1])
    return calls


def test_git_cleans_a_slot_in_which_a_gate_left_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit = repository(tmp_path / "repo", "text\n")
    slot = acquire_slot(kit, tmp_path / "trees")
    slot.prepare("main")
    calls = count_calls(kit, monkeypatch)
    for left in ("", "new.txt", "folder/sub/new.txt", "a.txt/in/its/place", "empty"):
        if left == "a.txt/in/its/place":
            (slot.path / "a.txt").unlink()
        if left == "empty":
            (slot.path / left).mkdir()
        elif left:
            (slot.path / left).parent.mkdir(parents=True, exist_ok=True)
            (slot.path / left).write_text("left\n")
        assert slot.find_altered() == ""
        calls.clear()
        slot.prepare("main")
        assert ("clean" in calls) is bool(left), left
        assert sorted(path.name for path in slot.path.iterdir()) == [".git", "a.txt"]
        assert (slot.path / "a.txt").read_text() == "text\n"
    slot.release()


def test_a_slot_knows_what_it_shows_from_the_difference_of_its_commits(tmp_path: Path,
                                                                       monkeypatch: pytest.MonkeyPatch) -> None:
    kit = repository(tmp_path / "repo", "text\n")
    slot = acquire_slot(kit, tmp_path / "trees")
    slot.prepare("main")
    root = tmp_path / "repo"
    (root / "deep").mkdir()
    (root / "deep/b.txt").write_text("b\n")
    (root / "a.txt").unlink()
    commit_all(root)
    slot.prepare(git(root, "rev-parse", "main"))
    calls = count_calls(kit, monkeypatch)
    (slot.path / "deep/b.txt").chmod(0o200)
    assert slot.find_altered() == "deep/b.txt with mode 200"
    (slot.path / "deep").chmod(0o500)
    assert slot.find_altered() == "deep with mode 500"
    (slot.path / "deep").chmod(0o700)
    (slot.path / "deep/b.txt").chmod(0o600)
    assert (slot.find_altered(), calls) == ("", [])
    slot.release()


DEEDS = {
    "edited": "echo more >> lines.txt",
    "same size and time": "touch -r lines.txt ../mark; printf 'X' | dd of=lines.txt conv=notrunc status=none; "
                          "touch -r ../mark lines.txt; rm ../mark",
    "mode": "chmod +x lines.txt",
    "staged": "echo new > new; rm lines.txt; git add -A",
    "a directory in its place": "rm lines.txt; mkdir lines.txt; echo x > lines.txt/x",
    "committed": "git -c user.name=A -c user.email=a@x commit -q --allow-empty -m theirs",
    "on a branch": "git checkout -q -B theirs",
    "on the target": "git symbolic-ref HEAD refs/heads/main",
    "amid a merge": "git merge -q --no-commit --no-ff other || true",
    "its index torn": "printf torn > $(git rev-parse --git-dir)/index",
    "its HEAD torn": "printf torn > $(git rev-parse --git-dir)/HEAD",
}


@pytest.mark.smoke
def test_a_slot_shows_exactly_the_commit_whatever_a_gate_did_in_it(world: World) -> None:
    world.branch("other", {"lines.txt": "other\n"})
    commit = world.branch("next", {"lines.txt": "next\n", "dir/file": "x\n"})
    slot = acquire_slot(world.queue.git, world.trees)
    trees = {shown: git(world.repo, "rev-parse", f"{shown}^{{tree}}") for shown in (world.start, commit)}
    for shown, (name, deed) in [(world.start, ("nothing", "true")),
                                *((shown, each) for each in DEEDS.items() for shown in (commit, world.start, commit))]:
        slot.prepare(shown)
        assert git(slot.path, "status", "--porcelain=v2", "--branch", "--ignored").splitlines() == [
            f"# branch.oid {shown}", "# branch.head (detached)"], f"before {name}"
        assert git(slot.path, "write-tree") == trees[shown]
        if shown == commit:
            assert (slot.path / "lines.txt").read_text() == "next\n"
            assert not (slot.path / "lines.txt").stat().st_mode & 0o100
        assert not (slot.git.git_dir(slot.path) / "logs/HEAD").exists()
        subprocess.run(["sh", "-c", deed], cwd=slot.path, check=True)
    assert world.tip() == world.start
    slot.remove()
    slot.release()


def test_numbers_of_worktrees_are_unique_stable_and_free_after_a_crash(repo: Path, tmp_path: Path) -> None:
    kit, folder = Git(repo), tmp_path / "trees"
    slot = acquire_slot(kit, folder)
    trees = [folder / "r1" / f"n{number}" for number in range(8)]
    for tree in trees:
        tree.mkdir(parents=True)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda tree: claim_number(kit, folder, tree), trees))
    assert sorted(found) == list(range(2, 10)), "slot 1 is a gate's"
    assert [claim_number(kit, folder, tree) for tree in trees] == found
    second = acquire_slot(kit, folder)
    assert second.number == 10
    shutil.rmtree(trees[3])  # as a crash leaves it
    (folder / "r2/other").mkdir(parents=True)
    assert claim_number(kit, folder, folder / "r2/other") == found[3]
    shutil.rmtree(trees[0])
    remove_void_claims(kit, folder)
    assert len(list(folder.glob("number-*"))) == 7
    for one in (slot, second):
        one.release()


def test_a_wrappers_output_counts_once_it_is_complete(tmp_path: Path) -> None:
    for torn in ("", "123", "123 45"):
        (tmp_path / "pid").write_text(torn)
        assert read_pid(tmp_path) is None
    (tmp_path / "pid").write_text("123 45\n")
    assert read_pid(tmp_path) == (123, 45)


ORDINARY = 1001
DEEP = "d=x; for n in $(seq 60); do d=$d/$(printf %060d 0); done; for n in $(seq 20); do mkdir -p $d; cd $d; done"
"""Deeper than Python may recurse, and longer than the kernel takes a path."""


@pytest.fixture
def shared() -> Iterator[Path]:
    """Yield a folder that an ordinary user can write."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # the folder of the tests may be closed to others
        if os.geteuid() == 0:
            os.chown(folder, ORDINARY, ORDINARY)
        yield Path(folder)


def as_ordinary_user(deed: Callable[[], None]) -> None:
    """Call `deed` in a process of an ordinary user, to whom file modes apply."""
    if os.geteuid():
        deed()
        return
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(ORDINARY, ORDINARY, ORDINARY)
            os.setresuid(ORDINARY, ORDINARY, ORDINARY)
            os.environ["HOME"] = "/nonexistent"
            deed()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_slot_serves_the_next_branch_whatever_rights_the_last_one_took(shared: Path) -> None:
    cases = [("chmod 000 .", "its worktree with mode 000"), ("chmod 555 .", "its worktree with mode 555"),
             ("chmod 555 sub", "sub with mode 555"), ("chmod 000 sub/in sub", "sub with mode 000"),
             ("chmod 000 a.txt", "a.txt with mode 000"), ("mkdir -p x/y; chmod 000 x/y x", ""), (DEEP, ""),
             ("rm -rf sub; ln -s / sub; mkdir -p x/y; touch x/y/z; chmod 555 x/y", "")]

    def deed() -> None:
        kit = repository(shared / "repo", "text\n")
        (shared / "repo/sub/in").mkdir(parents=True)
        (shared / "repo/sub/in/b.txt").write_text("b\n")
        commit_all(shared / "repo")
        for command, altered in cases:
            slot = acquire_slot(kit, shared / "trees/key")
            for again in range(2):
                slot.prepare("main")
                (slot.path / "sub/in/b.txt").write_text("the gate writes\n")
                (slot.path / "new.txt").write_text("the gate writes\n")
                subprocess.run(["sh", "-c", command], cwd=slot.path, check=False, stderr=subprocess.DEVNULL)
                if again:  # a processor that was killed has not looked
                    slot.release()
                    slot = acquire_slot(kit, shared / "trees/key", slot.number)
                else:
                    assert slot.find_altered() == altered, command
            slot.prepare("main")
            assert (slot.path / "a.txt").read_text() == "text\n"
            assert not (slot.path / "x").exists()
            subprocess.run(["sh", "-c", command], cwd=slot.path, check=False, stderr=subprocess.DEVNULL)
            slot.release()
            remove_idle_slots(kit, shared / "trees/key")
            assert not (shared / "trees/key").exists(), command
            assert len(kit.worktrees()) == 1

    as_ordinary_user(deed)


def test_the_folder_of_a_run_is_removed_whatever_rights_a_command_took(shared: Path) -> None:
    """Its exchange folder is what a command may write; as root nothing would show."""
    def deed() -> None:
        for remove, name in ((cleanup.remove_run_folder, "r"),
                             (lambda path: remove_folder(path).apply(None), ".r.1.tmp")):
            (shared / name / "agent/d/e").mkdir(parents=True)
            subprocess.run(["sh", "-c", "chmod 000 agent/d/e agent/d agent"], cwd=shared / name, check=True)
            remove(shared / name)
        assert list(shared.iterdir()) == []

    as_ordinary_user(deed)


def test_work_is_saved_and_its_worktree_removed_whatever_rights_the_agent_took(shared: Path) -> None:
    def deed() -> None:
        kit = repository(shared / "repo", "text\n")
        for number, command in enumerate(("chmod 000 .", "chmod 000 a.txt d/e d", "chmod 555 d .")):
            tree, branch = shared / f"trees/{number}", f"node{number}"
            kit.add_worktree(tree, branch, "main")
            (tree / "d/e").mkdir(parents=True)
            (tree / "d/e/made.txt").write_text("made\n")
            (tree / "a.txt").write_text("changed\n")
            subprocess.run(["sh", "-c", command], cwd=tree, check=True)
            kit.add_worktree(tree, branch, "main")  # a successor takes it over
            made = kit.commit_all(tree, "all")
            assert made
            assert kit.changed_paths("main", made) == ["a.txt", "d/e/made.txt"]
            subprocess.run(["sh", "-c", command], cwd=tree, check=True)
            kit.remove_worktree(tree)
            assert not tree.exists(), command

    as_ordinary_user(deed)
