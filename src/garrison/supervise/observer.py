"""Observer: gather what the verdict and the hang detector need to know about a supervised process.

`Observer` reads the identity's process, life lock and clock once. `HangWatcher` follows a process from scan to scan:
while its heartbeat is fresh that costs next to nothing; the process tree is read only when a heartbeat is late, and
every few seconds under a working orchestrator. `judge_now` serves callers that look only once, such as `garrison up`.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from garrison.records import life_lock
from garrison.supervise.hang_detector import Evidence, EvidenceTimes, WatchClock, encode_evidence, find_hang
from garrison.records.names import format_marker
from garrison.supervise.verdict import Observation, Verdict, is_spawn_due, judge, stale_reason
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping
    from pathlib import Path
    from typing import Any

    from garrison.records.identity import Identity
    from garrison.records.store import Store
    from garrison.system.clock import Clock
    from garrison.system.process_control import Processes
    from garrison.system.processes import ProcessInfo


@dataclass(frozen=True)
class ProcessOrigin:
    """A process as records name it: its pid with start ticks, and where it runs."""

    pid: int
    start_ticks: int
    pid_ns: str
    boot_id: str
    host: str


class Observer:
    """Judges identities of one home by what this machine shows."""

    def __init__(self, store: Store, processes: Processes, clock: Clock) -> None:
        self.store, self.processes, self.clock = store, processes, clock
        self.where = processes.here()

    def see(self, identity: Identity) -> Observation:
        """Return what can be observed of `identity` now."""
        here = self.where
        same_kernel = (identity.host, identity.boot_id) == (here.host, here.boot_id)
        probe = self.processes.probe(identity.pid) if identity.pid and same_kernel else None
        ticks = probe.ticks if probe and not probe.zombie else None
        starting = identity.status == "starting"
        due = starting and is_spawn_due(from_iso(identity.created_at), self.clock.time())
        foreign = identity.host != here.host or identity.pid_ns != here.pid_ns
        return Observation(
            here.host, here.boot_id, here.pid_ns, pid_ticks=ticks, process_state=probe.state if probe else "",
            life_held=foreign and life_lock.is_held(self.store.life_path(identity.key)),
            marker_borne=starting and (due or ticks != identity.start_ticks) and self._borne(identity), spawn_due=due,
            beat_age=self.beat_age(identity, same_kernel), leaving=self._leaving(identity, ticks),
            deadline_passed=bool(starting and identity.spawn_deadline
                                 and self.clock.time() > from_iso(identity.spawn_deadline)))

    def judge(self, identity: Identity) -> Verdict:
        """Return the verdict on `identity` now; one whose record says it is over is not observed."""
        here = self.where
        over = identity.status in ("crashed", "parked")
        return judge(identity, Observation(here.host, here.boot_id, here.pid_ns) if over else self.see(identity))

    def stale_reason(self, identity: Identity, timeout: float) -> str | None:
        """Return why `identity` is stale now (`verdict.stale_reason`)."""
        return stale_reason(identity, self.see(identity), timeout)

    def me(self, pid: int) -> ProcessOrigin:
        """Process `pid` of this machine, as records name it."""
        probe = self.processes.probe(pid)
        return ProcessOrigin(pid, probe.ticks if probe else 0, self.where.pid_ns, self.where.boot_id, self.where.host)

    def beat_age(self, identity: Identity, same_kernel: bool) -> float | None:
        """Return the seconds since the later of life file and `last_heartbeat`; None if there is neither."""
        ages = []
        if identity.last_heartbeat:
            ages.append(self.clock.time() - from_iso(identity.last_heartbeat))
        beat = life_lock.read_heartbeat(self.store.life_path(identity.key))
        if beat is not None:
            monotonic, epoch = beat
            # A beat's access time is CLOCK_MONOTONIC of its boot; a life file nobody beat yet has wall times in both.
            if same_kernel and monotonic <= self.clock.monotonic():
                ages = [age for age in ages if age >= 0]  # the clock was set back: that beat tells nothing
                ages.append(self.clock.monotonic() - monotonic)
            else:
                ages.append(self.clock.time() - epoch)
        return max(0.0, min(ages)) if ages else None

    def _leaving(self, identity: Identity, ticks: int | None) -> float | None:
        """Return `Observation.leaving`; a process without the lock (of a record made by hand, say) blocks nothing."""
        if identity.status != "terminated" or identity.terminated_at is None or ticks is None:
            return None
        if ticks != identity.start_ticks or not life_lock.is_held(self.store.life_path(identity.key)):
            return None
        return self.clock.time() - from_iso(identity.terminated_at)

    def _borne(self, identity: Identity) -> bool:
        return bool(self.processes.find_marked(format_marker(str(self.store.home), identity.key, identity.incarnation)))


LATE = 0.25
"""Fraction of the timeout after which a heartbeat is late enough to read the process tree."""
EVERY = 15.0
"""Seconds between two looks at an agent's tree, at most; a twentieth of the patience with it if that is less."""


STOPPED = {"processor": 5.0}
"""Role → seconds for which such a process may be stopped (SIGSTOP), if less than the timeout: others queue up
behind a merge processor, and its successor adopts what it runs."""


class AgentEvidence(Protocol):
    """Evidence of work that an orchestrator's agent leaves behind."""

    silence: float | None
    """Seconds of silence that are a hang; None: its own timeout bounds it."""

    def stamps(self, *, deep: bool) -> Mapping[str, Hashable]:
        """Kind of sign (`evidence.WORK`) → what changes with it; `deep`: also what is dear to look at."""
        ...

    def tool(self) -> tuple[str, float] | None:
        """Return a tool under way and the seconds it may be silent; None if there is none."""
        ...

    def waiting(self) -> str:
        """Return what the agent says it waits for; '' if it works."""
        ...


@dataclass(frozen=True)
class Inspection:
    """The verdict on one process, with the evidence as JSON values; None if none was gathered."""

    verdict: Verdict
    evidence: dict[str, Any] | None = None


class _Watched:
    """One watched incarnation."""

    def __init__(self, path: Path, incarnation: int, began: float) -> None:
        self.path = path
        self.incarnation, self.began, self.seen = incarnation, began, began
        self.missed = 0.0
        """Unwatched seconds of the clock at the last scan."""
        self.signs = EvidenceTimes(began)
        self.looked = self.walked = -1e9
        self.looks = 0
        self.evidence: dict[str, Any] | None = None


class HangWatcher:
    """Watches the processes of one home for hangs; a gap between scans longer than `gap` seconds was not watched."""

    def __init__(self, observer: Observer, timeout: float, gap: float) -> None:
        self.observer, self.timeout = observer, timeout
        self.clock = WatchClock(min(gap, timeout / 4))
        self._lives: dict[tuple[str, str, str], _Watched] = {}

    def look(self, identity: Identity, verdict: Verdict, agent: AgentEvidence | None = None) -> Inspection:
        """Return the verdict on a process, `hung` if the evidence says so; pass `agent` if it is an orchestrator."""
        who, now = (identity.role, identity.name, identity.run_id), self.observer.clock.monotonic()
        at = self.clock.look(now)
        if verdict.state != "alive" or identity.status != "active" or identity.pid is None:
            self._lives.pop(who, None)
            return Inspection(verdict)
        watched = self._lives.get(who)
        if watched is None or watched.incarnation != identity.incarnation:  # a predecessor's signs are not its own
            watched = _Watched(self.observer.store.life_path(identity.key), identity.incarnation, at)
            watched.missed = self.clock.missed
            self._lives[who] = watched
        beat = life_lock.read_heartbeat(watched.path)
        # How long before this look it came, in watched seconds; not before the last look.
        missed = now - beat[0] - (self.clock.missed - watched.missed) if beat else 0.0
        watched.missed = self.clock.missed
        watched.signs.note("beat", beat, at - min(max(0.0, missed), at - watched.seen))
        watched.seen = at
        late = at - watched.signs.times["beat"] > LATE * self._patience(identity)
        if not late and (agent is None or at - watched.looked < self._every(agent)):
            return Inspection(verdict, watched.evidence)
        return self._judge(identity, verdict, watched, agent, at)

    def _patience(self, identity: Identity) -> float:
        return min(self.timeout, STOPPED.get(identity.role, self.timeout))

    def _every(self, agent: AgentEvidence) -> float:
        return min(EVERY, self.timeout / 20, (agent.silence or self.timeout) / 20)

    def _judge(self, identity: Identity, verdict: Verdict, watched: _Watched, agent: AgentEvidence | None,
               at: float) -> Inspection:
        evidence = self._gather(identity, watched, agent, at)
        silence = agent.silence if agent is not None else None
        patience = self._patience(identity) if evidence.state == "T" else self.timeout
        hang = find_hang(evidence, patience, silence) if watched.looks > 1 else None  # what moves, two looks tell
        watched.evidence = encode_evidence(evidence, hang, patience, silence)
        return Inspection(Verdict("hung", hang.why) if hang else verdict, watched.evidence)

    def _gather(self, identity: Identity, watched: _Watched, agent: AgentEvidence | None, at: float) -> Evidence:
        signs, home = watched.signs, self.observer.store.home
        watched.looked, watched.looks = at, watched.looks + 1
        assert identity.pid is not None
        own = self.observer.processes.probe(identity.pid)
        below = self.observer.processes.descendants(identity.pid,
                                              format_marker(str(home), identity.key, identity.incarnation))
        used = sum(one.cpu for one in below)
        pids = tuple(sorted(one.pid for one in below))
        stopped = sum(one.state in ("T", "t") for one in below)
        signs.note("cpu", (own.cpu if own else 0, used, pids), at)
        signs.hold("running", own is not None and own.state != "T", at, signs.times["beat"])
        tool, waiting = None, ""
        if agent is not None:
            signs.note("work", (used, pids), at)
            signs.last("unstopped", not stopped, at)
            limit = agent.silence or (self.timeout if stopped else math.inf)
            for kind, stamp in agent.stamps(deep=_deep(watched, limit, at)).items():
                signs.note(kind, stamp, at)
            if _quiet(signs.ages(at)) > limit / 2:
                tool, waiting = agent.tool(), agent.waiting()
        ages = signs.ages(at)
        left = tool[1] - ages.get("stream", 0.0) if tool else 0.0
        return Evidence(
            identity.incarnation, ages, own.state if own else "", len(below), stopped, _blocked(own, below),
            ((own.cpu if own else 0) + used) / _TICKS, tool[0] if tool else "", max(0.0, left), waiting,
            at - watched.began)


def _quiet(ages: Mapping[str, float]) -> float:
    return min((age for kind, age in ages.items() if kind in ("work", "output", "stream", "head")), default=0.0)


def _deep(watched: _Watched, limit: float, at: float) -> bool:
    """Return whether to walk the whole worktree: only after half the silence that would be a hang, a few times."""
    due = _quiet(watched.signs.ages(at)) > limit / 2 and at - watched.walked > limit / 8
    if due:
        watched.walked = at
    return due


_TICKS = os.sysconf("SC_CLK_TCK")


def _blocked(own: ProcessInfo | None, below: list[ProcessInfo]) -> int:
    return sum(one.state == "D" for one in ([own] if own else []) + below)


def judge_now(observer: Observer, identity: Identity, timeout: float, wait: Callable[[float], None],
              pause: float) -> Inspection:
    """Judge without having watched: a process whose heartbeat is older than `timeout` is observed twice.

    `wait(pause)` passes the time between the two: a process that was thawed a moment ago beats or computes meanwhile.
    Ages are on the monotonic clock, so neither suspend nor clock steps age anything.
    """
    verdict, age = observer.judge(identity), _age(observer, identity)
    if verdict.state != "alive" or identity.status != "active" or identity.pid is None or age <= timeout:
        return Inspection(verdict)
    first = _once(observer, identity)
    wait(pause)
    second = _once(observer, identity)
    still = first[:3] == second[:3]
    since = _age(observer, identity)
    ages = {"beat": since, "cpu": since if still else 0.0,
            "running": since if (first[3], second[3]) == ("T", "T") else 0.0}
    evidence = Evidence(identity.incarnation, ages, second[3], len(second[2]), blocked=second[4],
                        cpu_s=second[1] / _TICKS, watched=pause)
    hang = find_hang(evidence, timeout)
    return Inspection(Verdict("hung", hang.why) if hang else observer.judge(identity),
                      encode_evidence(evidence, hang, timeout))


def _age(observer: Observer, identity: Identity) -> float:
    """Return the seconds since the last heartbeat; 0 if unknown."""
    return observer.see(identity).beat_age or 0.0


def _once(observer: Observer, identity: Identity) -> tuple[Hashable, int, tuple[int, ...], str, int]:
    """Return (heartbeat, CPU ticks of the tree, its pids, own state, number of blocked processes)."""
    assert identity.pid is not None
    own = observer.processes.probe(identity.pid)
    life = format_marker(str(observer.store.home), identity.key, identity.incarnation)
    below = observer.processes.descendants(identity.pid, life)
    used = sum(one.cpu for one in below) + (own.cpu if own else 0)
    return (life_lock.read_heartbeat(observer.store.life_path(identity.key)), used,
            tuple(sorted(one.pid for one in below)),
            own.state if own else "", _blocked(own, below))
