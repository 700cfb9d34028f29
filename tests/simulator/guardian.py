"""The guardian: `run/guardian_policy.py` decides; each action is carried out with the writes of `run/guardian.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, cast

from tests.simulator.merge_processor import Processor
from tests.simulator.runner import Runner
from tests.simulator.supervision import (
    TIMING,
    SimulatedProcess,
    death_class_of,
    existing,
    launcher_key_of,
    sweep,
)
from tests.simulator.world import Effect, Process, World, key_of

from garrison.processes.actions import Action, ActionKind, ApplySignal
from garrison.records.events import ChildHealed, GuardianSignal, NodeCancelled, RunChanged
from garrison.records.hook import advance_phase
from garrison.records.identity import ALIVE
from garrison.records.journal import Entry
from garrison.records.names import Key
from garrison.records.run import Result
from garrison.records.signals import CancelNode, Escalation, PipelineComplete, UnparkNode
from garrison.run import flow_policy, guardian_policy
from garrison.run import state as run_state
from garrison.run.flow import RunFlow
from garrison.run.guardian_view import GuardianView, LandingView
from garrison.run.merge_client import MergeStatus
from garrison.run.state import RUN_TRANSITIONS, RunState
from garrison.supervise import death_classes
from garrison.supervise.decisions import ChildState
from garrison.supervise.incarnation import SpawnRequest
from garrison.supervise.restart import Policy

if TYPE_CHECKING:
    from garrison.merge.records import QueueRecord

COMPACTIONS = 0.02
"""Share of turns after which the journal is compacted."""


class Guardian(SimulatedProcess):
    """One incarnation of a run's guardian."""

    def __init__(self, world: World, me: Process) -> None:
        super().__init__(world, me)
        self.processor_key = key_of("processor", self.key.name, self.run.id)
        assert self.run.plan.program is not None
        self.state = RunState(flow=RunFlow(self.run.plan.program, self.run.id))
        self.policy = Policy(total=10)
        self.leaving_since: float | None = None
        self.phase = "planning"

    def apply(self, entry: Entry) -> None:
        self.state.apply(entry)

    # ---- observe

    def observe(self) -> Effect:
        """Gather what the policy decides on, in the real one's order; each part may be older than the next."""
        world = self.world
        runners = {name: self.watch.judge(world.view(self._runner_key(name))) for name in self.state.nodes}
        strays = self._strays(runners)
        if world.rng.random() < 0.3:
            yield None
        inbox, processor = world.pending(self.key), self.watch.judge(world.view(self.processor_key))
        if world.rng.random() < 0.3:
            yield None
        merges = {entry.node: MergeStatus.of(entry) for entry in world.queue.entries.values()
                  if entry.run == self.run.id}
        return GuardianView(
            self.run.id, world.mono, world.boot_id, inbox, runners, processor, merges, strays, self.stopping,
            self._is_overdue(), wall=world.wall, results=self._results(), landing=self._landing(),
            turns={turn.node: turn for turn in world.queue.turns.values() if turn.run == self.run.id})

    def _strays(self, runners: Mapping[str, ChildState]) -> dict[str, ChildState]:
        """Find living orchestrators that have no runner to stop them, though they are to stop."""
        is_leaving = self.stopping or self.state.status in run_state.ENDED
        if not is_leaving and not self.state.held:
            return {}
        strays = {}
        for name in self.state.nodes:
            if runners[name].living or not (is_leaving or name in self.state.held):
                continue
            child = self.world.view(key_of("orchestrator", name, self.run.id))
            if child.identity and child.identity.status in ALIVE:
                strays[name] = child
        return strays

    def _landing(self) -> LandingView | None:
        flow = self.state.flow
        if not self.run.lands or flow is None or flow.over != "done" or self.state.status in ("done", "failed"):
            return None
        return self.world.target.view(self.run)

    def _is_overdue(self) -> bool:
        if not self.stopping and self.state.status not in run_state.ENDED:
            return False
        if self.leaving_since is None:
            self.leaving_since = self.world.mono
        return self.world.mono - self.leaving_since > TIMING.stop_runner

    def _results(self) -> dict[str, Result | None]:
        """Read the results of attempts that are over, and that the flow does not know yet."""
        results = {}
        for place in self.state.flow.places.values() if self.state.flow is not None else ():
            node = self.state.nodes.get(place.node)
            if node is not None and node.status in ("validated", "failed") and flow_policy.is_at(node, place):
                results[place.node] = self.world.results.get((self.run.id, place.node, node.attempt))
        return results

    def turn(self) -> Effect:
        view = yield from self.observe()
        yield None
        self.decision = guardian_policy.decide(self.run.plan, self.state, view, self.run.max_agents, self.policy,
                                               self.run.max_rework)
        if not self.decision.actions:
            self._check_probes(view.now, 1.0)
        again = yield from self.perform(self.decision.actions, view)
        if not self.has_ended:
            if self.world.rng.random() < COMPACTIONS:
                self.world.compact(self.me, self.journal, run_state.to_snapshot(self.state), self.epoch)
                yield None
            yield from self._move_hook()
        return again

    def check_sleep(self, until: float) -> None:
        self._check_probes(until, 5.0)

    def _check_probes(self, at: float, late: float) -> None:
        if self.state.status == "running" and not self.stopping:
            for full, circuit in self.state.circuits.items():
                self.world.check.probed(self.me, full, circuit, at, awaited=self._is_awaited(full), late=late)

    def has_fingerprint(self) -> bool:
        return not self.stopping and self.state.status == "running"

    def _is_awaited(self, full: str) -> bool:
        """Return whether the run waits for a parked name to continue."""
        key = Key.parse(full)
        if key.role == "processor":
            return "processor" not in self.state.held and (
                self.state.landing.status == run_state.REQUESTED or "impl_complete" in self.state.statuses.values())
        return self.state.nodes[key.name].status in ("active", "impl_complete") and key.name not in self.state.held

    # ---- actions: journal and signals

    def _apply_signal(self, action: Action, view: GuardianView) -> Effect:
        applied = action.expect(ApplySignal)
        signal, event = applied.posted.signal, applied.event
        if signal is not None and isinstance(event, GuardianSignal):
            if event.stuck is not None:
                self._escalate(f"orchestrator-{signal.node_id}", event.stuck.why, signal.node_id, f"{signal.id}-up")
                yield None
            for node in [*event.unparked, event.unhold or ""]:
                if node in self.state.nodes:
                    self.send(self._runner_key(node), UnparkNode(), node=node, id_=f"{signal.id}-{node}")
                    yield None
            if event.answer and signal.node_id:
                self.forward(self._runner_key(signal.node_id), signal)
                yield None
            yield from self.record_synced(event)
            if event.resume is not None:
                self.stopping, self.leaving_since = False, None
            if event.stop:
                self.stopping = True
        self.acknowledge(action)

    def _escalate(self, who: str, why: str, node: str | None, id_: str) -> None:
        self.send(launcher_key_of(self.run.id), Escalation(who, why), node=node, id_=id_)

    def _enqueue(self, action: Action, view: GuardianView) -> Effect:
        self.world.target.enqueue(self.run.id, self.state.landing.attempt, self.state.landing.oid)
        yield None

    def _cancel_node(self, action: Action, view: GuardianView) -> Effect:
        attempt = self.attempt_of(action.target)
        self.send(self._runner_key(action.target), CancelNode(action.why), node=action.target, attempt=attempt,
                  id_=f"{self.run.id}-{action.target}-{attempt}-cancel")
        yield None
        yield from self.record_synced(NodeCancelled(action.target, attempt, action.why))

    def _change_turn(self, action: Action, view: GuardianView) -> Effect:
        while self.world.queue_lock is not None:
            yield 0.5
        self.world.append_merge(self.me, cast("QueueRecord", action.payload))
        yield None

    def _change_run(self, action: Action, view: GuardianView) -> Effect:
        if action.target not in RUN_TRANSITIONS[self.state.status]:
            raise AssertionError(f"run {self.state.status} -> {action.target}")
        if action.target in ("done", "failed"):
            self.send(launcher_key_of(self.run.id), PipelineComplete(action.target, action.why),
                      id_=f"{self.run.id}-complete")
            yield None
        yield from self.record_synced(RunChanged(action.target, action.why))

    def _stop_run(self, action: Action, view: GuardianView) -> Effect:
        self.stopping = True
        yield from ()

    # ---- actions: children

    def attempt_of(self, name: str) -> int:
        return self.state.nodes[name].attempt if name in self.state.nodes else 1

    def _runner_key(self, node: str) -> Key:
        return key_of("runner", node, self.run.id)

    def _child_key(self, name: str) -> Key:
        return self.processor_key if name == "processor" else self._runner_key(name)

    def _child(self, name: str, view: GuardianView) -> ChildState:
        return view.processor if name == "processor" else view.runner(name)

    def _start(self, action: Action, view: GuardianView) -> Effect:
        name, key = action.target, self._child_key(action.target)
        previous = self._child(name, view).identity
        if previous is not None and previous.status == "crashed":
            yield from sweep(self.world, self.me, previous)
        request = SpawnRequest(key, self.key, metadata={"attempt": self.attempt_of(name)},
                               journal_incarnation=self.state.incarnations.get(key.full, 0))
        body = Processor.body if name == "processor" else Runner.body
        yield from self.start_child(request, body, self._child(name, view), action)

    def _heal(self, action: Action, view: GuardianView) -> Effect:
        full = self._child_key(action.target).full
        self.record(ChildHealed(full, self.state.circuit(full).probe))
        yield None

    def _replace(self, action: Action, view: GuardianView) -> Effect:
        yield from self.replace_child(self._child(action.target, view), action.why, death_class_of(action))

    def _replace_stray(self, action: Action, view: GuardianView) -> Effect:
        yield from self.replace_child(view.strays[action.target], action.why, death_classes.STOP)

    def _record_death(self, action: Action, view: GuardianView) -> Effect:
        yield from self.record_death(self._child(action.target, view))

    def _park(self, action: Action, view: GuardianView) -> Effect:
        child = self._child(action.target, view)
        full = child.identity.key.full
        self._escalate(full, action.why, action.target, f"{full}-parked-{child.identity.incarnation}")
        yield None
        yield from self.park(child, action.why)

    def _terminate(self, action: Action, view: GuardianView) -> Effect:
        self.terminate(self._child(action.target, view))
        yield None

    # ---- the end, and the guardian's own hook

    def _end(self, action: Action, view: GuardianView) -> Effect:
        yield from self._move_hook()
        yield from self.end(self.state.status)

    def _move_hook(self) -> Effect:
        """Bring the own hook to the phase that the nodes imply."""
        wanted = self.state.phase
        if wanted == self.phase:
            return
        self.world.write_hook(self.me, self.key, lambda old: advance_phase(existing(old), wanted, self.world.now),
                              incarnation=self.me.incarnation)
        self.phase = wanted
        yield None

    HANDLERS: ClassVar[Mapping[ActionKind, Callable[..., Effect]]] = {
        ActionKind.APPLY_SIGNAL: _apply_signal,
        ActionKind.REFUSE_SIGNAL: SimulatedProcess.refuse_signal,
        ActionKind.CHANGE_NODE: SimulatedProcess.record_payload,
        ActionKind.ADVANCE_FLOW: SimulatedProcess.record_payload,
        ActionKind.CHANGE_WAIT: SimulatedProcess.record_payload,
        ActionKind.CANCEL_NODE: _cancel_node,
        ActionKind.RANK_CANDIDATES: SimulatedProcess.record_payload,
        ActionKind.COMPARE_CANDIDATES: SimulatedProcess.record_payload,
        ActionKind.CHANGE_TURN: _change_turn,
        ActionKind.CHANGE_LANDING: SimulatedProcess.record_payload,
        ActionKind.ENQUEUE: _enqueue,
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
