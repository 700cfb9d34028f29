"""The guardian: owns the run's journal, starts and watches runners and the merge processor. Thin; see guardian_policy.

If it dies, runners go on; its successor replays the journal, adopts whoever lives, and obeys the signals that waited.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.errors import ForbiddenTransition
from garrison.merge.queue import MergeQueue
from garrison.processes.actions import Action, Decision, MergeStatus
from garrison.processes.fingerprint import all_beating, fingerprint_of, heartbeat_limit
from garrison.processes.guardian import flow_policy, policy
from garrison.processes.guardian.policy import GuardianView, advance_hook, implied_phase
from garrison.processes.loop import exit_gracefully, log_line
from garrison.processes.run_plan import build_task, check_journal_present
from garrison.processes.run_state import RUN_TRANSITIONS, RunState, replay_run, to_snapshot
from garrison.processes.spawn import spawn_runner
from garrison.processes.supervisor import START_RACES, Supervisor, perform
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.identity import Identity
from garrison.records.journal import SNAPSHOT_EVERY, Writer
from garrison.records.names import Key, launcher_key
from garrison.records.run import Task, read_result
from garrison.supervise.decisions import ChildState
from garrison.supervise.lease import SpawnRequest
from garrison.supervise.observer import STOPPED
from garrison.supervise.restart import CRASH, STOP, Policy
from garrison.supervise.start import Incarnation
from garrison.system import failpoint
from garrison.system.clock import iso
from garrison.system.terminal import end_lost_server

if TYPE_CHECKING:
    from garrison.pipeline.plan import RunPlan
    from garrison.processes.fingerprint import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch, Result
    from garrison.records.signals import Signal
    from garrison.system.event_loop import EventLoop
    from garrison.system.git import Git

JOURNALED_EFFECTS = ("stuck", "unstuck", "hold", "text", "unhold", "lives", "flow", "heard", "budget", "resume", "run",
              "unparked")
"""What of a signal's effect is journaled with it as it is."""


class Guardian:
    """One life of a run's guardian."""

    naps = False

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, plan: RunPlan,
                 git: Git | None = None) -> None:
        self.world, self.life, self.launch, self.plan = world, life, launch, plan
        self.run = life.key.run
        self.files = world.files(self.run)
        journal = Writer(self.files.journal, life.token)
        self.state: RunState = replay_run(journal.entries, plan.program, self.run, plan.children)
        check_journal_present(world.store, launch, self.state, self.files.journal)
        self.supervisor = Supervisor(world, life, journal)
        self.queue = MergeQueue(world.home, Path(launch.repo), launch.base, clock=world.clock, token=life.token,
                                git=git)
        self.policy = Policy.of(world.timing, launch.max_respawn)
        self.stopping = False
        self._stop_why = policy.STOPPED_BY_PERSON
        self._leaving_since: float | None = None
        self.exit_code: int | None = None
        self._told: dict[str, str] = {}
        self._view: GuardianView | None = None
        self._decision = Decision([])
        self._phase = "planning"
        self._since_snapshot = len(journal.entries)
        self._beats: dict[Key, str] = {}
        """Who lives below, and the file each beats; as text, for a hundred are looked at each second."""
        self._seen = [str(path) for path in (world.store.path(Identity, life.key).parent,
                                             signals.inbox_path(world.home, life.key), self.queue.path, launch.repo)]
        self._log("open", {"incarnation": life.incarnation, "pid": life.identity.pid})

    # observe

    def observe(self) -> GuardianView:
        """Everything there is to see, now."""
        runners = {name: self.supervisor.guard(self._runner(name)) for name in self.state.nodes}
        strays = {}
        leaving = self.stopping or self.state.status in ("done", "failed")
        if leaving or self.state.held:
            strays = {name: view for name in self.state.nodes if not runners[name].living
                      and (leaving or name in self.state.held)
                      and (view := self.supervisor.view(Key("orchestrator", name, self.run))).identity
                      and view.identity.status in ("starting", "active", "held")}
        return GuardianView(
            self.run, self.world.clock.monotonic(), self.world.observer.where.boot_id,
            signals.list_pending(self.world.home, self.life.key), runners, self.supervisor.guard(self._processor),
            self._merges(), strays, self.stopping, self._overdue(), self._stop_why, self.world.clock.time(),
            self._results(), self.launch.auto_approve)

    def _results(self) -> dict[str, Result | None]:
        """What the agents said of attempts that are over, and that the flow has not been told of."""
        found: dict[str, Result | None] = {}
        for place in self.state.flow.places.values() if self.state.flow is not None else ():
            node = self.state.nodes.get(place.node)
            if node is not None and node.status in ("validated", "failed") and flow_policy.is_at(node, place):
                path = self.files.attempt(place.node, node.attempt) / "result.json"
                found[place.node], wrong = read_result(path, self.run, place.node, node.attempt)
                self._tell_once(f"result of {place.node}", wrong)
        return found

    def _look_for_the_repository(self) -> None:
        """Without its repository a run stops, and can go on once that is back; without its target branch it waits."""
        repo = Path(self.launch.repo)
        if not repo.is_dir():
            self._stop_why, self.stopping = f"the repository {repo} is gone; restore it, then --resume {self.run}", True
            return
        waiting = "impl_complete" in self.state.statuses.values()
        lost = waiting and not self.queue.git.branch_exists(self.launch.base)
        self._tell_once("target", f"{repo} has no branch {self.launch.base} any more; restore it" if lost else "")

    def _overdue(self) -> bool:
        if not self.stopping and self.state.status not in ("done", "failed"):
            return False
        if self._leaving_since is None:
            self._leaving_since = self.world.clock.monotonic()
        return self.world.clock.monotonic() - self._leaving_since > self.world.timing.stop_runner

    def _merges(self) -> dict[str, MergeStatus]:
        found = {}
        pause = self.queue.state.pause
        self._tell_once("merge queue", f"paused: {pause.reason}: {pause.detail}" if pause else "")
        for entry in self.queue.entries():
            if entry.run == self.run:
                self._tell_once(entry.node, entry.reason if entry.status in ("landing_blocked", "held") else "")
                found[entry.node] = MergeStatus(entry.attempt, entry.status, entry.reason or "", entry.commit or "")
        return found

    def _tell_once(self, who: str, what: str) -> None:
        """Journal what a person should know of somebody who waits for them, once until it changes."""
        if what and self._told.get(who) != what:
            self._log("note", {"who": who, "text": what})
        self._told[who] = what

    def _runner(self, node: str) -> Key:
        return Key("runner", node, self.run)

    @property
    def _processor(self) -> Key:
        return Key("processor", self.life.key.name, self.run)

    # the loop's Layer

    def turn(self) -> bool:
        """Observe, decide, act."""
        self._look_for_the_repository()
        self._view = self.observe()
        self._beats = {view.identity.key: str(self.world.store.life_path(view.identity.key))
                       for view in (*self._view.runners.values(), self._view.processor)
                       if view.living and view.identity is not None}
        self._decision = policy.decide(self.plan, self.state, self._view, self.launch.max_agents, self.policy,
                                        self.launch.max_rework)
        for act in self._decision.acts:
            perform(self, act, self._view)
        self._move_hook()
        if self._since_snapshot >= SNAPSHOT_EVERY:
            self.supervisor.journal.compact(to_snapshot(self.state), self.world.clock.utc())
            self._since_snapshot = 0
        return bool(self._decision.acts) and any(act.kind != "term" for act in self._decision.acts)

    def glance(self) -> Fingerprint | None:
        """The records of the lives below, the inbox, the queue and the repository, while all below beat."""
        self.supervisor.awake()
        if self.stopping or self.state.status != "running" or self._view is None:
            return None
        now = self.world.clock.monotonic()
        if not all_beating(self._beats.values(), now, heartbeat_limit(self.world.timing)):
            return None
        if not all_beating([path for key, path in self._beats.items() if key.role == "processor"], now,
                        STOPPED["processor"] / 2):
            return None
        return fingerprint_of(self._seen)

    def watch(self, waker: EventLoop) -> None:
        """Wake at the end of any process below, at any signal, at any merge."""
        if self._view is not None:
            self.supervisor.watch(waker, [*self._view.runners.values(), self._view.processor])
        if self.queue.path.parent.is_dir():
            waker.watch_directory(self.queue.path.parent)

    def next_wake(self) -> float | None:
        """Seconds until a restart is due."""
        at = self._decision.wake_at
        return None if at is None else at - self.world.clock.monotonic()

    def stop(self, _signum: int) -> None:
        """Stop the run in order: runners, processor, self; it stays resumable."""
        self.stopping = True

    def abandon(self, why: str) -> None:
        """Fenced: runners are lives of their own and stay."""
        end_lost_server(self.world.home)

    def trouble(self, why: str) -> None:
        """Said by the loop, and tried again: nobody is given up for a passing trouble."""

    # acts

    def _log(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> None:
        entry = self.supervisor.record(kind, data, sync=sync)
        self._since_snapshot += 1
        with contextlib.suppress(ForbiddenTransition):
            self.state.apply(entry)

    def _do_take(self, act: Action, view: GuardianView) -> None:
        assert act.posted is not None and act.posted.signal is not None
        signal = act.posted.signal
        if signal.id not in self.state.applied:
            data = {"id": signal.id, "type": signal.signal_type, "node": signal.node_id, "attempt": signal.attempt,
                    "from": signal.sender.full, "incarnation": signal.source.get("incarnation")}
            if signal.signal_type in ("ORCHESTRATOR_CRASHED", "ORCHESTRATOR_STUCK"):
                data["why"] = str(signal.payload.get("why", ""))
            data |= {name: act.data[name] for name in ("effect", "question", "answer") if act.data.get(name)}
            data |= {name: act.data[name] for name in JOURNALED_EFFECTS if name in act.data}
            self._tell_of_parking(signal, act.data)  # first: said twice is recognised, lost is not
            if "answer" in act.data and signal.node_id:
                # first: said twice is recognised, lost is not
                self.supervisor.pass_on(self._runner(signal.node_id), signal)
            self._log("signal", data, sync=True)
            if "resume" in act.data:
                self.stopping, self._leaving_since, self._stop_why = False, None, policy.STOPPED_BY_PERSON
            if "stop" in act.data:
                self.stop(0)
        failpoint.here(":signal-applied")
        signals.acknowledge(act.posted.path)

    def _tell_of_parking(self, signal: Signal, effect: dict[str, Any]) -> None:
        """Tell the layer above of an agent that was parked, and the runners below that a person lifted it."""
        if effect.get("stuck"):
            self._escalate(f"orchestrator-{signal.node_id}", effect["stuck"]["why"], effect["stuck"]["probe_at"],
                           signal.node_id, f"{signal.id}-up")
        for node in [*effect.get("unparked", []), effect.get("unhold", "")]:
            if node in self.state.nodes:
                self.supervisor.tell(self._runner(node), "GUIDANCE", {"action": "unpark"}, node=node,
                               id_=f"{signal.id}-{node}")

    def _escalate(self, who: str, why: str, probe_at: str, node: str | None, id_: str) -> None:
        self.supervisor.tell(launcher_key(self.run), "ESCALATE", {"who": who, "why": why, "probe_at": probe_at},
                             node=node,
                       id_=id_)

    def _do_refuse(self, act: Action, view: GuardianView) -> None:
        assert act.posted is not None
        self._log("refused", {"file": act.posted.path.name, "why": act.why})
        signals.refuse(act.posted.path, act.why)

    def _do_node(self, act: Action, view: GuardianView) -> None:
        self._log("node", act.data, sync=True)

    def _do_flow(self, act: Action, view: GuardianView) -> None:
        self._log("flow", act.data, sync=True)

    def _do_gate(self, act: Action, view: GuardianView) -> None:
        self._log("gate", act.data, sync=True)

    def _do_manager(self, act: Action, view: GuardianView) -> None:
        self._log("manager", act.data, sync=True)

    def _do_cancel(self, act: Action, view: GuardianView) -> None:
        attempt = self.state.nodes[act.who].attempt
        self.supervisor.tell(self._runner(act.who), "GUIDANCE", {"action": "cancel", "text": act.why}, node=act.who,
                       attempt=attempt, id_=f"{self.run}-{act.who}-{attempt}-cancel")
        self._log("cancel", {"node": act.who, "attempt": attempt, "why": act.why}, sync=True)

    def _do_start(self, act: Action, view: GuardianView) -> None:
        try:
            if act.who == "processor":
                identity = self._start_processor(view)
            else:
                identity = self._start_runner(act.who, view.runners.get(act.who, ChildState()))
        except START_RACES as error:
            log_line(str(error))
            return
        attempt = self.state.nodes[act.who].attempt if act.who in self.state.nodes else 1
        self._log("spawn", self.supervisor.begun(identity, act.why, attempt, probe=act.kind == "probe"))

    _do_probe = _do_start

    def _do_heal(self, act: Action, view: GuardianView) -> None:
        full = self._key(act.who).full
        self._log("heal", {"full": full, "incarnation": self.state.circuit(full).probe, "why": act.why})

    def _key(self, who: str) -> Key:
        return self._processor if who == "processor" else self._runner(who)

    def _start_runner(self, node: str, view: ChildState) -> Any:
        if view.identity is not None and view.identity.status == "crashed":
            self.supervisor.sweep(view.identity)
        state = self.state.nodes[node]
        task = self._task(node, state.attempt)
        known = self.state.incarnations.get(self._runner(node).full, 0)
        return spawn_runner(self.world, self.launch, task, parent=self.life.key, journal_incarnation=known)

    def _task(self, node: str, attempt: int) -> Task:
        """The attempt's task, told to all its lives as it was told to the first."""
        path = self.files.attempt(node, attempt) / "task.json"
        task = run_records.load(Task, path)
        if task is None:
            planned = self.plan.tasks[node]
            context, told = flow_policy.task_context(self.state, node, planned.kind)
            task = build_task(planned, self.launch, self.plan, self.state.nodes[node], context, told)
            run_records.save(path, task)
        return task

    def _start_processor(self, view: GuardianView) -> Any:
        if view.processor.identity is not None and view.processor.identity.status == "crashed":
            self.supervisor.sweep(view.processor.identity)
        known = self.state.incarnations.get(self._processor.full, 0)
        return self.world.start_layer(SpawnRequest(self._processor, self.life.key, journal_incarnation=known),
                                      self.launch)

    def _lives(self, who: str, view: GuardianView) -> ChildState:
        return view.processor if who == "processor" else view.runners[who]

    def _do_replace(self, act: Action, view: GuardianView) -> None:
        self.supervisor.replace(self._lives(act.who, view), act.why, act.data.get("class", CRASH))

    def _do_record(self, act: Action, view: GuardianView) -> None:
        attempt = self.state.nodes[act.who].attempt if act.who in self.state.nodes else 1
        data = self.supervisor.death(self._lives(act.who, view), attempt)
        self.state.add_death(data)  # the crew journaled it

    def _do_park(self, act: Action, view: GuardianView) -> None:
        key = self._key(act.who)
        parks = self.state.circuit(key.full).parks + 1
        life = self._lives(act.who, view).identity
        assert life is not None
        cool_down, final = self.policy.cool_down(parks), act.data.get("final", False)
        self._escalate(key.full.partition("@")[0], act.why,
                       "" if final else iso(self.world.clock.time() + cool_down),
                       act.who if act.who in self.state.nodes else None, f"{key.full}-parked-{life.incarnation}")
        data = self.supervisor.park(self._lives(act.who, view), act.why, cool_down)
        self.state.turn("park", data)  # the crew journaled it

    def _do_term(self, act: Action, view: GuardianView) -> None:
        self.supervisor.term(self._lives(act.who, view))

    def _do_stray(self, act: Action, view: GuardianView) -> None:
        self.supervisor.replace(view.strays[act.who], act.why, STOP)

    def _do_run(self, act: Action, view: GuardianView) -> None:
        if act.who not in RUN_TRANSITIONS[self.state.status]:
            raise ForbiddenTransition(f"run {self.run}", self.state.status, act.who, RUN_TRANSITIONS[self.state.status])
        if act.who in ("done", "failed"):
            self.supervisor.tell(launcher_key(self.run), "PIPELINE_COMPLETE", {"status": act.who, "reason": act.why},
                           id_=f"{self.run}-complete")
        self._log("run", {"status": act.who, "reason": act.why}, sync=True)

    def _do_end(self, act: Action, view: GuardianView) -> None:
        self._move_hook()
        self.exit_code = exit_gracefully(self.life, self.state.status)
        self.supervisor.journal.close()

    def _move_hook(self) -> None:
        """Bring the own hook to the phase the nodes imply."""
        wanted = implied_phase(self.state)
        if wanted == self._phase or self.exit_code is not None:
            return
        now = self.world.clock.utc()
        self.life.hook(lambda old: advance_hook(old, wanted, now))
        self._phase = wanted
