"""Successors: leases, hooks, markers; the age of a heartbeat as an observer sees it; races that the simulator found."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from doubles.clock import FakeClock
from doubles.processes import MemoryProcesses
from garrison.errors import AlreadyAlive, Fenced, Refused
from garrison.records.hook import Hook, next_hook
from garrison.records.identity import Identity, mark_ended
from garrison.records.names import Key, format_marker, parse_marker
from garrison.records.store import Store
from garrison.supervise.decisions import ChildState, decide_cleanup
from garrison.supervise.incarnation import SpawnRequest, activate, grant_lease, require_unfenced
from garrison.supervise.observer import Observer, ProcessOrigin
from garrison.supervise.restart import Death
from garrison.supervise.verdict import Verdict, is_spawn_due
from garrison.system.clock import iso
from garrison.values import replace
from policy_support import life

KEY = Key("runner", "a", "r1")
BY = ProcessOrigin(7, 70, "pid:[1]", "b1", "h")
CHILD = ProcessOrigin(8, 80, "pid:[2]", "b2", "g")
THEN, NOW, LATER = (f"2026-01-31T1{hour}:00:00.000000Z" for hour in (1, 2, 3))
WISH = SpawnRequest(KEY, Key("guardian", "p", "r1"), "/trees/a", "garrison/r1/a", "runner-a", {"attempt": 2})


def next_life(old: Identity | None, state: str = "ended", wish: SpawnRequest = WISH) -> Identity:
    return grant_lease(old, Verdict(state, "because"), wish, BY, now=NOW, deadline=LATER, fresh_id="new")


def test_the_first_incarnation_gets_a_lease_and_becomes_active() -> None:
    first = grant_lease(None, None, WISH, BY, now=NOW, deadline=LATER, fresh_id="new")
    assert first == Identity(
        "new", "runner", "a", "r1", NOW, "runner-a", 1, 7, 70, "pid:[1]", "b1", "h", {"role": "guardian", "name": "p"},
        "/trees/a", "garrison/r1/a", None, "starting", NOW, LATER, None, None, None, None, 0, {"attempt": 2})
    assert next_life(None, wish=SpawnRequest(KEY)).parent is None
    first.metadata["mine"] = 1
    assert "mine" not in WISH.metadata, "each has a copy"
    mine = activate(next_life(None), CHILD, LATER)
    assert (mine.status, mine.pid, mine.start_ticks, mine.pid_ns, mine.boot_id, mine.host) == (
        "active", 8, 80, "pid:[2]", "b2", "g")
    assert (mine.spawn_deadline, mine.last_heartbeat, mine.created_at) == (None, LATER, NOW)


@pytest.mark.parametrize("state", ["alive", "starting", "elsewhere"])
def test_nothing_is_started_over_a_living_incarnation(state: str) -> None:
    with pytest.raises(AlreadyAlive, match="runner-a@r1 is alive"):
        next_life(next_life(None), state)


@pytest.mark.parametrize("state", ["dead", "lapsed"])
def test_a_dead_incarnation_must_be_replaced_first(state: str) -> None:
    with pytest.raises(Refused, match=f"runner-a@r1 is {state} and must be replaced first"):
        next_life(next_life(None), state)


@pytest.mark.parametrize("status", ["crashed", "terminated", "parked"])
def test_a_successor_has_the_next_number_and_no_record_of_how_the_last_one_ended(status: str) -> None:
    old = replace(activate(next_life(None), CHILD, THEN), respawns=3, tmux={"socket": "s"}, exit=-9)
    old = (replace(old, status="parked") if status == "parked" else mark_ended(old, status, THEN, "it died"))
    new = next_life(replace(old, agent_id="old", incarnation=4))
    assert (new.incarnation, new.respawns, new.predecessor_id, new.agent_id) == (5, 4, "old", "new")
    assert (new.status, new.pid, new.start_ticks, new.spawn_deadline) == ("starting", 7, 70, LATER)
    assert (new.crashed_at, new.terminated_at, new.exit, new.tmux, new.reason) == (None, None, None, None, "")


def test_a_later_incarnation_in_the_journal_counts() -> None:
    crashed = mark_ended(next_life(None), "crashed", THEN, "x")
    assert next_life(None, wish=SpawnRequest(KEY, journal_incarnation=6)).incarnation == 7
    assert next_life(crashed, wish=SpawnRequest(KEY, journal_incarnation=6)).incarnation == 7
    assert next_life(replace(crashed, incarnation=9), wish=SpawnRequest(KEY, journal_incarnation=6)).incarnation == 10


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
    """A home with one incarnation, a fake clock and processes in memory."""

    def __init__(self, home: Path) -> None:
        self.clock, self.processes, self.store = FakeClock(), MemoryProcesses(), Store(home)
        self.observer = Observer(self.store, self.processes, self.clock)
        me = self.observer.origin(self.processes.ours)
        self.identity = activate(grant_lease(None, None, SpawnRequest(KEY), me, now=self.clock.utc(),
                                             deadline=self.clock.utc(), fresh_id="i"), me, self.clock.utc())
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


def test_the_scripts_heartbeat_counts_as_well_as_the_life_files(scene: Scene) -> None:
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


def test_a_new_life_file_has_wall_times(scene: Scene) -> None:
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
    scene.processes.add(marker=format_marker(str(scene.store.home), KEY, 1), ppid=1)
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.clock.advance(31)
    assert scene.observer.judge(scene.identity).state == "lapsed"
    assert scene.observer.stale_reason(scene.identity, 300.0) == "start_deadline"


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
    """A process that is stopped while it starts is replaced, regardless of the wall clock."""
    deadline = iso(scene.clock.time() + 30)
    scene.identity = replace(scene.identity, status="starting", created_at=scene.clock.utc(), spawn_deadline=deadline)
    scene.processes.add(marker=format_marker(str(scene.store.home), KEY, scene.identity.incarnation), ppid=1)
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.clock.step(-86400)
    scene.clock.advance(29)
    assert scene.observer.judge(scene.identity).state == "starting"
    scene.clock.advance(2)
    assert scene.observer.judge(scene.identity).state == "lapsed"


def test_a_marker_names_one_incarnation_of_one_home_and_is_parsed_from_its_end() -> None:
    assert format_marker("/home/x", KEY, 3) == "/home/x:r1:runner-a#3"
    assert format_marker("/home/x", Key("launch", "launch", "r1"), 1) == "/home/x:r1:launch#1"
    assert format_marker("/home/x", Key("runner", "a"), 1) == "/home/x::runner-a#1"
    assert parse_marker(format_marker("/a:b/c", KEY, 12)) == ("/a:b/c", KEY.run, "runner-a", 12)
    assert parse_marker("/h::runner-a#1") == ("/h", "", "runner-a", 1), "by hand there may be no run"
    for bad in ("", "x", "/h:r:l", "/h:r:l#", "/h:r:l#x", ":r:l#1", "r:l#1", "/h:r:#1"):
        assert parse_marker(bad) is None


# ---- races that the simulator found


KNOWN = [Death(1, 100.0, "b1")]


def test_a_delayed_spawner_does_not_take_the_hook_back_from_a_later_incarnation() -> None:
    # Found by seed 330: its lease had lapsed and been given to another; then it linked the hook to its own incarnation.
    hook = Hook("h2", "runner", "a", "r1", NOW, NOW, phase="executing", incarnation=2)
    with pytest.raises(Fenced, match=r"has a later incarnation \(2 > 1\)"):
        next_hook(hook, hook.key, 1, NOW, "h3")
    assert next_hook(hook, hook.key, 2, NOW, "h3") is hook
    assert next_hook(hook, hook.key, 3, NOW, "h3").phase == "executing"


@pytest.mark.parametrize("status", ["crashed", "parked"])
def test_an_incarnation_that_was_declared_dead_writes_nothing(status: str) -> None:
    # Found by seed 2691: an orchestrator about to be killed, whose agent was killed first, reported a failed agent.
    identity = Identity("i", "orchestrator", "a", "r1", NOW, status=status)
    with pytest.raises(Fenced, match=f"was declared {status}"):
        require_unfenced(identity, identity.key)
    with pytest.raises(Fenced, match="is gone"):
        require_unfenced(None, Key("orchestrator", "a", "r1"))
    assert require_unfenced(replace(identity, status="active"), identity.key).status == "active"


@pytest.mark.parametrize(("view", "deaths", "kind"), [
    (ChildState(), [], None), (life("runner", "a"), [], None), (life("runner", "a", "terminated"), [], None),
    (life("runner", "a", state="dead"), [], "replace"), (life("runner", "a", "starting", "lapsed"), [], "replace"),
    (life("runner", "a", "crashed"), [], "record"), (life("runner", "a", "crashed"), KNOWN, None)])
def test_deaths_are_recorded_without_a_successor(view: ChildState, deaths: list[Death], kind: str | None) -> None:
    step = decide_cleanup(view, deaths)
    assert (step.kind if step else None) == kind


@pytest.mark.parametrize(("age", "due"), [(0.0, False), (1.9, False), (2.1, True), (-0.1, True), (-86400.0, True)])
def test_a_clock_set_back_does_not_keep_a_dead_start_alive(age: float, due: bool) -> None:
    # Found by seed 5817: the clock went back by a day, and for a day the dead process counted as about to start.
    assert is_spawn_due(1000.0, 1000.0 + age) is due
