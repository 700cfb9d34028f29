"""Who comes next: leases, hooks of successors, markers; and how an observer tells a life's age."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doubles.clock import FakeClock
from doubles.processes import MemoryProcesses
from garrison.errors import AlreadyAlive, Refused
from garrison.records.hook import Hook, next_hook
from garrison.records.identity import Identity, mark_ended
from garrison.records.names import Key, format_marker, parse_marker
from garrison.records.store import Store
from garrison.supervise.incarnation import SpawnRequest, activate, grant_lease
from garrison.supervise.observer import Observer, ProcessOrigin
from garrison.supervise.verdict import Verdict
from garrison.system.clock import iso
from garrison.values import replace

KEY = Key("runner", "a", "r1")
BY = ProcessOrigin(7, 70, "pid:[1]", "b1", "h")
CHILD = ProcessOrigin(8, 80, "pid:[2]", "b2", "g")
THEN, NOW, LATER = (f"2026-01-31T1{hour}:00:00.000000Z" for hour in (1, 2, 3))
WISH = SpawnRequest(KEY, Key("guardian", "p", "r1"), "/trees/a", "garrison/r1/a", "runner-a", {"attempt": 2})


def next_life(old: Identity | None, state: str = "ended", wish: SpawnRequest = WISH) -> Identity:
    return grant_lease(old, Verdict(state, "because"), wish, BY, now=NOW, deadline=LATER, fresh_id="new")


def test_the_first_incarnation() -> None:
    first = grant_lease(None, None, WISH, BY, now=NOW, deadline=LATER, fresh_id="new")
    assert first == Identity(
        "new", "runner", "a", "r1", NOW, "runner-a", 1, 7, 70, "pid:[1]", "b1", "h", {"role": "guardian", "name": "p"},
        "/trees/a", "garrison/r1/a", None, "starting", NOW, LATER, None, None, None, None, 0, {"attempt": 2})
    assert next_life(None, wish=SpawnRequest(KEY)).parent is None
    first.metadata["mine"] = 1
    assert "mine" not in WISH.metadata, "each has a copy"


@pytest.mark.parametrize("state", ["alive", "starting", "elsewhere"])
def test_nothing_is_started_over_a_living_incarnation(state: str) -> None:
    with pytest.raises(AlreadyAlive, match="runner-a@r1 is alive"):
        next_life(next_life(None), state)


@pytest.mark.parametrize("state", ["dead", "lapsed"])
def test_a_dead_incarnation_must_be_replaced_first(state: str) -> None:
    with pytest.raises(Refused, match=f"runner-a@r1 is {state} and must be replaced first"):
        next_life(next_life(None), state)


@pytest.mark.parametrize("status", ["crashed", "terminated", "parked"])
def test_a_successor_counts_on_and_forgets_how_the_last_one_ended(status: str) -> None:
    old = replace(activate(next_life(None), CHILD, THEN), respawns=3, tmux={"socket": "s"}, exit=-9)
    old = (replace(old, status="parked") if status == "parked" else mark_ended(old, status, THEN, "it died"))
    new = next_life(replace(old, agent_id="old", incarnation=4))
    assert (new.incarnation, new.respawns, new.predecessor_id, new.agent_id) == (5, 4, "old", "new")
    assert (new.status, new.pid, new.start_ticks, new.spawn_deadline) == ("starting", 7, 70, LATER)
    assert (new.crashed_at, new.terminated_at, new.exit, new.tmux, new.reason) == (None, None, None, None, "")


def test_a_journal_that_knows_more_than_the_record_counts() -> None:
    crashed = mark_ended(next_life(None), "crashed", THEN, "x")
    assert next_life(None, wish=SpawnRequest(KEY, journal_incarnation=6)).incarnation == 7
    assert next_life(crashed, wish=SpawnRequest(KEY, journal_incarnation=6)).incarnation == 7
    assert next_life(replace(crashed, incarnation=9), wish=SpawnRequest(KEY, journal_incarnation=6)).incarnation == 10


def test_becoming_active_needs_a_lease() -> None:
    mine = activate(next_life(None), CHILD, LATER)
    assert (mine.status, mine.pid, mine.start_ticks, mine.pid_ns, mine.boot_id, mine.host) == (
        "active", 8, 80, "pid:[2]", "b2", "g")
    assert (mine.spawn_deadline, mine.last_heartbeat, mine.created_at) == (None, LATER, NOW)


def test_hooks_of_successive_incarnations() -> None:
    first = next_hook(None, KEY, 1, THEN, "h1")
    assert (first.phase, first.hook_id, first.incarnation, first.key) == ("planning", "h1", 1, KEY)
    worked = replace(first, phase="executing", last_committed_node="c", resumption_instructions="n")
    assert next_hook(worked, KEY, 1, NOW, "x") is worked
    second = next_hook(worked, KEY, 2, NOW, "h2")
    assert second == replace(worked, hook_id="h2", predecessor_hook_id="h1", incarnation=2, updated_at=NOW)
    third = next_hook(second, KEY, 3, LATER, "h3")
    assert (third.phase, third.last_committed_node, third.resumption_instructions, third.predecessor_hook_id) == (
        "executing", "c", "n", "h2")
    assert isinstance(third, Hook)


# -------------------------------------------------------------------------------------------------------- an observer


class Scene:
    """A home with one life in it, seen by a fake clock and processes in memory."""

    def __init__(self, home: Path) -> None:
        self.clock, self.processes, self.store = FakeClock(), MemoryProcesses(), Store(home)
        self.observer = Observer(self.store, self.processes, self.clock)
        me = self.observer.origin(self.processes.ours)
        self.identity = activate(grant_lease(None, None, SpawnRequest(KEY), me, now=self.clock.utc(),
                                             deadline=self.clock.utc(),
                                       fresh_id="i"), me, self.clock.utc())
        self.file = self.store.life_path(KEY)
        self.file.parent.mkdir()

    def beat(self, monotonic: float, wall: float) -> None:
        self.file.touch()
        os.utime(self.file, (monotonic, wall))

    def age(self) -> float | None:
        return self.observer.observe(self.identity).beat_age


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_without_a_life_file_the_record_gives_the_age(scene: Scene) -> None:
    scene.clock.advance(20)
    assert scene.age() == pytest.approx(20)
    scene.identity = replace(scene.identity, last_heartbeat="")
    assert scene.age() is None


def test_suspend_and_clock_steps_age_no_heartbeat(scene: Scene) -> None:
    scene.beat(scene.clock.monotonic(), scene.clock.time())
    scene.clock.advance(5)
    for step in (86400, -3 * 86400):
        scene.clock.step(step)
        assert scene.age() == pytest.approx(5), step


def test_a_clock_set_back_hides_no_silence(scene: Scene) -> None:
    scene.beat(scene.clock.monotonic(), scene.clock.time())
    scene.clock.advance(400)
    scene.clock.step(-3600)
    assert scene.age() == pytest.approx(400)


def test_the_scripts_heartbeat_counts_beside_the_life_files(scene: Scene) -> None:
    scene.beat(scene.clock.monotonic(), scene.clock.time())
    scene.clock.advance(400)
    scene.identity = replace(scene.identity, last_heartbeat=scene.clock.utc())
    scene.clock.advance(3)
    assert scene.age() == pytest.approx(3)


def test_a_predecessors_heartbeat_of_another_boot_does_not_age_a_new_incarnation(scene: Scene) -> None:
    scene.beat(scene.clock.monotonic() - 900, scene.clock.time() - 86400)
    scene.identity = replace(scene.identity, last_heartbeat=scene.clock.utc())
    scene.clock.advance(2)
    assert scene.age() == pytest.approx(2)


def test_heartbeats_of_another_boot_are_dated_by_the_wall_clock(scene: Scene) -> None:
    scene.beat(scene.clock.monotonic() - 1, scene.clock.time() + 30)
    scene.clock.advance(50)
    scene.identity = replace(scene.identity, boot_id="another")
    assert scene.age() == pytest.approx(20)


def test_a_new_life_file_holds_wall_times(scene: Scene) -> None:
    scene.beat(scene.clock.time() + 10, scene.clock.time() + 10)
    scene.clock.advance(15)
    assert scene.age() == pytest.approx(5)


def test_the_observation_of_a_lease(scene: Scene) -> None:
    child = scene.processes.add(marker=None, ppid=1)
    scene.identity = replace(scene.identity, status="starting", pid=child.pid, start_ticks=child.ticks,
                             spawn_deadline=iso(scene.clock.time() + 30))
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.processes.exit(child.pid)
    assert scene.observer.judge(scene.identity).state == "lapsed"
    bearer = scene.processes.add(marker=format_marker(str(scene.store.home), KEY, 1), ppid=1)
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.clock.advance(31)
    assert scene.observer.judge(scene.identity).state == "lapsed"
    assert scene.observer.stale_reason(scene.identity, 300.0) == "start_deadline"
    assert bearer


def test_a_zombie_and_a_reboot_are_death(scene: Scene) -> None:
    child = scene.processes.add(marker=None, ppid=scene.processes.ours)
    scene.identity = replace(scene.identity, pid=child.pid, start_ticks=child.ticks)
    assert scene.observer.judge(scene.identity).state == "alive"
    scene.processes.exit(child.pid)
    assert scene.processes.probe(child.pid) is not None
    assert scene.observer.judge(scene.identity).state == "dead"
    scene.processes.reboot()
    later = Observer(scene.store, scene.processes, scene.clock)
    scene.identity = replace(scene.identity, pid=scene.processes.ours, start_ticks=10**9)
    assert later.judge(scene.identity).why == "the machine was rebooted since"


def test_a_clock_set_back_gives_a_start_no_longer_than_its_deadline(scene: Scene) -> None:
    """A process that is stopped while it starts is replaced, whatever the wall clock says."""
    deadline = iso(scene.clock.time() + 30)
    scene.identity = replace(scene.identity, status="starting", created_at=scene.clock.utc(), spawn_deadline=deadline)
    scene.processes.add(marker=format_marker(str(scene.store.home), KEY, scene.identity.incarnation), ppid=1)
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.clock.step(-86400)
    scene.clock.advance(29)
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.clock.advance(2)
    assert scene.observer.judge(scene.identity).state == "lapsed"


def test_a_marker_names_one_incarnation_of_one_home_and_is_taken_apart_from_its_end() -> None:
    assert format_marker("/home/x", KEY, 3) == "/home/x:r1:runner-a#3"
    assert format_marker("/home/x", Key("launch", "launch", "r1"), 1) == "/home/x:r1:launch#1"
    assert format_marker("/home/x", Key("runner", "a"), 1) == "/home/x::runner-a#1"
    assert parse_marker(format_marker("/a:b/c", KEY, 12)) == ("/a:b/c", KEY.run, "runner-a", 12)
    assert parse_marker("/h::runner-a#1") == ("/h", "", "runner-a", 1), "by hand there may be no run"
    for bad in ("", "x", "/h:r:l", "/h:r:l#", "/h:r:l#x", ":r:l#1", "r:l#1", "/h:r:#1"):
        assert parse_marker(bad) is None
