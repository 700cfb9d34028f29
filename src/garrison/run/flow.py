"""Run flow: the pipeline's state machine, driven by the events that the guardian journals. Pure.

The flow is a function of the run's program, its id and the journal's `flow` events (`pipeline/flow/__init__.py`) in
order; nothing else changes it, so a guardian that replays its journal has its predecessor's state. An event that
the flow does not wait for (a repeated one, or one whose place was cancelled) changes nothing.

A `subgraph` or manager node runs a nested flow. Its places appear here as `NODE#1:1::PLACE`, of the node `NODE__INNER`.
The node ends with its nested flow, and the nested flow with its node.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from garrison.pipeline.fidelity import carryover_of, incoming_edge, session_updates, upstream_of
from garrison.pipeline.flow import (
    Finished,
    FlowState,
    advance,
    declined_at,
    event_from_data,
    extend,
    node_to_return_to,
    retriable_nodes,
    start,
)
from garrison.pipeline.flow.program import compile_graph
from garrison.pipeline.node_status import FAILED, VALIDATED
from garrison.pipeline.outcome import SUCCESS, Outcome
from garrison.pipeline.parser import parse
from garrison.pipeline.subpipelines import (
    MANAGER,
    child_context,
    child_failed,
    context_changes,
    final_telemetry,
    inner_name,
    telemetry_of,
)
from garrison.pipeline.transforms import prepare
from garrison.records.record import from_data
from garrison.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from garrison.pipeline.fidelity import Carryover
    from garrison.pipeline.flow import FlowChange, Visit
    from garrison.pipeline.flow.program import Program
    from garrison.pipeline.graph import Node
    from garrison.pipeline.plan import RunPlan

CHILD_SEPARATOR = "::"
"""Separator between the step of a node that runs a pipeline and a place of that pipeline."""

INITIAL_STATUSES = (VALIDATED, FAILED)
"""Statuses in the graph that a run accepts; nodes with another one are repeated."""


def step_id(place: Visit) -> str:
    """Return the id of one try at one place of the flow; a retry at the same place is another step."""
    return f"{place.id}:{place.attempt}"


class RunFlow:
    """Flow of one run, or of a pipeline nested in it."""

    def __init__(self, program: Program, run: str, nested: Mapping[str, RunPlan] | None = None,
                 context: Mapping[str, object] | None = None) -> None:
        self.program, self.run, self.nested = program, run, nested or {}
        self.children: dict[str, RunFlow] = {}
        """Step of a node that runs a pipeline → the flow of that pipeline."""
        initial = {node: status for node, status in program.initial.items() if status in INITIAL_STATUSES}
        self.state, change = start(program, context, run, initial=initial)
        self.followed: Counter[int] = Counter()
        """Edge, as its index in the graph → how often it was followed; edges of nested pipelines are in `children`."""
        self._count(change)
        self._update_children()

    def change(self, text: str) -> None:
        """Continue with a changed text of the graph, with more nodes and edges or other attributes."""
        before, self.program = self.program, self._compile(text)
        self._count(extend(self.program, self.state, before))
        self._update_children()

    def _compile(self, text: str) -> Program:
        return compile_graph(prepare(parse(text)), max_steps=self.program.max_steps)

    # ---- places in flight

    @property
    def places(self) -> Mapping[str, Visit]:
        """Return the places in flight by id, in the order in which they were reached; none once the flow has ended."""
        if self.state.ended or not self.nested:
            return {} if self.state.ended else self.state.in_flight
        places: dict[str, Visit] = {}
        for place in self.state.in_flight.values():
            if (child := self.children.get(step_id(place))) is None:
                places[place.id] = place
                continue
            for inner in child.places.values():
                outer = _to_outer_place(place, inner)
                places[outer.id] = outer
        return places

    @property
    def managed(self) -> Mapping[str, tuple[Visit, RunFlow]]:
        """Return id → place of each active manager, with the flow that it watches."""
        managed: dict[str, tuple[Visit, RunFlow]] = {}
        for place in self.state.in_flight.values() if self.children else ():
            if (child := self.children.get(step_id(place))) is None:
                continue
            if self._node(place).handler == MANAGER:
                managed[place.id] = (place, child)
            for inner, inner_flow in child.managed.values():
                outer = _to_outer_place(place, inner)
                managed[outer.id] = (outer, inner_flow)
        return managed

    @property
    def over(self) -> str:
        return self.state.status if self.state.ended else ""

    @property
    def why(self) -> str:
        return "; ".join(text for text in (self.state.reason, self.state.detail) if text).partition("\n")[0]

    def node_to_return_to(self) -> str:
        """Return the node that the run returns to if its landing is refused, '' if there is none."""
        return node_to_return_to(self.program, self.state)

    def retriable(self) -> set[str]:
        """Return the failed nodes that can be retried one by one, those of nested pipelines excluded."""
        return retriable_nodes(self.program, self.state)

    def declined_at(self) -> str:
        """Return the question whose answer No led to the exit, '' if there is none."""
        return declined_at(self.program, self.state)

    def steps(self) -> set[str]:
        return {step_id(place) for place in self.places.values()}

    def nested_nodes(self) -> dict[str, dict[str, object]]:
        """Return node that runs a pipeline → status (pending, active, done, failed), outcome, reason, visits.

        Nodes of a nested pipeline are listed only while it runs.
        """
        active = {} if self.state.ended else {place.node: place for place in self.state.in_flight.values()}
        nodes: dict[str, dict[str, object]] = {}
        for name in self.nested:
            last = self.state.outcomes.get(name)
            status = "active" if name in active else "pending" if last is None else "failed" if last.failed else "done"
            nodes[name] = {"status": status, "outcome": last.status if last else "", "label": "",
                           "reason": last.failure_reason if last else "", "visits": self.state.completed.count(name)}
            child = self.children.get(step_id(active[name])) if name in active else None
            if child is not None:
                nodes |= {inner_name(name, node): body for node, body in child.nested_nodes().items()}
        return nodes

    # ---- events

    def apply(self, data: Mapping[str, object]) -> None:
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
        self._count(advance(self.program, self.state, event))
        self._update_children()

    def _count(self, change: FlowChange) -> None:
        self.followed.update(route.index for _, route in change.followed)

    def _update_children(self) -> None:
        """Start the flows of nodes in flight, and end the nodes whose flow has ended, until nothing changes."""
        while self.nested:
            active = {step_id(place): place for place in self.state.in_flight.values() if place.node in self.nested
                      and not self.state.ended}
            self.children = {step: child for step, child in self.children.items() if step in active}
            for step, place in active.items():
                if step not in self.children:
                    plan = self.nested[place.node]
                    assert plan.program is not None
                    self.children[step] = RunFlow(plan.program, f"{self.run}/{step}", plan.children,
                                                  child_context(self.state.context(place.branch), self._node(place)))
            # One at a time: the end of a nested flow moves its node, which may start or cancel others.
            finished = next((step for step, child in self.children.items() if child.over), None)
            if finished is None:
                return
            place, child = active[finished], self.children.pop(finished)
            outcome = self._child_outcome(place, child)
            self._count(advance(self.program, self.state, Finished(place.id, outcome, place.attempt)))

    def _child_outcome(self, place: Visit, child: RunFlow) -> Outcome:
        """Return the outcome of a node whose nested flow has ended."""
        updates = context_changes(child.state.context(), self.state.context(place.branch))
        outcome = child_failed(child.state.reason, updates) if child.over == "failed" else Outcome(
            SUCCESS, notes=f"{len(child.state.completed)} nodes done", context_updates=updates)
        if self._node(place).handler != MANAGER:
            return outcome
        return replace(outcome, context_updates={**updates, **final_telemetry(outcome, child.telemetry())})

    def _node(self, place: Visit) -> Node:
        return self.program.graph.nodes[place.node]

    def telemetry(self) -> dict[str, object]:
        return telemetry_of(self.state)

    # ---- places

    def locate(self, place: Visit) -> tuple[RunFlow, Visit]:
        """Return the flow that a place belongs to, this or a nested one, and the place as that flow knows it."""
        step, is_inside, rest = place.id.partition(CHILD_SEPARATOR)
        if not is_inside:
            return self, self.state.in_flight[place.id]
        return self.children[step].locate(replace(place, id=rest))

    def context(self, place: Visit) -> dict[str, object]:
        flow, located = self.locate(place)
        return dict(flow.state.context(located.branch))

    def carryover(self, place: Visit) -> Carryover:
        """Return what the agent of a place learns about the run so far, in addition to the goal."""
        flow, located = self.locate(place)
        return carryover_of(flow.program, flow.state, located, self.run)

    def is_upstream(self, node: str, place: Visit) -> bool:
        """Return whether a place may build on the work of its own node pipeline."""
        flow, located = self.locate(place)
        return node in upstream_of(flow.program, flow.state, located)

    def upstream_of(self, name: str, place: Visit, names: Iterable[str]) -> list[str]:
        """Return the tasks among `names` that the task `name`, at this place, may build on, in their order.

        For a nested pipeline, these are tasks of that pipeline.
        """
        flow, located = self.locate(place)
        within, upstream = name.removesuffix(located.node), upstream_of(flow.program, flow.state, located)
        return [each for each in names if each != name and each.startswith(within)
                and each.removeprefix(within) in upstream]

    def session_updates(self, place: Visit, session: str) -> dict[str, str]:
        """Return the context values by which later nodes find the session of the agent of a place."""
        flow, located = self.locate(place)
        graph = flow.program.graph
        return session_updates(graph, graph.nodes[located.node], incoming_edge(flow.program, located),
                               flow.state.context(located.branch), session)

    # ---- snapshots

    def to_data(self) -> dict[str, object]:
        children = {step: child.to_data() for step, child in self.children.items()}
        return {**self.state.to_data(), **({"children": children} if children else {})}

    def restore(self, saved: object, text: str = "") -> None:
        """Restore a state from the values of `to_data`; `text`: the graph, if it was changed."""
        if text:
            self.program = self._compile(text)
        data = from_data(dict[str, object], saved)
        self.state, self.children = FlowState.from_data(data), {}
        self._update_children()
        children = from_data(dict[str, object], data.get("children", {}))
        for step, child in self.children.items():
            child.restore(children[step])


def _to_outer_place(place: Visit, inner: Visit) -> Visit:
    """Return a place of the pipeline that runs at `place`, with its id and node name in the outer flow."""
    return replace(inner, id=f"{step_id(place)}{CHILD_SEPARATOR}{inner.id}", node=inner_name(place.node, inner.node))
