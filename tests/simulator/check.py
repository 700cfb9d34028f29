"""Rules: what must never happen (checked at every write), and what must have happened at the end.

The checks keep their own books, separate from the world's records, so that a mistake in the code under test is not
repeated here.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tests.simulator import flow_check
from tests.simulator.liveness import ORPHAN_GRACE
from tests.simulator.restarts import Restarts
from tests.simulator.violation import Violation

from garrison.ends import RefusedBy
from garrison.errors import ForbiddenTransition, GarrisonError
from garrison.node.policy import CANCELLED
from garrison.records.hook import PHASES, Hook
from garrison.records.identity import ALIVE, Identity
from garrison.records.names import Key
from garrison.records.signals import resume_id
from garrison.run.flow import RunFlow
from garrison.run.state import RUN_TRANSITIONS, RunState, to_snapshot
from garrison.supervise.restart import Policy
from garrison.testing.checker.promises import follows_an_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.simulator.world import Journal, Process, Run, World

    from garrison.records.journal import Entry
    from garrison.records.run import Result
    from garrison.records.signals import PostedSignal, Signal
    from garrison.run.state import NodeState
    from garrison.supervise.restart import Circuit

ORDER = list(PHASES)
DEATHS = Policy().intensity + 1
"""Deaths of a name before it may be parked."""
REWORKED = ("nothing", "acceptance", "conflict", "gate")
"""Fates that a new attempt may change."""
BEAT_TIMEOUT = 30.0
"""As `supervision.TIMING` has them."""
LOCKLESS = 10.0
"""Seconds for which a process may continue that has lost its life lock: the rest of its turn."""
SUPERVISOR = {"runner": "guardian", "processor": "guardian", "orchestrator": "runner"}
"""Role → role whose journal counts its deaths before a successor starts."""


def fresh(run: Run) -> RunState:
    """Return the state of a run before its first record."""
    assert run.plan.program is not None
    return RunState(flow=RunFlow(run.plan.program, run.id))


class Check:
    """Books of one world, and the rules."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.shadows: dict[str, RunState] = {}
        self.highest: dict[Key, int] = {}
        self.died: dict[Key, int] = {}
        """Deaths of each name, and ends that it was told to, before its work was done."""
        self.landings: dict[tuple[str, str], int] = {}
        self.heads: set[tuple[str, str, str]] = set()
        self.reported: dict[str, set[tuple[str, int]]] = {}
        self.applied: dict[str, set[str]] = {}
        self.deaths: dict[str, set[tuple[str, int]]] = {}
        self.done: dict[tuple[str, str], set[str]] = {}
        """Every unit of work that was committed."""
        self.began: dict[Key, int] = {}
        """Attempt in which a hook was last moved back."""
        self.ended: set[tuple[Key, int]] = set()
        """Incarnations that ended gracefully."""
        self.cancelled: set[tuple[str, int]] = set()
        """Runners and attempts that were cancelled before they had reported a failure."""
        self.edge: list[Key] = []
        """Names that died so often a moment ago that they are about to be parked."""
        self.lives: dict[str, dict[str, int]] = {}
        """Journal → name → its latest life that the journal tells of."""
        self.told: dict[str, dict[str, int]] = {}
        """Journal → name → its latest life of which the journal tells the end."""
        self.asked: dict[tuple[str, int], float] = {}
        """Name and incarnation of an orchestrator → when its runner asked it to stop."""
        self.restarts = Restarts(world)
        self.red_runs: dict[str, int] = {}
        """Entry → its gate runs that were not green."""
        self.hangs = self.probes = self.reworks = self.snapshots = 0

    def replay(self) -> None:
        """Read the journals again, which may be shorter after a power cut."""
        for run in self.world.runs.values():
            self.shadows[run.id] = fresh(run)
            for entry in run.journal.entries:
                self.shadows[run.id].apply(entry)
        self.applied.clear()
        self.deaths.clear()
        self.reported.clear()
        self.lives.clear()
        self.told.clear()
        for journal in [*(run.journal for run in self.world.runs.values()), *self.world.journals.values()]:
            for entry in [*journal.kept, *journal.entries]:
                self._book(journal.name, entry)

    # records

    def identity(self, proc: Process, old: Identity | None, new: Identity) -> None:
        """Check a change of an identity."""
        if old is not None and new.incarnation < old.incarnation:
            raise Violation(f"{new.key.full} went from incarnation {old.incarnation} back to {new.incarnation}")
        leased = new.status == "starting" and (old is None or old.agent_id != new.agent_id)
        if leased:
            self._leased(old, new)
        elif proc.key == new.key and proc.kind == "supervised" and old and proc.incarnation < old.incarnation:
            raise Violation(f"{proc.name} wrote over its successor")
        if new.status == "active" and old is not None and old.status == "starting":
            self._registered(proc, new)
        if new.status == "terminated":
            self.ended.add((new.key, new.incarnation))
        if new.status == "terminated" and new.reason == "orphaned" and old is not None and old.status in ALIVE:
            self._orphaned(proc)
        gone = new.status == "crashed" or (new.status == "terminated" and new.reason in ("stopped", "orphaned"))
        if gone and old is not None and old.status in ALIVE:
            self.died[new.key] = self.died.get(new.key, 0) + 1
            if self.died[new.key] >= DEATHS:
                self.edge.append(new.key)
        if new.status == "parked" and self.died.get(new.key, 0) < DEATHS:
            raise Violation(f"{new.key.full} was parked after {self.died.get(new.key, 0)} deaths")

    def _orphaned(self, proc: Process) -> None:
        """A runner gives up only after nothing above it was alive for long; what it took for dead may have died later.
        """
        if proc.key.role == "runner" and (lived := self.world.alone_for(proc)) < ORPHAN_GRACE / 2:
            raise Violation(f"{proc.name} ended as an orphan after {lived:.0f} s alone")

    def _leased(self, old: Identity | None, new: Identity) -> None:
        key = new.key
        if new.incarnation <= self.highest.get(key, 0):
            raise Violation(f"incarnation {new.incarnation} of {key.full} was leased twice")
        self.highest[key] = new.incarnation
        if old is not None and old.status in ALIVE:
            raise Violation(f"incarnation {new.incarnation} of {key.full} was leased over one that was not fenced")
        if old is not None and old.status == "crashed" and key.role in SUPERVISOR:
            self._counted(key, old.incarnation)
        self.restarts.leased(new)
        for proc in self.world.procs.values():
            if proc.key != key or proc.kind in ("gate", "command") or proc.incarnation >= new.incarnation \
                    or proc.doomed or proc.revenant:
                continue
            if proc.kind == "supervised" and (not proc.registered or (proc.key, proc.incarnation) in self.ended):
                continue  # it will refuse its lease, or is leaving
            raise Violation(f"{proc.name} still lived when incarnation {new.incarnation} was leased")
        if key.role == "runner":
            self._begun(key)

    def _counted(self, key: Key, incarnation: int) -> None:
        name = f"{SUPERVISOR[key.role]}-{key.name}@{key.run}" if key.role == "orchestrator" else key.run
        if (key.full, incarnation) not in self.deaths.get(name, ()):
            raise Violation(f"{key.full} has a successor before the death of incarnation {incarnation} was journaled")

    def _begun(self, key: Key) -> None:
        run = self.world.runs[key.run]
        for before in run.plan.predecessors[key.name] if run.plan.flow == "dag" else ():
            if before in run.plan.tasks and (run.id, before) not in self.landings \
                    and run.plan.initial.get(before) != "validated" \
                    and self.shadows[run.id].nodes[before].landing != "no change":
                raise Violation(f"{key.full} was started before {before} had landed")
        journal = self.world.runs[key.run].journal
        for entry in journal.entries[: journal.synced]:
            if entry.kind == "node" and entry.data["node"] == key.name and entry.data["status"] == "active":
                return
            if entry.kind == "snapshot" and entry.data["nodes"].get(key.name, {}).get("status") in \
                    ("active", "impl_complete", "validated"):
                return
        raise Violation(f"{key.full} was started before its attempt was on the disk")

    def _registered(self, proc: Process, new: Identity) -> None:
        for other in self.world.procs.values():
            if other is not proc and other.key == new.key and other.registered and other.kind == "supervised" \
                    and not other.revenant:
                raise Violation(f"{proc.name} registered alongside {other.name}")

    def hook(self, proc: Process, old: Hook | None, new: Hook) -> None:
        """Check a change of a hook: wisdom is never lost."""
        if old is None:
            return
        if proc.key == new.key and proc.kind == "supervised" and proc.incarnation < old.incarnation:
            raise Violation(f"{proc.name} wrote over its successor's hook")
        if new.incarnation < old.incarnation:
            raise Violation(f"hook {new.key.full} went back to incarnation {new.incarnation}")
        if ORDER.index(new.phase) < ORDER.index(old.phase) and new.key.role != "guardian":
            if proc.attempt <= self.began.get(new.key, 1):
                raise Violation(f"hook {new.key.full} went from {old.phase} back to {new.phase}")
            self.began[new.key] = proc.attempt
        if new.phase_history[: len(old.phase_history)] != old.phase_history:
            raise Violation(f"hook {new.key.full} lost history")
        if (new.last_committed_node or "") < (old.last_committed_node or ""):
            raise Violation(f"hook {new.key.full} forgot {old.last_committed_node}")
        if (new.resumption_instructions or "") < (old.resumption_instructions or ""):
            raise Violation(f"hook {new.key.full} forgot notes")

    def result(self, proc: Process, result: Result) -> None:
        """Check a result: the recorded incarnation writes it, once."""
        identity = self.world.identities[proc.key]
        if identity.status == "crashed":
            raise Violation(f"{proc.name} wrote a result although it was fenced")
        if identity.incarnation > proc.incarnation:
            raise Violation(f"{proc.name} wrote a result after incarnation {identity.incarnation} had started")
        if (result.run_id, result.node, result.attempt) in self.world.results:
            raise Violation(f"{proc.name} did {result.node} twice: there was a result")

    def commit(self, proc: Process, run: str, node: str, unit: str) -> None:
        """Check a commit: none is made alongside a successor, and no unit of work is done twice."""
        holder = self.world.life_locks.get(proc.key)
        if holder is not None and holder.incarnation > proc.incarnation and holder.registered and not proc.revenant:
            raise Violation(f"{proc.name} commits alongside {holder.name}")
        if unit in self.world.branches[(run, node)]:
            raise Violation(f"{proc.name} did {unit} of {node} twice")

    def kills(self, proc: Process, why: str) -> None:
        """Check a kill: only our own processes are killed."""
        if proc.kind == "decoy":
            raise Violation(f"{proc.name}, a foreign process, was killed: {why}")

    # journals

    def journal(self, proc: Process, journal: Journal, entry: Entry) -> None:
        """Check a record that is about to be appended."""
        last = journal.entries[-1] if journal.entries else None
        if last is not None and entry.epoch < last.epoch:
            raise Violation(f"{proc.name} wrote to {journal.name} with epoch {entry.epoch} after {last.epoch}")
        if journal.name == "merge":
            self._merge(entry)
            return
        if last is not None and entry.epoch == last.epoch and entry.token != last.token:
            raise Violation(f"{entry.token} and {last.token} write {journal.name} at once")
        if entry.kind == "signal" and entry.data["id"] in self.world.forged:
            raise Violation(f"{proc.name} applied {entry.data['id']}, which is of another run, attempt or incarnation")
        self._book(journal.name, entry)
        if entry.kind == "death":
            self._check_asked(entry)
        self.restarts.recorded(journal.name, entry)
        if entry.kind == "signal" and entry.data.get("cancel") and proc.key.role == "runner":
            self._check_cancel(proc, entry.data["attempt"])
        if entry.kind == "signal" and entry.data.get("cancel") and not any(
                signal.sender == proc.key and (signal.signal_type, signal.attempt) == ("RUNNER_EXITED", proc.attempt)
                for signal in self.world.sent):
            self.cancelled.add((proc.key.full, entry.data["attempt"]))
        run = self.world.runs[proc.key.run]
        if journal is run.journal:
            self._run(run, entry)

    def _check_cancel(self, proc: Process, attempt: int) -> None:
        """Check that a runner cancels no attempt whose work is in the merge queue."""
        for entry in self.world.queue.entries_of(proc.key.run, proc.key.name):
            if entry.attempt == attempt and (not entry.is_final or entry.status == "landed"):
                raise Violation(f"{proc.name} cancels attempt {attempt}, whose work is {entry.status} in the queue")

    def _book(self, name: str, entry: Entry) -> None:
        if entry.kind == "signal":
            applied = self.applied.setdefault(name, set())
            if entry.data["id"] in applied:
                raise Violation(f"{name} applied {entry.data['id']} twice")
            applied.add(entry.data["id"])
        if entry.kind == "death":
            self._check_reported(entry)
            deaths = self.deaths.setdefault(name, set())
            death = (entry.data["full"], entry.data["incarnation"])
            if death in deaths:
                raise Violation(f"{name} counted the death of {death} twice")
            deaths.add(death)
        self._check_successor(name, entry)

    def _check_asked(self, entry: Entry) -> None:
        """Check that no death is counted of an orchestrator that its runner asked to stop."""
        full, life = str(entry.data["full"]), int(entry.data["incarnation"])
        identity = self.world.identities.get(Key.parse(full))
        if self.asked.get((full, life), -1.0) > self.world.booted_at and entry.data.get("class") == "crash" \
                and identity is not None and (identity.incarnation, identity.reason) == (life, "stopped"):
            raise Violation(f"{full}#{life} stopped as it was asked to, and that counts as a death")

    def _check_successor(self, name: str, entry: Entry) -> None:
        """Check that a journal records the end of a runner or an orchestrator before its next start, as `garrison
        verify` requires."""
        lives, told = self.lives.setdefault(name, {}), self.told.setdefault(name, {})
        data, ends = entry.data, dict[str, int]()
        if entry.kind in ("death", "fenced", "swept"):
            ends = {str(data["full"]): int(data["incarnation"])}
        elif entry.kind == "fact" and data["name"] in ("change", "failed"):
            ends = dict(lives)
        elif entry.kind == "signal":
            ends = {full: int(life) for full, life in (data.get("lives") or data.get("resume") or {}).items()}
            if data.get("type") == "RUNNER_EXITED":
                ends[str(data["from"])] = int(data["incarnation"])
        for full, life in ends.items():
            told[full] = max(life, told.get(full, 0))
        if entry.kind != "spawn" or not str(data["full"]).startswith(("runner-", "orchestrator-")):
            return
        full, before = str(data["full"]), lives.get(str(data["full"]), 0)
        if told.get(full, 0) < before and not follows_an_end(data):
            raise Violation(f"{full} got life {data['incarnation']} ({data['why']}), and no record tells the end of "
                            f"life {before}")
        lives[full] = int(data["incarnation"])

    def _check_reported(self, entry: Entry) -> None:
        """Check that a runner reports a death before recording it: afterwards no successor would."""
        key = Key.parse(entry.data["full"])
        report = f"{key.full}-{entry.data['incarnation']}-crashed"
        if key.role == "orchestrator" and all(signal.id != report for signal in self.world.sent):
            raise Violation(f"the death of incarnation {entry.data['incarnation']} of {key.full} was recorded before "
                            "it was reported")

    def _run(self, run: Run, entry: Entry) -> None:
        shadow = self.shadows[run.id]
        if entry.kind == "run" and entry.data["status"] not in RUN_TRANSITIONS[shadow.status]:
            raise Violation(f"run {run.id} went from {shadow.status} to {entry.data['status']}")
        changed = (entry.data.get("effect") or {}) if entry.kind == "signal" else entry.data
        if entry.kind in ("signal", "node") and changed:
            self._rework(run, changed, shadow)
        if entry.kind == "landing":
            self._check_landing(run, entry.data)
        flow_check.check_reports(shadow, entry, self.reported.setdefault(run.id, set()))
        try:
            shadow.apply(entry)
        except ForbiddenTransition as error:
            raise Violation(f"the journal of {run.id} can no longer be read: {error}") from error
        change = entry.data.get("effect") or {} if entry.kind == "signal" else entry.data
        if entry.kind == "node" and change.get("status") == "active":
            self._check_agents(run, shadow, change["node"])
        if change.get("node") and change.get("status") in ("validated", "failed"):
            self._check_attempts_entry(run, shadow.nodes[change["node"]], change)
        if change.get("status") == "validated" and (run.id, change["node"]) not in self.landings \
                and run.plan.initial.get(change["node"]) != "validated" and not self._may_change_nothing(run, change):
            raise Violation(f"{change['node']} was called validated without having landed")
        if entry.kind == "signal" and entry.data.get("unhold"):
            self._check_unparked(shadow, entry.data["unhold"])
        if entry.kind == "run":
            self._run_changed(run, shadow, entry.data["status"])

    def _check_landing(self, run: Run, data: dict[str, Any]) -> None:
        most = (run.max_rework + 1) * (1 + run.resumes + run.retries)
        if data["status"] == "requested" and data.get("attempt", 1) > most:
            raise Violation(f"run {run.id} is to land for the {data['attempt']}th time, and {most} are allowed")
        self.world.target.check_record(run.id, data)

    def _check_attempts_entry(self, run: Run, node: NodeState, change: dict[str, Any]) -> None:
        """An attempt ends by the fate of its own merge entry: it fails with none that may land, and succeeds only with
        one that lands. A power cut may have taken the entry."""
        of_attempt = [entry for entry in self.world.queue.entries_of(run.id, change["node"])
                      if entry.attempt == node.attempt]
        if change["status"] == "failed" and any(entry.status in ("held", "queued", "candidate", "testing", "landing")
                                                for entry in of_attempt):
            raise Violation(f"{change['node']} fails in attempt {node.attempt}, which is in the merge queue")
        if change["status"] == "validated" and not any(entry.status in ("landed", "landing") for entry in of_attempt) \
                and change.get("landing") != "no change" and run.plan.initial.get(change["node"]) != "validated":
            status = of_attempt[-1].status if of_attempt else "not in the merge queue"
            raise Violation(f"{change['node']} succeeds, and its attempt {node.attempt} is {status}")

    def _check_unparked(self, shadow: RunState, name: str) -> None:
        """What a user has unparked is parked no more, with all that it had died."""
        for full, circuit in shadow.circuits.items():
            key = Key.parse(full)
            if (key.name if key.role == "runner" else key.role) == name and (circuit.parked or circuit.parks):
                raise Violation(f"{full} is still {circuit.state} after a user unparked it")

    def _run_changed(self, run: Run, shadow: RunState, status: str) -> None:
        """Check the status that a run has got."""
        if status == "stopped":
            self._check_nothing_alive(run)
        elif status == "failed":
            self._check_all_parked(run, shadow)
        elif status == "done":
            flow_check.check_end(shadow)
            left = [name for name, node in shadow.nodes.items() if node.status != "validated"] \
                if run.plan.flow == "dag" else []
            if left or set(shadow.nodes) != set(run.plan.tasks):
                raise Violation(f"run {run.id} was called done without {left}")

    def _check_agents(self, run: Run, shadow: RunState, started: str) -> None:
        """No more agents are at work than the run may have; one that is parked, or about to be stopped, is none."""
        at_work = sorted({proc.key.name for proc in self.world.procs.values() if proc.kind == "agent"
                          and proc.key.run == run.id and proc.key.name not in (started, *shadow.held)
                          and not proc.revenant and not proc.doomed and shadow.nodes[proc.key.name].status == "active"
                          and shadow.nodes[proc.key.name].attempt == proc.attempt})
        if len(at_work) >= run.max_agents and not any(
                self.died.get(Key(role, name, run.id), 0) >= DEATHS for name in at_work
                for role in ("runner", "orchestrator")):
            raise Violation(f"{started} was started alongside {at_work}, and {run.max_agents} agents are allowed")

    def _check_nothing_alive(self, run: Run) -> None:
        """Check that a stopped run has no process left but its launcher and its guardian."""
        for proc in self.world.procs.values():
            if (proc.kind == "supervised" and proc.key.run == run.id and proc.key.role in SUPERVISOR
                    and proc.registered and not proc.doomed and not proc.revenant
                    and (proc.key, proc.incarnation) not in self.ended):
                raise Violation(f"run {run.id} was called stopped while {proc.name} lives")

    def _may_change_nothing(self, run: Run, change: dict[str, Any]) -> bool:
        """Return whether an attempt that is recorded as without a change may end in success."""
        fate, name = run.fates[change["node"]], change["node"]
        return change.get("landing") == "no change" and run.tasks[name].allow_empty and \
            fate.at(change["attempt"]) == "nothing"

    def _check_all_parked(self, run: Run, shadow: RunState) -> None:
        """Check that a run that fails has no working agent that its guardian only takes for parked."""
        for name in shadow.stuck:
            agent, runner = Key("orchestrator", name, run.id), Key("runner", name, run.id)
            coming = any(signal is not None and signal.sender == runner for signal in
                         self.world.inbox.get(Key("guardian", "pipe", run.id), {}).values())
            journal = self.world.journals.get(runner)
            records = [entry for entry in (journal.entries if journal else ()) if entry.data.get("full") == agent.full]
            if self.world.view(agent).living and not coming and records and records[-1].kind == "spawn":
                raise Violation(f"run {run.id} failed while {agent.full} works: it was taken for parked")

    def _merge(self, entry: Entry) -> None:
        names = [str(name) for name in entry.data.get("entries") or ()]
        if entry.kind == "verdict" and entry.data.get("result") != "green" and not entry.data.get("reused"):
            for name in names:
                self.red_runs[name] = self.red_runs.get(name, 0) + 1
        if entry.kind == "state" and entry.data.get("status") == "rejected":
            for name in names:
                if self.red_runs.get(name, 0) < 2:
                    raise Violation(f"{name} is rejected after {self.red_runs.get(name, 0)} red runs")
        if entry.kind == "landed" and entry.data["commit"] not in self.world.history:
            raise Violation(f"{entry.data['entry']} was called landed, and {entry.data['commit']} is not on the target")

    def queue_written(self, proc: Process, epoch: int | None) -> None:
        """Check who writes to the queue's journal: no processor but the last that took it."""
        if epoch is not None and epoch != self.world.queue.epoch:
            raise Violation(f"{proc.name} writes with epoch {epoch}, and the queue is at {self.world.queue.epoch}")

    def swapped(self, proc: Process, old: str) -> None:
        """Check what the target was, by which a processor built what it is to be."""
        if self.world.history[-1] != old:
            raise Violation(f"{proc.name} moves the target from {self.world.history[-1]}, and takes it to be at {old}")

    def landed(self, merged: tuple[str, str, str]) -> None:
        """Check a swap of the target: a branch lands once."""
        key = merged[:2]
        self.landings[key] = self.landings.get(key, 0) + 1
        if merged in self.heads:
            raise Violation(f"{merged} landed twice")
        self.heads.add(merged)
        run, attempt = self.world.runs[key[0]], self.shadows[key[0]].nodes[key[1]].attempt
        if merged[2].endswith(":") and run.fates[key[1]].at(attempt) == "nothing":
            raise Violation(f"{key} landed in attempt {attempt}, which changed nothing")
        if self.landings[key] > 1 and run.plan.flow == "dag" and not run.lands:
            raise Violation(f"{key} landed {self.landings[key]} times")

    def left_over(self, proc: Process, key: tuple[str, str]) -> None:
        """Check that an attempt finds an earlier one's worktree only where that was parked, failed or cancelled."""
        attempt = proc.attempt - 1
        if self.world.worktree_attempts.get(key) == proc.attempt:
            return  # an earlier incarnation made it
        node = self.shadows[key[0]].nodes[key[1]]
        if (key[1], attempt) in self.reported.get(key[0], ()) and node.status != "failed" and not any(
                self.died.get(Key(role, key[1], key[0]), 0) >= DEATHS for role in ("runner", "orchestrator")):
            raise Violation(f"{proc.name} started in the worktree of attempt {attempt}, which was not cleaned up yet")

    def exits(self, proc: Process, error: GarrisonError) -> None:
        """Check an error that ended a process: a refused start or a fence may, a forbidden transition is a bug."""
        if isinstance(error, ForbiddenTransition):
            raise Violation(f"{proc.name} died of a bug: {error}") from error

    def acknowledged(self, journal: Journal, key: Key, signal: Signal) -> None:
        """Check a signal that leaves its inbox as applied: its effect is recorded, so that no death can lose it."""
        if key.role in ("guardian", "runner") and signal.id not in self.applied.get(journal.name, ()):
            raise Violation(f"{key.full} takes {signal.id} out of its inbox before its effect is recorded")

    def goes_on(self, proc: Process) -> None:
        """Check a process that has just done something: without its life lock it does so for a moment at most."""
        if proc.kind != "supervised" or not proc.registered or self.world.life_locks.get(proc.key) is proc \
                or self.world.queue_lock is not None:
            proc.lockless_since = None
        elif proc.lockless_since is None:
            proc.lockless_since = self.world.t
        elif self.world.t - proc.lockless_since > LOCKLESS:
            raise Violation(f"{proc.name} continues {LOCKLESS:.0f} s after it has lost its life lock")

    # hangs, parking and rework

    def hung(self, watcher: Process, proc: Process, timeout: float) -> None:
        """A process is about to be called hung: it did nothing for the timeout, while its watcher was not held up.

        A watcher cannot tell a short hold of its own from a sleep: each counts a quarter of the timeout at most. A
        command, which observes but once, gives a process that was thawed a moment ago the time between two observations
        to beat.
        """
        self.hangs += 1
        now = self.world.t
        if not proc.alive:
            return
        since = now if proc.quiet_since is None else proc.quiet_since
        cap, need = (0.0, 0.9) if watcher.kind == "command" else (BEAT_TIMEOUT / 4, timeout * 0.99)
        held = [max(0.0, min(to, now) - max(begin, since)) for begin, to in watcher.holds]
        watched = now - since - sum(max(0.0, hold - cap) for hold in held)
        if watched < need or now - since < timeout * 0.99:
            raise Violation(f"{proc.name} was called hung after {now - since:.1f} s, {watched:.1f} s of them watched")
        if timeout < BEAT_TIMEOUT and (proc.key.role, proc.state) != ("processor", "T"):
            raise Violation(f"{proc.name} was called hung after {timeout:g} s already")
        if proc.state == "D" and proc.stopped_until > now:
            raise Violation(f"{proc.name} was called hung while the kernel held it")

    def probed(self, proc: Process, full: str, circuit: Circuit, observed_at: float, *, awaited: bool = True,
               late: float = 1.0) -> None:
        """Check a supervisor that observes at the monotonic time `observed_at`, or sleeps until then, and does nothing:
        no parked name that the run waits for may be due for its probe."""
        if not circuit.parked or not awaited or circuit.boot_id != self.world.boot_id:
            return
        due = circuit.since + min(7200.0, 600.0 * 2 ** (circuit.parks - 1))
        if observed_at > due + late:
            raise Violation(f"{full} is due for its probe {observed_at - due:.0f} s before {proc.name} does anything")

    def up_decided(self, launcher: Key, inbox: Sequence[PostedSignal], options: list[str] | None) -> None:
        """Check what `garrison up` decides on a run without a living process, whose launcher it found dead.

        It gets a launcher if it is under way, and one that resumes it if the launcher that was to tell the guardian so
        died before.

        Args:
            options: of the new launcher; None if there is to be none.
        """
        run, ours = launcher.run, [one for key, one in self.world.identities.items() if key.run == launcher.run]
        if any(one.status in ("parked", "held") and one.role in ("launch", "guardian") for one in ours) \
                or any(proc.key.run == run and proc.kind == "supervised" for proc in self.world.procs.values()):
            return
        if self.shadows[run].status == "running" and options is None:
            raise Violation(f"run {run} is running, no process of it lives, and `garrison up` starts nothing")
        carrier = self.world.identities.get(launcher)
        request = resume_id(run, carrier.incarnation) if carrier is not None else ""
        if carrier is not None and carrier.status in ("active", "crashed") \
                and request not in self.shadows[run].applied \
                and any(posted.signal is not None and posted.signal.id == request for posted in inbox) \
                and "--resume" not in (options or ()):
            raise Violation(f"a user resumed {run}, the launcher died, and `garrison up` does not resume it")

    def compacted(self, proc: Process, journal: Journal, entry: Entry) -> None:
        """Check a snapshot: it holds all that the records it replaces did."""
        self.snapshots += 1
        if self.world.life_locks.get(proc.key) is not proc:
            return  # it lost its lock a moment ago, and its journal with it
        shadow, restored = self.shadows[proc.key.run], fresh(self.world.runs[proc.key.run]).apply(entry)
        # Field by field, and not as snapshots: what `to_snapshot` forgets is missing in both of those.
        lost = [each.name for each in fields(RunState) if each.compare
                and getattr(shadow, each.name) != getattr(restored, each.name)]
        if lost or to_snapshot(shadow) != to_snapshot(restored):
            raise Violation(f"the snapshot of {journal.name} lost something of {', '.join(lost)}: "
                            f"{to_snapshot(restored)}")

    def _rework(self, run: Run, change: dict[str, Any], shadow: RunState) -> None:
        """Check a node's change before it is applied: attempts follow one another, as many as are allowed."""
        old = shadow.nodes.get(change["node"])
        attempt = change.get("attempt", 1)
        flow_check.check_attempt(shadow, change, run.max_rework)
        if old is None or attempt == old.attempt:
            return
        self.reworks += 1
        if change.get("kind") == RefusedBy.MOVED and not any(
                entry.moved and entry.attempt == old.attempt
                for entry in self.world.queue.entries_of(run.id, change["node"])):
            raise Violation(f"attempt {old.attempt} of {change['node']} was no rework, though the target had not moved")
        self._check_not_cancelled(run, change["node"], old.attempt)
        if run.plan.flow == "walk" or run.lands:  # a landing that was refused runs nodes again
            return
        moved = old.moved + (change.get("kind") == RefusedBy.MOVED)
        if attempt != old.attempt + 1 or attempt > run.max_rework + 1 + moved + run.again:
            raise Violation(f"{change['node']} got attempt {attempt} after {old.attempt}, {run.max_rework} are allowed")

    def _check_not_cancelled(self, run: Run, name: str, attempt: int) -> None:
        """Check that a node whose runner was cancelled before it reported a failure gets no new attempt."""
        if run.plan.flow == "dag" and not run.again and (Key("runner", name, run.id).full, attempt) in self.cancelled:
            raise Violation(f"{name} got a new attempt though attempt {attempt} was cancelled")

    # at the end

    def final(self, run: Run) -> None:
        """Check the end of a run: it ended as the fates of its tasks say, or its records say why not."""
        shadow = self.shadows[run.id]
        for name, node in shadow.nodes.items():
            fate = run.fates[name]
            if run.plan.initial.get(name) in ("validated", "failed"):
                continue
            if node.status == "failed" and node.kind != CANCELLED and node.rework < run.max_rework and \
                    fate.kind in REWORKED and self._was_red(fate.kind, node.reason):
                raise Violation(f"{name} failed in attempt {node.attempt} ({node.reason}) and was not reworked")
            if node.status == "failed" and not self._deserved(run, name, node.reason):
                raise Violation(f"{name} failed ({node.reason}), although its fate was {fate}")
            if node.status == "validated":
                self._check_validated(run, name, node)
            self._check_settled(run, shadow, name)
        self._check_commits_kept()
        flow_check.check_end(shadow)
        if run.lands:
            self.world.target.check_end(run)
        unfinished = [name for name, node in shadow.nodes.items() if node.status in ("active", "impl_complete")]
        if shadow.status == "failed" and not all(self._is_parked(run, shadow, name) for name in unfinished):
            raise Violation(f"run {run.id} failed though one of {unfinished} was not parked")
        if shadow.status == "failed" and not shadow.flow.over and any(
                shadow.nodes[place.node].status == "pending" for place in shadow.flow.places.values()
                if place.node in shadow.nodes):
            raise Violation(f"run {run.id} failed with tasks left to start")

    def _check_settled(self, run: Run, shadow: RunState, name: str) -> None:
        """Check that nothing failed has landed, and that a run that is done leaves no worktree of what landed."""
        node = shadow.nodes[name]
        if node.status == "failed" and any(entry.attempt == node.attempt and entry.status == "landed"
                                           for entry in self.world.queue.entries_of(run.id, name)):
            raise Violation(f"{name} failed ({node.reason}), and attempt {node.attempt} has landed")
        if self.landings.get((run.id, name)) and not any(
                entry.status == "landed" for entry in self.world.queue.entries_of(run.id, name)):
            raise Violation(f"{name} of {run.id} is on the target, and no entry of the queue has landed")
        if shadow.status == "done" and node.status == "validated" and (run.id, name) in self.world.worktrees:
            raise Violation(f"the worktree of {name} is left, and run {run.id} is done")

    def _check_validated(self, run: Run, name: str, node: NodeState) -> None:
        """A node succeeds if its fate allows it, and it has landed, unless it changed nothing and may."""
        fate, landed = run.fates[name].at(node.attempt), self.landings.get((run.id, name), 0)
        if fate == "nothing" and node.landing == "no change" and run.tasks[name].allow_empty:
            return
        if fate not in ("success", "nothing"):  # with a kept branch, the work of an attempt before may land
            raise Violation(f"{name} was validated, although its fate was {run.fates[name]}")
        if not landed or (landed > 1 and run.plan.flow == "dag" and not run.lands):
            raise Violation(f"{name} was validated, and landed {landed} times")

    def _check_commits_kept(self) -> None:
        """Check that no commit is lost: it is on a branch, archived, or under a rescue ref."""
        for key, units in self.done.items():
            kept = {*self.world.branches.get(key, ()), *self.world.archived.get(key, ()),
                    *self.world.saved.get(key, ())}
            if lost := units - kept:
                raise Violation(f"{sorted(lost)} of {key} are lost")

    def _is_parked(self, run: Run, shadow: RunState, name: str) -> bool:
        """Return whether a process that a node under way needs was parked after enough deaths."""
        waits = {"active": (f"runner-{name}", f"orchestrator-{name}"), "impl_complete": ("processor-",)}
        stems = waits[shadow.nodes[name].status]
        return any(key.run == run.id and key.full.startswith(stems) and count >= DEATHS
                   for key, count in self.died.items())

    def _was_red(self, kind: str, reason: str) -> bool:
        return reason.startswith({"nothing": "it ended as a success, but changed nothing",
                                  "acceptance": "acceptance ended", "conflict": "conflict", "gate": "red"}[kind])

    def _deserved(self, run: Run, name: str, reason: str) -> bool:
        if run.fates[name].at(self.shadows[run.id].nodes[name].attempt) != "success" or not reason:
            return bool(reason)
        if self.shadows[run.id].nodes[name].kind == "cancelled":
            return run.plan.flow == "walk" or (run.id, name) in self.world.cancels
        if reason == "a user":
            return (run.id, name) in self.world.cancels
        if reason.endswith("exit code -9"):
            return (run.id, name) in self.world.harmed  # an agent or job that was killed counts as failed
        if reason == "lost":
            return True  # its gate was killed again and again
        roles = {"runner": f"runner-{name}", "orchestrator": f"orchestrator-{name}", "merge processor": "processor"}
        for role, stem in roles.items():
            if f"{role} failed too often" in reason:
                died = [count for key, count in self.died.items()
                        if key.run == run.id and key.full.startswith(stem)]
                return max(died, default=0) >= DEATHS
        return False
