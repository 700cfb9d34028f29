"""Edges that a run followed, as the page draws them: taken from the guardian's journal and counted."""

from __future__ import annotations

from typing import Any

from garrison.pipeline.parser import parse
from garrison.pipeline.plan import plan_run
from garrison.records.journal import Entry
from garrison.run.state import RunState
from garrison.values import asdict
from garrison.views.event_log import GUARDIAN, StoredRecord
from garrison.views.page_view import PageModel
from garrison.views.run_model import RunModel
from garrison.web.run_stream import DrawnFlow
from top_support import apply_patch

GRAPH = """digraph {
  flow=walk; start [shape=Mdiamond]; exit [shape=Msquare]; work [command="true"]; ask [shape=hexagon, label="Ship it?"]
  start -> work; work -> ask; ask -> exit [label="[Y] Yes"]; ask -> work [label="[N] Again"]
}"""
START, TO_ASK, YES, AGAIN = "0", "1", "2", "3"


def finished(place: str, label: str = "", seq: int = 1, **more: Any) -> StoredRecord:
    outcome = {"status": "success", **({"preferred_label": label} if label else {})}
    return StoredRecord(GUARDIAN, Entry(seq, 1, "guardian-crew@r1#1", "2026-01-01T00:00:00Z", "flow", {
        "event": "finished", "place_id": place, "outcome": outcome, "attempt": 1, "node": place.partition("#")[0],
        **more}))


def new_page() -> PageModel:
    program = plan_run(parse(GRAPH)).program
    assert program is not None
    return PageModel(RunModel("r1", RunState(flow=DrawnFlow(program, "r1"))))


def test_the_page_gets_each_edge_when_it_is_followed() -> None:
    page = new_page()
    shown = asdict(page.snapshot())
    assert shown["followed"] == {START: 1}
    steps = [("work#1", ""), ("ask#1", "Again"), ("work#2", ""), ("ask#2", "Yes")]
    patches = [asdict(page.apply(finished(place, label, seq))) for seq, (place, label) in enumerate(steps, 1)]
    assert [patch["followed"] for patch in patches] == [{TO_ASK: 1}, {AGAIN: 1}, {TO_ASK: 2}, {YES: 1}]
    for patch in patches:
        shown = apply_patch(shown, patch)
    assert shown["followed"] == page.snapshot().followed == {START: 1, TO_ASK: 2, AGAIN: 1, YES: 1}


def test_a_flow_that_cannot_be_replayed_marks_nothing() -> None:
    assert PageModel(RunModel("r1")).snapshot().followed == {}
    page = new_page()
    page.apply(finished("ask#1", outcome={"status": "of a later version"}))
    page.apply(finished("work#1", outcome={"status": "of a later version"}, seq=2))
    assert page.snapshot().followed == {}
    page.apply(finished("work#1", seq=3))
    assert page.snapshot().followed == {} and not page.problems, "the rest of the page stays"
