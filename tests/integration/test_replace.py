"""Replace with real processes: an incarnation ends with all it started, and with nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from garrison.errors import Fenced
from garrison.records.identity import Identity, mark_ended
from garrison.records.names import Key, format_marker
from garrison.records.store import Store
from garrison.supervise.hang_detector import RecordedEvidence
from garrison.supervise.incarnation import SpawnRequest, fence, kill_incarnation, replace_incarnation, start_incarnation
from garrison.supervise.observer import Observer
from garrison.system.clock import SystemClock
from garrison.system.process_control import RealProcesses
from garrison.values import replace
from support import DEADLINE, is_gone, until

KEY = Key("runner", "a", "r1")

LIFE = """
import os, subprocess, sys, time
from contextlib import nullcontext
from pathlib import Path
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.supervise.observer import Observer
from garrison.supervise.incarnation import register
from garrison.system.clock import SystemClock
from garrison.system.process_control import RealProcesses
home, folder = Path(sys.argv[1]), Path(sys.argv[2])
observer = Observer(Store(home), RealProcesses(), SystemClock())
life = register(observer, Key("runner", "a", "r1"), int(sys.argv[3]), time.sleep)
bare = {name: value for name, value in os.environ.items() if name != "GARRISON_LIFE"}
def start(name, env, shell="exec sleep 600"):
    child = subprocess.Popen(["sh", "-c", shell], env=env, start_new_session=True, stdin=subprocess.DEVNULL)
    (folder / name).write_text(str(child.pid))
start("tool", os.environ)
start("tool without marker", bare)
start("stubborn", os.environ, "trap '' TERM; while :; do sleep 0.05; done")
start("other life", {**bare, "GARRISON_LIFE": f"{home}:r1:orchestrator-a#1"})
subprocess.Popen(["sh", "-c", f"setsid sleep 600 & echo $! > '{folder}/orphan'"]).wait()
with observer.store.locked(Identity, life.key) if (folder / "locks").exists() else nullcontext():
    (folder / "ready").touch()
    time.sleep(600)
"""


class Scene:
    """A home with a real incarnation, whose tools' pids are in `folder`, and decoys."""

    def __init__(self, tmp_path: Path) -> None:
        self.store, self.folder = Store(tmp_path / "home"), tmp_path / "pids"
        self.folder.mkdir()
        self.observer = Observer(self.store, RealProcesses(), SystemClock())
        self.children: list[subprocess.Popen[bytes]] = []

    def popen(self, argv: list[str], life: str | None = None) -> int:
        env = {name: value for name, value in os.environ.items() if name != "GARRISON_LIFE"}
        child = subprocess.Popen(argv, env={**env, "GARRISON_LIFE": life} if life else env, start_new_session=True)
        self.children.append(child)
        return child.pid

    def start(self) -> Identity:
        def spawn(leased: Identity, life: str) -> None:
            self.popen([sys.executable, "-c", LIFE, str(self.store.home), str(self.folder), str(leased.incarnation)],
                       life)

        start_incarnation(self.observer, SpawnRequest(KEY), 60.0, spawn)
        until(lambda: (self.folder / "ready").exists() and (self.folder / "orphan").read_text().strip())
        return self.store.get(Identity, KEY)

    def pid(self, name: str) -> int:
        return int((self.folder / name).read_text())

    def marker(self, incarnation: int = 1, key: Key = KEY, home: str = "") -> str:
        return format_marker(home or str(self.store.home), key, incarnation)

    def close(self) -> None:
        for path in self.folder.iterdir():
            with suppress(ProcessLookupError, ValueError):  # it has ended, or written no pid yet
                os.kill(int(path.read_text()), signal.SIGKILL)
        for child in self.children:
            child.kill()
            child.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.close()


TOOLS = ("tool", "tool without marker", "stubborn", "orphan")


@pytest.mark.smoke
@pytest.mark.parametrize("dead", [False, True], ids=["hung", "found dead"])
def test_an_incarnation_ends_with_all_it_started_and_nothing_else(scene: Scene, dead: bool) -> None:
    decoys = {"same name": scene.popen(["sleep", "600"]),
              "next life": scene.popen(["sleep", "600"], scene.marker(2)),
              "another name": scene.popen(["sleep", "600"], scene.marker(key=Key("runner", "ab", "r1"))),
              "another run": scene.popen(["sleep", "600"], scene.marker(key=Key("runner", "a", "r11"))),
              "another home": scene.popen(["sleep", "600"], scene.marker(home="/elsewhere"))}
    active = scene.start()
    assert not any(is_gone(scene.pid(name)) for name in TOOLS)
    if dead:
        os.kill(active.pid, signal.SIGKILL)
        until(lambda: scene.observer.judge(active).state == "dead")
    fenced = replace_incarnation(scene.observer, active, "silent for 300 s", 0.2)
    assert is_gone(active.pid)
    gone = {name for name in TOOLS if is_gone(scene.pid(name))}
    # A tool without a marker is known by its parent alone: of a life found dead it cannot be told any more.
    assert gone == set(TOOLS) - ({"tool without marker"} if dead else set())
    assert not any(is_gone(pid) for pid in [*decoys.values(), scene.pid("other life")]), decoys
    assert (fenced.status, fenced.reason) == ("crashed", "silent for 300 s") and fenced == scene.store.get(Identity,
                                                                                                           KEY)
    evidence = fenced.metadata["evidence"]
    assert evidence["verdict"] == "silent for 300 s" and (evidence["pid_ticks"] is None) == dead
    assert replace_incarnation(scene.observer, active, "once more", 0.2) == fenced
    assert kill_incarnation(scene.observer, fenced, 0.2) == []


class Small:
    """A home whose incarnation is this test process: what replacing decides, without processes to end."""

    def __init__(self, home: Path) -> None:
        self.observer = Observer(Store(home), RealProcesses(), SystemClock())
        self.store = self.observer.store
        self.leased = start_incarnation(self.observer, SpawnRequest(KEY), 60.0, lambda _leased, _marker: None)

    def change(self, **changes: Any) -> Identity:
        return self.store.update(Identity, KEY, lambda old: replace(old or self.leased, **changes))


@pytest.fixture
def small(tmp_path: Path) -> Small:
    return Small(tmp_path / "home")


def test_a_lease_replaced_does_not_end_its_spawner(small: Small) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        assert small.leased.pid == os.getpid()
        assert kill_incarnation(small.observer, fence(small.observer, small.leased, "late"), 0.1) == []
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_a_record_that_moved_on_is_not_fenced(small: Small) -> None:
    moved = small.change(incarnation=2, agent_id="next")
    with pytest.raises(Fenced, match="changed after incarnation 1 was judged"):
        replace_incarnation(small.observer, small.leased, "late", 0.1)
    assert small.store.get(Identity, KEY) == moved
    small.store.path(Identity, KEY).unlink()
    with pytest.raises(Fenced):
        fence(small.observer, moved, "late")
    assert small.store.read(Identity, KEY) is None


@pytest.mark.parametrize("status", ["crashed", "terminated", "parked"])
def test_an_ended_record_keeps_its_reason(small: Small, status: str) -> None:
    if status == "parked":
        before = small.change(status="parked", metadata={"reason": "6 deaths"})
    else:
        now = small.observer.clock.utc()
        before = small.store.update(Identity, KEY, lambda old: mark_ended(old or small.leased, status, now, "first"))
    assert fence(small.observer, small.leased, "second") == before == small.store.get(Identity, KEY)


@pytest.mark.parametrize("elsewhere", [{"host": "other"}, {"boot_id": "another"}, {"pid_ns": "pid:[1]"}])
def test_a_pid_of_another_machine_boot_or_namespace_is_not_signalled(small: Small, elsewhere: dict[str, str]) -> None:
    """Here the number may be any process."""
    victim = subprocess.Popen(["sleep", "600"])
    try:
        me = small.observer.origin(victim.pid)
        active = small.change(status="active", pid=me.pid, start_ticks=me.start_ticks, spawn_deadline=None, **elsewhere)
        assert kill_incarnation(small.observer, active, 0.1) == []
        assert victim.poll() is None
        here = small.change(host=me.host, boot_id=me.boot_id, pid_ns=me.pid_ns, start_ticks=me.start_ticks + 1)
        assert kill_incarnation(small.observer, here, 0.1) == []
        assert victim.poll() is None, "a recycled pid was signalled"
        mine = small.change(start_ticks=me.start_ticks)
        assert [one.pid for one in kill_incarnation(small.observer, mine, 5.0)] == [victim.pid]
        assert victim.wait() == -signal.SIGTERM
    finally:
        victim.kill()
        victim.wait()


def test_two_supervisors_replace_at_once(small: Small) -> None:
    """Both may fence and sweep; only one verdict counts, and one successor starts."""
    first = fence(small.observer, small.leased, "mine")
    assert fence(small.observer, small.leased, "yours") == first
    assert kill_incarnation(small.observer, first, 0.1) == kill_incarnation(small.observer, first, 0.1) == []
    assert start_incarnation(small.observer, SpawnRequest(KEY), 60.0, lambda _leased, _marker: None).incarnation == 2
    with pytest.raises(Fenced):
        replace_incarnation(small.observer, first, "yours", 0.1)


def test_a_process_that_ended_and_keeps_its_lock_is_killed_with_the_start_that_waits_for_it(scene: Scene) -> None:
    first = scene.start()
    scene.store.update(Identity, KEY, lambda old: mark_ended(old, "terminated", SystemClock().utc(), "done"))
    said = scene.store.get(Identity, KEY)
    assert scene.observer.observe(said).leaving is not None
    assert scene.observer.judge(said).state == "ended", "it may be on its way out"

    def spawn(leased: Identity, life: str) -> None:
        scene.popen([sys.executable, "-c", LIFE, str(scene.store.home), str(scene.folder), "2"], life)

    start_incarnation(scene.observer, SpawnRequest(KEY), 0.2, spawn)
    leased = scene.store.get(Identity, KEY)
    until(lambda: scene.observer.judge(leased).state == "lapsed")
    replace_incarnation(scene.observer, leased, "not active by its start deadline", 0.2)
    assert is_gone(first.pid) and not is_gone(scene.pid("other life"))


def test_a_stopped_process_that_has_locked_its_record_is_replaced(scene: Scene) -> None:
    """Regression: its fence waited for the lock for ever if it was stopped while it wrote its record."""
    (scene.folder / "locks").touch()
    identity = scene.start()
    os.kill(identity.pid, signal.SIGSTOP)
    replacing = threading.Thread(target=replace_incarnation, args=(scene.observer, identity, "stopped", 0.1),
                                 kwargs={"evidence": RecordedEvidence(1, timeout=1.0, silence=None, rule="stopped")},
                                 daemon=True)
    replacing.start()
    replacing.join(DEADLINE)
    assert not replacing.is_alive()
    assert is_gone(identity.pid) and scene.store.get(Identity, KEY).status == "crashed"
