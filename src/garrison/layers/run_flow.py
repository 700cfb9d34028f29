"""A run's flow: the pipeline's machine, followed by the events that the guardian journals. Pure.

The rule of this room: the flow is a function of the run's program, its id and the journal's `flow` events (see
`pipeline.flow.events`), in their order; nothing else changes it, so that a guardian that replays its journal is where
its predecessor was. An event that the flow does not wait for (said twice, or after its place was cancelled) changes
nothing.

A `subgraph` node has a flow of its own below; what that waits for shows here as `NODE#1:1::its place`, of the node
`NODE__its node`. When it ends, so does the node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from garrison.pipeline.fidelity import carried, edge_of, remembered
from garrison.pipeline.flow import Finished, FlowState, advance, begin, event_from_data
from garrison.pipeline.nesting import inner
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome
from garrison.pipeline.status import FAILED, VALIDATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.pipeline.fidelity import Carried
    from garrison.pipeline.flow import Place
    from garrison.pipeline.launch import RunPlan
    from garrison.pipeline.program import Program


KNOWN = (VALIDATED, FAILED)
"""Statuses that the graph brings along and that a run believes; the other ones are done here, as if nothing were."""


def step_of(place: Place) -> str:
    """One try at one place of the flow, in one word: a retry at the same place is another step."""
    return f"{place.id}:{place.attempt}"


class RunFlow:
    """The flow of one run, or of a pipeline within it."""

    def __init__(self, program: Program, run: str, nested: Mapping[str, RunPlan] | None = None,
                 context: Mapping[str, Any] | None = None) -> None:
        self.program, self.run, self.nested = program, run, nested or {}
        self.children: dict[str, RunFlow] = {}
        """Step of a subgraph node → its flow."""
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
            child = self.children.get(step_of(place))
            shown = [place] if child is None else [_within(place, one) for one in child.places.values()]
            found.update({one.id: one for one in shown})
        return found

    def _descend(self) -> None:
        """Begin what subgraph nodes in flight run, and end the nodes whose flow has ended, until all agree."""
        while self.nested:
            below = {step_of(place): place for place in self.state.in_flight.values() if place.node in self.nested
                     and not self.state.ended}
            self.children = {step: child for step, child in self.children.items() if step in below}
            for step, place in below.items():
                if step not in self.children:
                    plan = self.nested[place.node]
                    assert plan.program is not None
                    self.children[step] = RunFlow(plan.program, f"{self.run}/{step}", plan.children,
                                                  _passed(self.state.context(place.branch)))
            ended = next((step for step, child in self.children.items() if child.over), None)
            if ended is None:
                return
            place, child = below[ended], self.children.pop(ended)
            advance(self.program, self.state, Finished(place.id, child.outcome(), place.attempt))

    def outcome(self) -> Outcome:
        """What a flow that has ended is to the node that ran it."""
        if self.over == "failed":
            return Outcome(FAIL, failure_reason=self.why or "the pipeline within it failed")
        return Outcome(SUCCESS, context_updates=_passed(self.state.context()))

    @property
    def over(self) -> str:
        """`done` or `failed` when the flow has ended, else ''."""
        return self.state.status if self.state.ended else ""

    @property
    def why(self) -> str:
        """Why it failed, on one line."""
        return "; ".join(word for word in (self.state.reason, self.state.detail) if word).partition("\n")[0]

    def steps(self) -> set[str]:
        """The steps that the flow waits for."""
        return {step_of(place) for place in self.places.values()}

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
            place = self.places.get(event.place_id)
            if place is None or event.attempt not in (0, place.attempt):
                return
        advance(self.program, self.state, event)
        self._descend()

    def whose(self, place: Place) -> tuple[RunFlow, Place]:
        """The flow, this one or one within it, that a place is of, and the place as that has it."""
        step, below, rest = place.id.partition(BELOW)
        if not below:
            return self, place
        child = self.children[step]
        return child.whose(child.places[rest])

    def context(self, place: Place) -> dict[str, Any]:
        """What a place sees of the context."""
        flow, own = self.whose(place)
        return dict(flow.state.context(own.branch))

    def carried(self, place: Place) -> Carried:
        """What the agent of a place is told of the run; the goal stands in its prompt anyway."""
        flow, own = self.whose(place)
        return carried(flow.program, flow.state, own, self.run)

    def remembered(self, place: Place, session: str) -> dict[str, str]:
        """The context values by which later nodes find the session that the agent of a place had."""
        flow, own = self.whose(place)
        graph = flow.program.graph
        return remembered(graph, graph.nodes[own.node], edge_of(flow.program, own), flow.state.context(own.branch),
                          session)

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
_OWN = ("graph.", "internal.", "stack.")
_ENGINE = frozenset({"outcome", "preferred_label", "current_node", "failure_reason", "failure_class", "last_stage",
                     "last_failure", "last_failed_node"})


def _within(place: Place, one: Place) -> Place:
    """A place of a pipeline within `place`, as the run has it."""
    return replace(one, id=f"{step_of(place)}{BELOW}{one.id}", node=inner(place.node, one.node))


def _passed(context: Mapping[str, Any]) -> dict[str, Any]:
    """What one pipeline gives to another of its context: all but what each has of its own."""
    return {key: value for key, value in context.items() if not key.startswith(_OWN) and key not in _ENGINE}
