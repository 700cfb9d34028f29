"""Rescue refs, asked of the real git: nothing kept is overwritten, nothing is disturbed, old intervals go."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from garrison.errors import NotFound, Refused, UsageError
from garrison.node import rescue_refs
from garrison.node.rescue_refs import RescueRepository
from garrison.node.snapshots import main
from garrison.node.worktree import create_worktree, find_worktrees, has_unsaved_work, save_and_remove
from garrison.records.run import Launch, Task
from garrison.system.git import Git, GitError
from garrison.system.git.rescues import LIVE_KEPT, parse_rescue, rescue_stem
from support import commit_all, git

STEM = rescue_stem("r1", "n", 1)


@pytest.fixture
def tree(repo: Path, tmp_path: Path) -> Path:
    Git(repo).add_worktree(tmp_path / "trees/r1/n", "garrison/r1/n", "main")
    return tmp_path / "trees/r1/n"


def all_rescues(repo: Path) -> list[str]:
    return git(repo, "for-each-ref", "--format=%(refname)", "refs/garrison/rescue").splitlines()


def test_other_work_is_never_overwritten_and_the_same_work_is_kept_once(repo: Path, tree: Path) -> None:
    ours = Git(repo)
    (tree / "a").write_text("1\n")
    assert ours.save_work(tree, STEM, "garrison: what n left") == STEM
    assert ours.save_work(tree, STEM, "garrison: what n left") == STEM
    (tree / "a").write_text("2\n")
    assert ours.save_work(tree, STEM, "again") == f"{STEM}-2"
    (tree / "a").write_text("3\n")
    assert ours.save_work(tree, STEM, "again") == f"{STEM}-3"
    (tree / "a").write_text("1\n")
    assert ours.save_work(tree, STEM, "again") == STEM
    assert [git(repo, "show", f"{ref}:a") for ref in all_rescues(repo)] == ["1", "2", "3"]


def test_interval_snapshots_keep_the_youngest_and_disturb_nothing(repo: Path, tree: Path) -> None:
    ours, stem = Git(repo), rescue_stem("r1", "n", 1, "live")
    assert ours.save_interval_snapshot(tree, stem, "m", "main", timeout=60) == "", "everything is on main already"
    (tree / "staged").write_text("s\n")
    git(tree, "add", "staged")
    own = ours.git_dir(tree)
    (own / "index.lock").touch()  # the agent's own git is at it
    index = (own / "index").read_bytes()
    for number in range(LIVE_KEPT + 2):
        (tree / "work").write_text(f"{number}\n")
        assert ours.save_interval_snapshot(tree, stem, "m", "main", timeout=60) == f"{stem}-{number + 1}"
        assert ours.save_interval_snapshot(tree, stem, "m", "main", timeout=60) == "", "nothing has changed since"
    assert (own / "index").read_bytes() == index
    assert not list(own.glob("garrison-snapshot-*"))
    assert [git(repo, "show", f"{ref}:work") for ref in all_rescues(repo)] == ["2", "3", "4"]
    assert git(repo, "show", f"{stem}-5:staged") == "s"
    ours.delete_rescues(all_rescues(repo))
    assert all_rescues(repo) == []


def test_a_snapshot_that_takes_too_long_is_abandoned_and_leaves_nothing(repo: Path, tree: Path, tmp_path: Path,
                                                                       ) -> None:
    ours = Git(repo, home=tmp_path)  # no launch yet: the filter counts as the user's
    git(repo, "config", "filter.slow.clean", "sleep 3; cat")
    (tree / ".gitattributes").write_text("*.slow filter=slow\n")
    (tree / "x.slow").write_text("x\n")
    with pytest.raises(GitError, match=r"did not end within 0\.5 s"):
        ours.save_interval_snapshot(tree, STEM + "-live", "m", "main", timeout=0.5)
    assert not list(ours.git_dir(tree).glob("garrison-snapshot-*"))
    assert all_rescues(repo) == []


def test_the_next_snapshot_removes_leftovers_of_a_killed_one_but_not_of_a_living_one(repo: Path, tree: Path) -> None:
    ours = Git(repo)
    own = ours.git_dir(tree)
    for name in ("garrison-snapshot-4194303", "garrison-snapshot-4194303.lock", f"garrison-snapshot-{os.getppid()}"):
        (own / name).touch()
    (tree / "a").write_text("1\n")
    ours.save_work(tree, STEM, "m")
    assert [path.name for path in own.glob("garrison-snapshot-*")] == [f"garrison-snapshot-{os.getppid()}"]


def test_a_repository_started_inside_the_tree_is_also_kept(repo: Path, tree: Path, tmp_path: Path) -> None:
    """git itself would refuse one without a commit, and of one with commits keep no more than a number."""
    for name, committed in (("unborn", False), ("sub/born", True)):
        inner = tree / name
        inner.mkdir(parents=True)
        git(inner, "init", "-q")
        (inner / "work").write_text(f"of {name}\n")
        if committed:
            git(inner, "add", "-A")
            git(inner, "-c", "user.name=A", "-c", "user.email=a@x", "commit", "-qm", "inside")
    (tree / "outside").write_text("o\n")
    ours = Git(repo)
    ref = ours.save_work(tree, STEM, "m")
    ours.remove_worktree(tree)
    assert git(repo, "show", f"{ref}:outside") == "o"
    for name in ("unborn", "sub/born"):
        link = git(repo, "rev-parse", f"{ref}:{name}")
        assert git(repo, "show", f"{link}:work") == f"of {name}"
    assert git(repo, "fsck", "--connectivity-only", "--no-dangling") == ""
    told = rescue_refs.restore_worktree(ours, git(repo, "rev-parse", ref), tmp_path / "again")
    assert sorted(note.partition(" ")[0] for note in told) == ["sub/born", "unborn"]
    ours.delete_rescues([ref])
    assert git(repo, "for-each-ref", "--format=%(refname)", "refs/garrison/parts") == ""


def test_any_rescue_ref_name_is_parsed() -> None:
    for ref, told in {STEM: ("r1", "n", 1, "", 1), STEM + "-2": ("r1", "n", 1, "", 2),
                      STEM + "-live-12": ("r1", "n", 1, "live", 12),
                      STEM + "-validator": ("r1", "n", 1, "validator", 1),
                      "refs/garrison/rescue/x": ("x", "", 0, "?", 1),
                      "refs/garrison/rescue/r/n/1/deep": ("r", "n", 0, "?", 1),
                      "refs/garrison/rescue/r/n/ü": ("r", "n", 0, "?", 1)}.items():
        assert parse_rescue(ref) == (ref, *told)


def test_rescued_work_that_has_landed_since_is_marked(repo: Path, tree: Path) -> None:
    ours = Git(repo)
    place = RescueRepository(ours, {"r1": "main"})
    (tree / "a").write_text("1\n")
    name = parse_rescue(ours.save_work(tree, STEM, "garrison: what n left when it failed"))
    found = rescue_refs.inspect_rescue(place, name)
    assert (found.landed, found.files, found.size, found.why) == (False, 1, 2, "left when it failed")
    (repo / "a").write_text("1\n")
    (repo / "b").write_text("another's\n")
    commit_all(repo, "the same by hand")
    assert rescue_refs.inspect_rescue(place, name).landed, "the target has all that it holds"
    git(repo, "rm", "-q", "a")
    git(repo, "commit", "-qm", "taken back")
    assert not rescue_refs.inspect_rescue(place, name).landed


def test_a_rescue_is_chosen_by_name_or_prefix(repo: Path) -> None:
    place = RescueRepository(Git(repo), {})
    refs = ["r1/n/1", "r1/n/1-live-1", "r1/live/2-live-4", "r1/live/2-live-5", "r1/two/1", "r1/two/2", "r2/two/1"]
    known = [(place, parse_rescue(f"refs/garrison/rescue/{ref}")) for ref in refs]

    def chosen(word: str, run: str | None = None) -> str:
        return rescue_refs.resolve_rescue(known, word, run)[1].ref.removeprefix("refs/garrison/rescue/")

    assert chosen("n") == "r1/n/1"
    assert chosen("live") == chosen("r1/live") == chosen("r1/live/2") == "r1/live/2-live-5"
    assert chosen("two", "r2") == chosen("r2/two") == "r2/two/1"
    for word in ("r1/two/2", "refs/garrison/rescue/r1/two/2", "garrison/rescue/r1/two/2"):
        assert chosen(word) == "r1/two/2"
    with pytest.raises(Refused, match="r1/two/1, r1/two/2, r2/two/1"):
        chosen("two")
    with pytest.raises(NotFound, match="there is r1/n, r1/live"):
        chosen("nobody")
    with pytest.raises(NotFound, match="no saved work at all"):
        rescue_refs.resolve_rescue([], "n", None)


def test_restoring_touches_nothing_that_is_there(repo: Path, tree: Path, tmp_path: Path) -> None:
    ours = Git(repo)
    (tree / "a").write_text("1\n")
    commit = git(repo, "rev-parse", ours.save_work(tree, STEM, "m"))
    rescue_refs.restore_branch(ours, commit, "again")
    assert git(repo, "show", "again:a") == "1"
    for taken in ("again", "main", "again/below"):
        with pytest.raises(Refused, match="already exists"):
            rescue_refs.restore_branch(ours, commit, taken)
    for bad in ("-d", "a..b", ""):
        with pytest.raises(UsageError):
            rescue_refs.restore_branch(ours, commit, bad)
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(repo)
    for there, why in ((tmp_path / "empty", "already exists"), (repo / "inside", "is inside the checkout"),
                       (tmp_path / "link" / "inside", "is inside the checkout"),
                       (tree / "inside", "is inside the checkout"),
                       (repo / ".git" / "x", "is inside the checkout")):
        with pytest.raises(Refused, match=why):
            rescue_refs.restore_worktree(ours, commit, there)
    rescue_refs.restore_worktree(ours, commit, tmp_path / "new" / "place")
    assert (tmp_path / "new" / "place" / "a").read_text() == "1\n"
    assert git(repo, "status", "--porcelain") == ""


def test_sha256_repositories_have_rescues(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    git(tmp_path, "init", "-q", "--object-format=sha256", "-b", "main", "repo")
    git(repo, "-c", "user.name=A", "-c", "user.email=a@x", "commit", "-q", "--allow-empty", "-m", "Begin")
    ours = Git(repo)
    ours.add_worktree(tmp_path / "t", "b", "main")
    (tmp_path / "t" / "a").write_text("1\n")
    ref = ours.save_work(tmp_path / "t", STEM, "garrison: what n left")
    found = rescue_refs.inspect_rescue(RescueRepository(ours, {}), parse_rescue(ref))
    assert (len(found.commit), found.files, found.landed) == (64, 1, False)
    assert ours.save_interval_snapshot(tmp_path / "t", STEM + "-live", "m", "main", timeout=60)


def test_commits_that_only_a_detached_head_has_are_work(repo: Path, tree: Path) -> None:
    ours = Git(repo)
    tip = ours.branch_tip("garrison/r1/n") or ""
    assert not has_unsaved_work(ours, tree, [tip])
    git(tree, "checkout", "-q", "--detach")
    git(tree, "commit", "-q", "--allow-empty", "-m", "elsewhere")
    assert has_unsaved_work(ours, tree, [tip])


def test_a_fresh_attempt_keeps_what_only_the_branch_had(repo: Path, tree: Path, tmp_path: Path) -> None:
    """The agent went elsewhere before it failed, so its tree, and the rescue of it, does not hold the branch's tip."""
    ours = Git(repo)
    git(tree, "commit", "-q", "--allow-empty", "-m", "on its branch")
    tip = git(tree, "rev-parse", "HEAD")
    git(tree, "checkout", "-q", "--detach", "main")
    ours.save_work(tree, STEM, "m")
    ours.remove_worktree(tree)
    create_worktree(ours, Task("r1", "n", 2), tree, "garrison/r1/n", ours.rev("main") or "", tmp_path / "told")
    assert git(repo, "rev-parse", f"{STEM}-branch") == tip
    assert git(tree, "rev-parse", "HEAD") == git(repo, "rev-parse", "main")


def test_a_worktree_without_its_git_file_is_moved_aside_not_removed(repo: Path, tree: Path) -> None:
    (tree / "work").write_text("w\n")
    (tree / ".git").unlink()
    ours = Git(repo)
    ours.add_worktree(tree, "garrison/r1/n", "main")
    aside = tree.with_name("n.left-1")
    assert (aside / "work").read_text() == "w\n"
    launch = Launch("r1", "p", str(repo), "main", "", str(tree.parents[1]))
    home = tree.parents[1] / ours.key / "r1"
    home.parent.mkdir()
    tree.parent.rename(home)
    git(repo, "worktree", "repair", str(home / "n"))
    found = {left.path.name: left.what for left in find_worktrees(ours, launch)}
    assert found == {"n": "tree", "n.left-1": "directory"}
    refs = [save_and_remove(ours, left, 1) for left in find_worktrees(ours, launch)]
    assert refs == ["", f"{STEM}-left"]
    assert git(repo, "show", f"{STEM}-left:work") == "w"
    assert git(repo, "show", f"{STEM}-left:calc.py"), "what was not touched is there as well"
    assert not home.exists()


def test_the_child_prints_the_ref_or_one_line_of_error(repo: Path, tree: Path, capsys) -> None:
    arguments = ["--home", str(repo), "--repo", str(repo), "--tree", str(tree), "--stem", STEM + "-live",
                 "--base", "main"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == ""
    (tree / "a").write_text("1\n")
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{STEM}-live-1\n"
    (tree / ".git").unlink()  # the agent's doing: the repository's own records say which one it is
    assert main(arguments) == 0
    shutil.rmtree(repo / ".git/worktrees/n")
    assert main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1
