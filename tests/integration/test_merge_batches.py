"""Batches on real repositories with real gates: halved when red, landed by one swap, adopted, changed by users."""

from __future__ import annotations

import pytest
from merge_support import World, await_gate, check, drive, finish, git, until

from garrison.backoff import Backoff
from garrison.merge import commands, decision
from garrison.merge.entry import EntryOptions
from garrison.merge.history import read_history
from garrison.merge.queue import MergeQueue
from garrison.merge.recovery import repair
from garrison.records import journal
from garrison.values import replace


@pytest.fixture(autouse=True)
def quick_gates_are_worth_a_batch(monkeypatch):
    monkeypatch.setattr(World, "bounds", {"short_gate": 0.0})


def enqueue_all(world: World, *nodes: str, **changes: dict[str, str | None]) -> None:
    """Enqueue these nodes, each with its own file or `changes`; one landed before, so that the gate is known."""
    world.add("first", {"first": "1\n"})
    world.drain()
    for node in nodes:
        world.add(node, changes.get(node), world.start)


def records(world: World, kind: str) -> list[dict]:
    return [stored.data for stored in journal.read_all(world.queue.path) if stored.kind == kind]


def runs_of(world: World) -> list[list[str]]:
    """Return the nodes under test, run by run."""
    return [[world.queue.entry(name).node for name in record["entries"]] for record in records(world, "test")]


@pytest.mark.smoke
def test_a_green_batch_lands_by_one_swap_and_the_history_names_every_entry(world):
    enqueue_all(world, "a", "b", "c", "d")
    world.land()
    assert runs_of(world) == [["first"], ["a", "b", "c", "d"]]
    assert [record["new"] for record in records(world, "landing")][1:] == [world.tip()]
    assert git(world.repo, "status", "--porcelain") == ""
    top, below = git(world.repo, "rev-parse", "main^1", "main^2").split()
    log = git(world.repo, "log", "--first-parent", "--reverse", f"{top}..{below}",
              "--format=%(trailers:key=Merge-Queue-Entry,valueonly,separator=)|"
              "%(trailers:key=Merge-Queue-Batch,valueonly,separator=)|"
              "%(trailers:key=Merge-Queue-Tested,valueonly,separator=)|%H|%T").splitlines()
    rows = [line.split("|") for line in log]
    assert [row[0] for row in rows] == [world.entry(node).id for node in "abcd"]
    assert [row[3] for row in rows] == [world.entry(node).commit for node in "abcd"]
    assert [row[1].split()[1] for row in rows] == ["1/4", "2/4", "3/4", "4/4"]
    assert len({row[1].split()[0] for row in rows}) == 1
    assert [row[2] for row in rows] == ["with 4/4"] * 3 + [f"{rows[3][4]} gate {world.config.command_key}"]
    assert git(world.repo, "log", "--first-parent", "--format=%H %T", f"{top}..main").splitlines() == [
        f"{world.tip()} {rows[3][4]}"]
    assert world.entry("b").together == tuple(world.entry(node).id for node in "acd")
    assert [landing.entry for landing in read_history(world.queue.path)] == [world.entry(node).id for node in
                                                                            ("first", *"abcd")], "no foreign move"
    check(world)
    kinds = [stored.kind for stored in journal.read_all(world.queue.path)]
    begun = kinds.index("test", kinds.index("test") + 1)
    assert kinds[begun - 1:] == ["state", "test", "verdict", "landing", "moved", *["landed"] * 4]

    before = {node: world.entry(node).commit for node in "abcd"}
    (world.home / "runs" / "r").mkdir(parents=True)
    world.queue.path.write_bytes(b"spoilt\n")
    queue = MergeQueue(world.home, world.repo)
    assert repair(queue, world.trees)
    found = {entry.branch: entry for entry in queue.entries()}
    assert {branch: (found[branch].status, found[branch].commit) for branch in "abcd"} == {
        node: ("landed", commit) for node, commit in before.items()}, "by the history alone"
    git(world.repo, "revert", "--no-edit", "-m", "1", before["b"])  # each is reverted by its own merge
    assert set(git(world.repo, "ls-files").split()) == {"lines.txt", "first", "a.txt", "c.txt", "d.txt"}


def test_a_commit_that_only_a_later_entry_makes_green_is_not_on_the_targets_line(tmp_path):
    """`b` fails alone, `c` changes what it fails by: together they pass."""
    world = World(tmp_path, gate="! test -e b.txt || test -e c.txt")
    enqueue_all(world, *"abcd")
    world.land()
    for commit in git(world.repo, "log", "--first-parent", "--format=%H", f"{world.start}..main").split():
        files = git(world.repo, "ls-tree", "--name-only", commit).split()
        assert "b.txt" not in files or "c.txt" in files
    check(world)


def test_batch_size_and_history_are_as_configured(world):
    """In a row if the queue wants a chain, one by one if it wants no batch, and alone for a straight history."""
    commands.reconfigure(world.queue, batch_history="chain")
    enqueue_all(world, *"abc")
    world.drain()
    line = git(world.repo, "log", "--first-parent", "--reverse", "--format=%H", f"{world.start}..main").split()
    assert line == [world.entry(node).commit for node in ("first", *"abc")]
    check(world)
    commands.reconfigure(world.queue, batch_history="tip", max_batch=1)
    for node in "def":
        world.add(node)
    world.drain()
    assert runs_of(world)[2:] == [["d"], ["e"], ["f"]]
    commands.reconfigure(world.queue, max_batch=0)
    for node in "ghij":
        world.branch(node, {f"{node}.txt": "1\n"})
        world.queue.enqueue("r", node, 1, node, recipient=f"runner-{node}@r",
                            options=EntryOptions(strategy="squash" if node in "hi" else None))
    world.drain()
    assert runs_of(world)[5:] == [["g"], ["h"], ["i"], ["j"]]
    check(world)


@pytest.mark.parametrize("bad", ["c", *(pytest.param(end, marks=pytest.mark.slow) for end in "af")])
def test_only_the_culprit_is_rejected_after_its_own_runs(world, bad):
    enqueue_all(world, *"abcdef", **{bad: {"bad": "x\n"}})
    world.drain()
    assert {node for node, status in world.statuses().items() if status != "landed"} == {bad}
    assert world.entry(bad).status == "rejected"
    assert "failed (exit 1)" in world.entry(bad).reason
    assert [bad] in runs_of(world)
    assert len(runs_of(world)) <= 8
    outcomes = [(outcome.entry.node, outcome.type) for outcome in world.queue.state.outcomes
                if outcome.type.startswith("MERGE")]
    assert sorted(node for node, _ in outcomes) == sorted(["first", *"abcdef"])
    check(world)


def test_the_second_of_two_entries_red_only_together_is_rejected(tmp_path):
    world = World(tmp_path, gate="! { test -e a.txt && test -e d.txt; }")
    enqueue_all(world, *"abcde")
    world.drain()
    assert {node for node, status in world.statuses().items() if status == "rejected"} == {"d"}
    assert world.statuses()["e"] == "landed"
    check(world)


def test_a_gate_that_fails_once_rejects_no_entry(tmp_path):
    """Red for the batch and for each half until the leaf, which passes when run again."""
    world = World(tmp_path, gate=f"echo x >> {tmp_path}/runs; ! {{ test -e a.txt && "
                                 f"test $(wc -l < {tmp_path}/runs) -lt 5; }}")
    enqueue_all(world, *"abcd")
    world.land()
    assert runs_of(world)[1:4] == [["a", "b", "c", "d"], ["a", "b"], ["a"]]
    assert world.queue.state.verdicts.evidence("").flaky
    check(world)


def test_an_entry_that_conflicts_with_its_batch_waits_until_the_batch_has_landed(world):
    enqueue_all(world, *"abcd", a={"lines.txt": "a\n"}, c={"lines.txt": "c\n"})
    assert world.drained() == {"first": "landed", "a": "landed", "b": "landed", "c": "conflict", "d": "landed"}
    assert world.entry("c").files == ("lines.txt",)
    assert runs_of(world) == [["first"], ["a", "b", "d"]]
    check(world)


def test_a_conflict_is_reported_while_another_entry_is_tested(tmp_path):
    world = World(tmp_path, gate=f"test ! -e slow || until test -e {tmp_path}/go; do sleep 0.02; done")
    enqueue_all(world, "a", "slow", a={"lines.txt": "a\n"}, slow={"slow": "x\n"})
    processor = world.processor()
    until(lambda: processor.step() and world.entry("slow").status == "testing", "the slow gate")
    world.add("late", {"lines.txt": "late\n"}, world.start)
    world.add("fine", start=world.start)
    objects = git(world.repo, "count-objects")
    until(lambda: processor.step() and world.entry("late").status == "conflict", "the answer")
    assert world.entry("late").files == ("lines.txt",)
    assert git(world.repo, "count-objects") == objects, "the conflict check leaves objects behind"
    assert (world.entry("slow").status, world.entry("fine").status) == ("testing", "queued")
    (tmp_path / "go").touch()
    finish(processor, "fine")
    check(world)


def test_a_batch_under_test_is_adopted_by_the_next_processor(tmp_path):
    world = World(tmp_path, gate=f"echo run >> {tmp_path}/runs; test ! -e a.txt || until test -e {tmp_path}/go; do "
                                 "sleep 0.02; done")
    enqueue_all(world, *"abc")
    first = world.processor()
    await_gate(first)
    first.close()
    second = world.processor()
    assert second.step().kind == "gate"
    (tmp_path / "go").touch()
    drive(second)
    second.close()
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    assert set(world.statuses().values()) == {"landed"}
    check(world)


def test_an_entry_withdrawn_under_test_leaves_its_batch_and_the_others_land(tmp_path):
    world = World(tmp_path, gate="test ! -e b.txt || sleep 300")
    enqueue_all(world, *"abc")
    processor = world.processor()
    await_gate(processor)
    commands.cancel(world.queue, world.entry("b").id, "not wanted any more")
    finish(processor)
    assert world.statuses() == {"first": "landed", "a": "landed", "b": "cancelled", "c": "landed"}
    check(world)


def test_only_the_entries_that_touch_edited_files_wait(world):
    enqueue_all(world, *"abc", b={"lines.txt": "b\n"})
    (world.repo / "lines.txt").write_text("mine\n")
    world.drain(until="blocked")
    assert world.statuses() == {"first": "landed", "a": "landed", "b": "landing_blocked", "c": "landed"}
    assert world.entry("b").files == ("lines.txt",)
    git(world.repo, "checkout", "-q", "lines.txt")
    world.land("b")
    check(world)


def test_a_broken_gate_pauses_the_queue_and_rejects_no_entry(tmp_path):
    world = World(tmp_path, gate=f"test ! -e {tmp_path}/broken || exit 127")
    enqueue_all(world, *"abc")
    (tmp_path / "broken").touch()
    assert "gate_broken" in world.drain(until="paused").text
    assert runs_of(world)[1:] == [["a", "b", "c"], ["a"]], "the batch, then the bare target"
    assert records(world, "test")[-1]["of"] == "base"
    assert {world.statuses()[node] for node in "abc"} == {"queued"}
    (tmp_path / "broken").unlink()
    world.queue.resume_own_pause("fixed")
    world.land()
    check(world)


@pytest.mark.parametrize(("failure", "reason"), [("sh -c 'kill -SEGV $$'", "gate_broken"), ("exit 1", "base_red")])
def test_a_queue_whose_gate_failed_for_what_may_pass_tries_again_by_itself(tmp_path, failure, reason):
    world = World(tmp_path, gate=f"test ! -e {tmp_path}/down || {failure}")
    world.bounds = {"retry": Backoff(0.2)}
    (tmp_path / "down").touch()
    world.add("a")
    assert "the queue tries again at " in world.drain(until="paused").text
    first = records(world, "pause")[-1]
    assert (first["reason"], first["retry_after"]) == (reason, 0.2)
    processor = world.processor()
    until(lambda: len(records(world, "pause")) == 2 or (processor.step() and False), "a second try")
    assert records(world, "pause")[-1]["retry_after"] == 0.4, "each try in a row waits twice as long"
    (tmp_path / "down").unlink()
    until(lambda: set(world.statuses().values()) == {"landed"} or (processor.step() and False), "a third try")
    processor.close()
    assert world.queue.state.retried_pauses == 0
    check(world)


def test_with_idle_cores_prefixes_are_tested_in_parallel(tmp_path, monkeypatch):
    monkeypatch.setattr(decision, "choose_gate_width", lambda cores, gate_cores: 3)
    world = World(tmp_path, gate=f"echo $GARRISON_SLOT >> {tmp_path}/slots; sleep 0.2; test ! -e bad")
    enqueue_all(world, *"abcdef", e={"bad": "x\n"})
    world.drain()
    assert {node for node, status in world.statuses().items() if status != "landed"} == {"e"}
    assert world.entry("e").status == "rejected"
    assert {"1", "2"} <= set((tmp_path / "slots").read_text().split()) <= {"1", "2", "3"}
    check(world)


def test_an_identical_tree_is_tested_once_while_gate_and_environment_are_the_same(world):
    enqueue_all(world, "a")
    world.drain()
    git(world.repo, "update-ref", "refs/heads/main", "main^")  # someone reverts it, and it is enqueued again
    git(world.repo, "reset", "-q", "--hard")
    git(world.repo, "branch", "-f", "again", "a")
    world.enqueue("again")
    world.land("again")
    assert runs_of(world) == [["first"], ["a"]]
    reused = [record for record in records(world, "verdict") if record.get("reused")]
    assert [record["entry"] for record in reused] == [world.entry("again").id]
    git(world.repo, "update-ref", "refs/heads/main", "main^")
    git(world.repo, "reset", "-q", "--hard")
    git(world.repo, "branch", "-f", "other", "a")
    world.queue.configure(replace(world.queue.state.config, setup="true"))
    world.enqueue("other")
    world.drain()
    assert runs_of(world)[2:] == [["other"]]


