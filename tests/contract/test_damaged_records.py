"""Damaged and lost records: a living process rewrites its own, a supervisor rebuilds those of a dead one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from doubles.clock import FakeClock
from garrison.ends import Departure
from garrison.errors import LockLost, RecordCorrupt
from garrison.processes.runtime import Runtime
from garrison.processes.supervisor import Supervisor
from garrison.records import hook as hooks
from garrison.records.hook import Hook
from garrison.records.identity import Identity, mark_ended
from garrison.records.journal import Writer
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.records.store import quarantine
from garrison.supervise.incarnation import Incarnation, SpawnRequest, acquire_lease, rebuild_identity, register
from garrison.values import replace

KEY, CHILD = Key("guardian", "crew", "r1"), Key("runner", "a", "r1")
AT = "2026-01-31T12:00:00.000001Z"
DAMAGE = {"empty": b"", "torn": b'{"schema": 1, "role"', "garbage": bytes(range(256)), "zeros": bytes(900),
          "another's": b'{"agent_id":"i","role":"runner","name":"z","run_id":"r1","created_at":"' + AT.encode() + b'"}'}


@pytest.fixture
def runtime(tmp_path: Path) -> Runtime:
    return Runtime.real(tmp_path / "home", {})


@pytest.fixture
def alive(runtime: Runtime) -> Iterator[Incarnation]:
    """Yield this process as the first incarnation of the guardian."""
    yield from living(runtime, KEY)


def living(runtime: Runtime, key: Key) -> Iterator[Incarnation]:
    acquire_lease(runtime.observer, SpawnRequest(key), 10.0)
    incarnation = register(runtime.observer, key, 1, time.sleep)
    yield incarnation
    incarnation.lock.release()


def kept(runtime: Runtime) -> list[bytes]:
    return [path.read_bytes() for path in sorted((runtime.home / "quarantine").glob("*"))]


@pytest.mark.parametrize("way", DAMAGE)
def test_a_living_process_rewrites_its_identity(runtime: Runtime, alive: Incarnation, way: str) -> None:
    """Seen to fail its next write, and to die of it."""
    path = runtime.store.path(Identity, KEY)
    session = {"kind": "tmux", "server": "s"}
    known = runtime.store.update(Identity, KEY, lambda old: replace(old or alive.identity, tmux=session))
    alive.beat()
    for write in (alive.beat, alive.ready):
        path.write_bytes(DAMAGE[way])
        write()
        assert replace(runtime.store.get(Identity, KEY), metadata={}) == known, "with what others had written into it"
    assert kept(runtime) == [DAMAGE[way]] * 2


def test_damage_while_a_living_process_reads_its_identity_is_found_by_its_next_look(
        runtime: Runtime, alive: Incarnation, monkeypatch: pytest.MonkeyPatch) -> None:
    path, read = runtime.store.path(Identity, KEY), alive.store.read
    runtime.store.update(Identity, KEY, lambda old: replace(old or alive.identity, tmux={"server": "s"}))

    def damaged_after(*about: object) -> object:
        found = read(*about)
        path.write_bytes(b"{")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(alive.store, "read", damaged_after)
        alive.beat()
    assert path.read_bytes() == b"{"
    alive.beat()
    assert runtime.store.get(Identity, KEY).incarnation == 1


def test_a_living_process_whose_identity_is_gone_stops(runtime: Runtime, alive: Incarnation) -> None:
    runtime.store.path(Identity, KEY).unlink()
    with pytest.raises(LockLost, match=r"guardian-crew@r1.json was removed"):
        alive.beat()
    assert not runtime.store.path(Identity, KEY).exists()


@pytest.mark.parametrize("way", DAMAGE)
def test_a_living_process_rewrites_its_hook(runtime: Runtime, alive: Incarnation, way: str) -> None:
    alive.hook(lambda old: hooks.change_phase(old, "executing", AT))
    runtime.store.path(Hook, KEY).write_bytes(DAMAGE[way])
    moved = alive.hook(lambda old: hooks.change_phase(old, "impl_complete", AT))
    assert [entry["to"] for entry in moved.phase_history] == ["executing", "impl_complete"]
    assert runtime.store.get(Hook, KEY) == moved == alive.read_hook()
    assert kept(runtime) == [DAMAGE[way]]


@pytest.mark.parametrize("way", [*DAMAGE, "gone"])
def test_the_identity_of_a_dead_process_is_rebuilt(runtime: Runtime, way: str) -> None:
    store = runtime.store
    for _ in living(runtime, CHILD):
        pass
    store.update(Hook, CHILD, lambda old: replace(old, incarnation=4) if old else old)
    path = store.path(Identity, CHILD)
    path.unlink() if way == "gone" else path.write_bytes(DAMAGE[way])
    rebuilt = rebuild_identity(runtime.observer, CHILD, 3)
    assert rebuilt == store.get(Identity, CHILD)
    assert (rebuilt.status, rebuilt.incarnation, rebuilt.pid) == ("crashed", 4, None)
    assert rebuilt.metadata["class"] == "damage"
    assert rebuild_identity(runtime.observer, CHILD) == rebuilt, "once"
    acquire_lease(runtime.observer, SpawnRequest(CHILD), 10.0)
    assert store.get(Identity, CHILD).incarnation == 5, "no incarnation starts twice"


def test_the_identity_of_a_living_process_is_left_to_it(runtime: Runtime) -> None:
    for _ in living(runtime, CHILD):
        runtime.store.path(Identity, CHILD).write_bytes(b"{")
        assert rebuild_identity(runtime.observer, CHILD) is None
        assert runtime.store.path(Identity, CHILD).read_bytes() == b"{"


def test_a_name_without_any_record_is_not_made_up(runtime: Runtime) -> None:
    (runtime.home / "identities").mkdir(parents=True)
    assert rebuild_identity(runtime.observer, CHILD) is None
    assert not runtime.store.path(Identity, CHILD).exists()


@pytest.mark.parametrize("way", DAMAGE)
def test_a_start_replaces_a_damaged_hook(runtime: Runtime, way: str) -> None:
    """Seen to end the spawner."""
    for _ in living(runtime, CHILD):
        pass
    runtime.store.update(Identity, CHILD, lambda old: replace(old, status="terminated"))
    runtime.store.path(Hook, CHILD).write_bytes(DAMAGE[way])
    acquire_lease(runtime.observer, SpawnRequest(CHILD), 10.0)
    found = runtime.store.get(Hook, CHILD)
    assert (found.phase, found.incarnation) == ("planning", 2)
    assert kept(runtime) == [DAMAGE[way]]


def test_a_supervisor_outlives_the_damage_of_a_child(runtime: Runtime, alive: Incarnation) -> None:
    """Seen to raise each of these errors in turn after turn, until the guardian was parked."""
    supervisor = Supervisor(runtime, alive, Writer(runtime.home / "journal.jsonl", alive.token))
    path = runtime.store.path(Identity, CHILD)
    assert supervisor.child_state(CHILD).identity is None
    for child in living(runtime, CHILD):
        assert supervisor.child_state(CHILD).living
        path.write_bytes(b"")
        assert supervisor.child_state(CHILD).living, "its life lock is held: it rewrites its record itself"
        child.beat()
        assert supervisor.child_state(CHILD).identity == child.identity
        path.write_bytes(b"")
    dead = supervisor.child_state(CHILD)
    assert (dead.living, dead.identity.status) == (False, "crashed")
    path.unlink()
    assert supervisor.child_state(CHILD).identity is not None, "its hook shows that it was started"
    path.unlink()
    path.mkdir()
    assert supervisor.child_state(CHILD).living, "only the user can repair this: it is left alone"
    path.rmdir()


@pytest.mark.parametrize("others", [0, 20])
def test_a_supervisor_sees_every_change_of_a_child(runtime: Runtime, alive: Incarnation, others: int) -> None:
    """A run has thousands; only those whose record has changed are read in a turn."""
    clock = FakeClock()
    runtime = replace(runtime, clock=clock)
    supervisor = Supervisor(runtime, alive, Writer(runtime.home / "journal.jsonl", alive.token))

    keys = {"it": CHILD, **{f"n{number}": replace(CHILD, name=f"n{number}") for number in range(others)}}

    def status() -> str | None:
        clock.advance(runtime.timing.rescan)
        child = supervisor.observe_children(keys)["it"]
        assert child.identity == runtime.store.read(Identity, CHILD)
        return child.identity.status if child.identity is not None else None

    assert [status(), status()] == [None, None]
    for living_child in living(runtime, CHILD):
        assert [status(), status()] == ["active", "active"]
        living_child.update(lambda old: replace(old, status="held"))
        assert [status(), status()] == ["held", "held"]
        living_child.update(lambda old: replace(old, status="active"))
    ended = runtime.store.get(Identity, CHILD)
    for word in ("terminated", "parked", "terminated"):
        runtime.store.update(Identity, CHILD, lambda _, word=word: replace(ended, status=word))
        assert [status(), status()] == [word, word]
    runtime.store.path(Identity, CHILD).unlink()
    assert supervisor.observe_children(keys)["it"].identity is not None, "it was lost, and is rebuilt"


def test_only_damaged_records_are_rebuilt(runtime: Runtime, alive: Incarnation) -> None:
    assert not runtime.store.rebuild(Identity, KEY, lambda: None, AT)
    assert runtime.store.get(Identity, KEY) == alive.identity
    runtime.store.path(Identity, KEY).write_bytes(b"[]")
    with pytest.raises(RecordCorrupt):
        runtime.store.read(Identity, KEY)
    assert runtime.store.path(Identity, KEY).read_bytes() == b"[]", "a reader changes nothing"


def test_nothing_is_overwritten_in_quarantine(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    moved = []
    for number in range(2):
        path = home / "runs" / "r1" / "launch.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{number}")
        moved.append(quarantine(home, path, f"2026-01-31T12:00:0{number}.000001Z"))
        assert not path.exists()
    assert [path.read_text() for path in moved] == ["0", "1"]
    assert LifeLock.try_acquire(home / "x.life") is not None


@pytest.mark.parametrize("others", [0, 20])
def test_children_that_only_this_process_starts_are_looked_at_once_a_rescan(runtime: Runtime, alive: Incarnation,
                                                                            others: int) -> None:
    """A run has thousands of them, in every turn; one that only stopped may be continued by others at any time."""
    clock = FakeClock()
    runtime = replace(runtime, clock=clock)
    supervisor = Supervisor(runtime, alive, Writer(runtime.home / "journal.jsonl", alive.token))
    keys = {"it": CHILD, **{f"n{number}": replace(CHILD, name=f"n{number}") for number in range(others)}}

    def end_as(departure: Departure) -> None:
        runtime.store.update(Identity, CHILD, lambda old: mark_ended(old, "terminated", AT, "over", departure))

    def seen() -> Departure | str | None:
        child = supervisor.observe_children(keys)["it"]
        return child.identity and (child.identity.departure or child.identity.status)

    assert seen() is None
    for _ in living(runtime, CHILD):
        assert (seen() is None) is bool(others)
        supervisor.expect_start(CHILD)
        assert seen() == "active", "this process has started it"
    for departure, is_seen_at_once in ((Departure.STOPPED, True), (Departure.DONE, False)):
        end_as(departure)
        assert [seen(), seen()] == [departure] * 2
        end_as(Departure.FAILED)
        assert (seen() is Departure.FAILED) is is_seen_at_once
    supervisor.expect_start(CHILD)
    assert seen() is Departure.FAILED
    end_as(Departure.DONE)
    assert seen() is Departure.DONE
    end_as(Departure.FAILED)
    clock.advance(runtime.timing.rescan)
    assert seen() is Departure.FAILED
