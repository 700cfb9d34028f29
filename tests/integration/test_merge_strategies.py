from __future__ import annotations

import subprocess

import pytest
from merge_support import git

from garrison.merge.candidates import build_candidate
from garrison.merge.entry import STRATEGIES, MergeEntry

OF_OTHERS = "Ann Else <ann@x> 1600000000 +0200"


def commit(world, branch, name, text, who=OF_OTHERS, parents=()):
    """Make one commit on `branch` whose author is not the committer."""
    start = git(world.repo, "rev-parse", "-q", "--verify", branch, check=False) or world.tip()
    lines = [f"commit refs/heads/{branch}", f"author {who}", "committer A <a@x> 1700000000 +0000",
             f"data {len(name) + 4}", f"Add {name}", f"from {start}", *(f"merge {parent}" for parent in parents),
             f"M 100644 inline {name}", f"data {len(text)}", text]
    subprocess.run(["git", "fast-import", "--quiet", "--force"], cwd=world.repo, input="\n".join(lines) + "\n",
                   text=True, check=True)
    return git(world.repo, "rev-parse", branch)


def entry(oid, strategy):
    return MergeEntry("n-1-aa", "r", "n", 1, "work", oid, "main", strategy=strategy,
                 enqueued_at="2026-01-02T03:04:05.000000Z")


def built(world, oid, strategy, base=None):
    def trailers(tree):
        return [f"Tested: {tree}"]

    first = build_candidate(world.queue.git, entry(oid, strategy), base or world.tip(), trailers)
    assert build_candidate(world.queue.git, entry(oid, strategy), base or world.tip(), trailers) == first
    return first


def shape(world, commit, base):
    """Return (subject, author, author's date, parents) of what `commit` adds, oldest first."""
    log = git(world.repo, "log", "--reverse", "--topo-order", "--format=%s|%an|%at|%P", f"{base}..{commit}")
    return [line.split("|") for line in log.splitlines()]


@pytest.mark.smoke
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_strategy_makes_its_own_shape_and_keeps_the_authors(world, strategy):
    one = commit(world, "work", "one.txt", "1")
    two = commit(world, "work", "two.txt", "2", "Bob <bob@x> 1600000001 +0000")
    base = world.tip()
    if strategy != "ff-only":
        base = world.branch("main", {"main.txt": "m"})
    candidate = built(world, two, strategy, base)
    files = set(git(world.repo, "ls-tree", "--name-only", candidate.tree).splitlines())
    assert {"one.txt", "two.txt"} | ({"main.txt"} if strategy != "ff-only" else set()) <= files
    assert git(world.repo, "rev-parse", f"{candidate.commit}^{{tree}}") == candidate.tree
    work = [["Add one.txt", "Ann Else", "1600000000"], ["Add two.txt", "Bob", "1600000001"]]
    lines = shape(world, candidate.commit, base)
    if strategy == "merge":
        assert [line[:3] for line in lines[:2]] == work
        assert lines[2][0] == "Merge work into main"
        assert lines[2][3] == f"{base} {two}"
    elif strategy == "squash":
        assert lines == [["Squash work", "Ann Else", "1600000000", base]]
        assert "Co-authored-by: Bob <bob@x>" in git(world.repo, "log", "-1", "--format=%B", candidate.commit)
    elif strategy == "rebase":
        assert [line[:3] for line in lines] == work
        assert lines[0][3] == base
        assert {one, two} & set(git(world.repo, "rev-list", f"{base}..{candidate.commit}").split()) == set()
    else:
        assert candidate.commit == two
    trailer = git(world.repo, "log", "-1", "--format=%(trailers:key=Tested,valueonly)", candidate.commit)
    assert trailer == ("" if strategy == "ff-only" else candidate.tree)


def test_a_rebase_keeps_commits_already_in_place_and_names_the_entry_in_the_last(world):
    one = commit(world, "work", "one.txt", "1")
    two = commit(world, "work", "two.txt", "2")
    candidate = built(world, two, "rebase")
    assert git(world.repo, "rev-parse", f"{candidate.commit}^") == one
    assert candidate.commit != two


def test_a_strategy_explains_what_it_cannot_do(world):
    commit(world, "else", "free.txt", "1")
    other = commit(world, "else", "lines.txt", "other")
    base = world.branch("against", {"lines.txt": "else"})
    for strategy in ("merge", "squash", "rebase"):
        candidate = built(world, other, strategy, base)
        assert (candidate.commit, candidate.files) == (None, ("lines.txt",))
        assert "lines.txt" in candidate.reason
        assert (other[:10] in candidate.reason) == (strategy == "rebase")
    oid = commit(world, "work", "one.txt", "1")
    base = world.branch("main", {"main.txt": "m"})
    assert "cannot be moved forward" in built(world, oid, "ff-only", base).reason
    merged = commit(world, "work", "two.txt", "2", parents=[base])
    assert "is a merge" in built(world, merged, "rebase", base).reason
    assert built(world, merged, "ff-only", base).commit == merged
    alone = world.branch("alone", {"x": "x"}, start="")
    assert "has no parent" in built(world, alone, "rebase", base).reason
    assert "no commit in common" in built(world, alone, "squash", base).reason
    base = world.branch("main", {"one.txt": "1"})
    for strategy in ("squash", "rebase"):
        assert built(world, oid, strategy, base).commit == base, "the target has all of it"


def test_the_words_of_a_task_are_the_subject_where_garrison_writes_it(world):
    oid = commit(world, "work", "one.txt", "1")
    world.queue.enqueue("r", "n", 1, "work", title="Add the first file")
    world.drain()
    subject, node, run, branch = git(
        world.repo, "log", "-1", "--format=%s|%(trailers:key=Garrison-Node,valueonly,separator=)|"
        "%(trailers:key=Garrison-Run,valueonly,separator=)|%(trailers:key=Merge-Queue-Branch,valueonly,separator=)",
        "main").split("|")
    assert (subject, node, run, branch) == ("Add the first file", "n", "r", "work")
    assert git(world.repo, "rev-parse", "main^2") == oid
