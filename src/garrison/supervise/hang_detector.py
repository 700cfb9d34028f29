"""Hang detector: decide from evidence whether a living process does any work. Pure.

Silence is counted in watched seconds: a longer gap between two inspections (the watcher was stopped, the machine
suspended, a container paused) counts as a couple of rescans. So nothing counts as hung just after a thaw, and a new
watcher gives every incarnation its full time again. All kinds of evidence count together; what cannot be read is
ignored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from garrison.values import Value, fields_of, replace

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

OWN_EVIDENCE = ("beat", "cpu", "running")
"""Evidence of the process itself: its heartbeat; CPU time of its tree, processes that started or ended in it; not
stopped."""
AGENT_EVIDENCE = ("work", "unstopped", "output", "stream", "transcript", "notes", "head", "worktree")
"""Evidence of the agent below an orchestrator: CPU and processes of its tree, no stopped process in it, and what grows
or changes: output, stream events, transcript, notes, HEAD, worktree."""
SPINNING_TIMEOUTS = 4.0
"""Timeouts without a heartbeat that a computing process is allowed: a long turn is no hang, an endless one is."""


class Evidence(Value):
    """Observations of one incarnation at one moment; times in seconds, plain data."""

    incarnation: int
    ages: dict[str, float] = msgspec.field(default_factory=dict)
    """Kind of evidence → watched seconds since it was last seen."""
    state: str = ""
    """State letter of the process in /proc (T: stopped, D: blocked in the kernel, R: running); '' unknown."""
    below: int = 0
    """Its descendants that belong to this incarnation."""
    stopped: int = 0
    """How many of these are stopped (T) or traced (t)."""
    blocked: int = 0
    """Processes of its tree that are blocked in the kernel (D): the disk is busy, and KILL would have no effect."""
    cpu_s: float = 0.0
    """CPU seconds used by its tree."""
    tool: str = ""
    """A running tool that has its own deadline."""
    tool_left: float = 0.0
    """Seconds until that deadline."""
    waiting: str = ""
    """What the agent reports that it waits for (the user, the reset of a limit)."""
    watched: float = 0.0
    """Seconds this incarnation was watched."""


class RecordedEvidence(Evidence, kw_only=True):
    """Evidence as recorded, with the limits that it was compared with; `rule` is '' if none fired."""

    timeout: float
    silence: float | None
    rule: str = ""


class Hang(Value):
    """A process that is alive but does nothing: the rule that fired, and a sentence."""

    rule: str
    why: str


def find_hang(evidence: Evidence, timeout: float, silence: float | None = None) -> Hang | None:
    """Return why a process hangs, None if it does not.

    A process is judged by `timeout`; its agent by `timeout` if it is stopped, else by `silence` if that is set.
    """
    # The process itself first: if both hang, its own rule is the reason shown.
    for rule in (_stopped, _silent, _spinning, _agent_stopped):
        if (why := rule(evidence, timeout)) is not None:
            return Hang(rule.__name__.strip("_").replace("_", "-"), why)
    why = _agent_silent(evidence, silence) if silence is not None else None
    return Hang("agent-silent", why) if why is not None else None


def find_job_hang(evidence: Evidence, timeout: float, silence: float | None = None) -> Hang | None:
    """Return why a job (a gate, set-up, acceptance or tool) hangs, by the rules for an agent."""
    if _is_agent_stopped(evidence, timeout):
        return Hang("job-stopped", f"{evidence.stopped} of its {evidence.below} processes are stopped (SIGSTOP), "
                                   f"nothing moved for {_seconds(_agent_unmoved(evidence))}")
    if silence is not None and _is_agent_silent(evidence, silence):
        return Hang("job-silent", f"it was silent for {_seconds(_agent_silence(evidence))}: no output or CPU use")
    return None


def seconds_silent(evidence: Evidence, kinds: Iterable[str], needed: Iterable[str]) -> float:
    """Return the watched seconds since any of `kinds`; 0 while one of `needed` was never scanned."""
    if any(kind not in evidence.ages for kind in needed):
        return 0.0
    return min(evidence.ages[kind] for kind in kinds if kind in evidence.ages)


def _stopped(e: Evidence, timeout: float) -> str | None:
    """Judge a stopped process, whatever its children do: it no longer supervises them."""
    if e.state != "T" or _own_silence(e, "beat", "running") < timeout:
        return None
    return f"its process is stopped (SIGSTOP), its last heartbeat was {_seconds(e.ages['beat'])} ago"


def _silent(e: Evidence, timeout: float) -> str | None:
    """Judge a sleeping process; one that is blocked in the kernel or waits for the CPU is working."""
    if e.blocked or e.state in ("D", "R", "T", "") or _own_silence(e, "beat", "cpu") < timeout:
        return None
    return f"no heartbeat for {_seconds(e.ages['beat'])}, and its processes used no CPU since"


def _spinning(e: Evidence, timeout: float) -> str | None:
    """Judge a process that computes without children: one whose child works (a long checkout) is waited for."""
    if e.below or e.blocked or e.state != "R" or _own_silence(e, "beat") < SPINNING_TIMEOUTS * timeout:
        return None
    return f"no heartbeat for {_seconds(e.ages['beat'])} though it uses the CPU: an endless loop"


def _agent_stopped(e: Evidence, timeout: float) -> str | None:
    """Judge a stopped agent."""
    if not _is_agent_stopped(e, timeout):
        return None
    which = f"{e.stopped} of its agent's {e.below} processes are stopped (SIGSTOP)"
    return f"{which}, nothing moved for {_seconds(_agent_unmoved(e))}"


def _agent_silent(e: Evidence, silence: float) -> str | None:
    """Judge a silent agent if the node asks for it (`silence=`); others may wait for the network until timeout."""
    if not _is_agent_silent(e, silence):
        return None
    quiet = _seconds(_agent_silence(e))
    return f"its agent was silent for {quiet}: no output, commit, change in its worktree or CPU use"


def _is_agent_stopped(e: Evidence, timeout: float) -> bool:
    """Return whether processes are stopped and nothing moves; unless all are, wait for a tool with a deadline."""
    if not e.stopped or (e.stopped < e.below and (e.tool_left > 0 or e.blocked)):
        return False
    return _agent_unmoved(e) >= timeout


def _is_agent_silent(e: Evidence, silence: float) -> bool:
    return not (e.tool_left > 0 or e.waiting or e.blocked) and e.below > 0 and _agent_silence(e) >= silence


def _agent_silence(e: Evidence) -> float:
    return seconds_silent(e, [kind for kind in AGENT_EVIDENCE if kind != "unstopped"], ("work",))


def _agent_unmoved(e: Evidence) -> float:
    return seconds_silent(e, AGENT_EVIDENCE, ("work", "unstopped"))


def _own_silence(e: Evidence, *kinds: str) -> float:
    return seconds_silent(e, kinds, kinds)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"


def latest_evidence(ages: dict[str, float]) -> tuple[str, float] | None:
    """Return the most recent evidence of work as (kind, seconds ago); None if there is none."""
    return min(ages.items(), key=lambda item: item[1]) if ages else None


def record_evidence(evidence: Evidence, hang: Hang | None, timeout: float,
                    silence: float | None = None) -> RecordedEvidence:
    """Return the evidence with the limits it was compared with and the rule that fired."""
    ages = {kind: round(age, 3) for kind, age in evidence.ages.items()}
    rounded = replace(evidence, ages=ages, watched=round(evidence.watched, 3), tool_left=round(evidence.tool_left, 3))
    return RecordedEvidence(**fields_of(rounded), timeout=timeout, silence=silence, rule=hang.rule if hang else "")


def judge_recorded(evidence: RecordedEvidence) -> Hang | None:
    """Apply `find_hang` to recorded evidence."""
    return find_hang(evidence, evidence.timeout, evidence.silence)


class WatchClock:
    """Counts watched seconds; a gap between two inspections counts `cap` seconds at most."""

    def __init__(self, cap: float) -> None:
        self.cap, self.watched, self.step = cap, 0.0, 0.0
        self.missed = 0.0
        """Total of seconds that passed unwatched."""
        self._last: float | None = None

    def advance(self, monotonic: float) -> float:
        """Count the time up to `monotonic`; return the watched seconds so far. `step` is the part just added."""
        passed = 0.0 if self._last is None else max(0.0, monotonic - self._last)
        self.step = min(self.cap, passed)
        self.missed += passed - self.step
        self._last = monotonic
        self.watched += self.step
        return self.watched


class EvidenceTimes:
    """Latest time of each kind of evidence of one incarnation, in watched seconds."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.latest: dict[str, float] = {}
        self._stamps: dict[str, Hashable] = {}
        self._missed: set[str] = set()

    def note(self, kind: str, stamp: Hashable, at: float) -> None:
        """Record a `stamp` that changes with the work; the first one proves nothing and dates from the start."""
        if kind not in self._stamps:
            self.latest[kind] = self.began
        elif self._stamps[kind] != stamp:
            self.latest[kind] = at
        self._stamps[kind] = stamp

    def hold_while(self, kind: str, condition: bool, at: float, since: float) -> None:
        """Record evidence that is current while `condition` is true; before the first scan it dates from `since`."""
        self.latest.setdefault(kind, since)
        if condition:
            self.latest[kind] = at

    def hold_until_missed(self, kind: str, condition: bool, at: float) -> None:
        """Record evidence that is current until the first scan in which `condition` is false."""
        if condition or kind not in self._missed:
            self.latest[kind] = at
        (self._missed.discard if condition else self._missed.add)(kind)

    def ages(self, now: float) -> dict[str, float]:
        """Return for each kind the seconds since its latest time, at the watched time `now`."""
        return {kind: max(0.0, now - at) for kind, at in self.latest.items()}
