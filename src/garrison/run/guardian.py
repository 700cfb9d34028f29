"""Guardian process: owns the run's journal, starts and supervises runners and the merge processor.

It observes and acts; `guardian_policy.py` decides. If the guardian dies, runners continue; its successor replays the
journal, adopts the living processes, and applies the signals that arrived in between.
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from garrison.ends import Departure
from garrison.errors import ForbiddenTransition, GarrisonError, Hindered, RecordCorrupt, RecordError
from garrison.merge.records import TurnEnded, TurnSuspended
from garrison.merge.target import describe_gone, describe_moved
from garrison.processes.actions import Action, ActionKind, ApplySignal, Decision, ParkChild, ReplaceChild
from garrison.processes.loop import all_beating, exit_gracefully, fingerprint_of, heartbeat_limit, log_line
from garrison.processes.spawn import spawn_process, spawn_runner
from garrison.processes.supervisor import START_RACES, Supervisor, perform
from garrison.records import atomic, events, signals
from garrison.records import run as run_records
from garrison.records.identity import Identity
from garrison.records.journal import SNAPSHOT_EVERY, Verifier, Writer
from garrison.records.names import INTEGRATION, Key, launcher_key
from garrison.records.run import Task, read_attempt_result
from garrison.records.signals import CancelNode, Escalation, PipelineComplete, StopRun, UnparkNode, Violation
from garrison.records.store import quarantine
from garrison.run import best_of, flow_policy, guardian_policy
from garrison.run import branch as run_branch
from garrison.run.agent_places import AgentPlaces
from garrison.run.follower import open_follower
from garrison.run.git_record import GIT, GitWatch
from garrison.run.guardian_view import GuardianView, LandingView, is_resting, is_suspended
from garrison.run.merge_client import MergeStatus, RunEntries
from garrison.run.plan import (
    JUDGED_CHARACTERS,
    build_task,
    change_plan,
    is_behind,
    judge_candidates,
    land_candidate,
    latest_attempts,
)
from garrison.run.state import (
    ENDED,
    LANDED,
    NO_CHANGE,
    REQUESTED,
    RUN_TRANSITIONS,
    STOPPED_BY_USER,
    RunState,
    copy_launch,
    replay_run,
    to_snapshot,
)
from garrison.run.target_watch import GATE, GateWatch, TargetWatch
from garrison.supervise.death_classes import CRASH, SHORTAGE, STOP
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.observer import STOPPED_LIMITS
from garrison.supervise.restart import Policy
from garrison.system import failpoint
from garrison.system.clock import iso
from garrison.system.machine import LONGEST_PAUSE, AgentLimit, LackWatch
from garrison.system.terminal_choice import end_lost_server
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from garrison.merge.queue import MergeQueue
    from garrison.merge.state import QueueTurn
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.loop import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Result
    from garrison.records.signals import Signal
    from garrison.supervise.decisions import ChildState
    from garrison.supervise.incarnation import Incarnation
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git


def _has_news(queue: MergeQueue, changed: set[str]) -> bool:
    """Return whether new records of a queue require a turn at once; the steps of its entries are read by the next
    one, within a rescan."""
    if queue.path.name not in changed:
        return False
    with contextlib.suppress(GarrisonError, OSError):  # which the turn reports
        return queue.has_more_than_steps()
    return True


RUN_ROLES = frozenset({"runner", "orchestrator", "processor"})
"""Roles of the processes below a guardian."""


class Guardian:
    """One incarnation of a run's guardian."""

    is_event_driven = False

    def __init__(self, runtime: Runtime, incarnation: Incarnation, launch: Launch, plan: RunPlan,
                 git: Git | None = None) -> None:
        self.runtime, self.incarnation, self.launch = runtime, incarnation, launch
        self.run = incarnation.key.run
        self.files = runtime.files(self.run)
        journal = Writer(self.files.journal, incarnation.token)
        self.state: RunState = replay_run(journal.entries, plan.program, self.run, plan.children)
        self.plan = plan = change_plan(plan, self.state.graph)
        if is_behind(self.state, latest_attempts(self.files, plan)):
            journal.close()
            raise RecordCorrupt(self.files.journal, "it lacks records of the run's work")
        self.supervisor = Supervisor(runtime, incarnation, journal)
        self.queue = run_branch.node_queue(runtime, launch, incarnation.token, git)
        self.target_queue = run_branch.landing_queue(runtime, launch, incarnation.token, self.queue.git)
        moves = self.state.foreign_moves
        self.target_watch = TargetWatch(run_branch.target_queue(runtime, launch, incarnation.token, self.queue.git),
                                        launch.base, moves[-1].new if moves else launch.base_oid)
        self.follower = open_follower(runtime, launch, plan, self.queue.git)
        self.git_watch = GitWatch(runtime.home, self.queue.git, self.files.root / "git", self._told(GIT))
        self.gate_watch = GateWatch(self.target_watch.queue, launch, self._told(GATE))
        self.policy = Policy.of(runtime.timing, launch.max_respawn)
        self.processor_key = Key("processor", incarnation.key.name, self.run)
        self._runner_keys: dict[str, Key] = {}
        self.stopping = False
        self._stop_reason = STOPPED_BY_USER
        self._leaving_since: float | None = None
        self.exit_code: int | None = None
        self._notes: dict[str, str] = {}
        self._view: GuardianView | None = None
        self._decision = Decision([])
        self._agent_limit = AgentLimit.full(launch.max_agents)
        self.places = AgentPlaces(runtime.store, incarnation.key)
        self._lacks = LackWatch(runtime.timing.rescan)
        self._is_short = False
        self._since_snapshot = len(journal.entries)
        self._verifiers = [(queue, Verifier(queue.path)) for queue in (self.queue, self.target_queue)
                           if queue is not None]
        self._read_results: dict[tuple[str, int], Result] = {}
        """Source and attempt → its result, while the flow does not know it."""
        self._entries = RunEntries(self.queue, self.run)
        self._living: list[ChildState] = []
        """Living children at the last turn."""
        self._heartbeats: dict[Key, str] = {}
        """Their life files; strings, since up to a hundred of them are checked every second."""
        self._watched_paths = [str(path) for path in (
            runtime.store.path(Identity, incarnation.key).parent, signals.inbox_path(runtime.home, incarnation.key),
            self.queue.path, launch.repo, self.target_watch.path,
            *([self.target_queue.path] if self.target_queue else []),
            *([self.follower.wake_file] if self.follower else []))]
        self._record(events.ProcessOpened(incarnation.number, incarnation.identity.pid))
        if not any(entry.kind == events.LaunchRecorded.kind for entry in journal.entries):
            self._record(copy_launch(self.files, launch))
        self._keep_graph()

    # ---- observe

    def observe(self) -> GuardianView:
        """Gather everything that the policy decides on."""
        landing = self._landing()
        turns = {turn.node: turn for turn in self.queue.state.turns.values() if turn.run == self.run}
        if self._runner_keys.keys() != self.state.nodes.keys():
            self._runner_keys = {name: Key("runner", name, self.run) for name in self.state.nodes}
        runners = self.supervisor.observe_children(self._runner_keys)
        return GuardianView(
            self.run, self.runtime.clock.monotonic(), self.runtime.observer.machine.boot_id,
            signals.list_pending(self.runtime.home, self.incarnation.key), runners,
            self.supervisor.observe_child(self.processor_key), self._merges(), self._strays(runners), self.stopping,
            self._is_overdue(), self._stop_reason, self.runtime.clock.time(), self._results(), landing,
            self.follower.observe(self.state, landing) if self.follower is not None else None, turns,
            self._outages(turns), self.launch.auto_approve, self._costs())

    @property
    def _is_leaving(self) -> bool:
        return self.stopping or self.state.status in ENDED

    def _strays(self, runners: Mapping[str, ChildState]) -> dict[str, ChildState]:
        """Find living processes that must stop but have no parent to stop them; while the run stops, all of its
        processes."""
        if not self._is_leaving:
            return {name: stray for name in self.state.held if name in runners and not runners[name].living
                    and (stray := self._stray(Key("orchestrator", name, self.run))) is not None}
        strays = {}
        for key in self.runtime.store.keys(Identity, (self.run,)):
            is_node = key.name in self.state.nodes
            has_parent = is_node and key.role == "orchestrator" and runners[key.name].living
            is_child = key == self.processor_key or (is_node and key.role == "runner")
            if key.role not in RUN_ROLES or has_parent or is_child:
                continue
            if (stray := self._stray(key)) is not None:
                strays[key.name if is_node and key.role == "orchestrator" else key.full] = stray
        return strays

    def _stray(self, key: Key) -> ChildState | None:
        """Return a process of this machine that is not over; None if there is none, or its record is unreadable."""
        try:
            child = self.supervisor.child_state(key)
        except RecordError:
            return None
        is_here = child.verdict is not None and child.verdict.state != "elsewhere"
        is_left = child.living or child.leaving or (child.verdict is not None and child.verdict.needs_replacement)
        return child if is_here and is_left else None

    def _results(self) -> dict[str, Result | None]:
        """Read the results of finished attempts that the flow does not know yet; each is read once, since it does not
        change."""
        results: dict[str, Result | None] = {}
        read: dict[tuple[str, int], Result] = {}
        for place in self.state.flow.places.values() if self.state.flow is not None else ():
            node = self.state.nodes.get(place.node)
            if node is not None and node.status in ("validated", "failed") and flow_policy.is_at(node, place):
                source, its = best_of.result_source(self.state, place.node)
                if (known := self._read_results.get((source, its.attempt))) is None:
                    known, problem = read_attempt_result(self.runtime.store, self.files, source, its.attempt)
                    lost = "; it counts as done without its report" if node.status == "validated" else ""
                    self._note(f"result of {place.node}", problem and problem + lost)
                results[place.node] = known
                if known is not None:
                    read[source, its.attempt] = known
        self._read_results = read
        return results

    def _costs(self) -> dict[str, float]:
        """Return the known costs of candidates that a judge decides on next."""
        undecided = [place.node for place in best_of.work_places(self.plan, self.state)
                     if self.plan.tasks[place.node].candidate_of and self.state.nodes[place.node].kept is not None]
        if not undecided:
            return {}
        from garrison.records.costs import read_usage, total, usage_files  # few nodes have candidates

        files = {name: [path for _, _, path in usage_files(self.runtime.home, self.run, name)] for name in undecided}
        return {name: total(record for path in paths for record in read_usage(path)).usd
                for name, paths in files.items() if paths}

    def _merges(self) -> dict[str, MergeStatus]:
        pause = self.queue.state.pause
        self._note("merge queue", f"paused: {pause.reason}: {pause.explain()}" if pause else "")
        return self._entries.read(lambda entry: self._note(
            entry.node, entry.reason if entry.status in ("landing_blocked", "held") else "",
            approval=entry.awaits_approval))

    def _outages(self, turns: Mapping[str, QueueTurn]) -> frozenset[str]:
        """Return the nodes with a turn whose agent waits for a limit or an outage to pass."""
        if not turns:
            return frozenset()
        from garrison.run.agent_activity import read_outage  # few runs lose a conflict

        return frozenset(name for name in turns if name in self.state.nodes and read_outage(
            self.files.attempt(name, self.state.nodes[name].attempt)))

    def _landing(self) -> LandingView | None:
        """Observe the landing of the whole run, once its flow has reached the exit."""
        queue, flow = self.target_queue, self.state.flow
        if queue is None or flow is None or flow.over != "done" or self.state.status in ("done", "failed"):
            return None
        pause = queue.state.pause
        # another name than the nodes' queue has: two texts under one name would alternate forever
        self._note(f"merge queue of {queue.target}", f"paused: {pause.reason}: {pause.explain()}" if pause else "")
        entries = queue.state.entries_of(self.run, INTEGRATION)
        for entry in entries[-1:]:
            self._note(self.launch.onto, entry.reason if entry.status in ("landing_blocked", "held") else "")
        tip = queue.git.branch_tip(self.launch.onto) or self.state.landing.oid
        base = queue.git.rev(self.launch.base_ref) or self.launch.base_oid if self.follower is not None else ""
        return LandingView(tip, run_branch.has_own_commits(queue.git, self.launch, tip),
                           MergeStatus.of(entries[-1]) if entries else None, base,
                           pause.detail if pause and not pause.is_manual else "")

    def _is_overdue(self) -> bool:
        if not self._is_leaving:
            return False
        now = self.runtime.clock.monotonic()
        if self._leaving_since is None:
            self._leaving_since = now
        return now - self._leaving_since > self.runtime.timing.stop_runner

    def _check_repository(self) -> None:
        """Wait for a missing repository; note a missing target branch, for which landings wait.

        Hindered, which the loop waits on, unless the run is being stopped: that needs no repository.
        """
        repo = Path(self.launch.repo)
        if not repo.is_dir():
            if self.stopping:
                return
            raise Hindered(describe_moved(self.launch.repo, self.run))
        is_landing = self.state.landing.status == REQUESTED
        is_waiting = is_landing or "impl_complete" in self.state.statuses.values()
        branch = self.launch.base if is_landing and self.follower is None else self.launch.onto
        is_lost = is_waiting and not self.queue.git.branch_exists(branch)
        self._note("target", describe_gone(branch, repo) if is_lost else "")

    def _watch_repository(self) -> None:
        """Journal changes from outside to what the run depends on: its target, git's configuration, its gate."""
        if self.stopping or not Path(self.launch.repo).is_dir():
            return
        at_work = [name for name, node in self.state.nodes.items() if node.status == "active"]
        for watch in (self.target_watch, self.git_watch, self.gate_watch):
            if (seen := watch.poll(at_work)) is not None:
                self._record(seen, sync=True)
                if isinstance(seen, events.Warned) and seen.about == GIT:
                    self.supervisor.send(launcher_key(self.run), Violation(seen.text, tuple(seen.at_work)))

    def _told(self, about: str) -> str:
        return next((warning.state for warning in reversed(self.state.warnings) if warning.about == about), "")

    def _verify_queues(self) -> None:
        """Look for damage in a queue that no processor works: its runners could not enqueue, and no processor starts
        before they have."""
        for queue, verifier in self._verifiers:
            if not queue.is_processor_running():
                verifier.check(self.runtime.clock.monotonic())

    def _repair_queue(self, error: RecordCorrupt) -> None:
        """Rebuild the merge queue's journal if that is damaged; a processor that works on it does this itself."""
        queue = next((queue for queue in (self.queue, self.target_queue)
                      if queue is not None and error.path == str(queue.path)), None)
        if queue is None or queue.is_processor_running():
            return
        with contextlib.suppress(GarrisonError):
            run_branch.rebuild_queue(queue, self.launch, self.runtime.timing.gate_timeout)
            self._record(events.NoteWritten(events.REPAIR, f"{error.path} was damaged ({error.why}) and is rebuilt"))

    def _note(self, who: str, text: str, *, approval: bool = False) -> None:
        """Journal a note about something that waits for the user, once until the text changes."""
        if text and self._notes.get(who) != text:
            self._record(events.NoteWritten(who, text, approval))
        self._notes[who] = text

    def _runner_key(self, node: str) -> Key:
        return self._runner_keys.get(node) or Key("runner", node, self.run)

    def _child_key(self, name: str) -> Key:
        return self.processor_key if name == "processor" else self._runner_key(name)

    # ---- what the loop calls

    def turn(self) -> bool:
        """Observe, decide, act; return whether another turn should follow at once."""
        self._check_repository()
        try:
            self._watch_repository()
            self._verify_queues()
            self._view = self.observe()
        except RecordCorrupt as error:
            self._repair_queue(error)
            raise
        self._living = [child for child in self._view.children.values() if child.living]
        self._heartbeats = {child.identity.key: str(self.runtime.store.life_path(child.identity.key))
                            for child in self._living if child.identity is not None}
        allowed = self._agents_allowed(self._view)
        self._view = replace(self._view, placed=self._share_places(self._view, allowed))
        self._decision = guardian_policy.decide(self.plan, self.state, self._view, allowed, self.policy,
                                                self.launch.max_rework)
        for action in self._decision.actions:
            perform(self, action, self._view)
        if self.exit_code is None:
            self.incarnation.advance_hook(self.state.phase)
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self.supervisor.journal.compact(to_snapshot(self.state), self.runtime.clock.utc())
            # The compaction has removed the copy of launch.json from the journal, from which `repair.py` restores it.
            self._record(copy_launch(self.files, self.launch))
            self._since_snapshot = 0
        return any(action.kind is not ActionKind.TERMINATE for action in self._decision.actions)

    def _agents_allowed(self, view: GuardianView) -> int:
        """Return how many agents may work at once; while the machine lacks room it is lowered, and noted once."""
        found = self._lacks.find(view.now)
        lack = found.what if found is not None else self._recent_shortage(view.now)
        busy = sum(child is not view.processor for child in self._living)
        self._agent_limit = self._agent_limit.after(is_short=bool(lack), busy=busy, now=view.now)
        if lack and not self._is_short:
            self._record(events.NoteWritten(events.MACHINE, (
                f"{lack}; {self._agent_limit.allowed} of {self.launch.max_agents} agents work at once until it ends")))
        self._is_short = bool(lack)
        return self._agent_limit.allowed

    def _share_places(self, view: GuardianView, allowed: int) -> Collection[str] | None:
        """Take free places among those that all runs of the home share; return the nodes that have one."""
        if not self.places.are_limited():
            return None
        active = [name for name, node in self.state.nodes.items()
                  if node.status == "active" and not is_resting(self.state, view, name)]
        busy = [name for name in active if view.runner(name).living]
        if self._is_leaving or self.state.status != "running":
            return self.places.share(busy, [], view.wall)
        begun = [name for name in active if name not in busy and not is_suspended(self.state, view, name)]
        fresh = [name for name in flow_policy.startable(self.plan, self.state, view) if name not in self.state.held]
        return self.places.share(busy, [*begun, *fresh[:max(0, allowed - len(active))]], view.wall)

    def _recent_shortage(self, now: float) -> str:
        """Return what the machine lacked when a child of this process could not be started a moment ago."""
        return next((death.why for deaths in self.state.deaths.values() for death in deaths[-1:]
                     if death.kind == SHORTAGE and now - death.monotonic < LONGEST_PAUSE), "")

    def fingerprint(self) -> Fingerprint | None:
        """Return a fingerprint of the children's records, the inbox, the queue and the repository, while all beat."""
        self.supervisor.note_watching()
        if self.stopping or self.state.status != "running" or self._view is None or self.places.is_waiting:
            return None  # a killed run frees its places although no file changes
        now = self.runtime.clock.monotonic()
        if not all_beating(self._heartbeats.values(), now, heartbeat_limit(self.runtime.timing)):
            return None
        processor = [path for key, path in self._heartbeats.items() if key.role == "processor"]
        if not all_beating(processor, now, STOPPED_LIMITS["processor"] / 2):
            return None
        return fingerprint_of([*self._watched_paths, *self.places.watched])

    def watch(self, event_loop: EventLoop) -> None:
        """Wake when a child exits, at any signal, and at any change of the merge queue."""
        if self._view is not None:
            self.supervisor.watch(event_loop, self._living)
        for queue in filter(None, (self.queue, self.target_queue)):
            if queue.path.parent.is_dir():
                event_loop.watch_directory(queue.path.parent, partial(_has_news, queue))
        if self.places.is_waiting:
            event_loop.watch_directory(self.places.folder)
        if self.follower is not None:
            self.follower.watch(event_loop)

    def next_wake(self) -> float | None:
        """Return the seconds until a restart or another delay is due."""
        at = self._decision.wake_at
        due = [] if at is None else [at - self.runtime.clock.monotonic()]
        if self.follower is not None and (look := self.follower.seconds_to_look()) is not None:
            due.append(look)
        return min(due, default=None)

    def stop(self, _signum: int) -> None:
        """Stop the run gracefully: runners, processor, then the guardian itself; the run can be resumed."""
        self.stopping = True

    def abandon(self, why: str) -> None:
        """Leave runners alone when fenced: the successor adopts them."""
        end_lost_server(self.runtime.home)

    def handle_persistent_error(self, why: str) -> None:
        """Keep trying: the loop has logged the error, and no node fails because of a transient one."""

    # ---- actions: journal

    def _record(self, event: events.Event, *, sync: bool = False) -> None:
        entry = self.supervisor.record(event, sync=sync)
        self._since_snapshot += 1
        with contextlib.suppress(ForbiddenTransition):
            self.state.apply_event(event, entry.at)

    def _journal(self, action: Action, view: GuardianView) -> None:
        """Journal the event that the action carries: its only effect is the resulting state."""
        event = action.payload
        assert isinstance(event, events.NodeChanged | events.FlowAdvanced | events.WaitChanged | events.ManagerCycled
                          | events.LandingChanged | events.PullRequestChanged | events.CandidatesRanked
                          | events.CandidatesCompared)
        self._record(event, sync=True)

    def _enqueue(self, action: Action, view: GuardianView) -> None:
        """Enqueue the run's own branch, at the commit that was journaled for this attempt: a repetition is the same
        entry."""
        landing = self.state.landing
        assert self.target_queue is not None
        if self.follower is not None:
            run_branch.begin_test(self.target_queue, landing.base)
        self.target_queue.enqueue(self.run, action.target, landing.attempt, self.launch.onto, oid=landing.oid)

    def _change_turn(self, action: Action, view: GuardianView) -> None:
        """Journal the end or pause of a node's turn in the merge queue."""
        record = action.payload
        assert isinstance(record, TurnEnded | TurnSuspended)
        with self.queue.locked():
            self.queue.append(record)

    def _ask_follower(self, action: Action, view: GuardianView) -> None:
        assert self.follower is not None
        self.follower.begin(action, self.state)

    def _cancel_node(self, action: Action, view: GuardianView) -> None:
        attempt = self.state.nodes[action.target].attempt
        self.supervisor.send(self._runner_key(action.target), CancelNode(action.why), node=action.target,
                             attempt=attempt, id_=f"{self.run}-{action.target}-{attempt}-cancel")
        self._record(events.NodeCancelled(action.target, attempt, action.why), sync=True)

    def _change_run(self, action: Action, view: GuardianView) -> None:
        status = action.target
        if status not in RUN_TRANSITIONS[self.state.status]:
            raise ForbiddenTransition(f"run {self.run}", self.state.status, status, RUN_TRANSITIONS[self.state.status])
        if self.state.status == "new":
            # Before the record: a run whose journal says running has its branch; a successor repeats this step.
            run_branch.create(self.queue, self.launch, self.runtime.timing.gate_timeout)
            if self.follower is not None and self.target_queue is not None:
                run_branch.create_tested(self.target_queue, self.launch, self.runtime.timing.gate_timeout)
        if status == "done" and self.state.landing.status in (LANDED, NO_CHANGE):
            run_branch.archive(self.queue.git, self.launch)
        if status in ("done", "failed"):
            # Sent before it is journaled: the launcher recognises a repetition by its id, but one
            # that was journaled and not sent would be lost.
            self.supervisor.send(launcher_key(self.run), PipelineComplete(status, action.why),
                                 id_=f"{self.run}-complete")
        self._record(events.RunChanged(status, action.why), sync=True)

    def _stop_run(self, action: Action, view: GuardianView) -> None:
        self._stop_reason = action.why
        self.stop(0)

    # ---- actions: signals

    def _apply_signal(self, action: Action, view: GuardianView) -> None:
        """Apply a signal: forward it to others (idempotent), journal id and effects in one record, then acknowledge it.
        After a crash in between, the steps before it are repeated; a changed graph is rewritten from the journal."""
        applied = action.expect(ApplySignal)
        signal, event = applied.posted.signal, applied.event
        if signal is not None and isinstance(event, events.GuardianSignal):
            self._pass_on_parking(signal, event)
            if event.answer and signal.node_id:
                self.supervisor.forward(self._runner_key(signal.node_id), signal)
            self._record(event, sync=True)
            if event.graph:
                failpoint.here(":graph-journaled")
                self.plan = change_plan(self.plan, event.graph)
                if self.follower is not None:
                    self.follower.plan = self.plan
                self._keep_graph()
            if event.resume is not None:
                self.stopping, self._leaving_since, self._stop_reason = False, None, STOPPED_BY_USER
            if event.stop:
                self.stop(0)
                payload = signals.parse(signal)
                if isinstance(payload, StopRun) and payload.hurry:
                    self._leaving_since = -math.inf
        failpoint.here(":signal-applied")
        signals.acknowledge(applied.posted.path)

    def _keep_graph(self) -> None:
        """Write the journal's graph to its file, for all readers, if the user has changed it."""
        path, text = self.files.changed_graph, self.state.graph
        with contextlib.suppress(OSError, ValueError):
            if not text or path.read_text(encoding="utf-8") == text:
                return
        atomic.write(path, text.encode())

    def _pass_on_parking(self, signal: Signal, event: events.GuardianSignal) -> None:
        """Report a parked agent to the launcher, and send an unpark request to the runners."""
        if event.stuck is not None:
            self._escalate(f"orchestrator-{signal.node_id}", event.stuck.why, event.stuck.probe_at, signal.node_id,
                           f"{signal.id}-up")
        for node in [*event.unparked, event.unhold or ""]:
            if node in self.state.nodes:
                self.supervisor.send(self._runner_key(node), UnparkNode(), node=node, id_=f"{signal.id}-{node}")

    def _escalate(self, who: str, why: str, probe_at: str, node: str | None, id_: str) -> None:
        self.supervisor.send(launcher_key(self.run), Escalation(who, why, probe_at), node=node, id_=id_)

    def _refuse_signal(self, action: Action, view: GuardianView) -> None:
        path = action.expect(ApplySignal).posted.path
        self._record(events.SignalRefused(path.name, action.why))
        signals.refuse(path, action.why)

    # ---- actions: children

    def _child(self, name: str, view: GuardianView) -> ChildState:
        return view.processor if name == "processor" else view.runner(name)

    def _attempt(self, name: str) -> int:
        return self.state.nodes[name].attempt if name in self.state.nodes else 1

    def _start(self, action: Action, view: GuardianView) -> None:
        previous = self._child(action.target, view)
        if previous.identity is not None and previous.identity.status == "crashed":
            self.supervisor.sweep(previous.identity)
        self.supervisor.expect_start(self._child_key(action.target))
        try:
            started = self._spawn(action.target)
        except START_RACES as error:
            log_line(str(error))
            return
        self._record(self.supervisor.start_record(started, previous, action.why, self._attempt(action.target),
                                                  probe=action.kind is ActionKind.PROBE))

    def _spawn(self, name: str) -> Identity:
        last = self.state.incarnations.get(self._child_key(name).full, 0)
        if name == "processor":
            return spawn_process(self.runtime, self.launch,
                                 SpawnRequest(self.processor_key, self.incarnation.key, journal_incarnation=last))
        return spawn_runner(self.runtime, self.launch, self._task(name, self._attempt(name)),
                            parent=self.incarnation.key, journal_incarnation=last)

    def _task(self, node: str, attempt: int) -> Task:
        """Return the attempt's task; it is built once, so that all incarnations of its runner get the same."""
        path = self.files.attempt(node, attempt) / "task.json"
        try:
            task = run_records.load(Task, path)
        except RecordCorrupt as error:
            log_line(str(error))
            quarantine(self.runtime.home, path, self.runtime.clock.utc())
            task = None
        if task is None or (task.run_id, task.node, task.attempt) != (self.run, node, attempt):
            planned = self.plan.tasks[node]
            context, carried = flow_policy.task_context(self.state, node, planned.kind)
            landed = flow_policy.landed_upstream(self.plan, self.state, node)
            task = build_task(planned, self.launch, self.plan, self.state.nodes[node], context, carried, landed)
            if planned.best_of is not None:
                found = best_of.chosen(self.state, node)
                task = land_candidate(task, found[1].commit if found is not None else "")
            if self._view is not None and (pair := best_of.compared(self.plan, self.state, self._view, node)):
                diffs = [self._diff_of(kept.commit) for _, kept in pair]
                task = judge_candidates(task, self.plan.tasks[planned.candidate_of], diffs)
            if self.state.pull_request.may_stay(node, self.state.landing.attempt):
                task = replace(task, allow_empty=True)
            run_records.save(path, task)
        return task

    def _heal(self, action: Action, view: GuardianView) -> None:
        full = self._child_key(action.target).full
        self._record(events.ChildHealed(full, self.state.circuit(full).probe, action.why))

    def _diff_of(self, commit: str) -> str:
        """Return a candidate's diff, up to the length that a judge is shown."""
        git = self.queue.git
        base = git.merge_base(self.launch.onto, commit) or self.launch.base_oid
        return git.run("diff", "--no-ext-diff", "--no-textconv", "--no-color", base, commit).out[:JUDGED_CHARACTERS]

    def _replace(self, action: Action, view: GuardianView) -> None:
        death_class = action.payload.death_class if isinstance(action.payload, ReplaceChild) else CRASH
        self.supervisor.replace_child(self._child(action.target, view), action.why, death_class)

    def _replace_stray(self, action: Action, view: GuardianView) -> None:
        self.supervisor.replace_child(view.strays[action.target], action.why, STOP)

    def _record_death(self, action: Action, view: GuardianView) -> None:
        death = self.supervisor.death_record(self._child(action.target, view), self._attempt(action.target))
        self.state.apply_event(self.supervisor.record_death(death), "")

    def _park(self, action: Action, view: GuardianView) -> None:
        """Park a runner or the processor; escalate to the launcher first: a repeated escalation is recognised, but
        after a crash a missing one would never be sent."""
        child = self._child(action.target, view)
        assert child.identity is not None
        key = self._child_key(action.target)
        cool_down = self.policy.cool_down(self.state.circuit(key.full).parks + 1)
        probe_at = "" if action.expect(ParkChild).is_final else iso(self.runtime.clock.time() + cool_down)
        self._escalate(key.full.partition("@")[0], action.why, probe_at,
                       action.target if action.target in self.state.nodes else None,
                       f"{key.full}-parked-{child.identity.incarnation}")
        self.state.apply_event(self.supervisor.park(child, action.why, cool_down), "")

    def _terminate(self, action: Action, view: GuardianView) -> None:
        self.supervisor.terminate(self._child(action.target, view))

    # ---- the end

    def _end(self, action: Action, view: GuardianView) -> None:
        self.incarnation.advance_hook(self.state.phase)
        self.places.leave()
        self.exit_code = exit_gracefully(self.incarnation, self.state.status, Departure(self.state.status))
        self.supervisor.journal.close()

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[[Guardian, Action, GuardianView], None]]] = {
        ActionKind.APPLY_SIGNAL: _apply_signal,
        ActionKind.REFUSE_SIGNAL: _refuse_signal,
        ActionKind.CHANGE_NODE: _journal,
        ActionKind.ADVANCE_FLOW: _journal,
        ActionKind.CHANGE_WAIT: _journal,
        ActionKind.CYCLE_MANAGER: _journal,
        ActionKind.CANCEL_NODE: _cancel_node,
        ActionKind.RANK_CANDIDATES: _journal,
        ActionKind.COMPARE_CANDIDATES: _journal,
        ActionKind.CHANGE_TURN: _change_turn,
        ActionKind.CHANGE_LANDING: _journal,
        ActionKind.ENQUEUE: _enqueue,
        ActionKind.CHANGE_PULL_REQUEST: _journal,
        ActionKind.ASK_FOLLOWER: _ask_follower,
        ActionKind.CHANGE_RUN: _change_run,
        ActionKind.STOP_RUN: _stop_run,
        ActionKind.START: _start,
        ActionKind.PROBE: _start,
        ActionKind.HEAL: _heal,
        ActionKind.REPLACE: _replace,
        ActionKind.REPLACE_STRAY: _replace_stray,
        ActionKind.RECORD_DEATH: _record_death,
        ActionKind.PARK: _park,
        ActionKind.TERMINATE: _terminate,
        ActionKind.END: _end,
    }
