"""The queue under faults: kills in series, processors stopped while others replace them, gates that misbehave.

`queue_storm` draws the faults from a seed; `queue_checker` judges.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from merge_support import World, check, finish, git, until

from garrison.merge import entry as order
from garrison.merge import processor
from garrison.merge.entry import EntryOptions
from garrison.merge.processor import StepResult
from garrison.system import failpoint
from queue_storm import FORK, Storm, count_kills, kill, work
from support import DEADLINE

STOPS = ("candidate", "verdict_before", "swapped")
"""Failpoints of the default suite; the others are slow. At `landing` it has locked the queue, and everything waits."""


@pytest.mark.parametrize(("kills", "seed"), [(5, 5), pytest.param(150, 6, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_kills_in_series_and_inside_recovery(tmp_path, kills, seed):
    for number in range(0, kills, 40):
        storm = Storm(tmp_path / str(number), seed + number, min(kills, 40))
        assert storm.play() == []
        assert count_kills(storm.did) >= min(kills, 40)


def _stop_at(world: World, point: str) -> None:
    """Run a processor that stops itself at `point`, once."""
    left = [point]

    def here(name: str) -> None:
        if name in left:
            left.remove(name)
            os.kill(os.getpid(), signal.SIGSTOP)

    failpoint.here = here
    work(world)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("point", [*STOPS, *(pytest.param(name, marks=pytest.mark.slow) for name in processor.FAILPOINTS
                                             if name not in (*STOPS, "landing"))])
def test_a_stopped_processor_writes_nothing_after_a_takeover(world, point):
    """Its lock's file is gone (`git clean -fdx`) and another processor finishes; continued, it must give way."""
    world.add("one")
    world.add("bad", {"bad": "x\n"})
    first = FORK.Process(target=_stop_at, args=(world, point))
    first.start()
    try:
        until(lambda: not first.is_alive() or _state(first.pid) == "T", f"a stop at {point}")
        stopped = first.is_alive()
        world.queue.processor_lock.unlink()
        world.drain()
        tip = world.tip()
        if stopped:
            os.kill(first.pid, signal.SIGCONT)
        until(lambda: not first.is_alive(), "its end")
        assert first.exitcode == (3 if stopped else 0)
    finally:
        kill(first)
    assert [entry.status for entry in world.queue.entries()] == ["landed", "rejected"]
    assert world.tip() == tip
    processor = world.processor()  # the next one at the latest unlocks the user's checkout
    processor.close()
    check(world)


def test_a_processor_stopped_before_the_swap_blocks_the_queue_until_it_is_killed(world):
    world.add("one")
    first = FORK.Process(target=_stop_at, args=(world, "landing"))
    first.start()
    until(lambda: _state(first.pid) == "T", "a stop")
    second = FORK.Process(target=work, args=(world,))
    second.start()
    second.join(0.5)
    assert second.is_alive()
    assert world.tip() == world.start
    kill(first)
    second.join(DEADLINE)
    assert second.exitcode == 0
    assert world.entry("one").status == "landed"
    check(world)


def test_a_gate_that_misbehaves_on_one_entry_is_that_entrys_fault_and_leaves_nothing(tmp_path):
    odd = {"forks": "(setsid sleep 301 & setsid sh -c 'sleep 302 & sleep 303' &) ; sleep 304",
           "ignores": "for n in 1 2 3 4 5 6 7 8; do (trap '' TERM; sleep 30$n) & done; wait",
           "fills": "ulimit -f 8; head -c 100000 /dev/zero > filled", "kills": "kill -9 $$"}
    world = World(tmp_path, gate="; ".join(f"if test -e {name}; then {gate} || exit $?; fi"
                                           for name, gate in odd.items()), timeout=1.5)
    for name in (*odd, "fine"):
        world.add(name, {name: "x\n"})
    assert world.drained() == {
        **dict.fromkeys(odd, "rejected"), "fine": "landed"}
    check(world)


def test_higher_priorities_overtake_an_entry_only_so_often(tmp_path):
    """After a fixed number of places the waiting entry is next, however many come with a higher priority."""
    world = World(tmp_path, gate=None)
    processor = world.processor()
    for name in ("first", *(f"n{number}" for number in range(order.PLACES + 4))):
        made = git(world.repo, "commit-tree", "main^{tree}", "-p", world.start, "-m", name)
        git(world.repo, "update-ref", f"refs/heads/{name}", made)
    world.enqueue("first")
    coming, passed = iter(range(order.PLACES + 4)), 0
    while not world.entry("first").is_final:
        while len(world.queue.state.unfinished()) < 4:
            name = f"n{next(coming)}"
            world.queue.enqueue("r", name, 1, name, options=EntryOptions(priority=1))
        done = processor.step()
        passed += isinstance(done, StepResult) and done.what == "landed"
    finish(processor)
    assert passed - 1 == order.PLACES - 1  # the eighth has the same rank and came later
    check(world)
