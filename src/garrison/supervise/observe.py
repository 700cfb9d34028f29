"""Seeing: what the verdict needs to know of an identity, gathered from /proc, the life file and the clock. Thin."""

from __future__ import annotations

from garrison.records import life
from garrison.supervise.lease import Spawner, marker
from garrison.supervise.verdict import Seen, judge, spawn_due, stale_reason
from garrison.system.clock import from_iso

TYPE_CHECKING = False
if TYPE_CHECKING:
    from garrison.records.identity import Identity
    from garrison.records.store import Store
    from garrison.supervise.verdict import Verdict
    from garrison.system.clock import Clock
    from garrison.system.processes import Processes


class Observer:
    """Judges identities of one home by what this machine shows."""

    def __init__(self, store: Store, processes: Processes, clock: Clock) -> None:
        self.store, self.processes, self.clock = store, processes, clock
        self.where = processes.here()

    def see(self, identity: Identity) -> Seen:
        """What can be seen of `identity` now."""
        here = self.where
        same_kernel = (identity.host, identity.boot_id) == (here.host, here.boot_id)
        probe = self.processes.probe(identity.pid) if identity.pid and same_kernel else None
        ticks = probe.ticks if probe and not probe.zombie else None
        starting = identity.status == "starting"
        due = starting and spawn_due(from_iso(identity.created_at), self.clock.time())
        foreign = identity.host != here.host or identity.pid_ns != here.pid_ns
        return Seen(
            here.host, here.boot_id, here.pid_ns, pid_ticks=ticks, process_state=probe.state if probe else "",
            life_held=foreign and life.is_held(self.store.life_path(identity.key)),
            marker_borne=starting and (due or ticks != identity.start_ticks) and self._borne(identity), spawn_due=due,
            beat_age=self.beat_age(identity, same_kernel), leaving=self._leaving(identity, ticks),
            deadline_passed=bool(starting and identity.spawn_deadline
                                 and self.clock.time() > from_iso(identity.spawn_deadline)))

    def judge(self, identity: Identity) -> Verdict:
        """The verdict on `identity` now; whom its record declares over is not looked at."""
        here = self.where
        over = identity.status in ("crashed", "parked")
        return judge(identity, Seen(here.host, here.boot_id, here.pid_ns) if over else self.see(identity))

    def stale_reason(self, identity: Identity, timeout: float) -> str | None:
        """Why `identity` is stale now (`verdict.stale_reason`)."""
        return stale_reason(identity, self.see(identity), timeout)

    def me(self, pid: int) -> Spawner:
        """Process `pid` of this machine, as records name it."""
        probe = self.processes.probe(pid)
        return Spawner(pid, probe.ticks if probe else 0, self.where.pid_ns, self.where.boot_id, self.where.host)

    def beat_age(self, identity: Identity, same_kernel: bool) -> float | None:
        """Seconds since the later of the life file's beat and `last_heartbeat`; None if there is neither."""
        ages = []
        if identity.last_heartbeat:
            ages.append(self.clock.time() - from_iso(identity.last_heartbeat))
        beat = life.last_beat(self.store.life_path(identity.key))
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
        """For `Seen.leaving`; a process without the lock (of a record made by hand, say) is in nobody's way."""
        if identity.status != "terminated" or identity.terminated_at is None or ticks is None:
            return None
        if ticks != identity.start_ticks or not life.is_held(self.store.life_path(identity.key)):
            return None
        return self.clock.time() - from_iso(identity.terminated_at)

    def _borne(self, identity: Identity) -> bool:
        return bool(self.processes.bearers(marker(str(self.store.home), identity.key, identity.incarnation)))
