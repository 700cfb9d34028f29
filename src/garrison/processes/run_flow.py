"""A run's flow: the pipeline's machine, followed by the events that the guardian journals. Pure.

The rule of this room: the flow is a function of the run's program, its id and the journal's `flow` events (see
`pipeline.flow.events`), in their order; nothing else changes it, so that a guardian that replays its journal is where
its predecessor was. An event that the flow does not wait for (said twice, or after its place was cancelled) changes
nothing.

A `subgraph` or manager node has a flow of its own below; what that waits for shows here as `NODE#1:1::its place`, of
the node `NODE__its node`. When it ends, so does the node; when an event ends the node, that is the end of its flow.
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


KNOWN = (VALIDATED, FAILED)
"""Statuses that the graph brings along and that a run believes; the other ones are done here, as if nothing were."""


def step_id(place: Place) -> str:
    """One try at one place of the flow, in one word: a retry at the same place is another step."""
    return f"{place.id}:{place.attempt}"


class RunFlow:
    """The flow of one run, or of a pipeline within it."""

    def __init__(self, program: Program, run: str, nested: Mapping[str, RunPlan] | None = None,
                 context: Mapping[str, Any] | None = None) -> None:
        self.program, self.run, self.nested = program, run, nested or {}
        self.children: dict[str, RunFlow] = {}
        """Step of a node that runs a pipeline → its flow."""
        known = {node: word for node, word in program.initial.items() if word in KNOWN}
        self.state: FlowState = begin(program, context, seed=run, initial=known)
        self._descend()

    @property
    def places(self) -> Mapping[str, Place]:
        """What the flow waits for, by id, in the order in which it was reached; nothing once it has ended."""
        if self.state.ended or not self.nested:
            return {} if self.state.ended else self.state.in_flight
        found = {}
        for place in self.state.in_flight.values():
            child = self.children.get(step_id(place))
            shown = [place] if child is None else [_within(place, one) for one in child.places.values()]
            found.update({one.id: one for one in shown})
        return found

    def _descend(self) -> None:
        """Begin what subgraph nodes in flight run, and end the nodes whose flow has ended, until all agree."""
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
            ended = next((step for step, child in self.children.items() if child.over), None)
            if ended is None:
                return
            place, child = below[ended], self.children.pop(ended)
            advance(self.program, self.state, Finished(place.id, self._outcome(place, child), place.attempt))

    def _outcome(self, place: Place, child: RunFlow) -> Outcome:
        """What a flow that has ended is to the node that ran it."""
        updates = context_changes(child.state.context(), self.state.context(place.branch))
        found = child_failed(child.state.reason, updates) if child.over == "failed" else Outcome(
            SUCCESS, notes=f"{len(child.state.completed)} nodes done", context_updates=updates)
        if self._node(place).handler != MANAGER:
            return found
        return replace(found, context_updates={**updates, **final_telemetry(found, child.telemetry())})

    def _node(self, place: Place) -> Node:
        return self.program.graph.nodes[place.node]

    def telemetry(self) -> dict[str, Any]:
        """What a manager sees of this flow, as context keys."""
        return telemetry_of(checkpoint_of(self.program, self.state, self.run, ""))

    @property
    def managed(self) -> Mapping[str, tuple[Place, RunFlow]]:
        """Place of each manager at work → that place, and the flow that it watches over."""
        found: dict[str, tuple[Place, RunFlow]] = {}
        for place in self.state.in_flight.values() if self.children else ():
            if (child := self.children.get(step_id(place))) is None:
                continue
            if self._node(place).handler == MANAGER:
                found[place.id] = (place, child)
            for inside, below in child.managed.values():
                own = _within(place, inside)
                found[own.id] = (own, below)
        return found

    @property
    def over(self) -> str:
        """`done` or `failed` when the flow has ended, else ''."""
        return self.state.status if self.state.ended else ""

    @property
    def why(self) -> str:
        """Why it failed, on one line."""
        return "; ".join(word for word in (self.state.reason, self.state.detail) if word).partition("\n")[0]

    def nests(self) -> dict[str, dict[str, Any]]:
        """Node that runs a pipeline → how it stands: status (pending, active, done, failed), outcome, reason, visits.
        Those of a pipeline within only while that is under way."""
        active = {} if self.state.ended else {place.node: place for place in self.state.in_flight.values()}
        found: dict[str, dict[str, Any]] = {}
        for name in self.nested:
            last = self.state.outcomes.get(name)
            word = "active" if name in active else "pending" if last is None else "failed" if last.failed else "done"
            found[name] = {"status": word, "outcome": last.status if last else "", "label": "",
                           "reason": last.failure_reason if last else "", "visits": self.state.completed.count(name)}
            child = self.children.get(step_id(active[name])) if name in active else None
            found |= {inner_name(name, one): body for one, body in (child.nests() if child else {}).items()}
        return found

    def steps(self) -> set[str]:
        """The steps that the flow waits for."""
        return {step_id(place) for place in self.places.values()}

    def follow(self, data: Mapping[str, Any]) -> None:
        """Go on by one journaled event."""
        step, below, rest = str(data.get("place_id", "")).partition(BELOW)
        if below:
            if step in self.children:
                self.children[step].follow({**data, "place_id": rest})
                self._descend()
            return
        event = event_from_data(data)
        if isinstance(event, Finished):
            place = None if self.state.ended else self.state.in_flight.get(event.place_id)
            if place is None or event.attempt not in (0, place.attempt):
                return
        advance(self.program, self.state, event)
        self._descend()

    def whose(self, place: Place) -> tuple[RunFlow, Place]:
        """The flow, this one or one within it, that a place is of, and the place as that has it."""
        step, below, rest = place.id.partition(BELOW)
        if not below:
            return self, self.state.in_flight[place.id]
        return self.children[step].whose(replace(place, id=rest))

    def context(self, place: Place) -> dict[str, Any]:
        """What a place sees of the context."""
        flow, own = self.whose(place)
        return dict(flow.state.context(own.branch))

    def carried(self, place: Place) -> Carryover:
        """What the agent of a place is told of the run; the goal stands in its prompt anyway."""
        flow, own = self.whose(place)
        return carryover_of(flow.program, flow.state, own, self.run)

    def remembered(self, place: Place, session: str) -> dict[str, str]:
        """The context values by which later nodes find the session that the agent of a place had."""
        flow, own = self.whose(place)
        graph = flow.program.graph
        return session_updates(graph, graph.nodes[own.node], incoming_edge(flow.program, own),
                               flow.state.context(own.branch), session)

    def to_data(self) -> dict[str, Any]:
        """The state as JSON's shapes."""
        below = {step: child.to_data() for step, child in self.children.items()}
        return {**self.state.to_data(), **({"children": below} if below else {})}

    def restore(self, data: Mapping[str, Any]) -> None:
        """Back to a state that `to_data` gave."""
        self.state, self.children = FlowState.from_data(data), {}
        self._descend()
        for step, child in self.children.items():
            child.restore(data["children"][step])


BELOW = "::"
"""Between the step of a subgraph node and the place within it."""


def _within(place: Place, one: Place) -> Place:
    """A place of a pipeline within `place`, as the run has it."""
    return replace(one, id=f"{step_id(place)}{BELOW}{one.id}", node=inner_name(place.node, one.node))
