"""Unions in the real queue: branches that each add a line to a changelog land together, tested like any tree."""

from __future__ import annotations

import json

import pytest
from merge_support import World, check, git

from garrison.merge.conflicts import find_conflicts
from garrison.merge.entry import STRATEGIES, EntryOptions
from garrison.node.worktree import MERGED, create_worktree
from garrison.records.run import Task

START = "# Changelog\n\n- old\n"


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.branch("main", {"CHANGELOG.md": START, "log.txt": "old\n", "steps/CHANGES.md": "1. old\n",
                         "notes.txt": "old\n", ".gitattributes": "*.txt merge=union\nnotes.txt -merge\n"})
    git(made.repo, "reset", "-q", "--hard")
    made.start = made.tip()
    return made


def show(world, path):
    return git(world.repo, "show", f"main:{path}")


@pytest.mark.smoke
@pytest.mark.parametrize("strategy", STRATEGIES[:3])
def test_lines_that_many_branches_add_to_a_changelog_all_land_in_the_order_of_the_queue(world, strategy):
    names = [f"n{number}" for number in range(6)]
    for name in names:
        world.branch(name, {"CHANGELOG.md": f"{START}- {name}\n", f"{name}.txt": name})
    for name in names:
        world.queue.enqueue("r", name, 1, name, options=EntryOptions(strategy=strategy))
    assert find_conflicts(world.queue).conflicts == ()
    world.land(*names)
    assert show(world, "CHANGELOG.md") == START + "\n".join(f"- {name}" for name in names)
    assert [world.entry(name).united for name in names] == [(), *[("CHANGELOG.md",)] * 5]
    check(world)


def test_the_targets_attributes_decide_and_not_those_of_a_branch_or_a_checkout(world):
    world.branch("a", {"log.txt": "old\na\n", "other.md": "a\n"})
    world.branch("b", {"log.txt": "old\nb\n"})
    world.branch("c", {"notes.txt": "old\nc\n"})
    world.branch("d", {"notes.txt": "old\nd\n", ".gitattributes": "*.txt merge=union\n"})
    (world.repo / ".gitattributes").write_text("* merge=union\n")
    git(world.repo, "update-index", "--assume-unchanged", ".gitattributes")
    for name in "abc":
        world.enqueue(name)
    world.land(*"abc")
    assert (show(world, "log.txt"), world.entry("b").united) == ("old\na\nb", ("log.txt",))
    world.enqueue("d")
    world.drain()
    assert (world.entry("d").status, world.entry("d").files) == ("conflict", ("notes.txt",))


def test_numbered_changed_removed_or_binary_lines_conflict_as_usual(world):
    """Each pair in its own folder."""
    pairs = [
        ({"CHANGES.md": "1. old\n2. a\n"}, {"CHANGES.md": "1. old\n2. b\n"}),
        ({"CHANGELOG.md": "# Changelog\n\n- older\n"}, {"CHANGELOG.md": "# Changelog\n\n- oldest\n"}),
        ({"CHANGELOG.md": None}, {"CHANGELOG.md": f"{START}- b\n"}),
        ({"CHANGELOG.md": f"{START}- a\n", "lines": "a\n"}, {"CHANGELOG.md": f"{START}- b\n", "lines": None}),
        ({"CHANGELOG.md": f"{START}- a\0\n"}, {"CHANGELOG.md": f"{START}- b\n"})]
    start = {"CHANGES.md": "1. old\n", "CHANGELOG.md": START, "lines": "old\n"}
    world.branch("main", {f"{number}/{path}": text for number in range(len(pairs)) for path, text in start.items()})
    git(world.repo, "reset", "-q", "--hard")
    world.start = world.tip()
    names = [[f"{side}{number}" for side in "ab"] for number in range(len(pairs))]
    for number, pair in enumerate(pairs):
        for name, changes in zip(names[number], pair, strict=True):
            world.add(name, {f"{number}/{path}": text for path, text in changes.items()})
    world.drain()
    for each in names:
        assert sorted(world.entry(name).status for name in each) == ["conflict", "landed"], each
    check(world)


def test_two_new_changelogs_are_one_and_a_last_line_without_an_end_is_no_change(world):
    world.branch("a", {"NEWS": "News\n\n- a\n", "docs/HISTORY.md": "- a"})
    world.branch("b", {"NEWS": "News\n\n- b\n", "docs/HISTORY.md": "- b"})
    for name in "ab":
        world.enqueue(name)
    world.drain()
    assert (show(world, "NEWS"), show(world, "docs/HISTORY.md")) == ("News\n\n- a\n- b", "- a\n- b")
    records = [json.loads(line) for line in world.queue.path.read_text().splitlines()]
    assert ["NEWS", "docs/HISTORY.md"] in [paths for each in records for paths in each["data"].get("united", ())]
    check(world)


def test_a_rework_branch_starts_with_the_union_and_the_other_conflicts(
        world, tmp_path):
    world.branch("garrison/r/n", {"CHANGELOG.md": f"{START}- mine\n", "lines.txt": "mine\n"})
    tip = world.branch("main", {"CHANGELOG.md": f"{START}- theirs\n", "lines.txt": "theirs\n"})
    tree, told = tmp_path / "t" / "n", tmp_path / "conflicts.txt"
    create_worktree(world.queue.git, Task("r", "n", 2, rework="merge"), tree, "garrison/r/n", tip, told, "main")
    assert told.read_text() == "lines.txt\n"
    assert (tree / "CHANGELOG.md").read_text() == f"{START}- theirs\n- mine\n"
    assert git(tree, "status", "--porcelain").splitlines() == ["M  CHANGELOG.md", "UU lines.txt"]


def test_a_merge_for_rework_that_a_killed_runner_did_not_note_is_noted_by_the_next(world, tmp_path):
    world.branch("garrison/r/n", {"lines.txt": "mine\n"})
    tip = world.branch("main", {"lines.txt": "theirs\n"})
    tree, told = tmp_path / "t" / "n", tmp_path / "conflicts.txt"
    for at, name in ((tip, "main"), (world.branch("main", {"later.txt": "later\n"}), tip)):
        git(world.repo, "update-ref", "refs/heads/main", at)
        create_worktree(world.queue.git, Task("r", "n", 2, rework="merge"), tree, "garrison/r/n", at, told, "main")
        assert (told.read_text(), told.with_name(MERGED).read_text()) == ("lines.txt\n", f"{tip} {name}\n")
        told.unlink()
        told.with_name(MERGED).unlink()
