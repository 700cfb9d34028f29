"""Again, wait, or give up? Classes of death and restart intensity: times go in, a decision comes out. Pure.

The limits nest: a sliding window inside a life's name (5 restarts in 10 minutes), and a total inside an attempt
(`--max-respawn`). The first restart is at once, then 0.1 s x 2^n and a little more by name, at most 30 s; a life that
lived for a healthy stretch begins that anew. A window that is used up parks the name (see `circuit`).
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from garrison.supervise.circuit import CLOSED, Circuit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from garrison.config import Timing


@dataclass(frozen=True)
class Ruling:
    """What a class of endings means: whether it `counts` against window and total, and what `follows`."""

    counts: bool
    follows: str
    """backoff · at once · reset (wait for what was told) · person (park until one has acted) · resume (a person stopped
    it, and lifts that) · never (its work is done)."""

    @property
    def restarts(self) -> bool:
        """Whether a successor follows without a person."""
        return self.follows in ("backoff", "at once", "reset")


CRASH, HUNG, CHURN, ORDER, REBOOT, STOP, CLEAN = "crash", "hung", "churn", "order", "reboot", "stop", "clean"
RATE_LIMIT, AUTHENTICATION, BILLING, BUDGET = "rate_limit", "authentication", "billing", "budget"

CLASSES: Mapping[str, Ruling] = {
    CRASH: Ruling(True, "backoff"),
    HUNG: Ruling(True, "backoff"),
    CHURN: Ruling(False, "at once"),  # its context was used up: no fault, a fresh session goes on
    ORDER: Ruling(False, "at once"),  # a person or a layer had it killed to begin anew
    REBOOT: Ruling(False, "at once"),  # the machine's death is nobody's fault
    RATE_LIMIT: Ruling(False, "reset"),
    AUTHENTICATION: Ruling(False, "person"),
    BILLING: Ruling(False, "person"),
    BUDGET: Ruling(False, "person"),
    STOP: Ruling(False, "resume"),
    CLEAN: Ruling(False, "never"),
}
"""The one table of what counts, what waits and what parks. A layer's ending and a Claude session's are read here."""


def ruling(kind: str) -> Ruling:
    """What a class means; one that is not in the table is a crash."""
    return CLASSES.get(kind, CLASSES[CRASH])


@dataclass(frozen=True)
class Policy:
    """How often a life may be restarted; times in seconds."""

    window: float = 600.0
    intensity: int = 5
    base: float = 0.1
    cap: float = 30.0
    total: int | None = None
    """Deaths allowed in all (an attempt's limit); None: only the window counts, for who serves a whole run."""
    jitter: float = 0.25
    """A delay is longer by up to this part of it, so that what died together does not come back together."""
    healthy: float = 60.0
    """A life that lived so long begins the backoff anew, and a probe that did closes its circuit."""
    probe_after: float = 600.0
    """The first cool-down of a parked name."""
    probe_cap: float = 7200.0
    """The longest, however often its probes failed."""

    @classmethod
    def of(cls, timing: Timing, total: int | None = None) -> Policy:
        """The policy that the settings say."""
        after = timing.probe_after or timing.restart_window
        return cls(window=timing.restart_window, total=total, healthy=timing.healthy_after, probe_after=after,
                   probe_cap=max(after, 7200.0))

    def cool_down(self, parks: int) -> float:
        """Seconds from the `parks`-th park running to its probe: doubled after each failed one, up to the cap."""
        return float(min(self.probe_cap, self.probe_after * 2.0 ** min(max(parks, 1) - 1, 64)))


@dataclass(frozen=True)
class Death:
    """One death of a name: which life, when on the monotonic clock of which boot, why, and of which class."""

    incarnation: int
    monotonic: float
    boot_id: str
    why: str = ""
    kind: str = CRASH
    until: float = 0.0
    """Of a rate limit: when it is over (monotonic), 0 if that was not told."""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Death:
        """The death that a journal record tells of."""
        return cls(int(data["incarnation"]), float(data["monotonic"]), str(data["boot_id"]), str(data.get("why", "")),
                   str(data.get("class", CRASH)), float(data.get("until", 0.0)))

    @property
    def counts(self) -> bool:
        """Whether window and total count it."""
        return ruling(self.kind).counts


@dataclass(frozen=True)
class PolicyOutcome:
    """`kind`: start (not before `at`, monotonic seconds), park (the window is used up, or a person must act first),
    give_up (the attempt's total is) or rest (nothing is to follow); `why` names the rule that fired."""

    at: float | None
    why: str
    kind: str = "start"

    @property
    def park(self) -> bool:
        """Whether nobody is started now or at a time that is known."""
        return self.at is None


def apply_policy(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy, circuit: Circuit = CLOSED,
           name: str = "") -> PolicyOutcome:
    """What follows the last of `deaths` (all of this attempt, in any order); another boot's only count in total."""
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
    """What follows a death that is no fault."""
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
    """When those of `deaths` were that the window counts, in order (monotonic seconds)."""
    return [died for _, died, at in _served(deaths, boot_id, policy, circuit, "") if now - at < policy.window]


def _served(deaths: Sequence[Death], boot_id: str, policy: Policy, circuit: Circuit,
            name: str) -> list[tuple[int, float, float]]:
    """Of each death that may count: how many running it is, when it was, and when its successor was due.

    A window over these last times holds restarts, not deaths: a delay cannot move one out of it.
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
    """Seconds from the `running`-th death running to its restart; the jitter comes from the name and the life."""
    if running <= 1:
        return 0.0
    spread = zlib.crc32(f"{name}#{incarnation}".encode()) / 2**32
    return float(min(policy.cap, policy.base * 2.0 ** min(running - 2, 64) * (1 + policy.jitter * spread)))


def describe_failed_probe(life: int, deaths: Sequence[Death]) -> str:
    """Why a name is parked again."""
    return f"its probe (life {life}) failed, parked again{_last(deaths)}"


def _last(deaths: Sequence[Death]) -> str:
    """What the last of them died of, for whoever is told that a name was given up."""
    why = max(deaths, key=lambda death: death.incarnation).why.strip().rstrip(":")  # a tail that is empty
    return f"; the last: {why}" if why else ""
