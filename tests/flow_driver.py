"""Drive a flow in memory: a graph, a script of outcomes for its nodes, and the resulting path and status."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from garrison.pipeline.flow import Event, Finished, FlowChange, FlowState, Visit, advance, start
from garrison.pipeline.flow.program import Program, compile_graph
from garrison.pipeline.outcome import FAIL, SUCCESS, Outcome
from garrison.pipeline.parser import parse

OK = Outcome(SUCCESS)

Script = Mapping[str, Sequence[Outcome | str] | Outcome | str] | Callable[[Visit], Outcome]


def fail(reason: str = "broken", failure_class: str = "") -> Outcome:
    return Outcome(FAIL, failure_reason=reason, failure_class=failure_class)


def program_of(body: str, **options: Any) -> Program:
    """Compile a graph with a start node `start`, an exit node `exit`, and `body`."""
    return compile_graph(parse(f"digraph {{ start [shape=Mdiamond] exit [shape=Msquare] {body} }}"), **options)


class FlowRun:
    """One run whose nodes return their scripted outcomes in turn and repeat the last; success without a script."""

    def __init__(self, body: str | Program, script: Script | None = None, context: Mapping[str, Any] | None = None,
                 seed: str = "", **options: Any) -> None:
        begin = {key: options.pop(key) for key in ("at", "initial") if key in options}
        self.program = program_of(body, **options) if isinstance(body, str) else body
        self.script = script or {}
        self.counts: dict[str, int] = {}
        self.trace: list[str] = []
        self.events: list[Event] = []
        self.changes: list[FlowChange] = []
        self.state, change = start(self.program, context, seed, **begin)
        self.changes.append(change)

    def apply(self, event: Event) -> FlowChange:
        self.events.append(event)
        self.changes.append(advance(self.program, self.state, event))
        return self.changes[-1]

    def outcome(self, place: Visit) -> Outcome:
        """Return the scripted outcome of the next attempt at a place."""
        if callable(self.script):
            return self.script(place)
        lines = self.script.get(place.node, OK)
        if isinstance(lines, (Outcome, str)):
            lines = [lines]
        count = self.counts[place.node] = self.counts.get(place.node, 0) + 1
        line = lines[min(count, len(lines)) - 1]
        return line if isinstance(line, Outcome) else Outcome(line)

    def finish(self, place: Visit) -> FlowChange:
        self.trace.append(place.node)
        return self.apply(Finished(place.id, self.outcome(place), place.attempt))

    def run(self, limit: int = 2_000, pick: Callable[[list[Visit]], Visit] = lambda places: places[0]) -> FlowRun:
        """Finish what is in flight, one place at a time in the order of `pick`, until the run ends."""
        for _ in range(limit):
            if self.state.ended or not self.state.in_flight:
                return self
            self.finish(pick(sorted(self.state.in_flight.values(), key=lambda place: place.id)))
        raise AssertionError(f"still going after {limit} steps: {self.trace[-20:]}")

    @property
    def path(self) -> str:
        """Return the nodes that ran, in order, once an attempt."""
        return " ".join(self.trace)

    @property
    def result(self) -> str:
        """Return `done`, or `failed: REASON`."""
        return self.state.status + (f": {self.state.reason}" if self.state.reason else "")


def drive(body: str | Program, script: Script | None = None, **options: Any) -> FlowRun:
    """Drive a run to its end."""
    return FlowRun(body, script, **options).run()


def reloaded(state: FlowState) -> FlowState:
    """Return the state after a round trip through JSON."""
    return FlowState.from_data(json.loads(json.dumps(state.to_data(), sort_keys=True)))
