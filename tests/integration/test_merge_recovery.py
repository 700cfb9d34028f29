"""Recovery of a queue whose journal is damaged or gone."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from merge_support import World, compact, git, run_in_child

from garrison.errors import RecordCorrupt, Refused
from garrison.merge import commands, entry, recovery
from garrison.merge.entry import EntryOptions
from garrison.merge.queue import MergeQueue
from garrison.records import signals


@pytest.fixture
def world(tmp_path):
    """`one` and `squashed` landed, `bad` is rejected, `clash` in conflict, all signalled; `two` and `three` wait;
    `kept` is on hold."""
    world = World(tmp_path)
    (world.home / "runs" / "r").mkdir(parents=True)
    for name in ("one", "squashed", "bad", "two", "three", "kept"):
        world.branch(name, {name: "x\n"})
    for name in ("one", "clash"):
        world.branch(name, {"lines.txt": f"{name}\n"})
    for name in ("one", "squashed", "bad", "clash"):
        world.queue.enqueue("r", name, 1, name, recipient=f"runner-{name}@r",
                            title="Merge words into one" if name == "one" else "",
                            options=EntryOptions(strategy="squash" if name == "squashed" else None))
    world.drain()
    for outcome in world.queue.state.outcomes:
        signals.post(world.home, entry.to_signal(outcome), outcome.seq)
    for name in ("two", "three", "kept"):
        world.enqueue(name)
    commands.hold(world.queue, world.entry("kept").id)
    return world


ENDED = {"one": "landed", "squashed": "landed", "bad": "rejected", "clash": "conflict"}
BEFORE = {**ENDED, "two": "queued", "three": "queued", "kept": "held"}


def repair(world):
    """Return the findings; then everything that waits lands."""
    world.queue = MergeQueue(world.home, world.repo)
    found = recovery.repair(world.queue, world.trees)
    assert recovery.repair(world.queue, world.trees) == []
    known = world.statuses()
    assert {name: known[name] for name in ENDED} == ENDED
    if world.queue.state.config is None:
        world.queue.configure(world.config)
    world.drain()
    form = "--format=%(trailers:key=Merge-Queue-Entry,valueonly,separator=%x2C)"
    told = [names for names in git(world.repo, "log", form, "main").split() if "," not in names]  # a batch's names all
    assert len(told) == len(set(told))
    assert sorted(one.rpartition("-")[0].rpartition("-")[0] for one in told) == sorted(
        name for name, status in world.statuses().items() if status == "landed")
    return known, [one.what for one in found]


@pytest.mark.parametrize("first", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in (1, 2))])
def test_a_journal_with_damaged_lines_is_rebuilt(world, first):
    """Every third line, from three starts."""
    path, whole = world.queue.path, world.queue.path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(b"#" + line[1:] if at % 3 == first else line for at, line in enumerate(whole)))
    with pytest.raises(RecordCorrupt):
        MergeQueue(world.home, world.repo).entries()
    known, told = repair(world)
    assert {name for name in BEFORE if known.get(name) not in (BEFORE[name], "queued")} == set()
    assert set(known) == set(BEFORE)
    assert "rebuilt the journal of main" in told[0]
    assert list(path.parent.glob("damaged-*.jsonl"))


def test_a_lost_journal_is_rebuilt_from_pins_trailers_and_signals(world):
    old = world.queue.state.seq
    world.queue.path.unlink()
    known, told = repair(world)
    assert known == {**BEFORE, "kept": "queued"}
    assert world.queue.state.seq > old
    assert sum("is known by its pin alone" in line for line in told) == 3
    assert any("merge-queue config --gate" in line for line in told)
    assert world.statuses() == {**ENDED, **dict.fromkeys(("two", "three", "kept"), "landed")}
    assert world.entry("one").recipient == "runner-one@r"
    assert world.entry("one").branch == "one", "its subject names no branch"


def test_a_landing_whose_record_is_lost_is_signalled_to_its_runner(world):
    landed = next(outcome for outcome in world.queue.state.outcomes if outcome.type == "MERGE_COMPLETE")
    shutil.rmtree(world.home / "signals")
    lines = world.queue.path.read_bytes().splitlines(keepends=True)
    world.queue.path.write_bytes(b"".join(
        line for line in lines if b'"kind":"landed","data":{"entry":"one' not in line))
    repair(world)
    again = next(outcome for outcome in world.queue.state.outcomes if outcome.entry.node == "one"
                 and outcome.type == "MERGE_COMPLETE")
    assert (again.entry.commit, again.entry.recipient) == (landed.entry.commit, "runner-one@r")


def test_archived_parts_are_read_where_the_rest_is_gone(world):
    compact(world)
    world.queue.path.unlink()
    known, told = repair(world)
    assert known == BEFORE
    assert len(told) == 1


@pytest.mark.parametrize("aside", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_journal_that_was_started_again_is_joined_with_the_earlier_records(world, aside):
    if aside:
        compact(world)
    world.queue.path.unlink()
    world.branch("four", {"four": "x\n"})
    world.queue = MergeQueue(world.home, world.repo)
    world.enqueue("four")
    known, told = repair(world)
    assert known == {**BEFORE, "kept": "held" if aside else "queued", "four": "queued"}
    assert "started again" in told[0]


def test_a_rebuild_is_refused_while_a_processor_runs(tmp_path):
    world = World(tmp_path)
    world.add("one", {"one": "x\n"})
    processor = world.processor()
    raw = world.queue.path.read_bytes()
    world.queue.path.write_bytes(raw.replace(b'"kind":"enq"', b'"kind":"qne"', 1))
    with pytest.raises(Refused, match="stop it and run `garrison doctor` again"):
        recovery.repair(MergeQueue(world.home, world.repo), world.trees)
    processor.close()


def test_doctor_creates_no_queue(tmp_path):
    world = World(tmp_path)
    other = MergeQueue(tmp_path / "home2", world.repo)
    world.branch("one", {"one.txt": "x\n"})
    world.enqueue("one")  # its pin belongs to the other home's queue
    assert recovery.repair(other, world.trees) == []
    assert not other.path.exists()


def _die_rebuilding(world, point):
    os.environ["GARRISON_FAILPOINT"] = point
    recovery.repair(MergeQueue(world.home, world.repo), world.trees)


@pytest.mark.parametrize("point", [pytest.param(point, marks=() if point == "rebuilt" else pytest.mark.slow)
                                   for point in recovery.FAILPOINTS])
def test_a_killed_rebuild_can_be_repeated(world, point):
    """The journal is damaged, a landing's record and its signal are lost, and the landing was reverted since."""
    lines = world.queue.path.read_bytes().splitlines(keepends=True)
    lost = next(at for at, line in enumerate(lines) if b'"kind":"landed","data":{"entry":"one' in line)
    lines[lost] = b"#" + lines[lost][1:]
    world.queue.path.write_bytes(b"".join(lines))
    shutil.rmtree(world.home / "signals")
    commit = git(world.repo, "log", "--format=%H", "--grep=^Merge words into one$", "main")
    git(world.repo, "revert", "--no-edit", "-m1", commit)
    codes = [run_in_child(_die_rebuilding, world, point) for _ in range(2)]
    assert set(codes) <= {-signal.SIGKILL, 0}
    assert point == "rebuilt" or codes[-1]
    known, _ = repair(world)
    assert known == BEFORE
    assert world.entry("one").commit == commit
    assert len(list(world.queue.folder.glob("damaged-*.jsonl"))) == 1
