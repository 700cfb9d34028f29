"""What git, disks and rights answer for a while: each class of the table, at each caller that works on a repository."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from garrison.doctor.cleanup import archive_branch
from garrison.errors import GarrisonError, Hindered
from garrison.node.worktree import adopt_commits
from garrison.system.git import Git, GitError, damage
from garrison.system.git.damage import find_damage, hold_gc
from garrison.system.git.repository import explain_rights
from garrison.system.machine import TABLE, Course, course_of, find_hindrance, passes
from support import git, make_repository

WORDS = {
    "no room": "error: unable to write file .git/objects/ab/cd: No space left on device",
    "read-only": "error: unable to create temporary file: Read-only file system",
    "no rights": "error: insufficient permission for adding an object to repository database .git/objects",
    "shortage": "fatal: unable to create thread: Resource temporarily unavailable",
    "device": "fatal: unable to read tree: Input/output error",
    "configuration": "fatal: bad config line 3 in file .git/config",
    "moved away": "fatal: No such file or directory; the repository is not there: /repo",
}
"""Class that is waited for → an answer of git of that class."""
OTHERS = {
    "fatal: bad config line 1 in blob HEAD:.gitmodules": Course.FAIL,
    'error: open("secret.txt"): Permission denied': Course.FAIL,
    "warning: unable to access '/root/.config/git/attributes': Permission denied": Course.FAIL,
    "fatal: not a valid object name: 'nothing'": Course.FAIL,
    "fatal: not a git repository: /repo/.git/worktrees/node": Course.REPAIR,
    "fatal: failed to read .git/worktrees/node/commondir: Success": Course.REPAIR,
    "fatal: detected dubious ownership in repository at '/repo'": Course.REFUSE,
}


def test_each_answer_has_one_course_and_the_agents_files_are_not_the_machines_fault() -> None:
    assert {find_hindrance(told).name for told in WORDS.values()} == set(WORDS)
    assert set(WORDS) == {each.name for each in TABLE if each.course is Course.WAIT}
    page = (Path(__file__).resolve().parents[2] / "docs/protocols.md").read_text(encoding="utf-8")
    assert "|---|---|---|\n" + "".join(f"| {each.name} | {each.what} | {each.course} |\n" for each in TABLE) in page
    assert all(passes(GitError(("add",), 128, f"hint: more\n{told}")) for told in WORDS.values())
    assert {told: course_of(GitError(("add",), 128, told)) for told in OTHERS} == OTHERS
    assert passes(Hindered("the target is gone")) and not passes(GarrisonError("no"))
    assert passes(PermissionError(errno.EACCES, "no", "/repo/.git/index")) and passes(OSError(errno.EROFS, "no"))
    assert not passes(PermissionError(errno.EACCES, "no", "/trees/node/secret"))


class Scene:
    """A node's worktree with work and a git that gives an answer of the table while `fault` is there."""

    def __init__(self, root: Path) -> None:
        make_repository(root / "repo")
        git(root / "repo", "branch", "garrison/r/old")
        self.fault, folder = root / "fault", root / "bin"
        folder.mkdir()
        real = next(Path(name) / "git" for name in os.environ["PATH"].split(":") if (Path(name) / "git").exists())
        (folder / "git").write_text(f'#!/bin/sh\n[ "$1" != config ] && [ -e {self.fault} ] && '
                                    f'{{ cat {self.fault} >&2; exit 128; }}\nexec {real} "$@"\n')
        (folder / "git").chmod(0o755)
        self.git = Git(root / "repo", {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"})
        self.tree, self.trees = root / "trees/node", root / "trees"
        self.git.add_worktree(self.tree, "garrison/trees/node", "main")
        self.tip = git(root / "repo", "rev-parse", "main")
        (self.tree / "work.txt").write_text("work\n")


CALLERS: dict[str, Callable[[Scene], object]] = {
    "import": lambda s: (s.git.commit_all(s.tree, "work"), adopt_commits(s.git, s.tree, "garrison/trees/node")),
    "worktree": lambda s: s.git.add_worktree(s.trees / "other", "garrison/r/other", "main"),
    "slot": lambda s: s.git.add_worktree(s.trees / "slot", None, "main"),
    "candidate": lambda s: s.git.merge_tree(s.tip, s.tip),
    "landing": lambda s: s.git.update_ref("refs/heads/main", s.tip, s.tip),
    "rescue": lambda s: s.git.save_work(s.tree, "refs/garrison/rescue/r/node/1", "garrison: what node left"),
    "clean": lambda s: archive_branch(s.git, "garrison/r/old"),
    "launch": lambda s: s.git.find_refs_of_runs(),
}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    yield Scene(tmp_path_factory.mktemp("scene"))


@pytest.mark.parametrize("caller", CALLERS)
def test_a_passing_fault_is_never_taken_for_an_answer_and_the_call_works_afterwards(scene: Scene, caller: str) -> None:
    for told in WORDS.values():
        scene.fault.write_text(f"{told}\n")
        with pytest.raises(GitError) as caught:
            CALLERS[caller](scene)
        assert passes(caught.value), (told, caught.value)
    scene.fault.unlink()
    assert CALLERS[caller](scene) is not False


@pytest.mark.parametrize("name", ["commondir", "gitdir", "HEAD", "index"])
def test_a_damaged_registration_of_a_worktree_is_repaired_where_it_is_found(scene: Scene, name: str) -> None:
    path = scene.git.git_dir(scene.tree) / name
    data = path.read_bytes()
    for damaged in (bytes(len(data)), data[:len(data) // 2], bytes([data[0] ^ 4]) + data[1:], b"", None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        scene.git.run("status", "--porcelain", cwd=scene.tree)
        scene.git.add_worktree(scene.tree, "garrison/trees/node", "main")
        assert scene.git.current_branch(scene.tree) == "garrison/trees/node", damaged
        assert list(find_damage(scene.git.common)) == [], damaged
    ref = scene.git.save_work(scene.tree, f"refs/garrison/rescue/r/node/1-{name}", "garrison: what node left")
    assert git(scene.git.root, "show", f"{ref}:work.txt") == "work"


def test_a_registration_that_another_process_removes_needs_no_repair(scene: Scene,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen: a landing waited a second when another node's worktree was removed at the same time."""
    gone = scene.git.common / "worktrees/gone"
    monkeypatch.setattr(damage, "find_damage", lambda *_: [(gone, "commondir")])
    assert damage.mend_registration(scene.git.common, None) == []
    assert not gone.exists()


def test_a_gc_is_kept_off_although_a_killed_process_or_a_full_disk_left_an_empty_lock(tmp_path: Path) -> None:
    lock = tmp_path / "gc.pid"
    lock.touch()
    with pytest.raises(Hindered), hold_gc(tmp_path, patience=0.1):
        pytest.fail("somebody may be about to write into it")
    os.utime(lock, (time.time() - 60,) * 2)
    with hold_gc(tmp_path, patience=0.1):
        assert lock.read_text().startswith(f"{os.getpid()} ")
        lock.write_text(str(os.getpid()))  # as much of it as the disk had room for
    assert not lock.exists()


@pytest.mark.parametrize("caller", ["import", "rescue"])
@pytest.mark.parametrize("when", ["before the ref", "after it"])
def test_objects_that_a_gc_took_before_they_had_a_ref_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                             caller: str, when: str) -> None:
    """By a `git gc --prune=now` that looked at the refs a moment before; the user's next gc works, and starts later."""
    scene = Scene(tmp_path)
    (scene.tree / "folder").mkdir()
    (scene.tree / "folder/more.txt").write_text("more\n")
    before = set(scene.git.common.glob("objects/??/*"))
    tries, refused = list[int](), list[int]()

    def robbed(name: str) -> None:
        own = getattr(Git, name)

        def once(self: Git, *words: object, **more: object) -> object:
            tries.append(1)
            refused.append(subprocess.run(["git", "gc", "--quiet"], cwd=self.root, capture_output=True,
                                          check=False).returncode)
            made = own(self, *words, **more)
            if len(tries) == 1:
                for path in set(self.common.glob("objects/??/*")) - before:
                    path.unlink()
                (self.common / "objects/pack").touch()
                if when == "before the ref":
                    self.tree_of(str(made))
            return made

        monkeypatch.setattr(Git, name, once)

    robbed("_commit_all" if caller == "import" else "create_snapshot")
    if caller == "import":
        ref = scene.git.commit_all(scene.tree, "work")
    else:
        ref = scene.git.save_work(scene.tree, "refs/garrison/rescue/r/node/1", "garrison: what node left")
    assert (len(tries), refused[0], refused[1] != 0) == (2, 0, True), "no gc starts while it is written again"
    assert git(scene.git.root, "show", f"{ref}:folder/more.txt") == "more"
    assert git(scene.git.root, "fsck", "--connectivity-only", "--no-dangling") == ""
    assert not (scene.git.common / "gc.pid").exists()


def test_locks_in_a_repository_are_accessible_to_those_git_shares_it_with(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another user made privately is reported as such."""
    make_repository(tmp_path / "repo")
    for shared, folder, file in (("", 0o700, 0o600), ("group", 0o2770, 0o660), ("1", 0o2770, 0o660),
                                 ("all", 0o2775, 0o664), ("0640", 0o2750, 0o640)):
        handle = Git(tmp_path / "repo")
        lock = handle.common / "garrison/main/queue.lock"
        if shared:
            git(tmp_path / "repo", "config", "core.sharedRepository", shared)
            handle.common.chmod(0o2775)
        for _ in "new", "as an earlier version made it":
            assert handle.make_lock(lock) == lock
            modes = [path.stat().st_mode & 0o7777 for path in (lock.parent.parent, lock.parent, lock)]
            assert modes == [folder, folder, file], shared
            lock.chmod(0o600)
            lock.parent.chmod(0o700)
        shutil.rmtree(handle.common / "garrison")
    assert explain_rights(lock) is None, "one's own waits until one may"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"only user {os.getuid()} can write to {lock.parents[2]}" in str(explain_rights(lock))
