"""Flows driven in memory: a graph, a script of outcomes for its nodes, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from garrison.pipeline.flow import Change, Event, Finished, FlowState, Place, advance, start
from garrison.pipeline.flow.program import Program, compile_graph
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome
from garrison.pipeline.parser import parse

OK = Outcome(SUCCESS)

Script = Mapping[str, Sequence[Outcome | str] | Outcome | str] | Callable[[Place], Outcome]


def no(reason: str = "broken", failure_class: str = "") -> Outcome:
    """A failure."""
    return Outcome(FAIL, failure_reason=reason, failure_class=failure_class)


def program_of(body: str, **options: Any) -> Program:
    """The program of a graph with a start node `start`, an exit `exit` and what `body` says."""
    return compile_graph(parse(f"digraph {{ start [shape=Mdiamond] exit [shape=Msquare] {body} }}"), **options)


class Ride:
    """One run, whose nodes give their scripted outcomes in turn, the last again and again; success without a script."""

    def __init__(self, body: str | Program, script: Script | None = None, context: Mapping[str, Any] | None = None,
                 seed: str = "", **options: Any) -> None:
        begin = {key: options.pop(key) for key in ("at", "initial") if key in options}
        self.program = program_of(body, **options) if isinstance(body, str) else body
        self.script = script or {}
        self.given: dict[str, int] = {}
        self.trace: list[str] = []
        self.events: list[Event] = []
        self.changes: list[Change] = []
        self.state, change = start(self.program, context, seed, **begin)
        self.changes.append(change)

    def fold(self, event: Event) -> Change:
        """Fold one event."""
        self.events.append(event)
        self.changes.append(advance(self.program, self.state, event))
        return self.changes[-1]

    def outcome(self, place: Place) -> Outcome:
        """What the script gives for the next attempt at a place."""
        if callable(self.script):
            return self.script(place)
        lines = self.script.get(place.node, OK)
        if isinstance(lines, (Outcome, str)):
            lines = [lines]
        count = self.given[place.node] = self.given.get(place.node, 0) + 1
        line = lines[min(count, len(lines)) - 1]
        return line if isinstance(line, Outcome) else Outcome(line)

    def finish(self, place: Place) -> Change:
        """Finish one place as the script says."""
        self.trace.append(place.node)
        return self.fold(Finished(place.id, self.outcome(place), place.attempt))

    def go(self, limit: int = 2_000, pick: Callable[[list[Place]], Place] = lambda places: places[0]) -> Ride:
        """Finish what is in flight, one at a time in the order that `pick` says, until the run ends."""
        for _ in range(limit):
            if self.state.ended or not self.state.in_flight:
                return self
            self.finish(pick(sorted(self.state.in_flight.values(), key=lambda place: place.id)))
        raise AssertionError(f"still going after {limit} steps: {self.trace[-20:]}")

    @property
    def ran(self) -> str:
        """The nodes that were run, in order, attempts too."""
        return " ".join(self.trace)

    @property
    def result(self) -> str:
        """How it ended: `done`, or `failed: REASON`."""
        return self.state.status + (f": {self.state.reason}" if self.state.reason else "")


def ride(body: str | Program, script: Script | None = None, **options: Any) -> Ride:
    """A run driven to its end."""
    return Ride(body, script, **options).go()


def reloaded(state: FlowState) -> FlowState:
    """The state as it comes back from a file."""
    return FlowState.from_data(json.loads(json.dumps(state.to_data(), sort_keys=True)))
