"""Bounds of liveness: how long each stage may take in simulated time while nothing holds up who is responsible for it.

Safety rules say what never happens; they miss a run that stands still for a minute and then continues. So each stage
has a bound (`BOUNDS`). The clock of a stage starts when it is entered under its responsible process (an incarnation
that is registered, not stopped, blocked or stopping), and restarts whenever that changes. Only passing time can exceed
a bound, so the stages are checked each time the world's clock is about to jump. The books are the world's, not the
verdicts and decisions under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tests.simulator.violation import Violation

from garrison.records.identity import ALIVE
from garrison.records.names import Key
from garrison.run.status import ProcessFact, Status, decide_status
from garrison.supervise.restart import Policy
from garrison.system.clock import from_iso

if TYPE_CHECKING:
    from tests.simulator.world import Process, Run, World

    from garrison.records.identity import Identity
    from garrison.run.state import RunState

_key = cache(Key)
"""Make a name; each is checked when it is made, and here thousands of times."""
BACKOFF = Policy().cap * (1 + Policy().jitter)
SPAWN_DEADLINE = 30.0
"""As `supervision.TIMING` has it; likewise the deadlines of a stop below."""
ORPHAN_GRACE = 600.0
STOP_ORCHESTRATOR, STOP_RUNNER, STOP_GUARDIAN, HEALTHY = 15.0, 30.0, 45.0, 60.0
SLACK = 5.0
"""A rescan after a lost event, a lock held by another, and a few steps in between."""

BOUNDS: Mapping[str, float] = {
    "starting": SPAWN_DEADLINE + SLACK,  # one that is held up is replaced at its deadline
    "noticing a death": SLACK,
    "noticing a death before it was active": SLACK,
    "replacing and recording a death": SLACK,
    "restarting": BACKOFF + SLACK,
    "starting for the first time": SLACK,
    "reading the inbox": SLACK,
    "starting a ready node": SLACK,
    "enqueuing the branch": SLACK,
    "starting the merge processor": SLACK,
    "taking an entry out of the queue": 2 * SLACK,
    "trying a paused queue again": 2 * SLACK,
    "recording a verdict": SLACK,
    "settling a landing": SLACK,
    "ending a gate run that no record names": SLACK,
    "recording that a node landed": SLACK,
    "cleaning up after a landing": 4 * SLACK,  # the runner waits a while for the processor's report first
    "ending the run": STOP_RUNNER + SLACK,
    "applying the time limit of a run": SLACK,
    "giving up as an orphan": ORPHAN_GRACE + BACKOFF + SLACK,
    "ending the launcher": STOP_GUARDIAN + SLACK,
    "stopping the run": STOP_RUNNER + 2 * SLACK,  # runners first, then what they left
    "stopping the agent": STOP_ORCHESTRATOR + 2 * SLACK,
    "stopping what a user parked": SLACK,
    "closing a circuit": HEALTHY + SLACK,
}
"""Stage → seconds of simulated time."""

ENDED = ("done", "failed", "stopped")


class Stage(NamedTuple):
    """A stage that something is in now, and the process that must bring it on."""

    name: str
    subject: str
    by: Process


class Liveness:
    """Clocks of the stages of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._since: dict[tuple[str, str, int, int], float] = {}

    def check(self, until: float) -> None:
        """Check that no stage exceeds its bound if nothing happens before the time `until`."""
        now, since = self.world.t, {}
        for stage in self._stages():
            clock = stage.name, stage.subject, stage.by.pid, stage.by.ticks
            began = since[clock] = self._since.get(clock, now)
            if until - began > BOUNDS[stage.name]:
                raise Violation(f"{stage.name}: {stage.subject} takes {until - began:.0f} s, the bound is "
                                f"{BOUNDS[stage.name]:.0f} s; {stage.by.name} does nothing about it")
        self._since = since
        for run in self.world.runs.values():
            self._check_status(run)

    def _check_status(self, run: Run) -> None:
        """A run of which no process lives is never shown as one that is running or waiting."""
        if any(proc.key.run == run.id and proc.kind == "supervised" for proc in self.world.procs.values()):
            return
        facts = [ProcessFact(key.role, identity.status, living=self.world.view(key).living, why=identity.reason,
                             departure=identity.departure)
                 for key, identity in self.world.identities.items() if key.run == run.id]
        status = decide_status(self.world.check.shadows[run.id], facts).status
        if status in (Status.RUNNING, Status.WAITING) and not any(fact.living for fact in facts):
            raise Violation(f"run {run.id} is shown as {status}, and no process of it is alive")

    def _stages(self) -> Iterator[Stage]:
        for run in self.world.runs.values():
            state = self.world.check.shadows[run.id]
            launcher = self._at_work(_key("launch", "launch", run.id))
            guardian = self._at_work(_key("guardian", "pipe", run.id))
            yield from self._stages_of_launcher(run, state, launcher)
            if guardian is not None:
                yield from self._stages_of_guardian(run, state, guardian)
                yield from self._stages_of_people(run, state, guardian)
            yield from self._stages_of_stops(run, state)
            yield from self._stages_of_inboxes(run)
            for node in run.tasks:
                runner = self._at_work(_key("runner", node, run.id))
                if runner is not None:
                    yield from self._stages_of_runner(run, state, runner)

    def _at_work(self, key: Key, *, stopping: bool = False) -> Process | None:
        """Return the living, registered process of that name if nothing holds it up, and it is not to stop (or is)."""
        proc = self.world.life_locks.get(key)
        identity = self.world.identities.get(key)
        if proc is None or proc.key != key or not proc.registered or not proc.alive or proc.doomed or proc.revenant:
            return None
        if identity is None or identity.status != "active" or identity.incarnation != proc.incarnation:
            return None
        if proc.quiet_since is not None or proc.stopped_until > self.world.t or proc.terms \
                or proc.is_stopping != stopping:
            return None
        return proc

    # ---- by process

    def _stages_of_launcher(self, run: Run, state: RunState, launcher: Process | None) -> Iterator[Stage]:
        if launcher is None:
            return
        guardian = _key("guardian", "pipe", run.id)
        if state.status in ("new", "running"):
            yield from self._supervised(guardian, launcher)
        elif state.status in ENDED and not self._incarnations(guardian):
            yield Stage("ending the launcher", run.id, launcher)

    def _stages_of_guardian(self, run: Run, state: RunState, guardian: Process) -> Iterator[Stage]:
        if state.status in ("done", "failed"):
            yield Stage("ending the run", run.id, guardian)
        if state.status != "running":
            return
        if run.plan.max_seconds is not None and state.flow is not None and not state.flow.over \
                and self.world.wall - from_iso(state.began) > run.plan.max_seconds:
            yield Stage("applying the time limit of a run", run.id, guardian)
        busy = sum(node.status == "active" for node in state.nodes.values())
        for name, node in state.nodes.items():
            if name in state.held:
                continue
            if node.status in ("active", "impl_complete"):
                yield from self._supervised(_key("runner", name, run.id), guardian, node.attempt)
            if run.plan.flow == "dag" and node.status == "pending" and busy < run.max_agents and all(
                    (run.id, before) in self.world.check.landings and state.nodes[before].status == "validated"
                    for before in run.plan.predecessors[name] if before in state.nodes):
                yield Stage("starting a ready node", f"{name} of {run.id}", guardian)
            if node.status == "impl_complete" and any(
                    entry.attempt == node.attempt and entry.status == "landed"
                    for entry in self.world.queue.entries_of(run.id, name)):
                yield Stage("recording that a node landed", f"{name} of {run.id}", guardian)
        if "impl_complete" in state.statuses.values() and "processor" not in state.held:
            yield from self._supervised(_key("processor", "pipe", run.id), guardian)

    def _stages_of_people(self, run: Run, state: RunState, guardian: Process) -> Iterator[Stage]:
        """A user's word takes effect: what is parked is asked to stop, what stays healthy counts as healed."""
        if state.status != "running":
            return
        for name in state.held:
            key = _key("processor", "pipe", run.id) if name == "processor" else _key("runner", name, run.id)
            if self._at_work(key) is not None:
                yield Stage("stopping what a user parked", key.full, guardian)
        for full, circuit in state.circuits.items():
            key = Key.parse(full)
            probe = self._at_work(key)
            is_watched = key.role == "processor" or state.nodes[key.name].status in ("active", "impl_complete")
            if circuit.state == "probing" and probe is not None and probe.incarnation == circuit.probe and is_watched \
                    and key.name not in state.held and key.role not in state.held:
                yield Stage("closing a circuit", f"{full}#{probe.incarnation}", guardian)

    def _stages_of_stops(self, run: Run, state: RunState) -> Iterator[Stage]:
        """A process that is asked to stop ends in time, whatever the processes below it do."""
        guardian = self._at_work(_key("guardian", "pipe", run.id), stopping=True)
        if guardian is not None and state.status == "running":
            yield Stage("stopping the run", run.id, guardian)
        for node in run.tasks:
            runner = self._at_work(_key("runner", node, run.id), stopping=True)
            if runner is not None:
                yield Stage("stopping the agent", f"{node} of {run.id}", runner)

    def _stages_of_runner(self, run: Run, state: RunState, runner: Process) -> Iterator[Stage]:
        name, hook = runner.key.name, self.world.hooks[runner.key]
        node = state.nodes[name]
        if node.attempt != runner.attempt or node.status not in ("active", "impl_complete", "validated"):
            return
        if hook.phase == "impl_complete" and not self._is_queue_locked(runner):
            yield Stage("enqueuing the branch", f"{name} of {run.id}", runner)
        # After a power cut the guardian may know of a landing that the queue has to settle again first.
        is_settled = any(entry.status == "landed" for entry in self.world.queue.entries_of(run.id, name))
        if hook.phase == "validating" and node.status == "validated" and is_settled:
            yield Stage("cleaning up after a landing", f"{name} of {run.id}", runner)
        if hook.phase in ("executing", "validating") and not self._is_queue_locked(runner) and self._is_orphan(runner):
            yield Stage("giving up as an orphan", f"{name} of {run.id}", runner)
        if hook.phase == "executing" and (run.id, name, runner.attempt) not in self.world.results:
            orchestrator = _key("orchestrator", name, run.id)
            if orchestrator in self.world.identities:
                yield from self._supervised(orchestrator, runner, runner.attempt)

    def _is_orphan(self, runner: Process) -> bool:
        """Return whether no launcher and no guardian of a runner's run lives, and no work of its own."""
        ours = [proc for proc in self.world.procs.values() if proc.key.run == runner.key.run]
        has_parent = any(proc.kind == "supervised" and proc.key.role in ("launch", "guardian") for proc in ours)
        return not has_parent and not any(
            proc.key.name == runner.key.name and (proc.kind in ("agent", "job") or proc.key.role == "orchestrator")
            for proc in ours)

    def _stages_of_inboxes(self, run: Run) -> Iterator[Stage]:
        for key, inbox in self.world.inbox.items():
            reader = self._at_work(key) if inbox and key.run == run.id else None
            if reader is not None and not (key.role == "runner" and self._is_queue_locked(reader)):
                yield Stage("reading the inbox", key.full, reader)  # a runner that is to enqueue waits for the lock
        processor = self.world.processor_lock
        if processor is None or processor.key.run != run.id or self._at_work(processor.key) is not processor \
                or self._is_queue_locked(processor):
            return
        queue = self.world.queue
        if queue.pause is not None and queue.pause.is_retry_due(self.world.wall):
            yield Stage("trying a paused queue again", run.id, processor)
        if queue.pause is None and not self.world.gates and any(
                entry.status in ("queued", "candidate") and not entry.waits_for for entry in queue.entries.values()):
            yield Stage("taking an entry out of the queue", run.id, processor)
        if any(self.world.gates.get(job) for job in queue.gates):
            yield Stage("recording a verdict", run.id, processor)
        if any(entry.status == "landing" for entry in queue.entries.values()):
            yield Stage("settling a landing", run.id, processor)
        named = {f"gate:{job}" for job in queue.gates}
        for gate in self.world.procs.values():
            if gate.kind == "gate" and gate.marker not in named and not gate.doomed:
                yield Stage("ending a gate run that no record names", gate.marker, processor)

    def _is_queue_locked(self, by: Process) -> bool:
        """Return whether another process has the queue's lock: it may be held up with it, and everybody waits."""
        return self.world.queue_lock not in (None, by)

    # ---- a name that must live

    def _supervised(self, key: Key, by: Process, attempt: int = 0) -> Iterator[Stage]:
        """Yield the stage that a name is in which its supervisor must keep alive."""
        identity, lives = self.world.identities.get(key), self._incarnations(key)
        if identity is None:
            if not lives:
                yield Stage("starting the merge processor" if key.role == "processor" else
                            "starting for the first time", key.full, by)
        elif identity.status in ALIVE:
            yield from self._alive(identity, by)
        elif identity.status in ("crashed", "parked") and not self._is_circuit_open(key):
            is_recorded = any((key.full, identity.incarnation) in deaths
                              for deaths in self.world.check.deaths.values())
            is_current = int(identity.metadata.get("attempt", 1)) >= attempt
            if is_recorded or key.role == "guardian" or not is_current:
                yield Stage("restarting", f"{key.full}#{identity.incarnation}", by)
            else:
                yield Stage("replacing and recording a death", key.full, by)

    def _alive(self, identity: Identity, by: Process) -> Iterator[Stage]:
        """Yield the stage of a name whose record says that it lives, or is about to."""
        key = identity.key
        lives = [proc for proc in self._incarnations(key) if proc.incarnation == identity.incarnation]
        if identity.status == "starting":
            yield Stage("starting", f"{key.full}#{identity.incarnation}", by)
            if not lives and not self._is_being_started(key, by):
                yield Stage("noticing a death before it was active", f"{key.full}#{identity.incarnation}", by)
        elif self.world.find(identity.pid, identity.start_ticks) is None or identity.boot_id != self.world.boot_id:
            yield Stage("noticing a death", f"{key.full}#{identity.incarnation}", by)

    def _is_being_started(self, key: Key, by: Process) -> bool:
        """Return whether another process than its supervisor has taken the lease and is about to start it."""
        identity = self.world.identities[key]
        spawner = self.world.find(identity.pid, identity.start_ticks)
        return spawner is not None and spawner is not by

    def _incarnations(self, key: Key) -> list[Process]:
        return [proc for proc in self.world.procs.values() if proc.key == key and proc.kind == "supervised"]

    def _is_circuit_open(self, key: Key) -> bool:
        """Return whether the name was parked, and has no probe yet: `Check.probed` has the rule for those."""
        if key.role != "orchestrator":
            return self.world.check.shadows[key.run].circuit(key.full).parked
        journal = self.world.journal_of(_key("runner", key.name, key.run))
        kinds = ["unpark" if entry.data.get("unpark") else entry.kind for entry in journal.entries
                 if entry.data.get("full") == key.full or entry.data.get("unpark")]
        return "park" in kinds and kinds[-1] not in ("spawn", "heal", "unpark")
