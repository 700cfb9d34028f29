"""The runner: `node/policy.py` decides; each action is carried out with the writes of `node/runner.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from tests.simulator.merge_processor import Queue
from tests.simulator.orchestrator import Orchestrator
from tests.simulator.supervision import (
    TIMING,
    SimulatedProcess,
    death_class_of,
    existing,
    guardian_key,
    launcher_key_of,
    sweep,
)
from tests.simulator.world import Effect, Process, Steps, World, key_of

from garrison.ends import Departure
from garrison.errors import Refused
from garrison.merge.entry import entry_id
from garrison.merge.records import EntryEnqueued
from garrison.node import policy
from garrison.node.jobs import MAX_INCONCLUSIVE
from garrison.node.policy import RunnerFacts, RunnerView
from garrison.processes.actions import Action, ActionKind, ApplySignal, SendSignal
from garrison.records import hook as hooks
from garrison.records.events import (
    ChildDied,
    ChildHealed,
    FactRecorded,
    JobStarted,
    RunnerSignal,
)
from garrison.records.journal import Entry
from garrison.records.signals import OrchestratorCrashed, OrchestratorHung, Payload, RunnerExited
from garrison.run.merge_client import MergeClient
from garrison.supervise.decisions import ChildState
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.restart import Policy
from garrison.values import replace

if TYPE_CHECKING:
    from garrison.merge.queue import MergeQueue


class Runner(SimulatedProcess):
    """One incarnation of a node's runner."""

    def __init__(self, world: World, me: Process) -> None:
        super().__init__(world, me)
        self.node = self.key.name
        self.task = replace(self.run.tasks[self.node], attempt=me.attempt)
        self.fate = self.run.fates[self.node]
        self.orchestrator_key = key_of("orchestrator", self.node, self.run.id)
        self.guardian_key = guardian_key(self.run.id)
        self.merge_client = MergeClient(cast("MergeQueue", Queue(world)), self.task, self.node, self.key.full)
        self.facts = RunnerFacts(inspected="not simulated")
        self.policy = Policy(total=10)
        self.phase = "planning"
        self.job: Process | None = None
        self.job_name = ""
        self.inconclusive = 0
        self.has_worktree = self._orchestrator_lives = self.awaits_probe = False
        self.orphaned_since: float | None = None
        self.stopping_since: float | None = None

    def recover(self) -> Effect:
        self.phase = self.world.hooks[self.key].phase
        yield from super().recover()

    def apply(self, entry: Entry) -> None:
        self.facts.apply(entry, self.task.attempt)

    # ---- observe

    def turn(self) -> Effect:
        view = yield from self._observe()
        yield None
        self.decision = policy.decide(self.facts, view, self.policy)
        self.awaits_probe = not self.decision.actions and not self.stopping and not self.facts.failed \
            and view.phase == "executing" and view.result is None and not view.job and not view.orchestrator.living
        if self.awaits_probe:
            self.world.check.probed(self.me, self.orchestrator_key.full, self.facts.circuit, view.now)
        return (yield from self.perform(self.decision.actions, view))

    def check_sleep(self, until: float) -> None:
        if self.awaits_probe:
            self.world.check.probed(self.me, self.orchestrator_key.full, self.facts.circuit, until, late=5.0)

    def has_fingerprint(self) -> bool:
        return not self.stopping and self._orchestrator_lives and self.orphaned_since is None

    def _observe(self) -> Effect:
        """Gather what the policy decides on; each part may be older than the next."""
        world = self.world
        yield from self._poll_job()
        now, inbox, merge = world.mono, world.pending(self.key), self.merge_client.read_status(self.phase)
        if world.rng.random() < 0.3:
            yield None
        orchestrator = self._judge_orchestrator()
        self._orchestrator_lives = orchestrator.living
        if world.rng.random() < 0.3:
            yield None
        if self.stopping and self.stopping_since is None:
            self.stopping_since = now
        is_overdue = self.stopping_since is not None and now - self.stopping_since > TIMING.stop_orchestrator
        return RunnerView(
            self.task, self.phase, now, world.boot_id, inbox=inbox, orchestrator=orchestrator,
            result=world.results.get((self.run.id, self.node, self.task.attempt)), merge=merge,
            merge_reported=self.facts.merge_reported or self.merge_client.is_signal_overdue(merge, now),
            worktree_ready=self.has_worktree, job=self.job_name if self.job else "", stopping=self.stopping,
            overdue=is_overdue, orphaned_for=self._orphaned_for(now), orphan_grace=TIMING.orphan_grace)

    def _judge_orchestrator(self) -> ChildState:
        child = self.world.view(self.orchestrator_key)
        if child.identity is None:
            return child
        agents = [proc for proc in self.world.procs.values() if proc.kind == "agent"
                  and proc.key == self.orchestrator_key and proc.incarnation == child.identity.incarnation]
        return self.watch.judge(child, agents[0] if agents else None)

    def _orphaned_for(self, now: float) -> float | None:
        """Return the seconds since nothing above is alive, as `processes.supervisor.Parent` does."""
        if any(self.world.view(key).living for key in (self.guardian_key, launcher_key_of(self.run.id))):
            self.orphaned_since = None
            return None
        if self.orphaned_since is None:
            self.orphaned_since = self.world.mono
        return max(0.0, now - self.orphaned_since)

    def _poll_job(self) -> Effect:
        """Journal the result of a job that has ended."""
        if self.job is None or self.job.alive:
            return
        name, code, self.job, self.job_name = self.job_name, self.job.code, None, ""
        if self.stopping:
            return
        self.inconclusive = self.inconclusive + 1 if (code or 0) < 0 else 0
        if 0 < self.inconclusive < MAX_INCONCLUSIVE:
            return
        is_good = code == 0 and self.fate.at(self.task.attempt) != name
        value = "ok" if is_good else f"{name} ended with exit code {code or 1}"
        if (name, value) == ("setup", "ok"):
            yield from self._record_fact("setup_key", "key")
        yield from self._record_fact(name, value)

    def _record_fact(self, name: str, value: str | int) -> Effect:
        yield from self.record_synced(FactRecorded(name, value, self.task.attempt))

    def abandon(self) -> Effect:
        if self.job is not None:
            self.world.kill(self.job, "abandoned")
        yield None

    # ---- actions: journal, hook and signals

    def _move_hook(self, action: Action, view: RunnerView) -> Effect:
        self.phase = self.world.write_hook(
            self.me, self.key, lambda old: hooks.change_phase(existing(old), action.target, self.world.now),
            incarnation=self.me.incarnation).phase
        yield None

    def _reopen_hook(self, action: Action, view: RunnerView) -> Effect:
        self.phase = self.world.write_hook(self.me, self.key, lambda old: hooks.reopen(existing(old), self.world.now),
                                           incarnation=self.me.incarnation).phase
        yield None

    def _apply_signal(self, action: Action, view: RunnerView) -> Effect:
        applied = action.expect(ApplySignal)
        signal, event = applied.posted.signal, applied.event
        if signal is not None and isinstance(event, RunnerSignal) and signal.id not in self.facts.applied:
            if event.forward:
                self.forward(self.guardian_key if event.forward == "up" else self.orchestrator_key, signal)
                yield None
            yield from self.record_synced(event)
        self.acknowledge(action)

    def _send(self, action: Action, view: RunnerView) -> Effect:
        message = action.expect(SendSignal)
        yield from self._report(message.payload, message.suffix)

    def _report(self, payload: Payload, suffix: str = "") -> Effect:
        id_ = f"{self.run.id}-{self.node}-{self.task.attempt}-{payload.type}"
        self._send_up(payload, f"{id_}-{suffix}" if suffix else id_)
        yield None

    def _send_up(self, payload: Payload, id_: str) -> None:
        self.send(self.guardian_key, payload, node=self.node, attempt=self.task.attempt, id_=id_)

    # ---- actions: worktree, jobs, merge queue

    def _prepare_worktree(self, action: Action, view: RunnerView) -> Effect:
        """Make the worktree; one of an earlier attempt is saved and removed first, unless it is to be kept."""
        world, key = self.world, (self.run.id, self.node)
        is_new_attempt = self.task.attempt > 1 and not self.facts.has_worktree
        is_fresh = self.task.attempt > 1 and self.task.rework == "fresh"
        if is_fresh and is_new_attempt and key in world.worktrees:
            world.check.left_over(self.me, key)
            world.save_work(key)
            world.worktrees.discard(key)
            yield None
        if is_fresh and key not in world.worktrees:
            world.save_work(key)
            world.branches[key] = []
        world.branches.setdefault(key, [])
        world.worktrees.add(key)
        world.worktree_attempts[key] = self.task.attempt
        yield None
        if is_new_attempt:
            yield from self._record_fact("tree", "made")
        self.has_worktree = True
        yield None

    def _compare_tree(self, action: Action, view: RunnerView) -> Effect:
        """Record whether the branch holds a change; only an agent whose fate says so makes none."""
        has_change = self.fate.at(self.task.attempt) != "nothing" or self.world.branches.get((self.run.id, self.node))
        yield from self._record_fact("change", policy.CHANGED if has_change else policy.UNCHANGED)

    def _start_job(self, action: Action, view: RunnerView) -> Effect:
        self.record(JobStarted(action.target, "", self.task.attempt))
        yield None
        self.job_name = action.target
        self.job = self.world.spawn("job", self.key, self.me.incarnation, job)

    def _stop_job(self, action: Action, view: RunnerView) -> Effect:
        if self.job is not None:
            self.world.kill(self.job, "stopped")
        yield None

    def _enqueue(self, action: Action, view: RunnerView) -> Effect:
        world, run = self.world, self.run.id
        head = world.head(run, self.node)
        if head is None:
            raise Refused(f"there is no branch {self.node}; commit the work on it first")
        name = entry_id("queue", run, self.node, self.task.attempt, head)
        yield None
        while world.queue_lock is not None:
            yield 0.5
        if name not in world.queue.entries:
            waiting = [entry for entry in world.queue.entries_of(run, self.node)
                       if not entry.is_final and entry.status != "landing"]
            is_held = any(entry.status == "held" for entry in waiting)
            world.append_merge(self.me, EntryEnqueued(
                name, run, self.node, self.task.attempt, self.node, head, "main", "", self.key.full, 0, (), "merge",
                "held" if is_held else "queued", tuple(entry.id for entry in waiting)))
            world.queue_lock = self.me
            yield None
            world.sync_merge()
            world.queue_lock = None
        yield None

    # ---- actions: the orchestrator

    def _start(self, action: Action, view: RunnerView) -> Effect:
        previous = view.orchestrator.identity
        if previous is not None:
            if previous.status == "crashed":
                yield from sweep(self.world, self.me, previous)
            self._close_session()
        request = SpawnRequest(self.orchestrator_key, self.key, metadata={"attempt": self.task.attempt},
                               journal_incarnation=self.facts.incarnation)
        yield from self.start_child(request, Orchestrator.body, view.orchestrator, action)

    def _close_session(self) -> None:
        """Close the terminal session, and with it the orchestrator; what it started may live on."""
        for proc in [proc for proc in self.world.procs.values() if proc.key == self.orchestrator_key
                     and proc.kind == "supervised" and not proc.revenant]:
            self.world.kill(proc, f"session closed by {self.me.name}", blocked=True)

    def _heal(self, action: Action, view: RunnerView) -> Effect:
        self.record(ChildHealed(self.orchestrator_key.full, self.facts.circuit.probe, action.why, self.task.attempt))
        yield None

    def _replace(self, action: Action, view: RunnerView) -> Effect:
        identity = view.orchestrator.identity
        if view.orchestrator.hung and identity is not None:
            self._send_up(OrchestratorHung(identity.incarnation, action.why),
                          f"{self.orchestrator_key.full}-{identity.incarnation}-stuck")
            yield None
        yield from self.replace_child(view.orchestrator, action.why, death_class_of(action))

    def _record_death(self, action: Action, view: RunnerView) -> Effect:
        yield from self.record_death(view.orchestrator)

    def report_death(self, death: ChildDied) -> Effect:
        self._send_up(OrchestratorCrashed(death.incarnation, death.why),
                      f"{self.orchestrator_key.full}-{death.incarnation}-crashed")
        yield None

    def _park(self, action: Action, view: RunnerView) -> Effect:
        yield from self.park(view.orchestrator, action.why)

    def _terminate(self, action: Action, view: RunnerView) -> Effect:
        identity = view.orchestrator.identity
        if identity is not None:
            self.world.check.asked[identity.key.full, identity.incarnation] = self.world.t
        self.terminate(view.orchestrator)
        yield None

    # ---- actions: save, clean up, end

    def _save_work(self, action: Action, view: RunnerView) -> Effect:
        """Do nothing: the worktree stays, and a commit is saved as soon as it is made."""
        yield None

    def _fail_node(self, action: Action, view: RunnerView) -> Effect:
        self._close_session()
        yield None
        key = (self.run.id, self.node)
        self.world.save_work(key)
        self.world.worktrees.discard(key)
        yield None
        yield from self._report(RunnerExited(self.node, self.node, "failed", action.target, action.why))

    def _tidy_up(self, action: Action, view: RunnerView) -> Effect:
        self._close_session()
        yield None
        key = (self.run.id, self.node)
        self.world.worktrees.discard(key)
        yield None
        units = self.world.branches.get(key)
        if units is not None:
            archived = self.world.archived.setdefault(key, [])  # the tip of an earlier visit is kept alongside it
            archived += [unit for unit in units if unit not in archived]
            yield None
            self.world.branches.pop(key, None)

    def _end(self, action: Action, view: RunnerView) -> Effect:
        if action.target == Departure.STOPPED and view.orchestrator.identity is not None:
            self._close_session()
            yield None
        yield from self.end(action.target)

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[..., Effect]]] = {
        ActionKind.APPLY_SIGNAL: _apply_signal,
        ActionKind.REFUSE_SIGNAL: SimulatedProcess.refuse_signal,
        ActionKind.SEND: _send,
        ActionKind.RECORD_FACT: SimulatedProcess.record_payload,
        ActionKind.MOVE_HOOK: _move_hook,
        ActionKind.REOPEN_HOOK: _reopen_hook,
        ActionKind.PREPARE_WORKTREE: _prepare_worktree,
        ActionKind.COMPARE_TREE: _compare_tree,
        ActionKind.START_JOB: _start_job,
        ActionKind.STOP_JOB: _stop_job,
        ActionKind.START: _start,
        ActionKind.PROBE: _start,
        ActionKind.HEAL: _heal,
        ActionKind.REPLACE: _replace,
        ActionKind.RECORD_DEATH: _record_death,
        ActionKind.PARK: _park,
        ActionKind.TERMINATE: _terminate,
        ActionKind.ENQUEUE: _enqueue,
        ActionKind.SAVE_WORK: _save_work,
        ActionKind.FAIL_NODE: _fail_node,
        ActionKind.TIDY_UP: _tidy_up,
        ActionKind.END: _end,
    }


def job(world: World, me: Process) -> Steps:
    """Set-up or acceptance: it takes a while."""
    for other in world.procs.values():
        if other is not me and other.kind == "job" and other.key == me.key and not other.doomed:
            raise AssertionError(f"{me.name} runs alongside {other.name}")
    yield 0.5 + 2 * world.rng.random()
    yield None
