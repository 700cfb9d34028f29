"""Start with real processes: never two incarnations of a name at once, whatever is killed, and when."""

from __future__ import annotations

import errno
import gc
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from doubles.clock import FakeClock
from garrison.ends import Departure
from garrison.errors import AlreadyAlive, Fenced, GarrisonError, Refused, Shortage
from garrison.processes import main as process_main
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key, format_marker
from garrison.records.store import Store
from garrison.supervise.incarnation import (
    Incarnation,
    SpawnRequest,
    StartRefused,
    fence,
    register,
    replace_incarnation,
    start_incarnation,
)
from garrison.supervise.observer import Observer
from garrison.system.clock import SystemClock
from garrison.system.process_control import RealProcesses
from garrison.system.processes import ProcessId, probe
from garrison.values import replace
from support import DEADLINE, is_gone, until

KEY = Key("runner", "a", "r1")


@dataclass
class Scene:
    """A home and the processes forked for it; an incarnation is a fork that registers and waits."""

    home: Path
    pids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = Store(self.home)
        self.observer = self.fresh()

    def fresh(self) -> Observer:
        return Observer(self.store, RealProcesses(), SystemClock())

    def fork(self, work: Callable[[], int]) -> int:
        pid = os.fork()
        if pid == 0:
            leave(work)
        self.pids.append(pid)
        return pid

    def child(self, incarnation: int) -> int:
        """Fork a process that becomes life `incarnation` and waits to be killed; its exit code is register's."""
        def wait(seconds: float) -> None:
            (self.home / "waiting").touch()
            time.sleep(seconds)

        def live() -> int:
            register(self.fresh(), KEY, incarnation, wait)
            signal.pause()
            return 0

        return self.fork(live)

    def spawn(self, leased: Identity, _marker: str) -> None:
        self.child(leased.incarnation)

    def start(self, deadline: float = 30.0, wish: SpawnRequest | None = None) -> Identity:
        return start_incarnation(self.observer, wish or SpawnRequest(KEY), deadline, self.spawn)

    def register(self) -> Incarnation:
        """Lease the first incarnation, and become it in this process."""
        start_incarnation(self.observer, SpawnRequest(KEY), 30.0, lambda _leased, _marker: None)
        return register(self.observer, KEY, 1, time.sleep)

    def active(self) -> Identity | None:
        found = self.store.read(Identity, KEY)
        return found if found is not None and found.status == "active" else None

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.pids.remove(pid)

    def exit_code(self, pid: int) -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        self.pids.remove(pid)
        return code


def leave(work: Callable[[], int]) -> NoReturn:
    """Do `work` in a forked child, and nothing of pytest's."""
    code = 70
    try:
        signal.alarm(round(DEADLINE))  # whatever happens, nothing is left behind
        code = work()
    except GarrisonError as error:
        code = error.exit_code
    finally:
        os._exit(code)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "home")
    yield made
    for pid in list(made.pids):
        made.kill(pid)


def holders(path: Path) -> list[int]:
    """Return the pids that have locked that file, as the kernel lists them."""
    stat = path.stat()
    name = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    lines = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
    return [int(words[4]) for words in lines if words[1] == "FLOCK" and words[5] == name]


def on_disk(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in home.rglob("*.json")}


@pytest.mark.smoke
def test_an_incarnation_from_lease_to_end(scene: Scene) -> None:
    seen: list[tuple[Identity | None, Hook | None, str]] = []

    def spawn(leased: Identity, marker: str) -> None:
        seen.append((scene.store.read(Identity, KEY), scene.store.read(Hook, KEY), marker))
        scene.spawn(leased, marker)

    leased = start_incarnation(scene.observer, SpawnRequest(KEY, metadata={"attempt": 2}), 30.0, spawn)
    ((identity, hook, marker),) = seen
    assert identity == leased and leased.status == "starting" and leased.pid == os.getpid()
    assert hook is not None and hook.incarnation == 1
    assert marker == f"{scene.home}:r1:runner-a#1"
    active = until(scene.active)
    assert active.pid == scene.pids[0] and active.spawn_deadline is None and active.metadata == {"attempt": 2}
    assert scene.observer.judge(active).state == "alive"
    assert holders(scene.store.life_path(KEY)) == [active.pid]
    until(lambda: scene.observer.observe(active).beat_age is not None)
    with pytest.raises(AlreadyAlive):
        scene.start()


def test_an_incarnation_writes_while_it_is_the_current_one(scene: Scene) -> None:
    life = scene.register()
    assert (life.token, life.marker) == ("runner-a@r1#1", f"{scene.home}:r1:runner-a#1")
    life.ready()
    assert "ready_at" in scene.store.get(Identity, KEY).metadata
    life.hook(lambda old: replace(old, last_committed_node="c"))
    assert scene.store.get(Hook, KEY).last_committed_node == "c"
    life.end("done", Departure.DONE, 0)
    ended = scene.store.get(Identity, KEY)
    assert (ended.status, ended.reason, ended.exit, ended.agent_id) == ("terminated", "done", 0, life.identity.agent_id)
    assert holders(scene.store.life_path(KEY)) == []
    assert scene.start().incarnation == 2


def test_the_hook_is_linked_by_spawner_or_child(scene: Scene) -> None:
    """A spawner may die as soon as the process is there; the process links the hook then, before it acts."""
    class Killed(BaseException):
        pass

    def die(_leased: Identity, _marker: str) -> None:
        raise Killed

    start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, lambda _leased, _marker: None)
    first = scene.store.get(Hook, KEY)
    register(scene.observer, KEY, 1, time.sleep).end("done", Departure.DONE)
    with pytest.raises(Killed):
        start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, die)
    assert scene.store.get(Hook, KEY) == first
    life = register(scene.observer, KEY, 2, time.sleep)
    linked = scene.store.get(Hook, KEY)
    assert (linked.incarnation, linked.predecessor_hook_id) == (2, first.hook_id)
    life.end("done", Departure.DONE)

    start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, lambda _leased, _marker: None)
    linked = scene.store.get(Hook, KEY)
    assert linked.incarnation == 3, "its spawner, who is faster as a rule"
    register(scene.observer, KEY, 3, time.sleep).end("done", Departure.DONE)
    assert scene.store.get(Hook, KEY) == linked


@pytest.mark.smoke
@pytest.mark.parametrize("status", ["crashed", "parked"])
def test_a_fenced_incarnation_writes_nothing(scene: Scene, status: str) -> None:
    """TERM is answered by an orderly end: that must not turn a verdict into `terminated`, which is never restarted."""
    life = scene.register()
    fence(scene.observer, life.identity, "silent")
    if status == "parked":
        scene.store.update(Identity, KEY, lambda old: replace(old or life.identity, status="parked"))
    before = on_disk(scene.home)
    for write in (life.ready, lambda: life.end("stopped", Departure.STOPPED), lambda: life.update(lambda old: old)):
        with pytest.raises(Fenced, match=f"was declared {status}"):
            write()
    assert on_disk(scene.home) == before
    life.lock.release()


def test_a_superseded_incarnation_writes_nothing(scene: Scene) -> None:
    life = scene.register()
    scene.store.update(Identity, KEY, lambda old: replace(old or life.identity, incarnation=2))
    scene.store.update(Hook, KEY, lambda old: replace(old, incarnation=2) if old else Hook("", "", "", "", "", ""))
    before = on_disk(scene.home)
    for write in (life.ready, lambda: life.end("done", Departure.DONE),
                  lambda: life.hook(lambda old: replace(old, phase="executing"))):
        with pytest.raises(Fenced, match="has a later incarnation"):
            write()
    assert on_disk(scene.home) == before
    life.lock.release()


@pytest.mark.parametrize(("error", "death_class"), [
    (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "shortage"),
    (OSError(errno.ENOMEM, "Cannot allocate memory"), "shortage"), (Shortage("no room to start it"), "shortage"),
    (GarrisonError("fork failed: Resource temporarily unavailable"), "shortage"),
    (GarrisonError("cannot start x: No such file"), "crash"), (OSError(errno.ENOENT, "No such file"), "crash")])
def test_a_start_for_which_the_machine_has_no_room_is_not_a_crash(scene: Scene, error: Exception,
                                                                  death_class: str) -> None:
    def fail(_leased: Identity, _marker: str) -> None:
        raise error

    start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, fail)
    found = scene.store.get(Identity, KEY)
    assert (found.status, found.metadata["class"]) == ("crashed", death_class)
    assert found.reason.startswith("could not be started: ")
    assert scene.start().incarnation == 2, "the lease was given back"


@pytest.mark.parametrize(("error", "death_class"), [
    (Shortage("no watch is left for the agent's socket"), "shortage"), (GarrisonError("its task is missing"), "crash")])
def test_a_shortage_during_the_start_of_a_process_is_not_a_crash(
        scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception, death_class: str) -> None:
    def fail(*_: object) -> None:
        raise error

    start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, lambda *_: None)
    for name in ("become_subreaper", "EventLoop", "signal.pthread_sigmask", "atomic.forbid_recreating"):
        monkeypatch.setattr(f"garrison.processes.main.{name}", lambda *_, **__: None)
    monkeypatch.setattr(process_main, "recover_process", fail)
    arguments = ("--home", scene.home, "--run", KEY.run, "--name", KEY.name, "--incarnation", 1)
    assert process_main.main([KEY.role, *map(str, arguments)]) == 1
    found = scene.store.get(Identity, KEY)
    assert (found.status, found.metadata.get("class", "crash")) == ("crashed", death_class)


def test_a_process_that_ends_before_it_is_active_lapses_at_once(scene: Scene) -> None:
    """Not only when its spawner has had its time, or at its deadline."""
    child: list[int] = []

    def spawn(leased: Identity, _marker: str) -> ProcessId:
        child.append(scene.fork(signal.pause))
        return ProcessId(child[0], probe(child[0]).ticks)

    leased = start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, spawn)
    assert scene.observer.judge(leased).state == "starting"
    scene.kill(child[0])
    assert scene.observer.judge(leased).state == "lapsed"
    assert scene.fresh().judge(leased).state == "starting", "who did not start it gives its spawner time"


def test_a_process_found_by_its_marker_lapses_when_it_ends(scene: Scene) -> None:
    """As for a supervisor that was not its spawner."""
    leased = start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, lambda _leased, _marker: None)
    marker = format_marker(str(scene.home), KEY, 1)
    bearer = subprocess.Popen(["sleep", "60"], env={**os.environ, "GARRISON_LIFE": marker})
    observer = scene.fresh()
    assert [each.pid for each in until(lambda: observer.find_starting([leased]))] == [bearer.pid]
    assert observer.judge(leased).state == "starting"
    bearer.kill()
    bearer.wait()
    assert observer.judge(leased).state == "lapsed"


@pytest.mark.parametrize("incarnation", [0, 2, 9])
def test_a_child_that_was_not_asked_for_exits_75_and_writes_nothing(scene: Scene, incarnation: int) -> None:
    start_incarnation(scene.observer, SpawnRequest(KEY), 30.0, lambda _leased, _marker: None)
    before = on_disk(scene.home)
    assert scene.exit_code(scene.child(incarnation)) == 75
    assert on_disk(scene.home) == before
    assert not scene.store.life_path(KEY).exists()


def test_a_child_without_a_record_and_a_second_one_of_the_same_lease_exit_75(scene: Scene) -> None:
    scene.home.mkdir()
    assert scene.exit_code(scene.child(1)) == 75
    assert list(scene.home.iterdir()) == []
    scene.start()
    active = until(scene.active)
    assert scene.exit_code(scene.child(1)) == 75
    assert scene.active() == active and holders(scene.store.life_path(KEY)) == [active.pid]


def test_a_child_waits_for_the_lock_of_a_dying_predecessor(scene: Scene) -> None:
    holder = hold(scene)
    leased = scene.start()
    until((scene.home / "waiting").exists)
    assert scene.store.get(Identity, KEY) == leased
    scene.kill(holder)
    assert until(scene.active).pid == scene.pids[-1]


def hold(scene: Scene) -> int:
    """Start a process that locks the life file; return its pid."""
    path = scene.store.life_path(KEY)
    path.parent.mkdir(parents=True)
    holder = scene.fork(lambda: signal.pause() or 0 if LifeLock.try_acquire(path) else 1)
    until(lambda: path.exists() and holders(path) == [holder])
    return holder


def test_a_lock_taken_past_the_deadline_ends_the_start(tmp_path: Path) -> None:
    clock = FakeClock()
    observer = Observer(Store(tmp_path), RealProcesses(), clock)
    start_incarnation(observer, SpawnRequest(KEY), 5.0, lambda _leased, _marker: None)
    lock = LifeLock.try_acquire(observer.store.life_path(KEY))
    before = on_disk(tmp_path)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(1.0)

    with pytest.raises(StartRefused, match="is still held at the start deadline of incarnation 1") as caught:
        register(observer, KEY, 1, wait)
    assert caught.value.exit_code == 75 and len(waits) == 6 and on_disk(tmp_path) == before
    lock.release()


class Crowded(Store):
    """A store on a disk that has no room for the first `refused` changes."""

    refused = 0

    def update(self, *args: Any, **more: Any) -> Any:
        if self.refused:
            self.refused -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().update(*args, **more)


@pytest.mark.parametrize("refused", [3, 1000])
def test_a_start_waits_for_room_until_its_deadline(tmp_path: Path, refused: int) -> None:
    """Seen to end at the first refusal, as a death that counts, on a disk that was full for a second."""
    clock, store = FakeClock(), Crowded(tmp_path)
    observer = Observer(store, RealProcesses(), clock)
    start_incarnation(observer, SpawnRequest(KEY), 5.0, lambda _leased, _marker: None)
    store.refused = refused
    if refused == 3:
        life = register(observer, KEY, 1, clock.advance)
        assert life.identity.status == "active"
        life.end("done", Departure.DONE)
        return
    with pytest.raises(OSError, match="No space left"):
        register(observer, KEY, 1, clock.advance)
    found = Store(tmp_path).read(Identity, KEY)
    assert found is not None and found.status == "starting"
    lock = LifeLock.try_acquire(store.life_path(KEY))
    assert lock is not None, "a start that gives up releases its lock"
    lock.release()


def test_a_lease_that_moved_on_while_the_child_waited_is_refused_and_frees_the_lock(scene: Scene) -> None:
    holder = hold(scene)
    leased = scene.start()
    child = scene.pids[-1]
    until((scene.home / "waiting").exists)
    fence(scene.observer, leased, "not active by its start deadline")
    before = on_disk(scene.home)
    scene.kill(holder)
    assert scene.exit_code(child) == 75
    assert on_disk(scene.home) == before and holders(scene.store.life_path(KEY)) == []


def test_a_start_deadline_that_passed_is_a_death(scene: Scene) -> None:
    def hang(leased: Identity, _marker: str) -> None:
        scene.fork(lambda: signal.pause() or 0)

    leased = start_incarnation(scene.observer, SpawnRequest(KEY), 0.02, hang)
    until(lambda: scene.observer.judge(leased).state == "lapsed")
    assert scene.observer.stale_reason(leased, 300.0) == "start_deadline"
    with pytest.raises(Refused, match="lapsed and must be replaced first"):
        scene.start()
    replace_incarnation(scene.observer, leased, "not active by its start deadline", 1.0)
    assert scene.start().incarnation == 2
    assert until(scene.active).incarnation == 2


def test_a_lease_whose_spawner_died_before_the_child_lapses_at_once(scene: Scene) -> None:
    def spawner() -> int:
        start_incarnation(scene.fresh(), SpawnRequest(KEY), 30.0, lambda _leased,
                          _marker: os.kill(os.getpid(), signal.SIGKILL))
        return 0

    assert scene.exit_code(scene.fork(spawner)) == -signal.SIGKILL
    leased = scene.store.get(Identity, KEY)
    assert leased.status == "starting"
    assert scene.observer.judge(leased).state == "lapsed"
    replace_incarnation(scene.observer, leased, "its spawner is dead", 1.0)
    assert scene.start().incarnation == 2


class Crowd:
    """Spawners of one name; `fates` has a file for each process they forked, its pid the name, its incarnation in it.

    One spawner in three is killed once its child is forked; the first eight lives end at once, later ones at `over`.
    """

    def __init__(self, scene: Scene) -> None:
        self.scene, self.fates = scene, scene.home / "fates"
        self.fates.mkdir(parents=True)

    def attempt(self, number: int) -> int:
        """Look, replace what is dead, start; a few times, as a supervisor's turns would."""
        observer = self.scene.fresh()
        for _ in range(5):
            old = self.scene.store.read(Identity, KEY)
            verdict = observer.judge(old) if old else None
            if verdict and verdict.living:
                time.sleep(0.01)
                continue
            with suppress(AlreadyAlive, Refused, Fenced):
                if old and verdict and verdict.state != "ended":
                    fence(observer, old, verdict.why)
                start_incarnation(observer, SpawnRequest(KEY), 30.0, lambda leased, _marker: self.spawn(number, leased))
                return 0
        return 0

    def spawn(self, number: int, leased: Identity) -> None:
        pid = os.fork()
        if pid == 0:
            if number % 3 == 0:
                time.sleep(0.01)  # the spawner's death and the next lease may come between
            leave(lambda: self.live(leased.incarnation))
        (self.fates / f"{pid}").write_text(str(leased.incarnation))
        if number % 3 == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def live(self, incarnation: int) -> int:
        register(self.scene.fresh(), KEY, incarnation, time.sleep)
        if incarnation > 8:
            until((self.fates / "over").exists)
        return 0

    def end(self) -> list[int]:
        """Let all end; returns the incarnations that were given to processes."""
        (self.fates / "over").touch()
        found = list(self.fates.glob("[0-9]*"))
        for path in found:
            until(lambda path=path: is_gone(int(path.name)))
        return [int(path.read_text()) for path in found]


def test_many_concurrent_starts_with_killed_spawners_never_make_two_incarnations(scene: Scene) -> None:
    crowd, path, most = Crowd(scene), scene.store.life_path(KEY), 0
    gc.freeze()  # forks are cheaper
    try:
        waiting = {scene.fork(lambda number=number: crowd.attempt(number)) for number in range(80)}
        while waiting:
            most = max(most, len(together(path)))
            ended = {pid for pid in waiting if os.waitpid(pid, os.WNOHANG) != (0, 0)}
            waiting -= ended
            scene.pids = [pid for pid in scene.pids if pid not in ended]
            time.sleep(0.005)
        final = scene.store.get(Identity, KEY)
        if final.status == "active" and scene.observer.judge(final).state == "alive":
            assert holders(path) == [final.pid]
    finally:
        gc.unfreeze()
        given = crowd.end()
    assert most == 1
    assert len(given) > 2
    assert len(given) == len(set(given)) and final.incarnation == max(given), "an incarnation was given twice"


def together(path: Path) -> set[int]:
    """Return the pids that have locked `path` at one moment. Reading /proc/locks is not atomic and may show both a lock
    that ends and one that starts, so of several pids only those shown twice count."""
    found = set(holders(path)) if path.exists() else set()
    return found if len(found) < 2 else found & set(holders(path))


def test_incarnations_are_numbered_on_over_many_kills(scene: Scene) -> None:
    """Twelve deaths in a row: each life is replaced, its successor links to it, the hook continues."""
    last = None
    for number in range(1, 13):
        leased = scene.start()
        assert leased.incarnation == number
        active = until(scene.active)
        assert active.predecessor_id == last
        last = active.agent_id
        scene.kill(active.pid)
        dead = scene.store.get(Identity, KEY)
        assert scene.observer.judge(dead).state == "dead"
        replace_incarnation(scene.observer, dead, "process is gone", 1.0)
        assert holders(scene.store.life_path(KEY)) == []
    assert scene.store.get(Identity, KEY).respawns == 11
    assert scene.store.get(Hook, KEY).incarnation == 12
