"""The flow of a run: the pipeline's state machine, driven by the events that the guardian journals. Pure.

The flow is a function of the run's program, its id and the journal's `flow` events (`pipeline/flow/events.py`), in
their order; nothing else changes it, so a guardian that replays its journal is where its predecessor was. An event
that the flow does not wait for (a repeated one, or one whose place was cancelled) changes nothing.

A `subgraph` or manager node has a flow of its own, a child. What the child waits for appears here as the place
`NODE#1:1::its place`, of the node `NODE__its node`. The node ends with its child, and the child with its node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from garrison.pipeline.fidelity import carryover_of, incoming_edge, session_updates
from garrison.pipeline.flow import Finished, FlowState, advance, begin, event_from_data
from garrison.pipeline.node_status import FAILED, VALIDATED
from garrison.pipeline.outcome import SUCCESS, Outcome
from garrison.pipeline.run_directory import checkpoint_of
from garrison.pipeline.subpipelines import (
    MANAGER,
    child_context,
    child_failed,
    context_changes,
    final_telemetry,
    inner_name,
    telemetry_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.pipeline.fidelity import Carryover
    from garrison.pipeline.flow import Place
    from garrison.pipeline.flow.program import Program
    from garrison.pipeline.graph import Node
    from garrison.pipeline.plan import RunPlan

CHILD_SEPARATOR = "::"
"""Between the step of a node that runs a pipeline and the place within that."""

INITIAL_STATUSES = (VALIDATED, FAILED)
"""Statuses in the graph that a run believes; nodes with another one are done in the run, as if nothing had been."""


def step_id(place: Place) -> str:
    """Return the id of one try at one place of the flow: a retry at the same place is another step."""
    return f"{place.id}:{place.attempt}"


class RunFlow:
    """The flow of one run, or of a pipeline within it."""

    def __init__(self, program: Program, run: str, nested: Mapping[str, RunPlan] | None = None,
                 context: Mapping[str, Any] | None = None) -> None:
        self.program, self.run, self.nested = program, run, nested or {}
        self.children: dict[str, RunFlow] = {}
        """Step of a node that runs a pipeline → its flow."""
        initial = {node: status for node, status in program.initial.items() if status in INITIAL_STATUSES}
        self.state: FlowState = begin(program, context, seed=run, initial=initial)
        self._update_children()

    # ---- what the flow waits for

    @property
    def places(self) -> Mapping[str, Place]:
        """The places in flight by id, in the order in which they were reached; none once the flow has ended."""
        if self.state.ended or not self.nested:
            return {} if self.state.ended else self.state.in_flight
        found = {}
        for place in self.state.in_flight.values():
            child = self.children.get(step_id(place))
            shown = [place] if child is None else [_as_seen_by_run(place, inside) for inside in child.places.values()]
            found.update({one.id: one for one in shown})
        return found

    @property
    def managed(self) -> Mapping[str, tuple[Place, RunFlow]]:
        """Place of each manager at work → that place, and the flow that it watches."""
        found: dict[str, tuple[Place, RunFlow]] = {}
        for place in self.state.in_flight.values() if self.children else ():
            if (child := self.children.get(step_id(place))) is None:
                continue
            if self._node(place).handler == MANAGER:
                found[place.id] = (place, child)
            for inside, below in child.managed.values():
                seen = _as_seen_by_run(place, inside)
                found[seen.id] = (seen, below)
        return found

    @property
    def over(self) -> str:
        """`done` or `failed` when the flow has ended, else ''."""
        return self.state.status if self.state.ended else ""

    @property
    def why(self) -> str:
        """Why it failed, on one line."""
        return "; ".join(text for text in (self.state.reason, self.state.detail) if text).partition("\n")[0]

    def steps(self) -> set[str]:
        """Return the ids of the steps that the flow waits for."""
        return {step_id(place) for place in self.places.values()}

    def nested_nodes(self) -> dict[str, dict[str, Any]]:
        """Return for each node that runs a pipeline: status (pending, active, done, failed), outcome, reason, visits.

        Those of a pipeline within are listed only while that is under way.
        """
        active = {} if self.state.ended else {place.node: place for place in self.state.in_flight.values()}
        found: dict[str, dict[str, Any]] = {}
        for name in self.nested:
            last = self.state.outcomes.get(name)
            status = "active" if name in active else "pending" if last is None else "failed" if last.failed else "done"
            found[name] = {"status": status, "outcome": last.status if last else "", "label": "",
                           "reason": last.failure_reason if last else "", "visits": self.state.completed.count(name)}
            child = self.children.get(step_id(active[name])) if name in active else None
            if child is not None:
                found |= {inner_name(name, node): body for node, body in child.nested_nodes().items()}
        return found

    # ---- events

    def apply(self, data: Mapping[str, Any]) -> None:
        """Advance by one journaled event of the flow."""
        step, is_inside, rest = str(data.get("place_id", "")).partition(CHILD_SEPARATOR)
        if is_inside:
            if step in self.children:
                self.children[step].apply({**data, "place_id": rest})
                self._update_children()
            return
        event = event_from_data(data)
        if isinstance(event, Finished):
            place = None if self.state.ended else self.state.in_flight.get(event.place_id)
            if place is None or event.attempt not in (0, place.attempt):
                return
        advance(self.program, self.state, event)
        self._update_children()

    def _update_children(self) -> None:
        """Begin the flows of nodes that came into flight, and end the nodes whose flow has ended, until all agree."""
        while self.nested:
            below = {step_id(place): place for place in self.state.in_flight.values() if place.node in self.nested
                     and not self.state.ended}
            self.children = {step: child for step, child in self.children.items() if step in below}
            for step, place in below.items():
                if step not in self.children:
                    plan = self.nested[place.node]
                    assert plan.program is not None
                    self.children[step] = RunFlow(plan.program, f"{self.run}/{step}", plan.children,
                                                  child_context(self.state.context(place.branch), self._node(place)))
            finished = next((step for step, child in self.children.items() if child.over), None)
            if finished is None:
                return
            place, child = below[finished], self.children.pop(finished)
            advance(self.program, self.state, Finished(place.id, self._child_outcome(place, child), place.attempt))

    def _child_outcome(self, place: Place, child: RunFlow) -> Outcome:
        """Return what a child that has ended is to the node that ran it."""
        updates = context_changes(child.state.context(), self.state.context(place.branch))
        outcome = child_failed(child.state.reason, updates) if child.over == "failed" else Outcome(
            SUCCESS, notes=f"{len(child.state.completed)} nodes done", context_updates=updates)
        if self._node(place).handler != MANAGER:
            return outcome
        return replace(outcome, context_updates={**updates, **final_telemetry(outcome, child.telemetry())})

    def _node(self, place: Place) -> Node:
        return self.program.graph.nodes[place.node]

    def telemetry(self) -> dict[str, Any]:
        """Return what a manager sees of this flow, as context keys."""
        return telemetry_of(checkpoint_of(self.program, self.state, self.run, ""))

    # ---- places

    def locate(self, place: Place) -> tuple[RunFlow, Place]:
        """Return the flow, this one or one within it, that a place belongs to, and the place as that has it."""
        step, is_inside, rest = place.id.partition(CHILD_SEPARATOR)
        if not is_inside:
            return self, self.state.in_flight[place.id]
        return self.children[step].locate(replace(place, id=rest))

    def context(self, place: Place) -> dict[str, Any]:
        """Return what a place sees of the context."""
        flow, own = self.locate(place)
        return dict(flow.state.context(own.branch))

    def carryover(self, place: Place) -> Carryover:
        """Return what the agent of a place is told of the run so far; its prompt has the goal anyway."""
        flow, own = self.locate(place)
        return carryover_of(flow.program, flow.state, own, self.run)

    def session_updates(self, place: Place, session: str) -> dict[str, str]:
        """Return the context values by which later nodes find the session that the agent of a place had."""
        flow, own = self.locate(place)
        graph = flow.program.graph
        return session_updates(graph, graph.nodes[own.node], incoming_edge(flow.program, own),
                               flow.state.context(own.branch), session)

    # ---- snapshots

    def to_data(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        below = {step: child.to_data() for step, child in self.children.items()}
        return {**self.state.to_data(), **({"children": below} if below else {})}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Return to a state that `to_data` gave."""
        self.state, self.children = FlowState.from_data(data), {}
        self._update_children()
        for step, child in self.children.items():
            child.restore(data["children"][step])


def _as_seen_by_run(place: Place, inside: Place) -> Place:
    """Return a place of the pipeline that runs at `place`, under the id and node name that it has in the run."""
    return replace(inside, id=f"{step_id(place)}{CHILD_SEPARATOR}{inside.id}", node=inner_name(place.node, inside.node))
