"""Verdict: decide whether an incarnation is over. Pure: identity and observation go in, a verdict with its reason comes
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from garrison.records.identity import Identity

SPAWN_SECONDS = 2.0
"""From the lease until the process bears its marker, at most, seconds."""
LINGER = 5.0
"""Seconds from announcing the end until the life lock must be released: the successor waits for it."""


@dataclass(frozen=True)
class Observation:
    """Observation of one identity at one moment."""

    host: str
    boot_id: str
    pid_ns: str
    pid_ticks: int | None = None
    """Start ticks of the process that now bears the identity's pid; None if there is none or it is a zombie."""
    life_held: bool = False
    """True if some process holds the life lock."""
    marker_borne: bool = False
    """True if some process carries the incarnation's marker (checked only while starting)."""
    spawn_due: bool = False
    """True if the spawner has had time enough to start the process."""
    beat_age: float | None = None
    """Seconds since the last beat, by the monotonic clock when the boot is the same; None if it never beat."""
    deadline_passed: bool = False
    """True if the lease's deadline is over."""
    leaving: float | None = None
    """Seconds since it announced its end while its process still holds the lock; None otherwise."""
    process_state: str = ""
    """State letter of the process with that pid (T: stopped); '' unknown."""


@dataclass(frozen=True)
class Verdict:
    """A judgement with its reason.

    `state` is alive, starting, elsewhere (alive where we cannot see it), dead, lapsed (failed start), hung (alive but
    idle: only a watcher can tell, see `observer`), lingering (it announced its end, and stays) or ended.
    """

    state: str
    why: str

    @property
    def living(self) -> bool:
        """Return whether an incarnation is, or may still be, alive; then no successor may start."""
        return self.state in ("alive", "starting", "elsewhere")

    @property
    def needs_replacement(self) -> bool:
        """Return whether the incarnation is over, or must be, and has not been replaced yet."""
        return self.state in ("dead", "lapsed", "hung", "lingering")


def judge(identity: Identity, seen: Observation, hand_timeout: float = 300.0) -> Verdict:
    """Return the verdict on one identity; a record without a process counts as alive for `hand_timeout` seconds."""
    if seen.leaving is not None and not 0 <= seen.leaving <= LINGER:
        return Verdict("lingering", f"it ended in order, but process {identity.pid} still holds its life lock")
    if identity.status in ("crashed", "terminated", "parked"):
        return Verdict("ended", f"status {identity.status}")
    if identity.pid is None:
        return _by_hand(seen, hand_timeout)
    if identity.host and identity.host == seen.host and identity.boot_id != seen.boot_id:
        return Verdict("dead", "the machine was booted since")
    if identity.host != seen.host or identity.pid_ns != seen.pid_ns:
        if seen.life_held:
            return Verdict("elsewhere", f"alive on {identity.host or 'another host'} in another pid namespace")
        return Verdict("dead", "its life lock is free")
    if identity.status == "starting":
        return _starting(identity, seen)
    return _process(identity, seen)


def _by_hand(seen: Observation, hand_timeout: float) -> Verdict:
    if seen.beat_age is not None and seen.beat_age <= hand_timeout:
        return Verdict("alive", "made by hand, its beat is fresh")
    return Verdict("dead", "made by hand, its beat is old")


def is_spawn_due(leased_at: float, now: float) -> bool:
    """Return whether a spawner has had time enough to start its process; both are wall times, in seconds.

    If the clock was set back since the lease, the marker decides too: else a process that died would count as starting
    until the clock is where it was. A wrong guess is fenced, never doubled.
    """
    return not 0 <= now - leased_at <= SPAWN_SECONDS


def _starting(identity: Identity, seen: Observation) -> Verdict:
    """Judge a lease: it lapses at its deadline, or when no process has the marker and the spawner is dead or had its
    time.
    """
    if seen.deadline_passed:
        return Verdict("lapsed", "not active by its start deadline")
    spawner = seen.pid_ticks is not None and seen.pid_ticks == identity.start_ticks
    if seen.marker_borne or (spawner and not seen.spawn_due):
        return Verdict("starting", "within its start deadline")
    return Verdict("lapsed", "it ended before it was active: no process of it is there")


def _process(identity: Identity, seen: Observation) -> Verdict:
    if seen.pid_ticks is None:
        return Verdict("dead", f"process {identity.pid} is gone")
    if seen.pid_ticks != identity.start_ticks:
        return Verdict("dead", f"process {identity.pid} is another one now")
    stopped = " but is stopped (SIGSTOP)" if seen.process_state == "T" else ""
    return Verdict("alive", f"process {identity.pid} lives{stopped}")


def stale_reason(identity: Identity, seen: Observation, timeout: float) -> str | None:
    """Return why `find-stale` lists an identity: heartbeat, process_gone or start_deadline; None if it does not.
    Pure.
    """
    if identity.status not in ("active", "starting"):
        return None
    verdict = judge(identity, seen, timeout)
    if verdict.state == "lapsed":
        return "start_deadline"
    if verdict.state == "dead":
        return "heartbeat" if identity.pid is None else "process_gone"
    if verdict.state == "alive" and seen.beat_age is not None and seen.beat_age > timeout:
        return "heartbeat"
    return None
