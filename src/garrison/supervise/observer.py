"""Observer: gather what the verdict and the hang detector need to know about a supervised process.

`Observer` reads an identity's process, life lock and clock once. `HangWatcher` follows a process from scan to scan:
while its heartbeat is fresh that costs next to nothing; the process tree is read only when a heartbeat is late, and
every few seconds below a working orchestrator. `judge_now` serves callers that do not watch, such as `garrison up`;
`find_stale` lists what `find-stale` reports.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

from garrison.records import life_lock
from garrison.records.identity import Identity
from garrison.records.names import format_marker
from garrison.supervise.hang_detector import (
    Evidence,
    EvidenceTimes,
    RecordedEvidence,
    WatchClock,
    find_hang,
    record_evidence,
)
from garrison.supervise.verdict import Observation, Verdict, is_spawn_due, is_start_overdue, judge, stale_reason
from garrison.system.clock import from_iso, iso
from garrison.system.processes import TICKS_PER_SECOND
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence
    from pathlib import Path

    from garrison.errors import RecordError
    from garrison.records.names import Key
    from garrison.records.store import Store
    from garrison.system.clock import Clock
    from garrison.system.process_control import Processes
    from garrison.system.processes import ProcessId


class ProcessOrigin(Value):
    """A process as records name it: its pid with start ticks, and where it runs."""

    pid: int
    start_ticks: int
    pid_ns: str
    boot_id: str
    host: str


class Observer:
    """Judges the identities of one home by what is observed on this machine."""

    def __init__(self, store: Store, processes: Processes, clock: Clock) -> None:
        self.store, self.processes, self.clock = store, processes, clock
        self.machine = processes.here()
        self._started: dict[Key, tuple[int, set[ProcessId]]] = {}
        """Name → its latest incarnation that was seen starting, and the processes seen for it."""
        self._starting_since: dict[Key, tuple[int, float]] = {}
        """Name → its latest incarnation that was seen starting, and when first (monotonic seconds)."""

    def observe(self, identity: Identity) -> Observation:
        """Return what this machine shows about `identity` now."""
        here = self.machine
        same_kernel = (identity.host, identity.boot_id) == (here.host, here.boot_id)
        probe = self.processes.probe(identity.pid) if identity.pid and same_kernel else None
        ticks = probe.ticks if probe and not probe.zombie else None
        starting = identity.status == "starting"
        due = starting and (self._has_lost_start(identity)
                            or is_spawn_due(from_iso(identity.created_at), self.clock.time()))
        foreign = identity.host != here.host or identity.pid_ns != here.pid_ns
        return Observation(
            here.host, here.boot_id, here.pid_ns, pid_ticks=ticks, process_state=probe.state if probe else "",
            life_held=foreign and life_lock.is_held(self.store.life_path(identity.key)),
            # Searching for a marker reads the environment of every process: only once the spawner, whose pid the lease
            # contains, is gone or its time is up.
            marker_borne=starting and (due or ticks != identity.start_ticks)
            and bool(self.processes.find_marked(self.marker(identity))),
            spawn_due=due, beat_age=self.heartbeat_age(identity, same_kernel),
            leaving=self._seconds_leaving(identity, ticks),
            deadline_passed=starting and self._is_overdue(identity))

    def judge(self, identity: Identity) -> Verdict:
        """Return the verdict on `identity` now; one whose record says that it has ended is not observed."""
        here = self.machine
        if identity.status in ("crashed", "parked"):
            return judge(identity, Observation(here.host, here.boot_id, here.pid_ns))
        return judge(identity, self.observe(identity))

    def stale_reason(self, identity: Identity, timeout: float) -> str | None:
        """Return why `identity` is stale now (`verdict.stale_reason`)."""
        return stale_reason(identity, self.observe(identity), timeout)

    def is_visible(self, identity: Identity) -> bool:
        """Return whether the pid of `identity` is valid here: same machine, boot and pid namespace."""
        here = self.machine
        return (identity.host, identity.boot_id, identity.pid_ns) == (here.host, here.boot_id, here.pid_ns)

    def marker(self, identity: Identity, before: int = 0) -> str:
        """Return the marker of an incarnation, or of the one that many `before` it."""
        return format_marker(str(self.store.home), identity.key, identity.incarnation - before)

    def origin(self, pid: int) -> ProcessOrigin:
        probe, here = self.processes.probe(pid), self.machine
        return ProcessOrigin(pid, probe.ticks if probe else 0, here.pid_ns, here.boot_id, here.host)

    def heartbeat_age(self, identity: Identity, same_kernel: bool) -> float | None:
        """Return the seconds since the later of life file and `last_heartbeat`; None if there is neither."""
        ages = []
        if identity.last_heartbeat:
            ages.append(self.clock.time() - from_iso(identity.last_heartbeat))
        heartbeat = life_lock.read_heartbeat(self.store.life_path(identity.key))
        if heartbeat is not None:
            monotonic, epoch = heartbeat
            # The access time is CLOCK_MONOTONIC of that boot; until the first heartbeat both are wall times.
            if same_kernel and monotonic <= self.clock.monotonic():
                ages = [age for age in ages if age >= 0]  # the wall clock was set back since `last_heartbeat`
                ages.append(self.clock.monotonic() - monotonic)
            else:
                ages.append(self.clock.time() - epoch)
        return max(0.0, min(ages)) if ages else None

    def with_heartbeat(self, identity: Identity) -> Identity:
        """Return `identity` with its latest heartbeat: a process only touches its life file, its record keeps the
        start's."""
        heartbeat = life_lock.read_heartbeat(self.store.life_path(identity.key))
        if heartbeat is None:
            return identity
        latest = iso(heartbeat[1])
        return replace(identity, last_heartbeat=max(identity.last_heartbeat, latest))

    def read_heartbeat(self, path: Path) -> tuple[float, float] | None:
        return life_lock.read_heartbeat(path)

    def _seconds_leaving(self, identity: Identity, ticks: int | None) -> float | None:
        """Return `Observation.leaving`; a process without the lock (its record made by hand) blocks nothing."""
        if identity.status != "terminated" or identity.terminated_at is None or ticks is None:
            return None
        if ticks != identity.start_ticks or not life_lock.is_held(self.store.life_path(identity.key)):
            return None
        return self.clock.time() - from_iso(identity.terminated_at)

    # ---- a starting incarnation

    def _is_overdue(self, identity: Identity) -> bool:
        """Return whether the deadline of a starting incarnation is over."""
        if identity.spawn_deadline is None:
            return False
        incarnation, since = self._starting_since.get(identity.key, (0, 0.0))
        if incarnation != identity.incarnation:
            since = self.clock.monotonic()
            self._starting_since[identity.key] = identity.incarnation, since
        return is_start_overdue(from_iso(identity.created_at), from_iso(identity.spawn_deadline), self.clock.time(),
                                self.clock.monotonic() - since)

    def note_started(self, identity: Identity, process: ProcessId) -> None:
        """Note a process of a starting incarnation, whose record names none before it is active."""
        incarnation, processes = self._started.get(identity.key, (0, set()))
        known = processes if incarnation == identity.incarnation else set()
        self._started[identity.key] = identity.incarnation, known | {process}

    def find_starting(self, identities: Sequence[Identity]) -> list[ProcessId]:
        """Return the processes of these starting incarnations; if no known one is running, find them by their marker
        (one listing for all)."""
        unknown = {self.marker(identity): identity for identity in identities if not self._is_start_running(identity)}
        for marker, processes in self.processes.group_by_marker(unknown).items() if unknown else ():
            for process in processes:
                self.note_started(unknown[marker], process)
        return [process for identity in identities for process in self.known_processes(identity)]

    def known_processes(self, identity: Identity) -> set[ProcessId]:
        incarnation, processes = self._started.get(identity.key, (0, set()))
        return processes if incarnation == identity.incarnation else set()

    def _is_start_running(self, identity: Identity) -> bool:
        return any(self.processes.is_running(each.pid, each.ticks) for each in self.known_processes(identity))

    def _has_lost_start(self, identity: Identity) -> bool:
        """Return whether a starting incarnation had a process that no longer runs: then only another process with its
        marker can still become it."""
        return bool(self.known_processes(identity)) and not self._is_start_running(identity)


def find_stale(observer: Observer, timeout: float) -> tuple[list[tuple[Identity, str]], list[RecordError]]:
    """Return the stale identities with their reasons (`verdict.stale_reason`), and the errors of unreadable records.

    Both are sorted by name; `timeout` is in seconds.
    """
    identities, errors = observer.store.list(Identity)
    reasons = [(identity, observer.stale_reason(identity, timeout)) for identity in identities]
    return [(identity, reason) for identity, reason in reasons if reason], errors


# ---- watch for hangs -------------------------------------------------------------------------------------------------

LATE = 0.25
"""Fraction of the timeout after which a heartbeat is late enough to read the process tree."""
AGENT_SCAN_INTERVAL = 15.0
"""Seconds between two scans of an agent's process tree, at most; a twentieth of its limit if that is less."""
STOPPED_LIMITS = {"processor": 5.0}
"""Role → seconds for which such a process may be stopped (SIGSTOP), if less than the timeout: other entries wait for a
merge processor, and its successor adopts what it runs."""


class AgentEvidence(Protocol):
    """Evidence of work that an orchestrator's agent leaves behind."""

    silence: float | None
    """Seconds of silence that are a hang; None: its own timeout bounds it."""

    def stamps(self, *, deep: bool) -> Mapping[str, Hashable]:
        """Return for each kind of evidence (`hang_detector.AGENT_EVIDENCE`) what changes with it; `deep` includes what
        is expensive to read."""
        ...

    def tool(self) -> tuple[str, float] | None:
        """Return the running tool and the seconds it may be silent; None if there is none."""
        ...

    def waiting(self) -> str:
        """Return what the agent reports that it waits for; '' if it works."""
        ...


class Inspection(Value):
    """A verdict on one process, with its evidence; None if none was gathered."""

    verdict: Verdict
    evidence: RecordedEvidence | None = None


class _Watched:
    """One watched incarnation; times in watched seconds."""

    def __init__(self, path: Path, incarnation: int, began: float) -> None:
        self.path = path
        self.incarnation, self.began, self.last_inspection = incarnation, began, began
        self.missed = 0.0
        """Unwatched seconds of the clock at the last inspection."""
        self.times = EvidenceTimes(began)
        self.last_scan = self.last_walk = -1e9
        self.scans = 0
        self.evidence: RecordedEvidence | None = None


class HangWatcher:
    """Watches the processes of one home for hangs; a gap of more than `gap` seconds between inspections was
    unwatched."""

    def __init__(self, observer: Observer, timeout: float, gap: float) -> None:
        self.observer, self.timeout = observer, timeout
        self.clock = WatchClock(min(gap, timeout / 4))
        self._watched: dict[tuple[str, str, str], _Watched] = {}

    def inspect(self, identity: Identity, verdict: Verdict, agent: AgentEvidence | None = None) -> Inspection:
        """Return the verdict on a process, `hung` if the evidence says so; pass `agent` if it is an orchestrator."""
        name, now = (identity.role, identity.name, identity.run_id), self.observer.clock.monotonic()
        at = self.clock.advance(now)
        if verdict.state != "alive" or identity.status != "active" or identity.pid is None:
            self.forget(identity)
            return Inspection(verdict)
        watched = self._watched.get(name)
        if watched is None or watched.incarnation != identity.incarnation:  # the predecessor's evidence must not count
            watched = _Watched(self.observer.store.life_path(identity.key), identity.incarnation, at)
            watched.missed = self.clock.missed
            self._watched[name] = watched
        heartbeat = self.observer.read_heartbeat(watched.path)
        # Its age in watched seconds, but no more than the time since the last inspection.
        age = now - heartbeat[0] - (self.clock.missed - watched.missed) if heartbeat else 0.0
        watched.missed = self.clock.missed
        watched.times.note("beat", heartbeat, at - min(max(0.0, age), at - watched.last_inspection))
        watched.last_inspection = at
        is_late = at - watched.times.latest["beat"] > LATE * self._stopped_limit(identity)
        if not is_late and (agent is None or at - watched.last_scan < self._scan_interval(agent)):
            return Inspection(verdict, watched.evidence)
        evidence = self._scan(identity, watched, agent, at)
        silence = agent.silence if agent is not None else None
        timeout = self._stopped_limit(identity) if evidence.state == "T" else self.timeout
        # One scan shows no change; two do.
        hang = find_hang(evidence, timeout, silence) if watched.scans > 1 else None
        watched.evidence = record_evidence(evidence, hang, timeout, silence)
        return Inspection(Verdict("hung", hang.why) if hang else verdict, watched.evidence)

    def seconds_to_scan(self, identity: Identity, agent: AgentEvidence) -> float | None:
        """Return the seconds until the next scan of an agent is due; None if its process is not watched."""
        watched = self._watched.get((identity.role, identity.name, identity.run_id))
        return None if watched is None else max(
            0.0, watched.last_scan + self._scan_interval(agent) - self.clock.watched)

    def forget(self, identity: Identity) -> None:
        """Drop what is known about a process that is over."""
        self._watched.pop((identity.role, identity.name, identity.run_id), None)

    def _stopped_limit(self, identity: Identity) -> float:
        return min(self.timeout, STOPPED_LIMITS.get(identity.role, self.timeout))

    def _scan_interval(self, agent: AgentEvidence) -> float:
        return min(AGENT_SCAN_INTERVAL, self.timeout / 20, (agent.silence or self.timeout) / 20)

    def _scan(self, identity: Identity, watched: _Watched, agent: AgentEvidence | None, at: float) -> Evidence:
        """Read the process tree, and what the agent leaves behind, at the watched time `at`."""
        times, tree = watched.times, _read_tree(self.observer, identity)
        watched.last_scan, watched.scans = at, watched.scans + 1
        times.note("cpu", (tree.own_ticks, tree.ticks_below, tree.pids), at)
        times.hold_while("running", tree.is_running, at, times.latest["beat"])
        tool, waiting = None, ""
        if agent is not None:
            times.note("work", (tree.ticks_below, tree.pids), at)
            times.hold_until_missed("unstopped", not tree.stopped, at)
            limit = agent.silence or (self.timeout if tree.stopped else math.inf)
            for kind, stamp in agent.stamps(deep=_may_walk_worktree(watched, limit, at)).items():
                times.note(kind, stamp, at)
            # Both read files that an agent writes: only once they could decide anything.
            if _seconds_quiet(times.ages(at)) > limit / 2:
                tool, waiting = agent.tool(), agent.waiting()
        ages = times.ages(at)
        tool_left = tool[1] - ages.get("stream", 0.0) if tool else 0.0
        return Evidence(
            identity.incarnation, ages, tree.state, len(tree.pids), tree.stopped, tree.blocked, tree.cpu_seconds,
            tool[0] if tool else "", max(0.0, tool_left), waiting, at - watched.began)


def _seconds_quiet(ages: Mapping[str, float]) -> float:
    return min((age for kind, age in ages.items() if kind in ("work", "output", "stream", "head")), default=0.0)


def _may_walk_worktree(watched: _Watched, limit: float, at: float) -> bool:
    """Return whether to walk the whole worktree: only after half the silence that would be a hang, a few times."""
    is_due = _seconds_quiet(watched.times.ages(at)) > limit / 2 and at - watched.last_walk > limit / 8
    if is_due:
        watched.last_walk = at
    return is_due


class _ProcessTree(Value):
    """Processes of one incarnation at one moment; CPU in clock ticks."""

    state: str
    """State letter of the process itself; '' if it is gone."""
    is_running: bool
    """True if the process itself is there and not stopped."""
    own_ticks: int
    ticks_below: int
    pids: tuple[int, ...]
    """Processes below it, sorted."""
    stopped: int
    blocked: int

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the whole tree."""
        return (self.own_ticks + self.ticks_below) / TICKS_PER_SECOND


def _read_tree(observer: Observer, identity: Identity) -> _ProcessTree:
    assert identity.pid is not None
    own = observer.processes.probe(identity.pid)
    below = observer.processes.descendants(identity.pid, observer.marker(identity))
    return _ProcessTree(
        own.state if own else "", own is not None and own.state != "T", own.cpu if own else 0,
        sum(process.cpu for process in below),
        tuple(sorted(process.pid for process in below)), sum(process.state in ("T", "t") for process in below),
        sum(process.state == "D" for process in ([own] if own else []) + below))


# ---- judge without watching ------------------------------------------------------------------------------------------


def judge_now(observer: Observer, identity: Identity, timeout: float, wait: Callable[[float], None],
              pause: float) -> Inspection:
    """Judge a process that was not watched: one whose heartbeat is older than `timeout` is scanned twice.

    `wait(pause)` passes the time between the two: a process that was just thawed beats or computes in between.
    Ages are on the monotonic clock, so neither suspend nor clock steps age anything.
    """
    verdict, age = observer.judge(identity), _heartbeat_age(observer, identity)
    if verdict.state != "alive" or identity.status != "active" or identity.pid is None or age <= timeout:
        return Inspection(verdict)
    heartbeat, before = _scan_once(observer, identity)
    wait(pause)
    later_heartbeat, tree = _scan_once(observer, identity)
    is_idle = (heartbeat, before.cpu_seconds, before.pids) == (later_heartbeat, tree.cpu_seconds, tree.pids)
    age = _heartbeat_age(observer, identity)
    ages = {"beat": age, "cpu": age if is_idle else 0.0,
            "running": age if (before.state, tree.state) == ("T", "T") else 0.0}
    evidence = Evidence(identity.incarnation, ages, tree.state, len(tree.pids), blocked=tree.blocked,
                        cpu_s=tree.cpu_seconds, watched=pause)
    hang = find_hang(evidence, timeout)
    return Inspection(Verdict("hung", hang.why) if hang else observer.judge(identity),
                      record_evidence(evidence, hang, timeout))


def _heartbeat_age(observer: Observer, identity: Identity) -> float:
    """Return the seconds since the last heartbeat; 0 if unknown."""
    return observer.observe(identity).beat_age or 0.0


def _scan_once(observer: Observer, identity: Identity) -> tuple[tuple[float, float] | None, _ProcessTree]:
    return life_lock.read_heartbeat(observer.store.life_path(identity.key)), _read_tree(observer, identity)
