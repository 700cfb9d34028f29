"""Restart policy: decide whether and when a dead process is started again. Pure: times go in, a decision comes out.

The limits nest: a sliding window per name (5 restarts in 10 minutes), and a total per attempt (`--max-respawn`). The
first restart is immediate, later ones back off by 0.1 s x 2^n plus jitter, at most 30 s; an incarnation that stayed
healthy resets the backoff. A window that is used up parks the name (see `circuit`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from garrison.supervise.circuit import CLOSED, Circuit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from garrison.config import Timing
    from garrison.records.events import ChildDied


@dataclass(frozen=True)
class Ruling:
    """Meaning of a class of deaths: whether it `counts` against window and total, and what `follows`."""

    counts: bool
    follows: str
    """backoff · at once · reset (wait until a limit resets) · person (park until a person acts) · resume (a person
    stopped it and resumes it) · never (its work is done)."""

    @property
    def restarts(self) -> bool:
        """Return whether a successor follows without a person."""
        return self.follows in ("backoff", "at once", "reset")


CRASH, HUNG, CHURN, ORDER, REBOOT, STOP, CLEAN = "crash", "hung", "churn", "order", "reboot", "stop", "clean"
RATE_LIMIT, AUTHENTICATION, BILLING, BUDGET = "rate_limit", "authentication", "billing", "budget"

CLASSES: Mapping[str, Ruling] = {
    CRASH: Ruling(True, "backoff"),
    HUNG: Ruling(True, "backoff"),
    CHURN: Ruling(False, "at once"),  # its context was used up: no fault, a new session continues
    ORDER: Ruling(False, "at once"),  # a person or a supervisor had it killed to start over
    REBOOT: Ruling(False, "at once"),  # a reboot is no fault of the process
    RATE_LIMIT: Ruling(False, "reset"),
    AUTHENTICATION: Ruling(False, "person"),
    BILLING: Ruling(False, "person"),
    BUDGET: Ruling(False, "person"),
    STOP: Ruling(False, "resume"),
    CLEAN: Ruling(False, "never"),
}
"""Class of death → what counts, what waits and what parks; for processes and Claude sessions alike."""


def ruling(kind: str) -> Ruling:
    """Return the meaning of a class; an unknown one is a crash."""
    return CLASSES.get(kind, CLASSES[CRASH])


@dataclass(frozen=True)
class Policy:
    """Limits of restarts; times in seconds."""

    window: float = 600.0
    intensity: int = 5
    base: float = 0.1
    cap: float = 30.0
    total: int | None = None
    """Deaths allowed in an attempt; None: only the window counts, for a process that serves a whole run."""
    jitter: float = 0.25
    """Largest fraction by which a delay is prolonged, so that processes that died together do not restart together."""
    healthy: float = 60.0
    """Uptime that resets the backoff; a probe that reaches it closes the circuit."""
    probe_after: float = 600.0
    """First cool-down of a parked name."""
    probe_cap: float = 7200.0
    """Longest cool-down, however many probes failed."""

    @classmethod
    def of(cls, timing: Timing, total: int | None = None) -> Policy:
        """Return the policy of the configured timing."""
        after = timing.probe_after or timing.restart_window
        return cls(window=timing.restart_window, total=total, healthy=timing.healthy_after, probe_after=after,
                   probe_cap=max(after, 7200.0))

    def cool_down(self, parks: int) -> float:
        """Return the seconds from the `parks`-th consecutive park to its probe: doubled each time, up to the cap."""
        return float(min(self.probe_cap, self.probe_after * 2.0 ** min(max(parks, 1) - 1, 64)))

    def probe_due(self, circuit: Circuit, boot_id: str) -> float:
        """Return when the probe of a parked name is due (monotonic); after a reboot at once."""
        return circuit.since + self.cool_down(circuit.parks) if boot_id == circuit.boot_id else 0.0

    def healthy_at(self, circuit: Circuit) -> float:
        """Return when a living probe has been healthy for long enough (monotonic)."""
        return circuit.since + self.healthy


@dataclass(frozen=True)
class Death:
    """One death: which incarnation, when (monotonic seconds of which boot), why, and its class."""

    incarnation: int
    monotonic: float
    boot_id: str
    why: str = ""
    kind: str = CRASH
    until: float = 0.0
    """When a rate limit is over (monotonic), 0 if unknown."""

    @classmethod
    def of(cls, event: ChildDied) -> Death:
        """Return the death that a journal record tells of."""
        return cls(event.incarnation, event.monotonic, event.boot_id, event.why, event.death_class, event.until)

    @property
    def counts(self) -> bool:
        """Return whether window and total count it."""
        return ruling(self.kind).counts


@dataclass(frozen=True)
class PolicyOutcome:
    """Outcome of the policy; `why` names the rule that fired.

    `kind` is start (not before `at`, monotonic seconds), park (the window is used up, or a person must act first),
    give_up (the attempt's total is used up) or rest (nothing follows).
    """

    at: float | None
    why: str
    kind: str = "start"

    @property
    def park(self) -> bool:
        """Return whether no start is scheduled."""
        return self.at is None


def apply_policy(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy, circuit: Circuit = CLOSED,
           name: str = "") -> PolicyOutcome:
    """Decide what follows the last of `deaths` (all of this attempt, in any order).

    Deaths of another boot count only in the total.
    """
    if not deaths:
        return PolicyOutcome(now, "no death yet: at once")
    counted = [death for death in deaths if death.counts]
    if policy.total is not None and len(counted) > policy.total:
        why = f"{len(counted)} deaths in this attempt, the limit is {policy.total}{_last(counted)}"
        return PolicyOutcome(None, why, "give_up")
    last = max(deaths, key=lambda death: death.incarnation)
    if not last.counts:
        return _uncounted(last, now, boot_id, policy)
    if circuit.state == "probing" and last.incarnation >= circuit.probe:
        if last.boot_id != circuit.boot_id or last.monotonic - circuit.since < policy.healthy:
            return PolicyOutcome(None, describe_failed_probe(circuit.probe, deaths), "park")
        circuit = replace(circuit, forgiven=max(circuit.forgiven, circuit.probe - 1))  # it was healthy for long enough
    served = _served(deaths, boot_id, policy, circuit, name)
    recent = [at for _, _, at in served if now - at < policy.window]
    if len(recent) > policy.intensity:
        why = f"{len(recent)} deaths in {policy.window:g} s, the limit is {policy.intensity}{_last(counted)}"
        return PolicyOutcome(None, why, "park")
    running, _, at = served[-1] if served else (1, now, now)
    if running <= 1 or now - at >= policy.window:
        return PolicyOutcome(now, "first restart in the window: at once")
    return PolicyOutcome(at, f"restart {running} running: {at - served[-1][1]:.2f} s after the death")


def _uncounted(last: Death, now: float, boot_id: str, policy: Policy) -> PolicyOutcome:
    """Decide what follows a death that is no fault."""
    follows = ruling(last.kind).follows
    told = f": {last.why}" if last.why else ""
    if follows == "person":
        return PolicyOutcome(None, f"{last.kind}, which a person must mend{told}", "park")
    if follows == "never":
        return PolicyOutcome(None, f"its work is done{told}", "rest")
    if follows == "reset":
        at = last.until or last.monotonic + policy.cap
        at = at if last.boot_id == boot_id else now
        return PolicyOutcome(at, f"{last.kind}: waits for the reset, counts nothing{told}")
    return PolicyOutcome(now, f"{last.kind}, which counts nothing: at once")


def recent_deaths(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy,
                  circuit: Circuit = CLOSED) -> list[float]:
    """Return the times (monotonic, sorted) of the deaths that the window counts."""
    return [died for _, died, at in _served(deaths, boot_id, policy, circuit, "") if now - at < policy.window]


def _served(deaths: Sequence[Death], boot_id: str, policy: Policy, circuit: Circuit,
            name: str) -> list[tuple[int, float, float]]:
    """Return, for each death that may count: its position in a row, when it was, and when its successor was due.

    The window is over the due times: it holds restarts, not deaths, so that a delay cannot move one out of it.
    """
    served: list[tuple[int, float, float]] = []
    for death in sorted(deaths, key=lambda one: (one.monotonic, one.incarnation)):
        if not death.counts or death.boot_id != boot_id or death.incarnation <= circuit.forgiven:
            continue
        running = 1
        if served and death.monotonic - served[-1][2] < policy.healthy:
            running = served[-1][0] + 1
        served.append((running, death.monotonic,
                       death.monotonic + backoff_delay(running, policy, name, death.incarnation)))
    return served


def backoff_delay(running: int, policy: Policy, name: str, incarnation: int) -> float:
    """Return the seconds from the `running`-th consecutive death to its restart; name and incarnation give the
    jitter."""
    if running <= 1:
        return 0.0
    spread = zlib.crc32(f"{name}#{incarnation}".encode()) / 2**32
    return float(min(policy.cap, policy.base * 2.0 ** min(running - 2, 64) * (1 + policy.jitter * spread)))


def describe_failed_probe(life: int, deaths: Sequence[Death]) -> str:
    """Describe why a name is parked again."""
    return f"its probe (life {life}) failed, parked again{_last(deaths)}"


def _last(deaths: Sequence[Death]) -> str:
    """Describe what the last of the deaths was caused by."""
    why = max(deaths, key=lambda death: death.incarnation).why.strip().rstrip(":")  # a tail that is empty
    return f"; the last: {why}" if why else ""
