"""Process for views: its record, the verdict on it, its heartbeat and the evidence of its agent's activity.

Read-only. An observation has no history: ages come from the files' wall-clock times, the heartbeat's age from the
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from garrison.ends import Departure
from garrison.records.names import format_marker
from garrison.supervise.hang_detector import latest_evidence
from garrison.supervise.verdict import judge
from garrison.system.clock import format_age, from_iso
from garrison.values import Value

if TYPE_CHECKING:
    from garrison.records.identity import Identity
    from garrison.run.agent_activity import AgentActivity
    from garrison.supervise.observer import Observer

SILENT_SECONDS = 60.0
"""Seconds without evidence of activity after which `status` mentions it."""


class ShownProcess(Value):
    """Process of a run, as JSON: launcher, guardian, processor, runner or orchestrator."""

    agent: str
    """Full name."""
    role: str
    name: str
    status: str
    """As recorded."""
    incarnation: int
    verdict: str
    """Verdict from the current state of this machine."""
    living: bool
    phase: str
    """Phase of its hook; '' without one."""
    pid: int | None
    beat_age_s: float | None
    stopped: bool
    """True if its process is suspended (SIGSTOP)."""
    age_s: float | None
    exit: int | str | None
    why: str


class ProcessView(ShownProcess):
    """Process, and how it ended by itself; None if it did not."""

    departure: Departure | None = None

    @property
    def stem(self) -> str:
        """Return its name within the run: `role-name`, or the launcher's `launch`."""
        return self.agent.partition("@")[0]

    @property
    def state(self) -> str:
        """Return its state in one word; for an ended one, how it ended."""
        return self.status if self.verdict == "ended" else self.verdict


def observe_process(observer: Observer, identity: Identity, phase: str) -> ProcessView:
    """Judge an identity by the current state of this machine."""
    seen = observer.observe(identity)
    verdict = judge(identity, seen)
    started = identity.status != "starting"  # until then the record contains the pid of its parent
    created = identity.created_at
    return ProcessView(
        identity.key.full, identity.role, identity.name, identity.status, identity.incarnation, verdict.state,
        verdict.living, phase, identity.pid if started else None, seen.beat_age,
        started and verdict.living and seen.process_state == "T",
        max(0.0, observer.clock.time() - from_iso(created)) if created else None, identity.exit,
        identity.reason or verdict.why, identity.departure)


class LatestSign(Value):
    """Latest evidence of activity: kind, and seconds ago."""

    kind: str
    age_s: float


class LatestEvidence(Value):
    """Latest evidence of activity of a node's agent."""

    ages_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Kind of evidence → seconds ago."""
    last: LatestSign | None = None
    stopped: bool = False
    processes: int = 0
    processes_stopped: int = 0
    """Number of its suspended processes."""
    silence_s: float | None = None
    """Seconds of silence after which the agent counts as hung."""

    @property
    def suspended(self) -> bool:
        """Return whether the agent or one of its descendants is suspended (SIGSTOP)."""
        return self.stopped or self.processes_stopped > 0

    def words(self) -> str:
        """Return `, silent for 3m (last: output)` for an agent without recent activity; '' otherwise."""
        if self.last is None or self.last.age_s < SILENT_SECONDS:
            return ""
        return f", silent for {format_age(self.last.age_s)} (last: {self.last.kind})"


class ProcessEvidence(Value):
    """Current state of an incarnation for `agents show`: verdict, process, heartbeat, process tree."""

    verdict: str
    why: str
    state: str
    stopped: bool
    beat_age_s: float | None
    processes: int
    processes_stopped: int


def process_evidence(observer: Observer, identity: Identity) -> ProcessEvidence:
    """Observe a process and its descendants."""
    seen, verdict = observer.observe(identity), observer.judge(identity)
    below = []
    if verdict.state == "alive" and identity.pid is not None:
        marker = format_marker(str(observer.store.home), identity.key, identity.incarnation)
        below = observer.processes.descendants(identity.pid, marker)
    return ProcessEvidence(verdict.state, verdict.why, seen.process_state, seen.process_state == "T", seen.beat_age,
                           len(below), sum(process.state in ("T", "t") for process in below))


def agent_evidence(observer: Observer, identity: Identity | None, signs: AgentActivity) -> LatestEvidence:
    """Return the latest evidence of activity of a node's agent."""
    process = process_evidence(observer, identity) if identity is not None else None
    now = observer.clock.time()
    ages = _ages(signs.stamps(), now)
    if min(ages.values(), default=SILENT_SECONDS) >= SILENT_SECONDS:  # walking the worktree is slow
        ages = _ages(signs.stamps(deep=True), now)
    if identity is not None and identity.created_at:
        ages["start"] = max(0.0, now - from_iso(identity.created_at))  # its predecessor's files are not evidence
    last = latest_evidence(ages)
    if process is not None and process.beat_age_s is not None:
        ages["beat"] = process.beat_age_s
    return LatestEvidence(ages, LatestSign(*last) if last else None, process is not None and process.stopped,
                          process.processes if process else 0, process.processes_stopped if process else 0,
                          signs.silence)


def _ages(stamps: Mapping[str, tuple[int, int] | None], now: float) -> dict[str, float]:
    return {kind: max(0.0, now - stamp[0] / 1e9) for kind, stamp in stamps.items() if stamp is not None}
