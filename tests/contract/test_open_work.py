"""What an agent left open, as its git view and a worktree's own git directory tell it, whatever the agent put there."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from garrison.ends import Effect, Refusal, RefusalKind, from_fields, to_fields
from garrison.merge.explanation import describe_change
from garrison.node.briefing import Briefer
from garrison.node.diff_check import inspect_branch
from garrison.node.unfinished import WorkInspector, describe
from garrison.node.worktree import BEGUN, CONFLICTS, MERGED, AttemptWorktree
from garrison.records.run import Task
from garrison.sandbox.collect import OpenWork, collect, enter, find_side_work, read_open_work
from garrison.sandbox.git_view import GitView
from garrison.system.git import Git
from garrison.system.git.bounds import Excess
from sandbox_support import missing, run_inside
from support import git, make_repository

BRANCH = "garrison/run/node"
CONFLICT = ("git switch -qc other; echo theirs > calc.py; git commit -qam o; git switch -q -; echo mine > calc.py; "
            "git commit -qam m")
IDENTITY = "git config user.name a; git config user.email a@example.org; git config advice.mergeConflict false; "
Run = Callable[[str], None]


class Scene:
    """A node's worktree, in which scripts run as its agent would: in a git view, or in the worktree itself."""

    def __init__(self, root: Path, *, is_confined: bool) -> None:
        make_repository(root / "repo")
        self.repo, self.is_confined, self.folder = root / "repo", is_confined, root / "attempt"
        self.folder.mkdir()
        self.git = Git(self.repo)
        launch = SimpleNamespace(onto="main", run_id="run", lock_files=(), adhoc=False, base_oid="",
                                 repo=str(self.repo))
        task = Task("run", "node", 1, allow_empty=False)
        self.node = AttemptWorktree(self.git, launch, task, root / "trees/node", BRANCH, self.folder,
                                    lambda ref: None)
        self.node.prepare(git(self.repo, "rev-parse", "main"), is_new_attempt=False, agent_alive=False)
        (self.folder / "prompt.md").touch()
        self.inspector = WorkInspector(self.git, root / "home", launch, task, self.node.path,
                                       BRANCH, self.folder)
        self.view = GitView(self.git, self.node.path)

    def work(self, script: str) -> None:
        if self.is_confined:
            run_inside(self.node.path, enter(self.view, "1"), f"{IDENTITY}({script}) || true")
        else:
            subprocess.run(["sh", "-c", f"{script} || true"], cwd=self.node.path, capture_output=True, check=True)

    def open_work(self) -> OpenWork:
        if self.is_confined:
            collect(self.view)
        return read_open_work(self.git, self.node.path)

    def inspect(self) -> Refusal | None:
        if self.is_confined:
            collect(self.view)
        return self.inspector.inspect_worktree() or self.inspector.inspect_branch()


@pytest.fixture(params=[pytest.param(True, marks=pytest.mark.skipif(bool(missing()), reason=missing())), False],
                ids=["view", "worktree"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Scene:
    return Scene(tmp_path, is_confined=request.param)


def test_each_operation_is_known_with_its_files(scene: Scene) -> None:
    scene.work(CONFLICT)
    for begin, operation, end in (
            ("git merge other", "merge", "git merge --abort"),
            ("git cherry-pick other", "cherry-pick", "git cherry-pick --abort"),
            ("git revert --no-edit HEAD~1 other", "revert", "git revert --abort"),
            ("git rebase other", "rebase", "git rebase --abort"),
            ("git rebase --apply other", "rebase", "git rebase --abort"),
            ("git format-patch -q -1 other -o ../p$$; git am -3 ../p$$/*", "am", "git am --abort")):
        scene.work(begin)
        found = scene.open_work()
        assert (found.operation, found.unmerged) == (operation, ("calc.py",)), begin
        scene.work(end)
        assert read_open_work(scene.git, scene.node.path) == OpenWork(), "nothing is remembered"
        assert scene.open_work() == OpenWork(), end
    scene.work("git cherry-pick other; git cherry-pick --quit; git bisect start")
    assert scene.open_work() == OpenWork("bisect", "", ("calc.py",))


def test_work_in_a_stash_or_on_another_branch_is_found_and_what_others_did_is_not(scene: Scene) -> None:
    scene.work("git branch same; git switch -qc side; echo s > s; git add s; git commit -qm side; git switch -q -")
    git(scene.repo, "branch", "garrison/run/another")
    git(scene.repo, "commit", "-q", "--allow-empty", "-m", "target")
    refusal = scene.inspect()
    assert refusal is not None and (refusal.kind, refusal.branch) == (RefusalKind.OTHER_BRANCH, "side")
    assert git(scene.repo, "show", f"{refusal.ref}:s") == "s"
    assert scene.inspect() == refusal, "a second look, of a successor, finds the same"
    scene.work("echo t > calc.py; git stash -q; git pack-refs --all")
    stashed = scene.inspect()
    assert stashed is not None and stashed.kind is RefusalKind.STASH
    scene.work("git merge -q side")
    assert scene.inspect() is None, "what is on the branch is enough"


def test_a_history_beyond_all_bounds_is_refused_before_it_is_looked_into(scene: Scene) -> None:
    scene.work("echo x > x; git add x; head -c 2000000 /dev/zero | tr '\\0' x | git commit -qF -")
    if scene.is_confined:
        with pytest.raises(Excess, match=r"the commit .* has 1\.9 MiB, more than 1 MiB"):
            scene.inspect()
        return
    refusal = scene.inspect()
    assert refusal is not None and refusal.kind is RefusalKind.EXCESS
    assert describe(refusal, "node").startswith("its commits are too large: the commit ")
    runtime = SimpleNamespace(files=lambda run: SimpleNamespace(attempt=lambda node, attempt: scene.folder))
    launch = SimpleNamespace(onto="main", run_id="run", base_oid="")
    task = Task("run", "node", 1, allow_empty=False)
    briefer = Briefer(runtime, launch, task, scene.git, scene.node.path)
    assert briefer.files_of(task) == (), "nor is it for other agents"
    assert briefer.progress().commits == ()


def test_a_merge_that_the_attempt_started_with_is_concluded_unless_markers_are_left(scene: Scene) -> None:
    """As `rework=merge` starts: garrison merged, and the agent resolves the files without concluding the commit."""
    scene.work("echo mine > calc.py; git commit -qam m")
    if scene.is_confined:
        collect(scene.view)
    (scene.repo / "calc.py").write_text("theirs\n")
    git(scene.repo, "commit", "-qam", "theirs")
    target = git(scene.repo, "rev-parse", "main")
    git(scene.node.path, "merge", "-q", "--no-commit", target, check=False)
    (scene.folder / CONFLICTS).write_text("calc.py\n")
    (scene.folder / MERGED).write_text(f"{target} main\n")
    if scene.is_confined:
        scene.view.prepare(owner="1")
    refusal = scene.inspect()
    assert refusal == Refusal(RefusalKind.MARKERS, ("calc.py",), 1)
    scene.work("echo both > calc.py")
    assert scene.inspector.inspect_worktree() is None
    scene.git.commit_all(scene.node.path, "both")
    assert scene.inspector.inspect_branch() is None
    assert git(scene.node.path, "log", "-1", "--format=%P").split()[1:] == [target]
    scene.work("git switch -qc own HEAD~1; echo x > notes.txt; git commit -qam x; git switch -q -; echo y > notes.txt; "
               "git commit -qam y; git merge own")
    refusal = scene.inspect()
    assert refusal is not None and refusal.operation == "merge", "another one is the agent's own"


@pytest.mark.parametrize("home", [None, "[guard]\n", "[guard\n"])
def test_work_waits_for_the_user_while_the_settings_that_judge_it_cannot_be_read(tmp_path: Path, home: str | None,
                                                                                  ) -> None:
    scene = Scene(tmp_path, is_confined=False)
    scene.work("echo x > notes.txt; git add .; git commit -qm x")
    if home is not None:
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home/config.toml").write_text(home)
    launch = SimpleNamespace(onto="main", repo=str(scene.repo), base_ref="main", claimed_for="")
    task = Task("run", "node", 1, allow_empty=False)
    told = inspect_branch(scene.git, tmp_path / "home", launch, task, BRANCH, ["true"],
                          {}).changes
    assert [each.effect for each in told] == ([Effect.ASK] if home == "[guard\n" else [])
    assert not told or "[guard] cannot be read: " in describe_change(told[0])


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_work_of_another_worktree_inside_is_found(tmp_path: Path) -> None:
    scene = Scene(tmp_path, is_confined=True)
    scene.work("git worktree add -q -b there /tmp/there; cd /tmp/there; echo x > x; git add x; git commit -qm x")
    refusal = scene.inspect()
    assert refusal is not None and refusal.branch == "there" and git(scene.repo, "show", f"{refusal.ref}:x") == "x"


@pytest.mark.skipif(bool(missing()), reason=missing())
def test_what_an_agent_puts_in_place_of_its_git_directory_is_not_followed(tmp_path: Path) -> None:
    scene = Scene(tmp_path, is_confined=True)
    scene.work(f"{CONFLICT}; git merge other")
    common = scene.view.common
    (common / "MERGE_HEAD").unlink()
    (common / "MERGE_HEAD").symlink_to("/etc/passwd")
    assert read_open_work(scene.git, scene.node.path) == OpenWork("merge", "", ("calc.py",))
    (common / "index").write_bytes(b"DIRC torn")
    (common / "logs/HEAD").unlink()
    (common / "logs/HEAD").symlink_to("/dev/zero")
    (common / "refs/stash").symlink_to("/etc/passwd")
    assert read_open_work(scene.git, scene.node.path).unmerged == ()
    assert [each.ref for each in find_side_work(scene.git, scene.node.path, BRANCH)] == ["refs/heads/other"]
    shutil.rmtree(common)
    common.symlink_to("/etc")
    assert scene.inspector.open_operation([]) is None


def test_the_start_of_an_attempt_is_kept_and_a_refusal_survives_its_record(scene: Scene) -> None:
    begun = (scene.folder / BEGUN).read_text().strip()
    assert begun == git(scene.repo, "rev-parse", "main")
    scene.work("echo x > calc.py; git commit -qa --amend -m mine")
    refusal = scene.inspect()
    assert refusal == Refusal(RefusalKind.REWRITTEN, commit=begun)
    assert from_fields(to_fields(refusal)) == refusal
    assert from_fields({"kind": "of a later version"}) is None and from_fields({}) is None
