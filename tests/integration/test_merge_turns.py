"""Turns in the real queue: a node that lost to a moved target lands next, and all others still land."""

from __future__ import annotations

import signal

import pytest
from merge_support import check, drive, finish, until, wait
from test_merge_kill import victim

from garrison.merge import commands
from garrison.merge.processor import CONFLICT_FAILPOINTS, FAILPOINTS, StepResult
from garrison.merge.records import TurnEnded, TurnSuspended
from garrison.merge.turns import TurnEnd


def append(world, node, attempt=1, file="lines.txt", start=None):
    """Enqueue an attempt that appends a line to a file of the target, or of `start`."""
    text = world.queue.git.run("show", f"{start or 'main'}:{file}", check=False).out
    world.branch(f"{node}-{attempt}", {file: f"{text}{node}\n", f"{node}.txt": f"{attempt}\n"}, start=start or "main")
    return world.enqueue(node, attempt, f"{node}-{attempt}")


def statuses(world):
    return {entry.id.rpartition("-")[0]: entry.status for entry in world.queue.entries()}


@pytest.mark.smoke
@pytest.mark.parametrize("alone", [True, False])
def test_nodes_that_append_to_one_file_lose_once_each_and_all_land(world, alone):
    world.bounds = {"max_batch": 1} if alone else {"short_gate": 0.0}
    nodes = [f"n{number}" for number in range(6)]
    for node in nodes:
        append(world, node)
    append(world, "other", file="o.txt")
    runs, attempts = 6, dict.fromkeys(nodes, 1)
    processor = world.processor()
    while drive(processor, "blocked|empty") and world.queue.state.turns:
        (turn,) = world.queue.state.turns.values()
        waiting = [entry for entry in world.queue.entries() if entry.waits_for]
        assert all((entry.waits_for, entry.files) == (("r", turn.node), ("lines.txt",)) for entry in waiting)
        assert world.entry("other").status == "landed"
        attempts[turn.node] += 1
        runs += 1
        append(world, turn.node, attempts[turn.node])
    processor.close()
    assert [world.entry(node).status for node in nodes] == ["landed"] * 6
    assert (runs, max(attempts.values())) == (11, 2)
    assert sum(entry.moved for entry in world.queue.entries()) == 5
    assert sorted((world.repo / "lines.txt").read_text().splitlines()[10:]) == nodes
    check(world)


def lose(world, *also, start):
    """Let `a` land and `b` lose to it in lines.txt; `also` change that file and wait."""
    append(world, "a", start=start)
    append(world, "b", start=start)
    for node in also:
        append(world, node, start=start)
    world.drain(until="blocked" if also else "empty")
    assert statuses(world)["b-1"] == "conflict"


def test_an_entry_under_test_that_changes_a_file_of_the_turn_waits_and_what_it_needs_does_not(world):
    lose(world, start=world.start)
    need = append(world, "need")
    world.queue.enqueue("r", "b", 2, "a-1", recipient="runner-b@r")  # it has landed already: the turn ends
    world.drain()
    assert (world.entry("need").status, need.waits_for, world.queue.state.turns) == ("landed", (), {})


def test_others_continue_when_the_loser_loses_its_turn(world):
    lose(world, "c", start=world.start)
    (turn,) = world.queue.state.turns.values()
    with world.queue.locked():
        world.queue.append(TurnEnded(*turn.key, turn.number, TurnEnd.FAILED))
    world.drain()
    assert (statuses(world)["c-1"], world.entry("c").moved) == ("conflict", True)
    assert [turn.node for turn in world.queue.state.turns.values()] == ["c"]


def test_a_turn_lasts_its_time_of_work_and_not_while_the_agent_waits_for_an_outage(world):
    lose(world, "c", start=world.start)
    processor = world.processor()
    (turn,) = world.queue.state.turns.values()
    with world.queue.locked():
        world.queue.append(TurnSuspended(*turn.key, turn.number, waits=True))
    clock = processor.turn_clock
    clock.measure = lambda now, running, real=clock.measure: real(real_now[0], running)
    real_now = [0.0]
    for second in range(400):
        real_now[0] = second * 5.0
        assert not isinstance(processor.step(), StepResult)
    with world.queue.locked():
        world.queue.append(TurnSuspended(*turn.key, turn.number, waits=False))
    for second in range(400, 579):
        real_now[0] = second * 5.0
        processor.step()
    assert 870 <= world.queue.state.turns["r", "b"].used < 900
    for second in range(579, 600):
        real_now[0] = second * 5.0
        step = processor.step()
        if not isinstance(step, StepResult):
            wait(step.fd, 0.0)
    finish(processor)
    assert [turn.node for turn in world.queue.state.turns.values()] == ["c"]
    assert (world.entry("b").moved, world.entry("c").status) == (True, "conflict")
    append(world, "b", 2, start=world.start)
    world.drain(until="blocked")
    assert world.entry("b").waits_for == ("r", "c")
    check(world)


def test_a_second_loss_in_the_same_file_is_rework_and_an_entry_by_hand_has_no_turn(world):
    lose(world, start=world.start)
    append(world, "b", 2, start=world.start)
    world.drain()
    assert [(entry.status, entry.moved) for entry in world.queue.state.entries_of("r", "b")] == [
        ("conflict", True), ("conflict", False)]
    world.queue.enqueue("", "hand", 1, "b-1")
    world.drain(until="blocked")
    with world.queue.locked():
        world.queue.append(TurnEnded("r", "b", world.queue.state.turns["r", "b"].number, TurnEnd.FAILED))
    world.drain()
    entry = world.queue.state.entries_of("", "hand")[-1]
    assert (entry.status, entry.moved) == ("conflict", False)
    assert world.queue.state.turns == {}


def test_a_node_whose_entry_a_user_withdraws_loses_its_turn(world):
    lose(world, "c", start=world.start)
    commands.pause(world.queue)
    commands.cancel(world.queue, append(world, "b", 2).id, "a person")
    commands.resume(world.queue)
    world.drain()
    assert statuses(world)["c-1"] == "conflict"


@pytest.mark.parametrize("points", [CONFLICT_FAILPOINTS, *(
    pytest.param((point,), marks=pytest.mark.slow) for point in FAILPOINTS if point not in ("cleaned", "landed_first")
)], ids=" ".join)
def test_killed_at_every_step_twice_the_loser_still_lands_next(world, points):
    for node in ("a", "b", "c"):
        append(world, node, start=world.start)
    append(world, "free", file="free.txt", start=world.start)
    died = [victim(world, point, until="blocked") for point in points]
    assert set(died) == {-signal.SIGKILL} or points != CONFLICT_FAILPOINTS
    for point in points:
        victim(world, point, until="blocked")
    world.drain(until="blocked")
    assert [world.entry(node).status for node in ("a", "b", "c", "free")] == ["landed", "conflict", "queued", "landed"]
    assert world.entry("c").waits_for == ("r", "b")
    append(world, "b", 2)
    for point in points:
        victim(world, point, until="empty")
    world.drain()
    assert [world.entry(node).status for node in ("b", "c")] == ["landed", "conflict"]
    assert list(world.queue.state.turns) == [("r", "c")]
    append(world, "c", 2)
    world.drain()
    assert world.queue.state.turns == {}
    assert until(lambda: world.entry("c").status == "landed", "c landed")
    check(world)
