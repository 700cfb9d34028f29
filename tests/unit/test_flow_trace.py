"""Edges that a run followed, as the page draws them: taken from the guardian's journal, counted, never in the way."""

from __future__ import annotations

from typing import Any

from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.records.journal import Entry
from garrison.views.event_log import GUARDIAN, Record
from garrison.views.flow_trace import FlowTrace
from garrison.views.page_view import PageModel, apply_patch
from garrison.views.run_model import RunModel

GRAPH = """digraph {
  flow=walk; start [shape=Mdiamond]; exit [shape=Msquare]; work [command="true"]; ask [shape=hexagon, label="Ship it?"]
  start -> work; work -> ask; ask -> exit [label="[Y] Yes"]; ask -> work [label="[N] Again"]
}"""
START, TO_ASK, YES, AGAIN = "0", "1", "2", "3"


def finished(place: str, label: str = "", seq: int = 1, **more: Any) -> Record:
    outcome = {"status": "success", **({"preferred_label": label} if label else {})}
    return Record(GUARDIAN, Entry(seq, 1, "guardian-crew@r1#1", "2026-01-01T00:00:00Z", "flow", {
        "event": "finished", "place_id": place, "outcome": outcome, "attempt": 1, "node": place.partition("#")[0],
        **more}))


def loop() -> list[Record]:
    """Work, ask, again, work, ask, yes."""
    steps = [("work#1", ""), ("ask#1", "Again"), ("work#2", ""), ("ask#2", "Yes")]
    return [finished(place, label, seq) for seq, (place, label) in enumerate(steps, 1)]


def test_each_edge_is_counted_when_it_is_followed() -> None:
    trace = FlowTrace("r1", plan_run(parse(GRAPH)))
    assert trace.followed == {START: 1}
    told = [dict(trace.apply(record)) for record in loop()]
    assert told == [{TO_ASK: 1}, {AGAIN: 1}, {TO_ASK: 2}, {YES: 1}]
    assert trace.followed == {START: 1, TO_ASK: 2, AGAIN: 1, YES: 1}


def test_a_flow_that_cannot_be_replayed_marks_nothing() -> None:
    assert FlowTrace("r1", None).followed == {}
    trace = FlowTrace("r1", plan_run(parse(GRAPH)))
    assert trace.apply(finished("work#1", outcome="not an outcome")) == {} == trace.followed
    assert trace.apply(finished("work#1")) == {}


def test_the_page_gets_followed_edges_and_the_chosen_answer() -> None:
    page = PageModel(RunModel("r1"), trace=FlowTrace("r1", plan_run(parse(GRAPH))))
    shown = page.snapshot()
    for record in loop():
        shown = apply_patch(shown, page.apply(record))
    assert shown["followed"] == page.snapshot()["followed"] == {START: 1, TO_ASK: 2, AGAIN: 1, YES: 1}
