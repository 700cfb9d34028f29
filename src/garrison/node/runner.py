"""Runner process: one node's worktree and branch, its orchestrator, acceptance and merge entry.

It observes and acts; `policy.py` decides. If the runner dies, the orchestrator continues; the next runner finds phase,
facts and result on disk and adopts it.
"""

from __future__ import annotations

import json
import os
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from garrison.agents import registry
from garrison.agents.conversation.files import AttemptFiles
from garrison.agents.conversation.trouble import list_troubles
from garrison.ends import Departure, Effect, with_effect
from garrison.errors import GarrisonError, Hindered
from garrison.merge.target import describe_gone
from garrison.node import policy
from garrison.node.jobs import SETUP, VALIDATOR, RunnerJobs
from garrison.node.policy import RunnerFacts, RunnerView
from garrison.node.snapshots import Snapshotter
from garrison.node.worktree import AttemptWorktree
from garrison.plugins import PluginGroup, load
from garrison.processes.actions import Action, ActionKind, ApplySignal, Decision, ReplaceChild, SendSignal
from garrison.processes.loop import (
    all_beating,
    exit_gracefully,
    fingerprint_of,
    heartbeat_limit,
    identify_folders,
    log_line,
)
from garrison.processes.spawn import close_sessions, spawn_orchestrator, worktree_path, write_runner_state
from garrison.processes.supervisor import START_RACES, Parent, Supervisor, perform
from garrison.records import failover, signals
from garrison.records import hook as hooks
from garrison.records.events import (
    ChildHealed,
    FactRecorded,
    JobStarted,
    ProcessOpened,
    RunnerSignal,
    SignalRefused,
    WorkSaved,
)
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key, branch_name
from garrison.records.remote import FILE as REMOTE
from garrison.records.remote import look_remote
from garrison.records.run import RESULT, read_attempt_result
from garrison.records.signals import NeedsInput, OrchestratorCrashed, OrchestratorHung, RunnerExited
from garrison.run import branch as run_branch
from garrison.run.agent_activity import AgentActivity
from garrison.run.merge_client import MergeClient
from garrison.sandbox import setups
from garrison.supervise.death_classes import CRASH, ORDER
from garrison.supervise.restart import Policy
from garrison.system import failpoint
from garrison.system.git import Git
from garrison.system.terminal_choice import choose_terminal, end_lost_server
from garrison.values import asdict, replace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from garrison.processes.loop import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.events import Event
    from garrison.records.run import Launch, Result, Task
    from garrison.records.signals import Payload, Signal
    from garrison.supervise.decisions import ChildState
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop

_OBSERVED = frozenset((RESULT, failover.FILE, REMOTE))
"""Files of an attempt's folder that a turn reads."""
VALIDATOR_QUESTION = "validator-"
"""Prefix of the id of a question that the runner's own validator asks."""


class Runner:
    """One incarnation of a node's runner."""

    is_event_driven = True

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, task: Task) -> None:
        if task.silence_s is None and not task.skip_agent and task.agent:
            with suppress(GarrisonError) if task.hosts else nullcontext():  # an agent that only the host knows
                task = replace(task, silence_s=registry.find_profile(task.agent, runtime.home).silence)
        self.runtime, self.incarnation, self.launch, self.task = runtime, incarnation, launch, task
        self.files = runtime.files(launch.run_id)
        self.folder = self.files.attempt(task.node, task.attempt)
        self.orchestrator_key = Key("orchestrator", task.node, launch.run_id)
        self.branch = branch_name(launch.run_id, task.node)
        path = worktree_path(launch, task.node)
        self.git = Git(Path(launch.repo), home=runtime.home)
        queue = run_branch.node_queue(runtime, launch, incarnation.token, self.git)
        self.merge_client = MergeClient(queue, task, self.branch, incarnation.key.full)
        journal = Writer(self.files.process_journal(f"runner-{task.node}"), incarnation.token)
        self.facts = RunnerFacts()
        for entry in journal.entries:
            self.facts.apply(entry, task.attempt)
        self.supervisor = Supervisor(runtime, incarnation, journal)
        self.parent = Parent(incarnation, self.supervisor, task)
        self.policy = Policy.of(runtime.timing, launch.max_respawn)
        self.phase = self._recover_phase()
        self.terminal, note = choose_terminal(launch.terminal, runtime.home)
        if note:
            log_line(note)
        self.activity = AgentActivity(self.folder, path, task)
        self.jobs = RunnerJobs(runtime, incarnation, launch, task, self.git, path)
        self.snapshotter = Snapshotter(runtime, incarnation, launch, task, path)
        self.worktree = AttemptWorktree(self.git, launch, task, path, self.branch, self.folder, self._record_saved)
        self._asked = ""
        self.stopping = False
        self.exit_code: int | None = None
        self._stopping_since: float | None = None
        self._logged_problem = ""
        self._troubles = [str(AttemptFiles(self.folder).endings), str(self.folder / failover.FILE)]
        self._troubles_stamp: Fingerprint | None = None
        self._remote_stamp: Fingerprint | None = None
        self._cannot_save = ""
        """Why the work of a failed node could not be saved."""
        self._view: RunnerView | None = None
        self._heartbeat = str(runtime.store.life_path(self.orchestrator_key))
        self._watched_paths = [str(path) for path in (
            runtime.store.path(Identity, self.orchestrator_key), *self.parent.record_paths,
            signals.inbox_path(runtime.home, incarnation.key), self.folder)]
        self._folders = str(path), launch.repo
        self._decision = Decision([])
        self._record(ProcessOpened(incarnation.number, incarnation.identity.pid, self.phase))
        self._recover_facts()
        write_runner_state(runtime, launch, incarnation.key, "active", incarnation.identity.pid,
                           incarnation.identity.created_at)

    def _recover_phase(self) -> str:
        """Return the hook's phase; a rebuilt or older hook is brought forward to the merge entry of this attempt."""
        phase = self.incarnation.read_hook().phase
        if phase not in ("planning", "executing") or not self._has_worked \
                or self.merge_client.read_status("validating") is None:
            return phase
        now = self.runtime.clock.utc()
        for step in ("executing", "impl_complete"):  # from there on it sends any missing signals
            phase = self.incarnation.hook(partial(hooks.change_phase, phase=step, now=now)).phase
        return phase

    @property
    def _has_worked(self) -> bool:
        return any((self.folder / name).exists() for name in ("prompt.md", "output.log", "result.json"))

    def _recover_facts(self) -> None:
        """Record what a damaged journal lost: a started attempt has its own worktree. Without this fact, its branch
        would be taken for the earlier attempt's and be reset."""
        if self.task.attempt > 1 and not self.facts.has_worktree and self._has_worked:
            self._record_fact("begun", "yes")
            self._record_fact("tree", "made")

    # ---- observe

    def observe(self) -> RunnerView:
        """Gather everything that the policy decides on; also journal the result of a finished job."""
        now = self.runtime.clock.monotonic()
        self._poll_job(now)
        self._record_troubles()
        inbox = signals.list_pending(self.runtime.home, self.incarnation.key)
        merge = self.merge_client.read_status(self.phase)
        return RunnerView(
            self.task, self.phase, now, self.runtime.observer.machine.boot_id, inbox=inbox,
            orchestrator=self.supervisor.observe_child(self.orchestrator_key, self.activity), result=self._result(),
            merge=merge,
            merge_reported=self.facts.merge_reported or self.merge_client.is_signal_overdue(merge, now),
            worktree_ready=self.worktree.ready, job=self.jobs.name,
            needs_validation=bool(self.jobs.command(VALIDATOR)), stopping=self.stopping,
            overdue=self._is_overdue(now), adhoc=self.launch.adhoc, orphaned_for=self.parent.orphaned_for(now),
            orphan_grace=self.runtime.timing.orphan_grace, wall=self.runtime.clock.time())

    def _is_overdue(self, now: float) -> bool:
        if self.stopping and self._stopping_since is None:
            self._stopping_since = now
        return self._stopping_since is not None and now - self._stopping_since > self.runtime.timing.stop_orchestrator

    def _result(self) -> Result | None:
        """Read the attempt's result; log and ignore one that is torn, of another attempt, or not its orchestrator's."""
        result, problem = read_attempt_result(self.runtime.store, self.files, self.task.node, self.task.attempt)
        if problem and problem != self._logged_problem:
            log_line(problem)
        self._logged_problem = problem
        return result

    def _record_troubles(self) -> None:
        """Journal the interruptions of the agent's session, for `garrison why` and `events`."""
        stamp = fingerprint_of(self._troubles)
        if stamp != self._troubles_stamp:
            self._troubles_stamp = stamp
            for text in list_troubles(self.folder)[self.facts.troubles:]:
                self._record_fact("session", text)
            for each in failover.read_failovers(self.folder)[self.facts.failovers:]:
                self._record_fact("failover", each.describe())
        if self.task.hosts:
            self._record_host()

    def _record_host(self) -> None:
        """Journal which host works on the attempt, for `garrison why` and `events`."""
        stamp = fingerprint_of([str(self.folder / REMOTE)])
        if stamp == self._remote_stamp:
            return
        self._remote_stamp = stamp
        state = look_remote(self.folder)
        taken = f"{state.host} works on it" + (f", the offer {state.offer}" if state.offer > 1 else "") \
            if state is not None and state.host else ""
        if taken and taken != self.facts.host:
            self._record_fact("host", taken)

    def _poll_job(self, now: float) -> None:
        """Journal the result of a finished job, and forward a validator's open question once."""
        fact = self.jobs.poll(now)
        if fact is not None and not self.stopping:
            if (fact.name, fact.value) == (SETUP, "ok"):
                # Key and hiding before the fact, after which no runner gets here again: without them the set-up would
                # run twice, or its output look like work of the agent.
                self._record_fact("setup_key", self.worktree.setup_key())
                self.worktree.hide_setup_outputs()
            self._record(FactRecorded(fact.name, fact.value, self.task.attempt, code=fact.end.code,
                                      timed_out=fact.end.timed_out, said=fact.said), sync=True)
        question = self.jobs.question
        if question is None or question.id == self._asked:
            return
        self._asked = question.id
        id_ = f"{VALIDATOR_QUESTION}{question.id}"
        self.parent.send(NeedsInput(question.text, id_),
                         f"{self.launch.run_id}-{self.task.node}-{self.task.attempt}-{id_}")

    # ---- what the loop calls

    def turn(self) -> bool:
        """Observe, decide, act; return whether another turn should follow at once."""
        self._view = self.observe()
        self._take_snapshot(self._view)
        self._decision = policy.decide(self.facts, self._view, self.policy)
        for action in self._decision.actions:
            perform(self, action, self._view)
            if self.exit_code is not None:
                break
        return any(action.kind not in (ActionKind.TERMINATE, ActionKind.STOP_JOB) for action in self._decision.actions)

    def fingerprint(self) -> Fingerprint | None:
        """Return a fingerprint of the orchestrator's and the parent's record, the inbox, the result and the presence of
        worktree and repository, while the orchestrator beats; None if its agent is stopped, which may be a hang."""
        self.supervisor.note_watching()
        view = self._view
        if self.stopping or view is None or not view.orchestrator.living or self.parent.is_gone:
            return None
        if view.orchestrator.evidence and view.orchestrator.evidence.stopped:
            return None
        if not all_beating([self._heartbeat], self.runtime.clock.monotonic(), heartbeat_limit(self.runtime.timing)):
            return None
        return *fingerprint_of(self._watched_paths), *identify_folders(self._folders)

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when the orchestrator or a job ends, and at any signal (the merge queue's too) or result."""
        if self._view is not None:
            self.supervisor.watch(event_loop, [self._view.orchestrator], records=True)
        self.jobs.watch(event_loop)
        self.snapshotter.watch(event_loop)
        if self.folder.is_dir():
            event_loop.watch_directory(self.folder, _OBSERVED.intersection)

    def next_wake(self) -> float | None:
        """Return the seconds until a restart, a job's deadline, a snapshot or a look at a silent agent is due."""
        now = self.runtime.clock.monotonic()
        due = [at - now for at in (self._decision.wake_at, self.jobs.wake_at, self.snapshotter.wake_at)
               if at is not None]
        if self._view is not None and \
                (left := self.supervisor.seconds_to_scan(self._view.orchestrator, self.activity)) is not None:
            due.append(left)
        return min(due, default=None)

    def stop(self, _signum: int) -> None:
        """Stop gracefully: the job, the orchestrator, then the runner; `--resume` continues the attempt."""
        self.stopping = True

    def abandon(self, why: str) -> None:
        """Kill the runner's own job when fenced; the successor adopts the orchestrator."""
        self.snapshotter.close()
        if self.jobs.name:
            self.runtime.processes.kill_tree(None, self.incarnation.marker, grace=self.runtime.timing.sweep_grace)
        end_lost_server(self.runtime.home)

    def handle_persistent_error(self, why: str) -> None:
        """Fail the node with the error; if it has failed already, note that its work cannot be saved."""
        if self.facts.failed:
            self._cannot_save = why
        else:
            is_gone = not Path(self.launch.repo).is_dir()
            self._record_fact("failed", f"the repository {self.launch.repo} is gone" if is_gone else why)

    # ---- actions: journal and hook

    def _record(self, event: Event, *, sync: bool = False) -> None:
        self.supervisor.record(event, sync=sync)
        self.facts.apply_event(event, self.task.attempt)

    def _record_fact(self, name: str, value: str | int) -> None:
        self._record(FactRecorded(name, value, self.task.attempt), sync=True)

    def _record_saved(self, ref: str) -> None:
        self._record(WorkSaved(ref, self.task.attempt))

    def _apply_fact(self, action: Action, view: RunnerView) -> None:
        self._record(action.expect(FactRecorded), sync=True)

    def _move_hook(self, action: Action, view: RunnerView) -> None:
        now = self.runtime.clock.utc()
        # A damaged record may be behind what this process has done.
        self.phase = self.incarnation.hook(lambda old: hooks.advance_phase(old, action.target, now)).phase

    def _reopen_hook(self, action: Action, view: RunnerView) -> None:
        now = self.runtime.clock.utc()
        self.phase = self.incarnation.hook(lambda old: hooks.reopen(old, now)).phase

    # ---- actions: signals

    def _apply_signal(self, action: Action, view: RunnerView) -> None:
        """Apply a signal: forward it to others (idempotent), journal it, then acknowledge it."""
        applied = action.expect(ApplySignal)
        signal, event = applied.posted.signal, applied.event
        if signal is not None and isinstance(event, RunnerSignal) and signal.id not in self.facts.applied:
            self.forward(signal, event.forward)
            self._record(event, sync=True)
        failpoint.here(":signal-applied")
        signals.acknowledge(applied.posted.path)

    def forward(self, signal: Signal, where: str) -> None:
        """Forward a question up or an answer down, before it counts as applied: duplicates are recognised, but after
        a crash a missing one would never be sent."""
        question_id = str(signal.payload.get("question_id", ""))
        if where == "down" and question_id.startswith(VALIDATOR_QUESTION):  # a restarted validator repeats its question
            self.jobs.answer(question_id.removeprefix(VALIDATOR_QUESTION), str(signal.payload.get("text", "")))
        elif where == "up":
            self.parent.forward(signal)
        elif where == "down":
            self.supervisor.forward(self.orchestrator_key, signal)

    def _refuse_signal(self, action: Action, view: RunnerView) -> None:
        path = action.expect(ApplySignal).posted.path
        self._record(SignalRefused(path.name, action.why))
        signals.refuse(path, action.why)

    def _send(self, action: Action, view: RunnerView) -> None:
        message = action.expect(SendSignal)
        self._report(message.payload, message.suffix)

    def _report(self, payload: Payload, suffix: str = "") -> None:
        id_ = f"{self.launch.run_id}-{self.task.node}-{self.task.attempt}-{payload.type}"
        self.parent.send(payload, f"{id_}-{suffix}" if suffix else id_)

    # ---- actions: worktree, jobs, merge queue

    def _prepare_worktree(self, action: Action, view: RunnerView) -> None:
        tip = self.git.branch_tip(self.launch.onto)
        if tip is None:
            raise Hindered(describe_gone(self.launch.onto, self.launch.repo))
        is_new_attempt = self.task.attempt > 1 and not self.facts.has_worktree
        is_first = self.task.attempt == 1 and view.phase == "planning" and not self.facts.incarnation
        self._log_notes(self.worktree.prepare(tip, is_new_attempt=is_new_attempt, is_first=is_first,
                                              agent_alive=view.orchestrator.living))
        if is_first:  # `garrison verify` compares it with what the target had
            self._record_fact("base", self.worktree.beginning())
        if is_new_attempt:
            self._record_fact("tree", "made")

    def _compare_tree(self, action: Action, view: RunnerView) -> None:
        """Record whether the branch contains a change; first restore it if it was moved since the result."""
        if view.result is not None and view.result.head:
            self._log_notes(self.worktree.restore_branch(view.result.head))
        self._record_fact("change", policy.CHANGED if self.worktree.has_change() else policy.UNCHANGED)

    def _inspect_change(self, action: Action, view: RunnerView) -> None:
        """Inspect what is to land, and record the findings for the user: the decision on them is made once."""
        from garrison.node.diff_check import inspect_branch  # imported late, while no agent waits for it

        config = self.merge_client.queue.state.config
        found = inspect_branch(self.git, self.runtime.home, self.launch, self.task, self.branch,
                               (self.launch.gate or "", self.launch.node_gate or "", (config and config.gate) or ""),
                               view.result.said if view.result is not None else {})
        lines = {"lines": self.worktree.count_lines()} if self.task.candidate else {}
        self._record_fact("changes", json.dumps({"tip": found.tip, "changes": found.changes, **lines}))

    def _start_job(self, action: Action, view: RunnerView) -> None:
        self.jobs.require_room(view.now)
        self._record(JobStarted(action.target, self.jobs.command(action.target), self.task.attempt))
        self.jobs.start(action.target, self.branch, view.now)

    def _stop_job(self, action: Action, view: RunnerView) -> None:
        self.jobs.kill(view.now)

    def _enqueue(self, action: Action, view: RunnerView) -> None:
        """Enqueue the branch, on which an acceptance command may have committed; restore one that was replaced."""
        if view.result is not None and view.result.head:
            self._log_notes(self.worktree.restore_branch(view.result.head, allow_more=True))
        if self.git.branch_tip(self.branch) != self.facts.inspected:  # there are newer commits, or it was not recorded
            self._inspect_change(action, view)
        if not with_effect(self.facts.changes, Effect.REFUSE):
            self.merge_client.enqueue(self.facts.changes)

    def _log_notes(self, notes: list[str]) -> None:
        for note in notes:
            log_line(note)

    # ---- actions: the orchestrator

    def _start(self, action: Action, view: RunnerView) -> None:
        """Start the orchestrator in the terminal, after closing a dead session of its name."""
        if self.facts.setup == "ok" and (self.facts.setup_key != self.worktree.setup_key()
                                         or setups.is_lost(self.worktree.path)):
            self._record_fact("setup", "")  # its input files have changed, or its output is gone: repeat it
            return
        previous = view.orchestrator.identity
        if previous is not None:
            if previous.status == "crashed":
                self.supervisor.sweep(previous)
            close_sessions(self.terminal, previous, self.runtime.home)
            self.worktree.clear_locks()
        try:
            started = spawn_orchestrator(self.runtime, self.launch, self.task, self.worktree.path, self.terminal,
                                         parent=self.incarnation.key, journal_incarnation=self.facts.incarnation)
        except START_RACES as error:
            log_line(str(error))
            return
        self._record(self.supervisor.start_record(started, view.orchestrator, action.why, self.task.attempt,
                                                  probe=action.kind is ActionKind.PROBE))

    def _heal(self, action: Action, view: RunnerView) -> None:
        self._record(ChildHealed(self.orchestrator_key.full, self.facts.circuit.probe, action.why, self.task.attempt))

    def _replace(self, action: Action, view: RunnerView) -> None:
        child = view.orchestrator
        if child.hung and child.identity is not None:
            incarnation = child.identity.incarnation
            evidence = asdict(child.evidence) if child.evidence else None
            self.parent.send(OrchestratorHung(incarnation, action.why, evidence),
                             f"{self.orchestrator_key.full}-{incarnation}-stuck")
        death_class = action.payload.death_class if isinstance(action.payload, ReplaceChild) else CRASH
        self.supervisor.replace_child(child, action.why, death_class)
        if death_class == ORDER:
            self._give_up_offer(action.why)

    def _give_up_offer(self, why: str) -> None:
        """Withdraw the attempt from its host."""
        if self.task.hosts:
            load(PluginGroup.PARTS, "hosts.give_up")(self.runtime, self.launch, self.task, why)

    def _record_death(self, action: Action, view: RunnerView) -> None:
        """Report a death, then record it: no successor reports a recorded one."""
        death = self.supervisor.death_record(view.orchestrator, self.task.attempt)
        identity = view.orchestrator.identity
        departure = identity.departure if identity is not None else None
        self.parent.send(OrchestratorCrashed(death.incarnation, death.why, departure or ""),
                         f"{self.orchestrator_key.full}-{death.incarnation}-crashed")
        self.facts.apply_event(self.supervisor.record_death(death), self.task.attempt)

    def _park(self, action: Action, view: RunnerView) -> None:
        cool_down = self.policy.cool_down(self.facts.circuit.parks + 1)
        event = self.supervisor.park(view.orchestrator, action.why, cool_down, self.task.attempt)
        self.facts.apply_event(event, self.task.attempt)

    def _terminate(self, action: Action, view: RunnerView) -> None:
        self.supervisor.terminate(view.orchestrator)

    # ---- actions: save, clean up, end

    def _take_snapshot(self, view: RunnerView) -> None:
        """Take the next step of saving the agent's work at intervals."""
        is_at_work = self.worktree.ready and view.orchestrator.living and not self.stopping
        ref, note = self.snapshotter.poll(view.now, view.orchestrator.identity if is_at_work else None)
        if ref:
            self._record_saved(ref)
        if note:
            log_line(note)

    def _save_work(self, action: Action, view: RunnerView) -> None:
        """Save a parked agent's work under a rescue ref; its worktree stays for a runner that resumes."""
        self.worktree.save("left when it was parked")

    def _fail_node(self, action: Action, view: RunnerView) -> None:
        """Save all work under a rescue ref, then report the failure to the guardian."""
        self._give_up_offer(action.why)
        ref, reason = "", action.why
        if self._cannot_save:  # the worktree stays, so that nothing is lost
            reason += f"; its work stays in {self.worktree.path}: it could not be saved: {self._cannot_save}"
            self._close_session(view.orchestrator)
        else:
            ref = self.worktree.save("left when it failed")
            self._remove_worktree(view.orchestrator)
        # Last: at this report the guardian starts the next attempt, in the same place and on the same branch.
        self._report(RunnerExited(self.task.node, self.branch, "failed", action.target, reason, ref))

    def _tidy_up(self, action: Action, view: RunnerView) -> None:
        """Remove session and worktree and archive the branch; its commits are on the target, or pinned by the queue.
        A candidate's commits are saved."""
        self.worktree.save_rest()
        self._remove_worktree(view.orchestrator)
        if self.task.candidate:
            self.worktree.keep(self.facts.inspected)
        else:
            self.worktree.archive()

    def _close_session(self, orchestrator: ChildState) -> None:
        if orchestrator.identity is not None:
            close_sessions(self.terminal, orchestrator.identity, self.runtime.home)

    def _remove_worktree(self, orchestrator: ChildState) -> None:
        self._close_session(orchestrator)
        self.snapshotter.close()
        self.worktree.remove()

    def _end(self, action: Action, view: RunnerView) -> None:
        self.snapshotter.close()
        departure = Departure(action.target)
        if departure is Departure.STOPPED:
            self._close_session(view.orchestrator)
        if self.launch.adhoc:
            self.terminal.shutdown()
        write_runner_state(self.runtime, self.launch, self.incarnation.key, f"terminated ({departure})", os.getpid(),
                           self.incarnation.identity.created_at)
        self.exit_code = exit_gracefully(self.incarnation, departure.value, departure,
                                         int(departure is Departure.FAILED))
        self.supervisor.journal.close()

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[[Runner, Action, RunnerView], None]]] = {
        ActionKind.APPLY_SIGNAL: _apply_signal,
        ActionKind.REFUSE_SIGNAL: _refuse_signal,
        ActionKind.SEND: _send,
        ActionKind.RECORD_FACT: _apply_fact,
        ActionKind.MOVE_HOOK: _move_hook,
        ActionKind.REOPEN_HOOK: _reopen_hook,
        ActionKind.PREPARE_WORKTREE: _prepare_worktree,
        ActionKind.COMPARE_TREE: _compare_tree,
        ActionKind.INSPECT_CHANGE: _inspect_change,
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
