from __future__ import annotations

import subprocess

import pytest
from merge_support import World, check, drive, finish, git

from garrison.merge import checkouts
from garrison.merge.checkouts import Checkout, update_stale
from garrison.merge.processor import MergeProcessor
from garrison.records import journal
from garrison.system.git import GitError


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    world.branch("one", {"one.txt": "1\n", "lines.txt": "".join(f"{n}\n" for n in range(10)) + "landed\n"})
    world.branch("two", {"two.txt": "2\n"})
    return world


@pytest.mark.smoke
def test_staged_and_unstaged_edits_to_other_files_survive_a_landing(world):
    (world.repo / "staged.txt").write_text("staged\n")
    git(world.repo, "add", "staged.txt")
    (world.repo / "untracked.txt").write_text("untracked\n")
    (world.repo / "lines.txt").write_text("edited\n")
    world.enqueue("two")
    world.land("two")
    assert sorted(git(world.repo, "status", "--porcelain").splitlines()) == ["?? untracked.txt", "A  staged.txt",
                                                                            "M lines.txt"]
    assert (world.repo / "two.txt").read_text() == "2\n"
    assert (world.repo / "lines.txt").read_text() == "edited\n"
    check(world)


@pytest.mark.parametrize("how", ["edited", "staged", "deleted", "untracked", "ignored"])
def test_edited_files_block_only_the_entries_that_touch_them(world, how):
    name = "lines.txt" if how in ("edited", "staged", "deleted") else "one.txt"
    if how == "deleted":
        (world.repo / name).unlink()
    else:
        (world.repo / name).write_text("mine\n")
    if how == "staged":
        git(world.repo, "add", name)
    if how == "ignored":
        (world.repo / ".git/info/exclude").write_text("one.txt\n")
    before = git(world.repo, "status", "--porcelain", "--ignored")
    world.enqueue("one")
    world.enqueue("two")
    assert name in world.drain(until="blocked").text
    assert (world.entry("one").status, world.entry("one").files) == ("landing_blocked", (name,))
    assert world.entry("two").status == "landed"
    assert git(world.repo, "status", "--porcelain", "--ignored") == before
    assert (world.repo / name).exists() == (how != "deleted")
    if how != "deleted":
        assert (world.repo / name).read_text() == "mine\n"

    git(world.repo, "stash", "-a" if how == "ignored" else "-u")  # as the message says
    world.land("one")
    assert git(world.repo, "status", "--porcelain") == ""
    assert git(world.repo, "stash", "list")
    check(world)


def test_a_worktree_of_the_target_is_moved_along_and_no_other_is(world, tmp_path):
    git(world.repo, "checkout", "-qb", "elsewhere")
    git(world.repo, "worktree", "add", "-q", str(tmp_path / "second"), "main")
    (world.repo / "lines.txt").write_text("edited\n")
    world.enqueue("one")
    world.drain()
    assert (tmp_path / "second" / "one.txt").exists()
    assert git(tmp_path / "second", "status", "--porcelain") == ""
    assert git(world.repo, "status", "--porcelain") == "M lines.txt"
    assert git(world.repo, "rev-parse", "HEAD") == world.start


def test_a_landing_waits_for_git_at_work_in_the_checkout(world):
    for node, way in (("one", "index.lock"), ("two", "MERGE_HEAD"), ("three", "rebase")):
        if way == "rebase":
            (world.repo / "x").write_text("x")
            git(world.repo, "add", "-A")
            git(world.repo, "commit", "-qm", "x")
            world.branch(node, {"three.txt": "3\n"}, start=world.start)
            subprocess.run(["git", "-c", "sequence.editor=sed -i s/pick/edit/", "rebase", "-qi", "HEAD~1"],
                           cwd=world.repo, capture_output=True, check=True)
            assert git(world.repo, "symbolic-ref", "-q", "HEAD", check=False) == ""
        else:
            (world.repo / ".git" / way).write_text(world.start)
        world.enqueue(node)
        assert world.drain(until="blocked").text
        assert world.entry(node).status == "landing_blocked", way
        if way == "rebase":
            git(world.repo, "rebase", "--continue")
        else:
            Checkout(world.queue.git, world.repo).recover()
            (world.repo / ".git" / way).unlink()  # which only the user's git removes
        world.land(node)
    check(world, foreign=1)


def test_the_checkout_is_locked_between_rehearsal_and_move(world, monkeypatch):
    """Between the two a `commit -a` would revert the landing."""
    world.enqueue("one")
    processor = world.processor()
    swap, seen = processor.writer.branch.swap, []

    def watched(old, new, entry, **rest):
        done = swap(old, new, entry, **rest)
        (world.repo / "note.txt").write_text("n\n")
        seen.append(subprocess.run(["git", "commit", "-qam", "mine"], cwd=world.repo, capture_output=True, text=True,
                                   check=False).stderr)
        return done

    monkeypatch.setattr(processor.writer.branch, "swap", watched)
    finish(processor)
    assert "index.lock" in seen[0]
    assert git(world.repo, "show", "main:one.txt") == "1"
    check(world)


def test_an_edit_made_during_the_swap_is_kept_and_the_checkout_follows_later(world, monkeypatch):
    world.enqueue("one")
    processor = world.processor()
    swap = processor.writer.branch.swap

    def edited(old, new, entry, **rest):
        (world.repo / "lines.txt").write_text("edited meanwhile\n")
        return swap(old, new, entry, **rest)

    monkeypatch.setattr(processor.writer.branch, "swap", edited)
    drive(processor)
    monkeypatch.undo()
    assert world.entry("one").status == "landed"
    assert [owed.path for owed in world.queue.state.stale_checkouts] == [str(world.repo)]
    assert (world.repo / "lines.txt").read_text() == "edited meanwhile\n"
    world.enqueue("two")  # must not land over a stale checkout
    drive(processor, "blocked")
    (world.repo / "lines.txt").write_text("".join(f"{n}\n" for n in range(10)))
    processor.lander.retried_at = float("-inf")
    finish(processor)
    assert world.queue.state.stale_checkouts == ()
    assert world.entry("two").status == "landed"
    assert git(world.repo, "status", "--porcelain") == ""
    check(world)


def test_a_move_cut_off_between_files_is_finished(world):
    """read-tree was killed after it wrote files and before its index."""
    new = git(world.repo, "rev-parse", "one")
    checkout = Checkout(world.queue.git, world.repo)
    assert checkout.lock() is None
    git(world.repo, "update-ref", "refs/heads/main", new, world.start)
    for name in ("one.txt", "lines.txt"):
        (world.repo / name).write_text(git(world.repo, "show", f"{new}:{name}") + "\n")
    left = Checkout(world.queue.git, world.repo)  # the successor recognises the lock
    assert left.lock() is None
    assert left.move(world.start, new, resuming=True) is None
    left.unlock()
    assert git(world.repo, "status", "--porcelain") == ""
    assert not (world.repo / ".git/index.lock").exists()


def test_a_move_cut_off_inside_a_file_is_finished(world):
    """Regression: on a full disk git left half a file, and the run waited for the user to commit it."""
    new = git(world.repo, "rev-parse", "one")
    whole = git(world.repo, "show", f"{new}:one.txt") + "\n"
    for left in ("", whole[:1]):
        git(world.repo, "update-ref", "refs/heads/main", world.start)
        git(world.repo, "reset", "-q", "--hard")
        git(world.repo, "update-ref", "refs/heads/main", new, world.start)
        (world.repo / "one.txt").write_text(left)
        (world.repo / "lines.txt").write_text("")
        assert update_stale(world.queue.git, "main", world.repo, world.start, new) is None
        assert git(world.repo, "status", "--porcelain") == ""
        assert (world.repo / "one.txt").read_text() == whole


def test_a_broken_worktree_keeps_nothing_from_landing(world, tmp_path):
    """Regression: a gate's worktree whose removal was killed made every processor fail as it took the queue."""
    for branch in ("detached", "main"):
        for damage in ("gone", "damaged"):
            other = tmp_path / f"{branch} {damage}"
            git(world.repo, "worktree", "add", "-q", *(("--detach", str(other)) if branch == "detached" else
                                                       ("--force", str(other), branch)))
            (other / ".git").unlink()
            if damage == "damaged":
                (other / ".git").write_text(f"gitdir: {tmp_path}/nowhere\n")
    world.enqueue("two")
    world.land("two")
    for each in ("detached gone", "detached damaged", "main gone", "main damaged"):
        follows = each == "main damaged"  # git knows it by its registration, not by its .git
        files = sorted(path.name for path in (tmp_path / each).iterdir() if path.name != ".git")
        assert files == ["lines.txt", *(["two.txt"] if follows else [])], each


def test_a_take_over_at_which_git_fails_is_recorded_and_retried(world, monkeypatch):
    """Regression: entries waited "in the merge queue, 5 ahead", and only the log had the reason."""
    def fail(*_arguments: object) -> None:
        raise GitError(("worktree", "list"), 128, "fatal: it is broken")

    world.enqueue("two")
    processor = MergeProcessor(world.queue, trees=world.trees, environment={})
    assert processor.acquire()
    with monkeypatch.context() as broken:
        broken.setattr(checkouts, "find_checkouts", fail)
        for _ in range(3):
            with pytest.raises(GitError):
                processor.recover()
    assert "it is broken" in world.queue.state.hindrance
    told = [stored for stored in journal.read_all(world.queue.path) if stored.kind == "hindered"]
    assert len(told) == 1
    processor.recover()
    finish(processor)
    assert world.queue.state.hindrance == ""
    assert world.entry("two").status == "landed"


def test_a_rehearsal_touches_nothing_and_the_move_looks_again(world):
    """An edit in between is kept; a file that was only touched, and a lost copy of the index, hinder nothing."""
    new, index = git(world.repo, "rev-parse", "one"), world.repo / ".git/index"
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    assert checkouts.rehearse(world.queue.git, "main", world.start, new) is None
    checkout = Checkout(world.queue.git, world.repo)
    assert checkout.lock() is None
    assert checkout.rehearse(world.start, new) is None
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before
    assert not (world.repo / "one.txt").exists()
    kept = (world.repo / "lines.txt").read_text()
    (world.repo / "lines.txt").write_text("mine\n")
    assert checkout.move(world.start, new, resuming=False) is not None
    assert (world.repo / "lines.txt").read_text() == "mine\n"
    (world.repo / "lines.txt").write_text(kept)
    assert checkout.rehearse(world.start, new) is None
    git(world.repo, "update-ref", "refs/heads/main", new, world.start)
    for left in (world.repo / ".git").glob("garrison-index-*"):
        left.unlink()  # without it git would treat every file of the checkout as untracked
    assert checkout.move(world.start, new, resuming=False) is None
    checkout.unlock()
    assert git(world.repo, "status", "--porcelain") == ""
