"""kill -9 at every durable step, twice in a row, then recovery: the checker compares journal, refs and history."""

from __future__ import annotations

import os
import signal

import pytest
from merge_support import FORK, World, check, compact, drive, finish, git, run_in_child

from garrison.merge import commands, recovery
from garrison.merge import processor as merge_processor
from garrison.merge import queue as queue_module
from garrison.merge.processor import MergeProcessor
from garrison.merge.queue import MergeQueue
from garrison.records import journal
from support import DEADLINE


@pytest.fixture(autouse=True)
def compact_often(monkeypatch):
    """Compact the journal while a handful of entries is worked."""
    monkeypatch.setattr(World, "bounds", {"snapshot_every": 5})


def _process(world: World, point: str, until: str) -> None:
    os.environ["GARRISON_FAILPOINT"] = point
    processor = MergeProcessor(MergeQueue(world.home, world.repo, token="victim"), trees=world.trees,
                               environment={**world.environment, "GARRISON_FAILPOINT": point}, **world.bounds)
    assert processor.acquire()
    processor.recover()
    drive(processor, until)


def victim(world: World, point: str, until: str = "empty") -> int:
    """Run a processor that dies at `point`; return its exit code."""
    code = run_in_child(_process, world, point, until)
    assert code in (0, -signal.SIGKILL)
    return code


@pytest.mark.parametrize("points", [merge_processor.FAILPOINTS[start::3] for start in range(3)], ids=" ".join)
def test_killed_at_every_step_twice(world, points):
    """One after the other in one queue: what a kill leaves is there at the next."""
    (world.repo / "mine.txt").write_text("mine\n")
    bad = world.add("bad", {"bad": "x\n"})
    for point in points:
        world.add(point)
        assert victim(world, point) == -signal.SIGKILL
        victim(world, point)  # dies there again, if the first one left anything to do there
    assert world.drained() == {
        "bad": "rejected", **dict.fromkeys(points, "landed")}
    assert git(world.repo, "status", "--porcelain") == "?? mine.txt"
    assert git(world.repo, "for-each-ref", "--format=%(refname)", "refs/garrison") == f"refs/garrison/mq/{bad.id}/head"
    check(world)
    outcomes = [(outcome.entry.node, outcome.type) for outcome in world.queue.state.outcomes]
    assert sorted(outcome for outcome in outcomes if outcome[1].startswith("MERGE")) == sorted([
        ("bad", "MERGE_FAILED"), *((point, "MERGE_COMPLETE") for point in points)])


@pytest.mark.parametrize("point", [pytest.param(point, marks=() if point == "landed_first" else pytest.mark.slow)
                                   for point in merge_processor.FAILPOINTS])
def test_killed_at_every_step_of_batches_twice(world, point):
    """Kill amid halving a batch with a bad entry in its middle, amid a landing of several, and after it."""
    world.bounds = {**world.bounds, "short_gate": 0.0}
    world.add("first", {"first": "1\n"})
    world.drain()
    for node in ("one", "two", "bad", "three"):
        world.add(node, {node: "x\n"}, world.start)
    assert victim(world, point) == -signal.SIGKILL
    victim(world, point)
    assert world.results() == ["landed"] * 3 + ["rejected", "landed"]
    assert git(world.repo, "status", "--porcelain") == ""
    check(world)
    nodes = [outcome.entry.node for outcome in world.queue.state.outcomes if outcome.type.startswith("MERGE")]
    assert sorted(nodes) == ["bad", "first", "one", "three", "two"]


def test_killed_before_the_swap_and_the_target_moved_since(world):
    world.add("one")
    assert victim(world, "landing") == -signal.SIGKILL
    git(world.repo, "update-ref", "refs/heads/main", world.branch("foreign", {"f": "f\n"}), world.start)
    assert world.entry("one").status == "landing"
    (world.repo / ".git/index.lock").unlink()  # the user repairs the checkout that the killed processor had locked
    git(world.repo, "reset", "-q", "--hard")
    world.land("one")
    check(world, foreign=1)


def test_killed_after_the_swap_with_the_target_moved_further(world):
    world.add("one")
    assert victim(world, "swapped") == -signal.SIGKILL
    landed = world.tip()
    git(world.repo, "update-ref", "refs/heads/main", world.branch("foreign", {"f": "f\n"}), landed)
    world.drain()
    assert (world.entry("one").status, world.entry("one").commit) == ("landed", landed)
    assert (world.repo / "one.txt").exists()
    check(world, foreign=1)


def test_a_landing_that_became_blocked_after_a_crash_waits(world):
    world.add("one", {"lines.txt": "landed\n"})
    assert victim(world, "landing") == -signal.SIGKILL
    (world.repo / "lines.txt").write_text("mine\n")
    processor = world.processor()
    drive(processor, "blocked")
    assert world.entry("one").files == ("lines.txt",)
    assert (world.repo / "lines.txt").read_text() == "mine\n"
    assert world.tip() == world.start
    git(world.repo, "checkout", "-q", "lines.txt")
    processor.lander.retried_at = float("-inf")
    finish(processor, "one")
    assert world.gates() == 1  # the verdict on the same tree is durable
    check(world)


def _enqueue(home, repo, node, barrier):
    queue = MergeQueue(home, repo, token=f"runner-{node}@r")
    barrier.wait()
    queue.enqueue("r", node, 1, node)


def test_forty_concurrent_enqueues_are_forty_entries(world):
    tree = git(world.repo, "rev-parse", "main^{tree}")
    for number in range(40):
        commit = git(world.repo, "commit-tree", tree, "-p", "main", "-m", str(number))
        git(world.repo, "update-ref", f"refs/heads/n{number}", commit)
    barrier = FORK.Barrier(40)
    workers = [FORK.Process(target=_enqueue, args=(world.home, world.repo, f"n{number}", barrier))
               for number in range(40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE)
    assert [worker.exitcode for worker in workers] == [0] * 40
    assert sorted(entry.node for entry in world.queue.entries()) == sorted(f"n{number}" for number in range(40))
    assert len(git(world.repo, "for-each-ref", "refs/garrison/mq").splitlines()) == 40
    check(world)


def _die_enqueueing(world: World, point: str) -> None:
    os.environ["GARRISON_FAILPOINT"] = point
    world.enqueue(point)


def test_a_killed_enqueue_can_be_repeated(tmp_path, monkeypatch):
    world, synced = World(tmp_path), []
    for point in queue_module.FAILPOINTS:
        world.branch(point, {f"{point}.txt": "1\n"})
        for again in (False, True):
            code = run_in_child(_die_enqueueing, world, point)
            assert code == (0 if again and point == "enq_written" else -signal.SIGKILL)
        with monkeypatch.context() as patched:
            patched.setattr(queue_module.journal, "sync", lambda path: synced.append(path.stat().st_size))
            entry = world.enqueue(point)
        assert synced.pop() == world.queue.path.stat().st_size, "what another process wrote is durable as well"
        assert [each.id for each in world.queue.state.entries_of("r", point)] == [entry.id]
    world.drain()
    assert {entry.status for entry in world.queue.entries()} == {"landed"} and synced == []
    check(world)


def _write_as_another(world: World, what: str) -> None:
    """Write as another process between two reads of the journal by an enqueue."""
    queue = MergeQueue(world.home, world.repo, token="other")
    if what == "configured":
        commands.reconfigure(queue, strategy="squash")
    elif what == "compacted":
        compact(world)
    elif what == "crowd":
        for number in range(12):
            world.branch(f"node{number}", {f"{number}": "x\n"})
            queue.enqueue("r", f"node{number}", 1, f"node{number}")
    else:
        old = queue.enqueue("r", "node", 1, "node" if what == "same" else "before")
        if what == "held":
            commands.hold(queue, old.id)


@pytest.mark.parametrize("what", ["configured", "compacted", "crowd", "same", "held", "superseded", "rebuilt"])
def test_an_enqueue_reads_what_others_wrote_since(world, what):
    world.branch("before", {"one.txt": "0\n"})
    world.branch("node", {"one.txt": "1\n"})
    assert world.queue.state.config  # it has read all there is
    if what == "rebuilt":
        (world.home / "runs" / "r").mkdir(parents=True)
        _write_as_another(world, "held")
        world.queue.path.unlink()
        recovery.repair(MergeQueue(world.home, world.repo), world.trees)
    else:
        _write_as_another(world, what)
    entry = world.enqueue("node")
    assert entry == MergeQueue(world.home, world.repo).entry(entry.id)
    assert entry.status == ("held" if what == "held" else "queued")
    assert entry.strategy == ("squash" if what == "configured" else "merge")
    assert [each.status for each in world.queue.state.entries_of("r", "node")[:-1]] == \
        ["superseded"] * (what in ("held", "superseded", "rebuilt"))
    records = journal.read_all(world.queue.path)
    assert what == "rebuilt" or sum(stored.data.get("entry") == entry.id for stored in records) == 1
    assert len(world.queue.entries()) == {"crowd": 13, "held": 2, "superseded": 2, "rebuilt": 2}.get(what, 1)


def _die_amid_merges(world: World) -> None:
    git_ = world.queue.git
    git_.run = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    git_.merge_trees("main", ["main"])


def test_leftovers_of_a_killed_conflict_check_are_removed(world):
    scratch = world.queue.git.scratch
    assert run_in_child(_die_amid_merges, world) == -signal.SIGKILL
    (left,), mine = scratch.glob("objects-*"), scratch / f"objects-{os.getpid()}-x"
    mine.mkdir()
    (scratch / f"ref-{left.name.split('-')[1]}-1").touch()
    world.processor().close()
    assert list(scratch.glob("objects-*")) == [mine]
    assert list(scratch.glob("ref-*")) == []


def test_without_disk_space_for_a_snapshot_the_journal_continues(world, monkeypatch):
    world.add("one")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(journal, "replace_shared", lambda *_: (_ for _ in ()).throw(full))
    world.land("one")
    monkeypatch.undo()
    check(world)
