"""Hang detector: decide from evidence whether a living process does any work. Pure.

Silence is counted in watched seconds: a gap between two scans of the watcher (it was stopped, the machine suspended, a
container paused) counts as a couple of rescans, so that nothing is judged guilty after a thaw, and an incarnation has
its whole time from the first scan of a new watcher. All kinds of evidence count together; what cannot be read is no
evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from typing import Any

OWN = ("beat", "cpu", "running")
"""Signs of the layer itself: its beat, its tree's CPU time (or processes that came and went), seen not stopped."""
WORK = ("work", "unstopped", "output", "stream", "transcript", "notes", "head", "worktree")
"""Signs of the agent below an orchestrator: CPU and processes of its tree, seen without a stopped process in it, and
what grows or changes: output, stream events, transcript, notes, HEAD, worktree."""
SPINNING = 4.0
"""A layer that computes is given so many timeouts for its beat: a long turn is no hang, an endless one is."""


@dataclass(frozen=True)
class Evidence:
    """Observations of one incarnation at one moment; times in seconds, plain data."""

    incarnation: int
    ages: dict[str, float] = field(default_factory=dict)
    """Kind of sign → watched seconds since it was last seen."""
    state: str = ""
    """State letter of the process in /proc (T: stopped, D: blocked in the kernel, R: running); '' unknown."""
    below: int = 0
    """Processes below it that belong to this incarnation."""
    stopped: int = 0
    """Those of them that are stopped (T) or held by a tracer (t)."""
    blocked: int = 0
    """Those of its tree that are blocked in the kernel (D): the disk is at work, and KILL would change nothing."""
    cpu_s: float = 0.0
    """CPU seconds its tree has used."""
    tool: str = ""
    """A tool under way that has a deadline of its own."""
    tool_left: float = 0.0
    """Seconds until that deadline."""
    waiting: str = ""
    """What the agent reports to wait for (a person, the reset of a limit)."""
    watched: float = 0.0
    """Seconds this incarnation was watched."""


@dataclass(frozen=True)
class Hang:
    """A process that is alive but does nothing: the rule that fired, and a sentence."""

    rule: str
    why: str


def find_hang(evidence: Evidence, timeout: float, silence: float | None = None) -> Hang | None:
    """Return why a process hangs, None if it does not.

    A process is judged by `timeout`; its agent by `timeout` if it is stopped, else by `silence` if that is set.
    """
    for rule in (_stopped, _silent, _spinning, _agent_stopped):
        if (why := rule(evidence, timeout)) is not None:
            return Hang(rule.__name__.strip("_").replace("_", "-"), why)
    why = _agent_silent(evidence, silence) if silence is not None else None
    return Hang("agent-silent", why) if why is not None else None


def seconds_silent(evidence: Evidence, kinds: Iterable[str], needed: Iterable[str]) -> float:
    """Watched seconds since the last sign of any of `kinds`; 0 while one of the `needed` was never looked for."""
    if any(kind not in evidence.ages for kind in needed):
        return 0.0
    return min(evidence.ages[kind] for kind in kinds if kind in evidence.ages)


def _stopped(e: Evidence, timeout: float) -> str | None:
    """Judge a stopped process whatever its children do: it supervises nothing."""
    if e.state != "T" or _of_layer(e, "beat", "running") < timeout:
        return None
    return f"its process is stopped (SIGSTOP), its last beat was {_told(e.ages['beat'])} ago"


def _silent(e: Evidence, timeout: float) -> str | None:
    """Stopped ones are judged by when they were seen running; who is blocked in the kernel, or wants the CPU, works."""
    if e.blocked or e.state in ("D", "R", "T", "") or _of_layer(e, "beat", "cpu") < timeout:
        return None
    return f"no beat for {_told(e.ages['beat'])}, and its processes used no CPU meanwhile"


def _spinning(e: Evidence, timeout: float) -> str | None:
    """It computes alone: a child at work (a long checkout) is waited for as long as it works."""
    if e.below or e.blocked or e.state != "R" or _of_layer(e, "beat") < SPINNING * timeout:
        return None
    return f"no beat for {_told(e.ages['beat'])} though it uses the CPU: an endless turn"


def _agent_stopped(e: Evidence, timeout: float) -> str | None:
    """Judge a stopped agent; a tool with a deadline is waited for unless every process is stopped."""
    if not e.stopped or (e.stopped < e.below and (e.tool_left > 0 or e.blocked)) or _unmoved(e) < timeout:
        return None
    which = f"{e.stopped} of its agent's {e.below} processes are stopped (SIGSTOP)"
    return f"{which}, nothing moved for {_told(_unmoved(e))}"


def _agent_silent(e: Evidence, silence: float) -> str | None:
    """Asked for by the node (`silence=`): a program may wait for the network as long as its timeout allows."""
    if e.tool_left > 0 or e.waiting or e.blocked or not e.below or _quiet(e) < silence:
        return None
    return f"its agent was silent for {_told(_quiet(e))}: no output, commit, change in its tree or CPU use"


def _quiet(e: Evidence) -> float:
    return seconds_silent(e, [kind for kind in WORK if kind != "unstopped"], ("work",))


def _unmoved(e: Evidence) -> float:
    return seconds_silent(e, WORK, ("work", "unstopped"))


def _of_layer(e: Evidence, *kinds: str) -> float:
    return seconds_silent(e, kinds, kinds)


def _told(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds:.0f} s"


def latest_evidence(ages: dict[str, float]) -> tuple[str, float] | None:
    """Return the most recent evidence of work as (kind, seconds ago); None if there is none."""
    return min(ages.items(), key=lambda item: item[1]) if ages else None


def encode_evidence(evidence: Evidence, hang: Hang | None, timeout: float, silence: float | None = None) -> dict[str,
                                                                                                                 Any]:
    """Return the evidence as JSON values, with the limits it was held against and the rule that fired."""
    body = {**evidence.__dict__, "ages": {kind: round(age, 3) for kind, age in evidence.ages.items()},
            "watched": round(evidence.watched, 3), "tool_left": round(evidence.tool_left, 3)}
    return {**body, "timeout": timeout, "silence": silence, "rule": hang.rule if hang else ""}


def judge_recorded(body: dict[str, Any]) -> Hang | None:
    """Apply `find_hang` to recorded evidence; KeyError or TypeError if it is malformed."""
    known = {name: value for name, value in body.items() if name not in ("timeout", "silence", "rule")}
    return find_hang(Evidence(**known), body["timeout"], body["silence"])


class WatchClock:
    """Counts watched seconds; a gap between two scans counts `cap` seconds at most."""

    def __init__(self, cap: float) -> None:
        self.cap, self.watched, self.step = cap, 0.0, 0.0
        self.missed = 0.0
        """Seconds that passed unwatched, in all."""
        self._last: float | None = None

    def look(self, monotonic: float) -> float:
        """Count the time up to `monotonic`; return the watched seconds so far. `step` is what was added."""
        passed = 0.0 if self._last is None else max(0.0, monotonic - self._last)
        self.step = min(self.cap, passed)
        self.missed += passed - self.step
        self._last = monotonic
        self.watched += self.step
        return self.watched


class EvidenceTimes:
    """When each kind of evidence of one incarnation was last seen, in watched seconds."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.times: dict[str, float] = {}
        self._stamps: dict[str, Hashable] = {}
        self._missed: set[str] = set()

    def note(self, kind: str, stamp: Hashable, at: float) -> None:
        """Record a `stamp` that changes with each sign of work; the first one proves nothing and dates from the
        beginning.
        """
        if kind not in self._stamps:
            self.times[kind] = self.began
        elif self._stamps[kind] != stamp:
            self.times[kind] = at
        self._stamps[kind] = stamp

    def hold(self, kind: str, good: Callable[[], bool] | bool, at: float, since: float) -> None:
        """Record evidence that holds while `good`; before the first scan it counts as seen at `since`."""
        self.times.setdefault(kind, since)
        if good() if callable(good) else good:
            self.times[kind] = at

    def last(self, kind: str, good: bool, at: float) -> None:
        """Record evidence that holds until a scan misses it; it counts up to that scan."""
        if good or kind not in self._missed:
            self.times[kind] = at
        (self._missed.discard if good else self._missed.add)(kind)

    def ages(self, now: float) -> dict[str, float]:
        """Kind → seconds since, at the watched time `now`."""
        return {kind: max(0.0, now - at) for kind, at in self.times.items()}
