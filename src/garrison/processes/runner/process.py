"""The runner: one node's worktree and branch, its orchestrator, acceptance and merge entry. Thin; see runner_policy.

If it dies, the orchestrator goes on; the next runner finds phase, facts and result on disk and adopts.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from garrison.merge.queue import MergeQueue
from garrison.processes.actions import Action, Decision
from garrison.processes.agent_activity import AgentActivity
from garrison.processes.fingerprint import all_beating, fingerprint_of, heartbeat_limit
from garrison.processes.loop import exit_gracefully, log_line
from garrison.processes.merge_client import MergeClient
from garrison.processes.parent import Parent
from garrison.processes.runner import policy
from garrison.processes.runner.jobs import SETUP, VALIDATOR, RunnerJobs
from garrison.processes.runner.policy import RunnerFacts, RunnerView
from garrison.processes.snapshots import Snapshotter
from garrison.processes.spawn import close_sessions, spawn_orchestrator, worktree_path, write_runner_state
from garrison.processes.supervisor import START_RACES, Supervisor, perform
from garrison.processes.worktree import Worktree
from garrison.records import hook as hooks
from garrison.records import run as run_records
from garrison.records import signals
from garrison.records.hook import Hook
from garrison.records.identity import Identity
from garrison.records.journal import Writer
from garrison.records.names import Key, branch_name
from garrison.records.run import Result, Task
from garrison.supervise import circuit
from garrison.supervise.restart import CRASH, Policy
from garrison.supervise.start import Incarnation
from garrison.system import disk_space, failpoint
from garrison.system.clock import iso
from garrison.system.git import Git
from garrison.system.terminal import choose_terminal, end_lost_server

if TYPE_CHECKING:
    from garrison.processes.fingerprint import Fingerprint
    from garrison.processes.runtime import Runtime
    from garrison.records.run import Launch
    from garrison.records.signals import Signal
    from garrison.supervise.decisions import ChildState
    from garrison.system.event_loop import EventLoop


_OURS = "validator-"
"""Begins the id of a question that our own validator asks."""


class Runner:
    """One life of a node's runner."""

    naps = True

    def __init__(self, world: Runtime, life: Incarnation, launch: Launch, task: Task) -> None:
        self.world, self.life, self.launch, self.task = world, life, launch, task
        self.files = world.files(launch.run_id)
        self.folder = self.files.attempt(task.node, task.attempt)
        self.orchestrator = Key("orchestrator", task.node, launch.run_id)
        self.branch = branch_name(launch.run_id, task.node)
        self.tree = worktree_path(launch, task.node)
        self.git = Git(Path(launch.repo))
        queue = MergeQueue(world.home, Path(launch.repo), launch.base, clock=world.clock, token=life.token,
                           git=self.git)
        self.entry = MergeClient(queue, task, self.branch, life.key.full)
        journal = Writer(self.files.layer_journal(f"runner-{task.node}"), life.token)
        self.facts = RunnerFacts()
        for entry in journal.entries:
            self.facts.apply(entry, task.attempt)
        self.supervisor = Supervisor(world, life, journal)
        self.parent = Parent(life, self.supervisor, task)
        self.policy = Policy.of(world.timing, launch.max_respawn)
        self.phase = world.store.get(Hook, life.key).phase
        self.terminal, note = choose_terminal(launch.terminal, world.home)
        if note:
            log_line(note)
        self.signs = AgentActivity(self.folder, self.tree, task)
        self.jobs = RunnerJobs(world, life, launch, task, self.git, self.tree)
        self.keeper = Snapshotter(world, life, launch, task, self.tree)
        self.work = Worktree(self.git, launch, task, self.tree, self.branch, self.folder, self._rescued)
        self._asked = ""
        self.stopping = False
        self.exit_code: int | None = None
        self._stopping_since: float | None = None
        self._wrong_result = ""
        self._unkept = ""
        self._view: RunnerView | None = None
        self._beats = str(world.store.life_path(self.orchestrator))
        self._seen = [str(path) for path in (
            world.store.path(Identity, self.orchestrator), *self.parent.records,
            signals.inbox_path(world.home, life.key),
            self.folder, self.tree, launch.repo)]
        self._decision = Decision([])
        self._log("open", {"incarnation": life.incarnation, "pid": life.identity.pid, "phase": self.phase})
        write_runner_state(world, launch, life.key, "active", life.identity.pid)

    # observe

    def observe(self) -> RunnerView:
        """Everything there is to see, now."""
        now = self.world.clock.monotonic()
        self._hear_job(now)
        inbox, merge = signals.list_pending(self.world.home, self.life.key), self.entry.look(self.phase)
        return RunnerView(
            self.task, self.phase, now, self.world.observer.where.boot_id, inbox=inbox,
            orchestrator=self.supervisor.guard(self.orchestrator, self.signs), result=self._result(), merge=merge,
            merge_told=self.facts.merge_told or self.entry.waited(merge, now), tree_ready=self.work.ready,
            job=self.jobs.name, validator=bool(self.jobs.command(VALIDATOR)),
            stopping=self.stopping, overdue=self._overdue(now), adhoc=self.launch.adhoc,
            orphaned_for=self.parent.alone_for(now), orphan_grace=self.world.timing.orphan_grace)

    def _overdue(self, now: float) -> bool:
        if self.stopping and self._stopping_since is None:
            self._stopping_since = now
        return self._stopping_since is not None and now - self._stopping_since > self.world.timing.stop_orchestrator

    def _result(self) -> Result | None:
        """The attempt's result if it is whole and of this run, node and attempt; anything else is said and ignored."""
        result, wrong = run_records.read_result(
            self.folder / "result.json", self.task.run_id, self.task.node, self.task.attempt)
        if wrong and wrong != self._wrong_result:
            log_line(wrong)
        self._wrong_result = wrong
        return result

    # the loop's Layer

    def turn(self) -> bool:
        """Observe, decide, act."""
        self._view = self.observe()
        self._keep(self._view)
        self._decision = policy.decide(self.facts, self._view, self.policy)
        for act in self._decision.acts:
            perform(self, act, self._view)
            if self.exit_code is not None:
                break
        return any(act.kind not in ("term", "stop_job") for act in self._decision.acts)

    def glance(self) -> Fingerprint | None:
        """While the orchestrator works and beats: its record, the parent's, the inbox, the result, the repository.

        An agent whose silence may be a hang is looked at whole each second.
        """
        self.supervisor.awake()
        view = self._view
        if self.stopping or view is None or not view.orchestrator.living or self.parent.alone:
            return None
        if self.task.silence_s is not None or (view.orchestrator.evidence or {}).get("stopped"):
            return None
        if not all_beating([self._beats], self.world.clock.monotonic(), heartbeat_limit(self.world.timing)):
            return None
        return fingerprint_of(self._seen)

    def watch(self, waker: EventLoop) -> None:
        """Wake at the end of the orchestrator or a job, at any signal, result or merge."""
        if self._view is not None:
            self.supervisor.watch(waker, [self._view.orchestrator], records=True)
        self.jobs.watch(waker)
        self.keeper.watch(waker)
        for folder in (self.folder, self.entry.folder):
            if folder.is_dir():
                waker.watch_directory(folder)

    def next_wake(self) -> float | None:
        """Seconds until a restart or a job's deadline is due."""
        due = [at for at in (self._decision.wake_at, self.jobs.wake_at, self.keeper.wake_at) if at is not None]
        return min(due) - self.world.clock.monotonic() if due else None

    def stop(self, _signum: int) -> None:
        """Stop in order: job, orchestrator, self; the attempt goes on at `--resume`."""
        self.stopping = True

    def abandon(self, why: str) -> None:
        """Fenced: end the own job, leave the orchestrator to the successor."""
        self.keeper.end()
        if self.jobs.name:
            self.world.processes.kill_tree(None, self.life.marker, grace=self.world.timing.sweep_grace)
        end_lost_server(self.world.home)

    def trouble(self, why: str) -> None:
        """What git or a record refuses for too long fails the node, with that reason."""
        if self.facts.failed:
            self._unkept = why
        else:
            gone = not Path(self.launch.repo).is_dir()
            self._fact("failed", f"the repository {self.launch.repo} is gone" if gone else why)

    # acts

    def _log(self, kind: str, data: dict[str, Any], *, sync: bool = False) -> None:
        self.facts.apply(self.supervisor.record(kind, data, sync=sync), self.task.attempt)

    def _do_take(self, act: Action, view: RunnerView) -> None:
        assert act.posted is not None and act.posted.signal is not None
        signal = act.posted.signal
        if signal.id not in self.facts.applied:
            self._forward(signal, act.data.get("forward", ""))
            self._log("signal", {"id": signal.id, "type": signal.signal_type, "attempt": signal.attempt, **act.data},
                      sync=True)
        failpoint.here(":signal-applied")
        signals.acknowledge(act.posted.path)

    def _forward(self, signal: Signal, where: str) -> None:
        """Pass a question up or an answer down, before it counts as applied: said twice is recognised, lost is not."""
        said = signal.payload
        asked = str(said.get("question_id", ""))
        if where == "down" and asked.startswith(_OURS):  # one that began anew meanwhile asks anew
            self.jobs.answer(asked.removeprefix(_OURS), str(said.get("text", "")))
        elif where == "up":
            self.parent.pass_on(signal)
        elif where == "down":
            self.supervisor.pass_on(self.orchestrator, signal)

    def _do_refuse(self, act: Action, view: RunnerView) -> None:
        assert act.posted is not None
        self._log("refused", {"file": act.posted.path.name, "why": act.why})
        signals.refuse(act.posted.path, act.why)

    def _do_tree(self, act: Action, view: RunnerView) -> None:
        """The worktree on the node's branch, begun at the target's tip; a predecessor's is taken as it is."""
        tip = self.git.rev(f"refs/heads/{self.launch.base}")
        if tip is None:
            self._fact("failed", f"the target branch {self.launch.base} is gone from {self.launch.repo}")
            return
        again = self.task.attempt > 1 and not self.facts.tree
        for note in self.work.begin(tip, again=again, living=view.orchestrator.living):
            log_line(note)
        if again:
            self._fact("tree", "made")

    def _do_job(self, act: Action, view: RunnerView) -> None:
        disk_space.require_space(self.tree)
        self._log("job", {"name": act.who, "command": self.jobs.command(act.who), "attempt": self.task.attempt})
        self.jobs.start(act.who, self.branch, view.now)

    def _hear_job(self, now: float) -> None:
        """Journal what a job came to, and tell the guardian what a validator waits for, once."""
        fact = self.jobs.poll(now)
        if fact is not None and not self.stopping:
            if fact == (SETUP, "ok"):
                self._fact("setup_key", self.work.setup_key())
                self.work.was_set_up()
            self._fact(fact.name, fact.value)
        question = self.jobs.question
        if question is None or question.id == self._asked:
            return
        self._asked = question.id
        self.parent.tell("NEEDS_INPUT", {"question": question.text, "question_id": f"{_OURS}{question.id}"},
                        f"{self.launch.run_id}-{self.task.node}-{self.task.attempt}-{_OURS}{question.id}")

    def _fact(self, name: str, value: str | int, kind: str = "") -> None:
        self._log("fact", {"name": name, "value": value, "kind": kind, "attempt": self.task.attempt}, sync=True)

    def _do_fact(self, act: Action, view: RunnerView) -> None:
        self._fact(act.who, act.data["value"], act.data.get("kind", ""))

    def _do_stop_job(self, act: Action, view: RunnerView) -> None:
        self.jobs.kill(view.now)

    def _do_move(self, act: Action, view: RunnerView) -> None:
        now = self.world.clock.utc()
        self.phase = self.life.hook(lambda old: hooks.change_phase(old, act.who, now)).phase

    def _do_again(self, act: Action, view: RunnerView) -> None:
        now = self.world.clock.utc()
        self.phase = self.life.hook(lambda old: hooks.reopen(old, now)).phase

    def _do_start(self, act: Action, view: RunnerView) -> None:
        """The orchestrator's life, in the terminal; a dead session of its name goes first."""
        if self.facts.setup == "ok" and self.facts.setup_key != self.work.setup_key():
            self._fact("setup", "")  # a life before changed what the set-up reads: once more, then the start
            return
        previous = view.orchestrator.identity
        if previous is not None:
            if previous.status == "crashed":
                self.supervisor.sweep(previous)
            close_sessions(self.terminal, previous)
            self.work.clear_locks()
        try:
            leased = spawn_orchestrator(self.world, self.launch, self.task, self.tree, self.terminal,
                                        parent=self.life.key, journal_incarnation=self.facts.incarnation)
        except START_RACES as error:
            log_line(str(error))
            return
        self._log("spawn", self.supervisor.begun(leased, act.why, self.task.attempt, probe=act.kind == "probe"))

    _do_probe = _do_start

    def _do_heal(self, act: Action, view: RunnerView) -> None:
        self._log("heal", {"full": self.orchestrator.full, "incarnation": self.facts.circuit.probe, "why": act.why,
                           "attempt": self.task.attempt})

    def _do_replace(self, act: Action, view: RunnerView) -> None:
        identity = view.orchestrator.identity
        if view.orchestrator.hung and identity is not None:
            said = {"incarnation": identity.incarnation, "why": act.why, "evidence": view.orchestrator.evidence}
            self.parent.tell("ORCHESTRATOR_STUCK", said, f"{self.orchestrator.full}-{identity.incarnation}-stuck")
        self.supervisor.replace(view.orchestrator, act.why, act.data.get("class", CRASH))

    def _do_record(self, act: Action, view: RunnerView) -> None:
        data = self.supervisor.buried(view.orchestrator, self.task.attempt)
        self.parent.tell("ORCHESTRATOR_CRASHED", {"incarnation": data["incarnation"], "why": data["why"]},
                        f"{self.orchestrator.full}-{data['incarnation']}-crashed")  # first: once recorded, nobody would
        self.facts.add_death(self.supervisor.record_death(data))

    def _do_park(self, act: Action, view: RunnerView) -> None:
        data = self.supervisor.park(view.orchestrator, act.why, self._cool_down(), self.task.attempt)
        self.facts.circuit = circuit.apply_event(self.facts.circuit, "park", data)  # the crew journaled it

    def _cool_down(self) -> float:
        return self.policy.cool_down(self.facts.circuit.parks + 1)

    def _do_keep(self, act: Action, view: RunnerView) -> None:
        """What a parked agent left is kept under a rescue ref; its tree stays for whoever resumes."""
        self.work.rescue("left when it was parked")

    def _do_term(self, act: Action, view: RunnerView) -> None:
        self.supervisor.term(view.orchestrator)

    def _do_enqueue(self, act: Action, view: RunnerView) -> None:
        self.entry.put()

    def _do_say(self, act: Action, view: RunnerView) -> None:
        data = {"node_id": self.task.node, "branch": self.branch, **act.data}
        stem = f"{self.launch.run_id}-{self.task.node}-{self.task.attempt}-{act.who}"
        if again := data.pop("again", ""):
            stem += f"-{again}"
        if act.data.get("parked"):
            data["probe_at"] = iso(self.world.clock.time() + self._cool_down())
        self.parent.tell(act.who, data, stem)

    def _do_give_up(self, act: Action, view: RunnerView) -> None:
        """Keep all the work under a rescue ref, then tell the guardian why the node failed."""
        ref, reason = "", act.why
        if self._unkept:  # nothing may be lost, and the run must not wait for ever
            reason += f"; its work stays in {self.tree}, for it could not be kept: {self._unkept}"
            self._close_session(view.orchestrator)
        else:
            ref = self.work.rescue("left when it failed")
            self._leave_tree(view.orchestrator)
        self._do_say(Action("say", "RUNNER_EXITED", data={
            "status": "failed", "kind": act.who, "reason": reason, "rescue": ref}), view)

    def _do_tidy(self, act: Action, view: RunnerView) -> None:
        """Everything is on the target (or pinned by the queue): the session and the tree go, the branch is archived."""
        self.work.rescue_rest()
        self._leave_tree(view.orchestrator)
        self.work.put_aside()

    def _keep(self, view: RunnerView) -> None:
        """What the agent has so far, at intervals."""
        working = self.work.ready and view.orchestrator.living and not self.stopping
        ref, note = self.keeper.turn(view.now, view.orchestrator.identity if working else None)
        if ref:
            self._rescued(ref)
        if note:
            log_line(note)

    def _rescued(self, ref: str) -> None:
        self._log("rescue", {"ref": ref, "attempt": self.task.attempt})

    def _close_session(self, orchestrator: ChildState) -> None:
        if orchestrator.identity is not None:
            close_sessions(self.terminal, orchestrator.identity)

    def _leave_tree(self, orchestrator: ChildState) -> None:
        self._close_session(orchestrator)
        self.keeper.end()
        self.work.leave()

    def _do_end(self, act: Action, view: RunnerView) -> None:
        self.keeper.end()
        if act.why == "stopped" and view.orchestrator.identity is not None:
            close_sessions(self.terminal, view.orchestrator.identity)
        if self.launch.adhoc:
            self.terminal.shutdown()
        write_runner_state(self.world, self.launch, self.life.key, f"terminated ({act.why})", os.getpid())
        self.exit_code = exit_gracefully(self.life, act.why, 1 if act.why == "failed" else 0)
        self.supervisor.journal.close()
