"""Restart policy: decide whether and when a dead process is started again. Pure.

Two limits nest: a sliding window per name (5 restarts in 10 minutes) and a total per attempt (`--max-respawn`). The
first restart is immediate; later ones back off by 0.5 s x 2^n plus jitter, at most 30 s, so that a short problem of the
machine does not use up the window. A death for lack of memory, or by the loss of its host, counts as a fifth; after one
for lack of memory the restart always waits. An incarnation that stayed healthy resets the backoff. A used-up window
parks the name (`Circuit`), a used-up total fails the attempt.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from garrison.backoff import Backoff
from garrison.records.events import ChildHealed, ChildParked, ChildSpawned
from garrison.supervise.death_classes import CRASH, MEMORY, ruling
from garrison.system.machine import retry_pause
from garrison.values import Value, replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from garrison.config import Timing
    from garrison.records.events import ChildDied


# ---- circuit ---------------------------------------------------------------------------------------------------------

# Circuit breaker: park a name whose restart window is used up, and bring it back through a probe. Pure.
#
# The states are closed → parked → probing (half-open: one incarnation) → closed, or parked again for twice as long.
# They are replayed from the supervisor's own journal (`park`, `spawn` of a probe, `heal`), so that its successor
# continues with the same state. The user's `unpark` and `--resume` close the circuit too, and empty the window.


class Circuit(Value):
    """Circuit breaker of one name; times are monotonic seconds of the boot `boot_id`."""

    state: str = "closed"
    """closed, parked or probing."""
    why: str = ""
    since: float = 0.0
    """When it was parked, or when its probe started."""
    boot_id: str = ""
    parks: int = 0
    """Consecutive parks without a probe that stayed healthy."""
    incarnation: int = msgspec.field(default=0, name="life")
    """Incarnation that was parked last."""
    probe: int = 0
    """Incarnation of the probe."""
    forgiven: int = 0
    """Deaths of incarnations up to this one are outside the window."""
    probe_at: str = ""
    """When the probe is due (UTC), for display."""

    @property
    def parked(self) -> bool:
        return self.state == "parked"


CLOSED = Circuit()


def apply_event(circuit: Circuit, event: ChildParked | ChildSpawned | ChildHealed) -> Circuit:
    """Return the circuit after one journal record about its name."""
    match event:
        case ChildParked():
            return replace(circuit, state="parked", why=event.why, since=event.monotonic, boot_id=event.boot_id,
                           parks=circuit.parks + 1, probe=0, incarnation=event.incarnation, probe_at=event.probe_at)
        case ChildSpawned() if event.probe:
            return replace(circuit, state="probing", since=event.monotonic, boot_id=event.boot_id,
                           probe=event.incarnation, probe_at="")
        case ChildHealed():
            return Circuit(forgiven=max(circuit.forgiven, event.incarnation - 1))
    return circuit


def reset_circuit(circuit: Circuit, incarnation: int) -> Circuit:
    return Circuit(forgiven=max(circuit.forgiven, circuit.incarnation, circuit.probe, incarnation))


# ---- restart ---------------------------------------------------------------------------------------------------------

class Policy(Value):
    """Limits of restarts; times in seconds."""

    window: float = 600.0
    intensity: int = 5
    base: float = 0.5
    memory_base: float = 2.0
    """Delay of the first restart after a death for lack of memory."""
    cap: float = 30.0
    total: int | None = None
    """Deaths allowed in an attempt; None for a process that serves a whole run: only the window limits it."""
    jitter: float = 0.25
    """Largest fraction added to a delay, so that processes that died together do not restart together."""
    healthy: float = 60.0
    """Uptime that resets the backoff; a probe that reaches it closes the circuit."""
    probe_after: float = 600.0
    """First cool-down of a parked name."""
    probe_cap: float = 7200.0
    """Longest cool-down, however many probes failed."""

    @classmethod
    def of(cls, timing: Timing, total: int | None = None) -> Policy:
        after = timing.probe_after or timing.restart_window
        return cls(window=timing.restart_window, total=total, healthy=timing.healthy_after, probe_after=after,
                   probe_cap=max(after, 7200.0))

    def cool_down(self, parks: int) -> float:
        """Return the seconds from the `parks`-th consecutive park to its probe: doubled each time, up to the cap."""
        return Backoff(self.probe_after, self.probe_cap).delay(parks)

    def probe_due(self, circuit: Circuit, boot_id: str) -> float:
        """Return when the probe of a parked name is due (monotonic); after a reboot at once."""
        return circuit.since + self.cool_down(circuit.parks) if boot_id == circuit.boot_id else 0.0

    def healthy_at(self, circuit: Circuit) -> float:
        """Return when a living probe has been healthy for long enough (monotonic)."""
        return circuit.since + self.healthy


class Death(Value):
    """One death of a name; `monotonic` is in seconds of the boot `boot_id`, `kind` its class."""

    incarnation: int
    monotonic: float
    boot_id: str
    why: str = ""
    kind: str = CRASH
    until: float = 0.0
    """When a rate limit resets (monotonic), 0 if unknown."""

    @classmethod
    def of(cls, event: ChildDied) -> Death:
        return cls(event.incarnation, event.monotonic, event.boot_id, event.why, event.death_class, event.until)

    @property
    def counts(self) -> bool:
        return ruling(self.kind).counts

    @property
    def weight(self) -> float:
        """Return the fraction of a death that it counts as."""
        return ruling(self.kind).weight


class PolicyOutcome(Value):
    """Outcome of the policy; `why` names the rule that applied.

    `kind` is start (not before `at`, monotonic seconds), park (the window is used up, or the user must act first),
    give_up (the attempt's total is used up) or rest (nothing follows).
    """

    at: float | None
    why: str
    kind: str = "start"

    @property
    def park(self) -> bool:
        return self.at is None


def apply_policy(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy, circuit: Circuit = CLOSED,
                 name: str = "") -> PolicyOutcome:
    """Decide what follows the last of `deaths` (all of this attempt, in any order).

    Deaths of another boot count only in the total.
    """
    if not deaths:
        return PolicyOutcome(now, "no death yet: at once")
    counted = [death for death in deaths if death.counts]
    if policy.total is not None and _weigh(death.weight for death in counted) > policy.total:
        why = f"{len(counted)} deaths in this attempt, the limit is {policy.total}{_last_cause(counted)}"
        return PolicyOutcome(None, why, "give_up")
    last = max(deaths, key=lambda death: death.incarnation)
    if not last.counts:
        return _apply_uncounted(last, deaths, now, boot_id, policy)
    if circuit.state == "probing" and last.incarnation >= circuit.probe:
        if last.boot_id != circuit.boot_id or last.monotonic - circuit.since < policy.healthy:
            return PolicyOutcome(None, describe_failed_probe(circuit.probe, deaths), "park")
        circuit = replace(circuit, forgiven=max(circuit.forgiven, circuit.probe - 1))  # it was healthy for long enough
    restarts = _list_restarts(deaths, boot_id, policy, circuit, name)
    recent = _in_window(restarts, now, policy)
    if _weigh(restart.weight for restart in recent) > policy.intensity:
        why = f"{len(recent)} deaths in {policy.window:g} s, the limit is {policy.intensity}{_last_cause(counted)}"
        return PolicyOutcome(None, why, "park")
    latest = restarts[-1] if restarts else None
    if latest is None or latest.due <= latest.died or now - latest.due >= policy.window:
        return PolicyOutcome(now, "first restart in the window: at once")
    delay = latest.due - latest.died
    return PolicyOutcome(latest.due, f"restart {latest.number} in a row: {delay:.2f} s after the death")


def _apply_uncounted(last: Death, deaths: Sequence[Death], now: float, boot_id: str,
                     policy: Policy) -> PolicyOutcome:
    """Decide what follows a death that is not the process's fault."""
    follows = ruling(last.kind).follows
    cause = f": {last.why}" if last.why else ""
    if follows == "person":
        return PolicyOutcome(None, f"{last.kind}, which the user must fix{cause}", "park")
    if follows == "never":
        return PolicyOutcome(None, f"its work is done{cause}", "rest")
    if follows == "pause":
        pause = retry_pause(_count_last(deaths, last.kind))
        at = last.monotonic + pause if last.boot_id == boot_id else now
        return PolicyOutcome(at, f"the machine lacked room for it: tried again after {pause:g} s, not counted{cause}")
    if follows == "reset":
        at = last.until or last.monotonic + policy.cap
        at = at if last.boot_id == boot_id else now
        return PolicyOutcome(at, f"{last.kind}: waits for the reset, not counted{cause}")
    return PolicyOutcome(now, f"{last.kind}, not counted: at once")


def _count_last(deaths: Sequence[Death], kind: str) -> int:
    newest_first = sorted(deaths, key=lambda death: -death.incarnation)
    return next((count for count, death in enumerate(newest_first) if death.kind != kind), len(newest_first))


def recent_deaths(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy,
                  circuit: Circuit = CLOSED) -> list[float]:
    """Return the times (monotonic, sorted) of the deaths that the window counts."""
    return [restart.died for restart in _in_window(_list_restarts(deaths, boot_id, policy, circuit, ""), now, policy)]


def weigh_deaths(deaths: Iterable[Death]) -> float:
    """Return how much of an attempt's limit the deaths have used: one for lack of memory counts as a part."""
    return _weigh(death.weight for death in deaths if death.counts)


def weigh_recent(deaths: Sequence[Death], now: float, boot_id: str, policy: Policy) -> float:
    restarts = _list_restarts(deaths, boot_id, policy, CLOSED, "")
    return _weigh(restart.weight for restart in _in_window(restarts, now, policy))


class _Restart(NamedTuple):
    """Restart after a death: its `number` in a row, the time of the death, when the successor is due, and the fraction
    of a death that it counts as."""

    number: int
    died: float
    due: float
    weight: float


def _list_restarts(deaths: Sequence[Death], boot_id: str, policy: Policy, circuit: Circuit,
                   name: str) -> list[_Restart]:
    """Return the restart after each death that may count, in order.

    The window is over the due times: it contains restarts, not deaths, so that a delay cannot move one out of it.
    """
    restarts: list[_Restart] = []
    for death in sorted(deaths, key=lambda death: (death.monotonic, death.incarnation)):
        if not death.counts or death.boot_id != boot_id or death.incarnation <= circuit.forgiven:
            continue
        number = 1
        if restarts and death.monotonic - restarts[-1].due < policy.healthy:
            number = restarts[-1].number + 1
        delay = backoff_delay(number, policy, name, death.incarnation, death.kind)
        restarts.append(_Restart(number, death.monotonic, death.monotonic + delay, death.weight))
    return restarts


def backoff_delay(number: int, policy: Policy, name: str, incarnation: int, kind: str = CRASH) -> float:
    """Return the seconds from the `number`-th death in a row to its restart; name and incarnation seed the jitter."""
    if number <= 1 and kind != MEMORY:
        return 0.0
    failure, first = (number, policy.memory_base) if kind == MEMORY else (number - 1, policy.base)
    # Not random: `garrison why` repeats the decision from the journal, and must get the same delay.
    spread = zlib.crc32(f"{name}#{incarnation}".encode()) / 2**32
    return Backoff(first, policy.cap, jitter=(1.0, 1.0 + policy.jitter)).delay(failure, spread)


def _in_window(restarts: Sequence[_Restart], now: float, policy: Policy) -> list[_Restart]:
    return [restart for restart in restarts if now - restart.due < policy.window]


def _weigh(weights: Iterable[float]) -> float:
    """Return the sum of deaths' weights, without losing tenths to rounding."""
    return round(sum(weights), 6)


def describe_failed_probe(incarnation: int, deaths: Sequence[Death]) -> str:
    """Describe why a name is parked again."""
    return f"its probe (incarnation {incarnation}) failed, parked again{_last_cause(deaths)}"


def _last_cause(deaths: Sequence[Death]) -> str:
    """Describe the cause of the last of the deaths; '' if none is known."""
    why = max(deaths, key=lambda death: death.incarnation).why.strip().rstrip(":")  # the tail of a log may be empty
    return f"; the last: {why}" if why else ""
