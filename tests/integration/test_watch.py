"""Hang detection: processes in memory with a clock that a test moves, and real process trees."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from doubles.clock import FakeClock
from doubles.processes import MemoryProcesses
from garrison.records import life_lock as lives
from garrison.records.identity import Identity
from garrison.records.life_lock import LifeLock
from garrison.records.names import Key
from garrison.records.store import Store
from garrison.supervise.hang_detector import Evidence
from garrison.supervise.observer import HangWatcher, Inspection, Observer, judge_now
from garrison.system.process_control import RealProcesses
from garrison.system.processes import ProcessId, cpu_fingerprint, descendants, probe
from garrison.values import fields_of, replace
from support import until

KEY = Key("orchestrator", "a", "r1")


class Agent:
    """Signs as a test sets them."""

    def __init__(self, silence: float | None = None) -> None:
        self.silence = silence
        self.output = self.depth = 0
        self.under_way: tuple[str, float] | None = None
        self.waits = ""

    def stamps(self, *, deep: bool) -> Mapping[str, Hashable]:
        self.depth += deep
        return {"output": self.output}

    def tool(self) -> tuple[str, float] | None:
        return self.under_way

    def waiting(self) -> str:
        return self.waits


class Scene:
    """An incarnation in memory: one process with a child, watched once a second."""

    def __init__(self, home: Path, agent: Agent | None = None, timeout: float = 40.0) -> None:
        self.processes, self.clock = MemoryProcesses(), FakeClock()
        self.observer = Observer(Store(home), self.processes, self.clock)
        self.watcher = HangWatcher(self.observer, timeout, 2.0)
        self.agent = agent
        self.process = self.add(1)
        self.tool = self.add(self.process.pid)
        where = self.processes.here()
        self.identity = Identity("id", KEY.role, KEY.name, KEY.run, self.clock.utc(), pid=self.process.pid,
                                 start_ticks=self.process.ticks, pid_ns=where.pid_ns, boot_id=where.boot_id,
                                 host=where.host)
        path = self.observer.store.life_path(KEY)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = LifeLock.try_acquire(path)
        self.lock = lock

    def add(self, above: int, life: int = 1) -> ProcessId:
        return self.processes.add(marker=f"{self.observer.store.home}:r1:orchestrator-a#{life}", ppid=above)

    def beat(self) -> None:
        self.lock.beat(int(self.clock.monotonic() * 1e9), int(self.clock.time() * 1e9))

    def look(self) -> Inspection:
        return self.watcher.inspect(self.identity, self.observer.judge(self.identity), self.agent)

    def pass_(self, seconds: int, *, beats: bool = True, computes: int = 0, **steps: float) -> list[Inspection]:
        """Let time pass, look each second; return what was seen."""
        found = []
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.clock.step(steps.get("step", 0.0))
            if beats:
                self.beat()
            self.processes.cpu[self.tool.pid] = self.processes.cpu.get(self.tool.pid, 0) + computes
            found.append(self.look())
        return found

    def stop(self, one: ProcessId, number: int = signal.SIGSTOP) -> None:
        self.processes.send(one.pid, one.ticks, number)


def hangs(found: list[Inspection]) -> list[int]:
    return [second for second, looked in enumerate(found, 1) if looked.verdict.state == "hung"]


def rule(found: list[Inspection]) -> str:
    body = found[-1].evidence
    return body.rule if body else ""


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.beat()
    made.pass_(3)
    return made


@pytest.mark.smoke
def test_a_silent_process_hangs_at_its_timeout_and_not_before(scene: Scene) -> None:
    assert hangs(scene.pass_(39, beats=False)) == []
    found = scene.pass_(2, beats=False)
    assert hangs(found)[0] == 1
    assert rule(found) == "silent"
    assert "no heartbeat for" in found[-1].verdict.why
    assert not found[-1].verdict.living
    assert found[-1].verdict.needs_replacement


def test_no_process_tree_is_read_while_heartbeats_are_in_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scene.processes, "descendants", None)
    assert {looked.evidence is None for looked in scene.pass_(100)} == {True}


def test_a_child_that_computes_is_a_sign(scene: Scene) -> None:
    assert hangs(scene.pass_(400, beats=False, computes=1)) == []
    assert hangs(scene.pass_(60, beats=False)) != []


def test_a_stopped_process_hangs_though_its_child_computes(scene: Scene) -> None:
    scene.stop(scene.process)
    found = scene.pass_(41, beats=False, computes=1)
    assert hangs(found)[0] == 40
    assert rule(found) == "stopped"
    scene.stop(scene.process, signal.SIGCONT)
    assert hangs(scene.pass_(1)) == [], "it was continued in time"


@pytest.mark.parametrize("gap", [60.0, 1e5])
def test_a_watcher_that_was_paused_itself_calls_nothing_hung(scene: Scene, gap: float) -> None:
    """It was stopped, the machine suspended, a container paused: the gap counts as two rescans."""
    for _ in range(5):
        scene.clock.advance(gap)
        assert scene.look().verdict.state == "alive"
        assert hangs(scene.pass_(5, beats=False)) == []
        assert hangs(scene.pass_(1)) == []
    scene.clock.advance(gap)
    assert hangs(scene.pass_(50, beats=False)) != [], "its own silence still counts"


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_step_of_the_clock_ages_no_heartbeat(scene: Scene, step: float) -> None:
    assert hangs(scene.pass_(100, step=step)) == []
    assert hangs(scene.pass_(35, beats=False, step=step)) == []
    assert hangs(scene.pass_(6, beats=False, step=step)) != []


def test_a_new_incarnation_has_its_whole_timeout(scene: Scene) -> None:
    """The last heartbeat in the life file is its predecessor's."""
    scene.processes.exit(scene.tool.pid)
    scene.tool = scene.process
    scene.pass_(35, beats=False)
    scene.identity = replace(scene.identity, incarnation=2)
    assert hangs(scene.pass_(39, beats=False)) == []
    assert hangs(scene.pass_(3, beats=False)) != []


def test_a_new_watcher_has_to_watch_first(scene: Scene) -> None:
    scene.clock.advance(1e4)
    scene.watcher = HangWatcher(scene.observer, 40.0, 2.0)
    assert hangs(scene.pass_(39, beats=False)) == []


def test_a_process_on_hold_or_ended_is_not_judged(scene: Scene) -> None:
    scene.identity = replace(scene.identity, status="held")
    assert hangs(scene.pass_(100, beats=False)) == []
    scene.identity = replace(scene.identity, status="active")
    scene.processes.exit(scene.process.pid)
    assert scene.look().verdict.state == "dead"


def test_a_stopped_agent_under_a_beating_orchestrator_hangs(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Agent())
    scene.pass_(50)
    scene.stop(scene.tool)
    found = scene.pass_(42)
    assert 36 <= hangs(found)[0] <= 41
    assert rule(found) == "agent-stopped"
    scene.stop(scene.tool, signal.SIGCONT)
    assert hangs(scene.pass_(50)) == []


def test_a_silent_agent_hangs_only_if_its_node_limits_silence(tmp_path: Path) -> None:
    scene = Scene(tmp_path, Agent())
    assert hangs(scene.pass_(500)) == []
    assert scene.agent.depth == 0, "its tree is walked only where silence counts"
    other = Scene(tmp_path / "2", agent := Agent(100.0))
    for _ in range(5):
        assert hangs(other.pass_(90)) == []
        agent.output += 1
        assert hangs(other.pass_(9)) == []
    agent.under_way = ("Bash", 900.0)
    assert hangs(other.pass_(150)) == []
    agent.under_way, agent.waits = None, "for a person"
    assert hangs(other.pass_(10)) == []
    agent.waits = ""
    assert rule(other.pass_(10)) == "agent-silent"
    assert 0 < agent.depth < 60


# ---------------------------------------------------------------------------------------------------- real processes


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Yield a starter of shells with a sleeping child, each in its own session; all are killed at the end."""
    started = []

    def start(script: str = "sleep 60 & wait", **env: str) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sh", "-c", script], env={"PATH": os.environ["PATH"], **env}, start_new_session=True)
        started.append(child)
        return child

    yield start
    for child in started:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.mark.parametrize("by_kernel", [True, False])
def test_the_tree_below_ends_at_other_incarnations(tree: Callable[..., subprocess.Popen[bytes]], by_kernel: bool,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_kernel:
        monkeypatch.setattr(os, "access", lambda *_: False)
    elif not os.access(f"/proc/self/task/{os.getpid()}/children", os.R_OK):
        pytest.skip("this kernel does not list children")
    shell = tree("GARRISON_LIFE=other sh -c 'sleep 61 & wait' & env -u GARRISON_LIFE sleep 62 & sleep 63 & wait",
                 GARRISON_LIFE="mine")
    found = until(lambda: [one for one in [descendants(shell.pid, "mine")] if len(one) == 2
                           and all(probed.comm == "sleep" for probed in one)])[0]
    assert {one.ppid for one in found} == {shell.pid}
    os.kill(found[0].pid, signal.SIGSTOP)
    assert until(lambda: [one.state for one in descendants(shell.pid, "mine")].count("T") == 1)
    assert descendants(2**22 + 1, "mine") == []


def test_any_activity_of_a_process_tree_changes_its_fingerprint(tree: Callable[..., subprocess.Popen[bytes]],
                                                                   tmp_path: Path) -> None:
    (told := tmp_path / "told").touch()
    code = "import signal; signal.signal(10, print); print(flush=True); [signal.pause() for _ in range(9)]"
    shell = tree(f"'{sys.executable}' -c '{code}' > '{told}' & wait")
    until(told.read_text)
    # it has come to rest
    before = until(lambda: (found := cpu_fingerprint(shell.pid, "")) == cpu_fingerprint(shell.pid, "") and found)
    (one,) = descendants(shell.pid, "")
    os.kill(one.pid, signal.SIGUSR1)
    assert until(lambda: cpu_fingerprint(shell.pid, "") != before)
    assert descendants(shell.pid, "")[0].cpu - one.cpu <= 1, "as little as that"
    assert cpu_fingerprint(2**22 + 1, "") == frozenset()


def test_cpu_and_state_are_read_from_the_kernel() -> None:
    before = probe(os.getpid())
    spin = time.process_time()
    while time.process_time() - spin < 0.05:
        pass
    after = probe(os.getpid())
    assert (after.state, after.cpu > before.cpu) == ("R", True)


def test_a_silent_agent_that_is_observed_only_when_a_scan_is_due_hangs_no_later(tmp_path: Path) -> None:
    """Regression: the runner of an agent whose silence counts took a full turn every second."""
    each_second = hangs(Scene(tmp_path / "1", Agent(100.0)).pass_(120))[0]
    other = Scene(tmp_path / "2", agent := Agent(100.0))
    assert other.watcher.seconds_to_scan(other.identity, agent) is None, "it is not watched yet"
    passed, looks = 0.0, 0
    other.clock.advance(1.0)
    while other.look().verdict.state != "hung":
        left = other.watcher.seconds_to_scan(other.identity, agent)
        assert left == 2.0, "a twentieth of the timeout"
        other.clock.advance(left)
        passed, looks = passed + left, looks + 1
        other.beat()
    assert 99.0 <= passed <= each_second
    assert looks < each_second * 0.6
    ended = replace(other.identity, status="terminated", terminated_at=other.clock.utc())
    other.watcher.inspect(ended, other.observer.judge(ended), agent)
    assert other.watcher.seconds_to_scan(other.identity, agent) is None


def test_judging_without_watching_scans_twice(tmp_path: Path, tree: Callable[..., subprocess.Popen[bytes]]) -> None:
    """`garrison up` looks twice: a late process that beats or computes in between was only delayed."""
    clock, store = FakeClock(monotonic=5000.0), Store(tmp_path)
    observer = Observer(store, RealProcesses(), clock)
    ready = tmp_path / "ready"  # before its trap is set, the signal would end it
    shell = tree("trap 'i=0; while test $i -lt 300000; do i=$((i+1)); done' USR1; "
                 f"touch '{ready}'; while :; do sleep 60 & wait; done")
    until(ready.exists)
    found = until(lambda: probe(shell.pid))
    here = observer.machine
    identity = Identity("id", "guardian", "a", "r1", clock.utc(), pid=shell.pid, start_ticks=found.ticks,
                        pid_ns=here.pid_ns, boot_id=here.boot_id, host=here.host, last_heartbeat=clock.utc())
    store.life_path(identity.key).parent.mkdir(parents=True)
    lock = LifeLock.try_acquire(store.life_path(identity.key))

    def beat() -> None:
        lock.beat(int(clock.monotonic() * 1e9), int(clock.time() * 1e9))

    waited: list[float] = []

    def judged(meanwhile: Callable[[], Any] = lambda: None) -> str:
        def wait(seconds: float) -> None:
            waited.append(seconds)
            clock.advance(seconds)
            meanwhile()

        return judge_now(observer, identity, 300.0, wait, 3.0).verdict.state

    def compute() -> None:
        used = until(lambda: probe(shell.pid)).cpu
        os.kill(shell.pid, signal.SIGUSR1)
        until(lambda: (probe(shell.pid) or found).cpu > used + 3 and (probe(shell.pid) or found).state == "S")

    beat()
    assert (judged(), waited) == ("alive", []), "it costs nothing while beats come"
    clock.advance(1000.0)
    assert judged(beat) == "alive"
    clock.advance(1000.0)
    assert judged(compute) == "alive"
    assert until(lambda: judged() == "hung"), "once the shell rests"
    os.kill(shell.pid, signal.SIGSTOP)
    until(lambda: (probe(shell.pid) or found).state == "T")
    looked = judge_now(observer, identity, 300.0, lambda _: None, 3.0)
    assert "is stopped (SIGSTOP)" in looked.verdict.why
    assert looked.evidence.rule == "stopped"
    clock.step(-1e6)
    assert judged(lambda: (beat(), os.kill(shell.pid, signal.SIGCONT))) == "alive"


def test_evidence_is_made_of_plain_data() -> None:
    assert all(isinstance(value, int | float | str | dict) for value in fields_of(Evidence(1, {"beat": 1.0})).values())
    assert lives.read_heartbeat(Path(sys.executable)) is not None
