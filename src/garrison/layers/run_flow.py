"""A run's flow: the pipeline's machine, followed by the events that the guardian journals. Pure.

The rule of this room: the flow is a function of the run's program, its id and the journal's `flow` events (see
`pipeline.flow.events`), in their order; nothing else changes it, so that a guardian that replays its journal is where
its predecessor was. An event that the flow does not wait for (said twice, or after its place was cancelled) changes
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from garrison.pipeline.flow import Finished, FlowState, advance, begin, event_from_data
from garrison.pipeline.status import FAILED, VALIDATED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from garrison.pipeline.flow import Place
    from garrison.pipeline.program import Program


KNOWN = (VALIDATED, FAILED)
"""Statuses that the graph brings along and that a run believes; the other ones are done here, as if nothing were."""


def step_of(place: Place) -> str:
    """One try at one place of the flow, in one word: a retry at the same place is another step."""
    return f"{place.id}:{place.attempt}"


class RunFlow:
    """The flow of one run."""

    def __init__(self, program: Program, run: str) -> None:
        self.program = program
        known = {node: word for node, word in program.initial.items() if word in KNOWN}
        self.state: FlowState = begin(program, seed=run, initial=known)

    @property
    def places(self) -> Mapping[str, Place]:
        """What the flow waits for, by id, in the order in which it was reached; nothing once it has ended."""
        return {} if self.state.ended else self.state.in_flight

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
        event = event_from_data(data)
        if isinstance(event, Finished):
            place = self.places.get(event.place_id)
            if place is None or event.attempt not in (0, place.attempt):
                return
        advance(self.program, self.state, event)

    def context(self, place: Place) -> dict[str, Any]:
        """What a place sees of the context."""
        return dict(self.state.context(place.branch))

    def to_data(self) -> dict[str, Any]:
        """The state as JSON's shapes."""
        return self.state.to_data()

    def restore(self, data: Mapping[str, Any]) -> None:
        """Back to a state that `to_data` gave."""
        self.state = FlowState.from_data(data)
