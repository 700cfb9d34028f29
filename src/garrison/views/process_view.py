"""Process as views show it: its record, the verdict on it, its heartbeat and the evidence of its agent's activity.

Read-only. An observation has no history: ages are those of the files, by the wall clock; the heartbeat's age is by the
monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from garrison.ends import Departure
from garrison.records.names import format_marker
from garrison.supervise.hang_detector import latest_evidence
from garrison.supervise.verdict import judge
from garrison.system.clock import format_age, from_iso
from garrison.values import Value, asdict, fields_of

if TYPE_CHECKING:
    from garrison.processes.agent_activity import AgentActivity
    from garrison.records.identity import Identity
    from garrison.supervise.observer import Observer

SILENT_SECONDS = 60.0
"""Seconds without evidence of activity after which `status` mentions it."""


class ProcessView(Value):
    """One process of a run: launcher, guardian, processor, runner or orchestrator."""

    agent: str
    """Full name."""
    role: str
    name: str
    status: str
    """As recorded."""
    incarnation: int
    verdict: str
    """Verdict from the state of this machine."""
    living: bool
    phase: str
    """Of its hook; '' without one."""
    pid: int | None
    beat_age_s: float | None
    stopped: bool
    """True if its process is suspended (SIGSTOP)."""
    age_s: float | None
    exit: int | str | None
    why: str
    departure: Departure | None = None
    """How it ended by itself; None if it did not."""

    @property
    def stem(self) -> str:
        """Return its name within the run: `role-name`, or the launcher's `launch`."""
        return self.agent.partition("@")[0]

    @property
    def state(self) -> str:
        """Return its state in one word; for an ended one, how it ended."""
        return self.status if self.verdict == "ended" else self.verdict

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in fields_of(self).items() if name != "departure"}


def observe_process(observer: Observer, identity: Identity, phase: str) -> ProcessView:
    """Judge an identity by the current state of this machine."""
    seen = observer.observe(identity)
    verdict = judge(identity, seen)
    started = identity.status != "starting"  # until then the record holds the pid of its parent
    created = identity.created_at
    return ProcessView(
        identity.key.full, identity.role, identity.name, identity.status, identity.incarnation, verdict.state,
        verdict.living, phase, identity.pid if started else None, seen.beat_age,
        started and verdict.living and seen.process_state == "T",
        max(0.0, observer.clock.time() - from_iso(created)) if created else None, identity.exit,
        identity.reason or verdict.why, identity.departure)


class AgentEvidence(Value):
    """Latest evidence of activity of a node's agent."""

    ages_s: dict[str, float] = msgspec.field(default_factory=dict)
    """Kind of evidence → seconds ago."""
    last: dict[str, Any] | None = None
    """The latest of them, {kind, age_s}."""
    stopped: bool = False
    processes: int = 0
    processes_stopped: int = 0
    """Number of its suspended processes."""
    silence_s: float | None = None
    """Seconds of silence after which the agent counts as hung."""

    @property
    def suspended(self) -> bool:
        """Return whether the agent, or a process below it, is suspended (SIGSTOP)."""
        return self.stopped or self.processes_stopped > 0

    def words(self) -> str:
        """Return `, silent for 3m (last: output)` for an agent without recent activity; '' otherwise."""
        if self.last is None or self.last["age_s"] < SILENT_SECONDS:
            return ""
        return f", silent for {format_age(self.last['age_s'])} (last: {self.last['kind']})"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def process_evidence(observer: Observer, identity: Identity) -> dict[str, Any]:
    """Return the current state of an incarnation for `agents show`: verdict, process, heartbeat, process tree."""
    seen, verdict = observer.observe(identity), observer.judge(identity)
    below = []
    if verdict.state == "alive" and identity.pid is not None:
        life = format_marker(str(observer.store.home), identity.key, identity.incarnation)
        below = observer.processes.descendants(identity.pid, life)
    return {"verdict": verdict.state, "why": verdict.why, "state": seen.process_state,
            "stopped": seen.process_state == "T", "beat_age_s": seen.beat_age, "processes": len(below),
            "processes_stopped": sum(process.state in ("T", "t") for process in below)}


def agent_evidence(observer: Observer, identity: Identity | None, signs: AgentActivity) -> AgentEvidence:
    """Return the latest evidence of activity of a node's agent."""
    process = process_evidence(observer, identity) if identity is not None else {}
    now = observer.clock.time()
    ages = _ages(signs.stamps(), now)
    if min(ages.values(), default=SILENT_SECONDS) >= SILENT_SECONDS:  # walking the worktree is slow
        ages = _ages(signs.stamps(deep=True), now)
    if identity is not None and identity.created_at:
        ages["start"] = max(0.0, now - from_iso(identity.created_at))  # its predecessor's files are no evidence of it
    last = latest_evidence(ages)
    if process.get("beat_age_s") is not None:
        ages["beat"] = process["beat_age_s"]
    return AgentEvidence(ages, {"kind": last[0], "age_s": last[1]} if last else None, process.get("stopped", False),
                         process.get("processes", 0), process.get("processes_stopped", 0), signs.silence)


def _ages(stamps: Mapping[str, tuple[int, int] | None], now: float) -> dict[str, float]:
    return {kind: max(0.0, now - stamp[0] / 1e9) for kind, stamp in stamps.items() if stamp is not None}
