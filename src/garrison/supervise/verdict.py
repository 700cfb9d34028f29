"""Verdict: decide from an identity and an observation of its process whether the incarnation is over. Pure.

`Observer` (observer.py) makes the observations; `decisions.py` decides what follows from the verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from garrison.values import Value

if TYPE_CHECKING:
    from garrison.records.identity import Identity

SPAWN_SECONDS = 2.0
"""Most seconds from the lease until the process carries its marker."""
LINGER_SECONDS = 5.0
"""Seconds after a graceful end in which the life lock must be released: the successor waits for it."""


class Observation(Value):
    """Facts about one identity at one moment; host, boot and pid namespace are the observer's."""

    host: str
    boot_id: str
    pid_ns: str
    pid_ticks: int | None = None
    """Start ticks of the process that now has the identity's pid; None if there is none or it is a zombie."""
    life_held: bool = False
    """True if some process holds the life lock."""
    marker_borne: bool = False
    """True if some process carries the incarnation's marker (checked only while starting)."""
    spawn_due: bool = False
    """True if the spawner's time to start the process is up."""
    beat_age: float | None = None
    """Seconds since the last heartbeat, on the monotonic clock if the boot is the same; None if there was none."""
    deadline_passed: bool = False
    """True if the lease's deadline is over."""
    leaving: float | None = None
    """Seconds since it recorded its graceful end, while its process still holds the life lock; None otherwise."""
    process_state: str = ""
    """State letter of the process with that pid (T: stopped); '' unknown."""


class Verdict(Value):
    """A judgement with its reason.

    `state` is alive, starting, elsewhere (alive where its process is not visible), dead, lapsed (a failed start), hung
    (alive but idle; only a `HangWatcher` detects it), lingering (its process outlives its graceful end) or ended.
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


def judge(identity: Identity, observation: Observation, hand_timeout: float = 300.0) -> Verdict:
    """Return the verdict on one identity; a record without a process counts as alive for `hand_timeout` seconds."""
    # Below zero if the clock was set back since the end, which must not give it more time.
    if observation.leaving is not None and not 0 <= observation.leaving <= LINGER_SECONDS:
        return Verdict("lingering", f"it ended gracefully, but process {identity.pid} still holds its life lock")
    if identity.status in ("crashed", "terminated", "parked"):
        return Verdict("ended", f"status {identity.status}")
    if identity.pid is None:
        return _by_hand(observation, hand_timeout)
    if identity.host and identity.host == observation.host and identity.boot_id != observation.boot_id:
        return Verdict("dead", "the machine was rebooted since")
    if identity.host != observation.host or identity.pid_ns != observation.pid_ns:
        if observation.life_held:
            return Verdict("elsewhere", f"alive on {identity.host or 'another host'} in another pid namespace")
        return Verdict("dead", "its life lock is free")
    if identity.status == "starting":
        return _starting(identity, observation)
    return _process(identity, observation)


def _by_hand(observation: Observation, hand_timeout: float) -> Verdict:
    if observation.beat_age is not None and observation.beat_age <= hand_timeout:
        return Verdict("alive", "made by hand, its heartbeat is fresh")
    return Verdict("dead", "made by hand, its heartbeat is old")


def is_spawn_due(leased_at: float, now: float) -> bool:
    """Return whether a spawner's time to start the process is up; both are wall times, in seconds.

    Also true if the clock was set back since the lease: otherwise a dead process would count as starting until the
    clock caught up. Then the marker decides; a wrong guess is fenced, and never starts the incarnation twice.
    """
    return not 0 <= now - leased_at <= SPAWN_SECONDS


def is_start_overdue(leased_at: float, deadline: float, now: float, watched: float) -> bool:
    """Return whether a start's deadline is over: by the wall clock, or by the time it was watched.

    The latter counts if the clock was set back since the lease: a blocked start must not wait until the clock has
    caught up.

    Args:
        leased_at, deadline, now: wall times, in seconds.
        watched: seconds since this observer first saw it starting, on the monotonic clock.
    """
    return now > deadline or watched > deadline - leased_at


def _starting(identity: Identity, observation: Observation) -> Verdict:
    """Judge a lease: it lapses at its deadline, or earlier if no process has the marker and the spawner is dead or out
    of time."""
    if observation.deadline_passed:
        return Verdict("lapsed", "not active by its start deadline")
    is_spawner_alive = observation.pid_ticks is not None and observation.pid_ticks == identity.start_ticks
    if observation.marker_borne or (is_spawner_alive and not observation.spawn_due):
        return Verdict("starting", "within its start deadline")
    return Verdict("lapsed", "it exited during start-up")


def _process(identity: Identity, observation: Observation) -> Verdict:
    if observation.pid_ticks is None:
        return Verdict("dead", f"process {identity.pid} is gone")
    if observation.pid_ticks != identity.start_ticks:
        return Verdict("dead", f"pid {identity.pid} is another process now")
    stopped = " but is stopped (SIGSTOP)" if observation.process_state == "T" else ""
    return Verdict("alive", f"process {identity.pid} is running{stopped}")


def stale_reason(identity: Identity, observation: Observation, timeout: float) -> str | None:
    """Return why `find-stale` lists an identity (heartbeat, process_gone or start_deadline); None if it does not."""
    if identity.status not in ("active", "starting"):
        return None
    verdict = judge(identity, observation, timeout)
    if verdict.state == "lapsed":
        return "start_deadline"
    if verdict.state == "dead":
        return "heartbeat" if identity.pid is None else "process_gone"
    if verdict.state == "alive" and observation.beat_age is not None and observation.beat_age > timeout:
        return "heartbeat"
    return None
