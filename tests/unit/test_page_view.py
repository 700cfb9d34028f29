"""Page model of a run: snapshots and patches agree, in any interleaving of the journals."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.records.journal import Entry
from garrison.values import asdict
from garrison.views.event_log import GUARDIAN, QUEUE, StoredRecord
from garrison.views.page_view import SIGNALS, TIMELINE, GraphNode, PageModel, Parts, TimelineEntry, latest_entries
from garrison.views.run_model import RunModel
from garrison.web.run_stream import Cursor, decode, run_stamp
from top_support import apply_patch

DRAWN = {name: GraphNode(name, "box", "command") for name in ("a", "b", "c")} | {
    "start": GraphNode("start", "Mdiamond"), "ask": GraphNode("Ship it?", "hexagon")}


class Tale:
    """Records in the order in which they are written: each journal has its own numbers, each record a later time."""

    def __init__(self) -> None:
        self.records: list[StoredRecord] = []
        self._seqs: dict[str, Any] = {}
        self._ticks = itertools.count()

    def add(self, journal: str, kind: str, /, **data: Any) -> Tale:
        seq = next(self._seqs.setdefault(journal, itertools.count(1)))
        at = f"2026-01-01T00:{next(self._ticks) // 60:02}:{len(self.records) % 60:02}.000000Z"
        queue = data.pop("of", "repo/main") if journal == QUEUE else ""
        self.records.append(StoredRecord(journal, Entry(seq, 1, f"{journal}@r1#1", at, kind, data), queue))
        return self

    def g(self, kind: str, /, **data: Any) -> Tale:
        return self.add(GUARDIAN, kind, **data)

    def node(self, node: str, status: str, attempt: int = 1, **more: Any) -> Tale:
        return self.g("node", node=node, status=status, attempt=attempt, **more)

    def life(self, node: str, kind: str, incarnation: int, why: str = "killed") -> Tale:
        return self.add(f"runner-{node}", kind, full=f"orchestrator-{node}@r1", incarnation=incarnation, attempt=1,
                        why=why, monotonic=1.0, boot_id="b", **{"class": "crash"})

    def enqueue(self, node: str, run: str = "r1", **more: Any) -> Tale:
        return self.add(QUEUE, "enq", entry=f"{run}-{node}", run=run, node=node, attempt=1,
                        branch=f"g/{run}/{node}",
                        oid="1" * 40, repo="/repo", recipient="", supersedes=[], **{"target": "main", **more})


def tale() -> list[StoredRecord]:
    """Return a run in which nearly everything happens that the page shows."""
    one = Tale()
    one.enqueue("x", "other")
    for node in "abc":
        one.node(node, "pending")
    one.g("run", status="running").node("a", "active", step="a#1:1").node("b", "active", step="b#1:1")
    one.life("a", "spawn", 1).life("b", "spawn", 1).life("a", "death", 1).life("a", "death", 1).life("a", "spawn", 2)
    one.g("death", full="runner-b@r1", incarnation=1, attempt=1, why="KILL", monotonic=1.0, boot_id="b",
          **{"class": "crash"})
    one.g("signal", id="s1", type="NEEDS_INPUT", node="b", **{"from": "runner-b@r1"},
          question={"id": "q1", "text": "which?"})
    one.g("signal", id="s2", type="INPUT_RESPONSE", node="b", answer="q1")
    one.g("signal", id="s3", type="GUIDANCE", node="b", hold="b", text="lunch")
    one.g("signal", id="s4", type="GUIDANCE", node="b", unhold="b")
    one.g("signal", id="s5", type="NODE_COMPLETE", node="a", **{"from": "runner-a@r1"},
          effect={"node": "a", "status": "impl_complete", "attempt": 1})
    one.g("signal", id="s6", type="GUIDANCE", hold="processor", text="")
    one.g("signal", id="s7", type="GUIDANCE", unhold="processor")
    one.g("park", full="processor-crew@r1", incarnation=3, attempt=1, why="too often", probe_at="", parked_at="")
    one.g("signal", id="s8", type="GUIDANCE", resume={}, run="running", unparked=["processor"])
    one.enqueue("a").add(QUEUE, "pause", reason="asked", detail="<b>lunch</b>", tip="")
    one.add(QUEUE, "resume", reason="ok")
    one.add(QUEUE, "state", entry="r1-a", entries=["r1-a"], status="candidate", base="0" * 40)
    one.add(QUEUE, "cancel", entry="r1-a", reason="no")
    one.node("a", "failed", reason="withdrawn\ntail").node("b", "active", 2, reason="again", step="b#1:1")
    one.g("gate", place="ask#1", node="ask", kind="human", text="Ship it?", type="single_select", default="",
          deadline="", signal="", options=[{"key": "Y", "label": "Yes", "target": "c", "written": "Yes"}])
    one.g("flow", event="finished", place_id="ask#1", node="ask", outcome={"status": "success"})
    one.add("launch", "death", full="guardian-crew@r1", incarnation=1, why="KILL", monotonic=1.0, boot_id="b",
            **{"class": "crash"})
    one.add("launch", "spawn", full="guardian-crew@r1", incarnation=2, why="at once")
    return one.g("run", status="failed", reason="a: withdrawn").records


def new_page() -> PageModel:
    return PageModel(RunModel("r1"), DRAWN)


def replayed(records: list[StoredRecord]) -> tuple[PageModel, list[dict[str, Any]]]:
    page = new_page()
    return page, [plain(page.apply(record, f"text {record.entry.seq}")) for record in records]


def plain(value: Any) -> Any:
    """Return a value as it goes over the wire: a copy that later records do not change."""
    return json.loads(json.dumps(value, default=asdict))


def test_a_snapshot_with_all_later_patches_is_the_current_snapshot() -> None:
    records = tale()
    whole = plain(replayed(records)[0].snapshot())
    assert whole["nodes"]["a"]["deaths"] == 1 and whole["status"] == "failed" and not whole["queue"]["entries"]
    for k in range(len(records) + 1):
        first, _ = replayed(records[:k])
        shown = plain(first.snapshot())
        for record in records[k:]:
            shown = apply_patch(shown, plain(first.apply(record, f"text {record.entry.seq}")))
            assert k or shown == plain(first.snapshot()), f"after {record}"
        assert shown == whole, f"after {k} records"
    page, patches = replayed(tale())
    assert all(patches[place] == {} for place, record in enumerate(tale()) if record.entry.kind in ("open", "decision"))
    other = Tale().add(GUARDIAN, "decision", act="start", why="", basis={}).records[0]
    assert page.apply(other) == Parts()


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_the_order_between_journals_does_not_matter(random: Any) -> None:
    records = tale()
    journals = {name: [one for one in records if one.journal == name] for name in {one.journal for one in records}}
    mixed: list[StoredRecord] = []
    while any(journals.values()):
        name = random.choice([name for name, left in journals.items() if left])
        mixed.append(journals[name].pop(0))
    assert plain(replayed(mixed)[0].snapshot()) == plain(replayed(records)[0].snapshot())


def test_work_that_waits_for_approval_is_a_gate_until_it_is_approved() -> None:
    one = Tale().node("a", "impl_complete").enqueue("a", status="held", approval=True)
    one.enqueue("x", "other", status="held", approval=True)
    page, _ = replayed(one.records)
    [gate] = plain(page.snapshot())["gates"]
    assert (gate["gate"], gate["node"], gate["kind"]) == ("review:r1-a", "a", "review")
    assert [choice["label"] for choice in gate["choices"]] == ["Approve"]
    one.add(QUEUE, "state", entry="r1-a", entries=["r1-a"], status="queued")
    assert page.apply(one.records[-1], "").gates == []


def test_a_paused_queue_is_shown_before_another_queue_of_the_run() -> None:
    """A run that lands as a whole has two queues: its own branch's, and the target's from its exit on."""
    own = "repo/garrison%2Fr1%2Fintegration"
    one = Tale().node("a", "impl_complete").enqueue("a", of=own, target="garrison/r1/integration")

    def shown() -> tuple[bool, str]:
        queue = plain(replayed(one.records)[0].snapshot())["queue"]
        return queue["paused"], queue["target"]

    assert shown() == (False, "garrison/r1/integration")
    one.add(QUEUE, "pause", of=own, reason="asked", detail="", tip="")
    assert shown() == (True, "garrison/r1/integration")
    one.add(QUEUE, "resume", of=own, reason="ok").add(QUEUE, "cancel", of=own, entry="r1-a", reason="no")
    one.enqueue("integration")
    assert shown() == (False, "main")
    one.add(QUEUE, "pause", of=own, reason="asked", detail="", tip="")
    assert shown() == (True, "garrison/r1/integration")


def test_the_timeline_has_deaths_questions_gates_and_respawns_but_no_first_start() -> None:
    page, patches = replayed(tale())
    told = [entry["kind"] for patch in patches for entry in patch.get("timeline_add", [])]
    assert told.count("death") == 3, "two agents or runners and the guardian; a death journaled twice is one"
    assert {"respawn", "asks", "parked", "unparked", "enqueued", "paused", "resumed", "withdrawn", "failed",
            "attempt"} <= set(told)
    assert next(patch["nodes"]["b"]["asks"] for patch in patches if patch.get("nodes", {}).get("b", {}).get("asks")
                ) == "which?"
    gate = next(patch["gates"] for patch in patches if patch.get("gates"))
    assert gate == [{"gate": "ask#1", "node": "ask", "kind": "human", "question": "Ship it?", "signal": "",
                     "deadline": None, "free": False, "default": "", "choices": [{"label": "Yes", "key": "Y"}]}]
    assert plain(page.snapshot())["nodes"]["ask"]["status"] == "passed"
    untold = new_page()
    lines = [line for record in tale() for line in plain(untold.apply(record)).get("timeline_add", [])]
    assert "Ship it?" in [line["text"] for line in lines if line["kind"] == "asks"], "a gate says what it asks"
    records = Tale().life("a", "spawn", 2, "attempt 2").life("a", "spawn", 3, "first restart in the window").records
    kinds = [entry["kind"] for patch in replayed(records)[1] for entry in patch.get("timeline_add", [])]
    assert kinds == ["respawn"]


@pytest.mark.parametrize(("journal", "status"), [(GUARDIAN, "corrupt"), ("launch", "running"), ("runner-a", "running")])
def test_a_record_about_an_invalid_name_is_a_problem_and_later_records_count(journal: str, status: str) -> None:
    one = Tale().g("run", status="running").node("a", "pending")
    one.add(journal, "death", full="nonsense", incarnation=1, attempt=1, why="KILL", monotonic=1.0, boot_id="b",
            **{"class": "crash"})
    page, _ = replayed(one.node("a", "active", step="a#1:1").life("a", "death", 1).records)
    shown = plain(page.snapshot())
    assert (shown["status"], shown["nodes"]["a"]["status"], shown["nodes"]["a"]["deaths"]) == (status, "working", 1)
    assert len(shown["problems"]) == 1 and "nonsense" in shown["problems"][0]
    assert [page.node_of(record) for record in one.records][2:] == ["a" if journal == "runner-a" else "", "a", "a"]
    assert sum(map(len, page.model.deaths().values())) == 1, "the deaths that count can still be listed"


def test_lists_keep_the_youngest() -> None:
    one = Tale()
    for number in range(3 * TIMELINE):
        one.g("run", status="running" if number % 2 else "stopped") if number else one.g("run", status="running")
    page = PageModel(RunModel("r1"))
    for record in one.records:
        page.apply(record)
    assert len(plain(page.snapshot())["timeline"]) == TIMELINE and len(page.timeline) <= 2 * TIMELINE
    entries = [TimelineEntry("", f"{place:03}", "", "", "") for place in range(SIGNALS)]
    assert latest_entries(entries[::-1], 2) == entries[-2:]


def test_a_cursor_over_all_journals_is_one_id_and_only_grows() -> None:
    order = ["a", "b", "c"]
    here = Cursor(run_stamp("r1", "2026"), 12, 3, 40, {"a": 5, "c": 2})
    text = here.encode(order)
    assert decode(text, order) == here and decode(text, [*order, "d"]) == here
    assert decode(text, ["a"]) is None, "of a run that knows fewer nodes"
    for wrong in ("", "12", text + "x", text.replace("g12", "g-1"), "9" * 400, f"{text}\n"):
        assert decode(wrong, order) is None
    later = Cursor(here.stamp, 12, 3, 41, {"a": 5, "b": 1, "c": 2})
    assert here.within(later) and not later.within(here)
    assert not Cursor("00000000", 0).within(here), "another run of the same name"
    assert Cursor(here.stamp).encode(order) == f"{here.stamp}-g0.l0.m0-"
    here = Cursor("00000000")
    for record in tale():
        before = here.encode(["a", "b", "c"])
        here.advance(record)
        earlier = decode(before, ["a", "b", "c"])
        assert earlier is not None and earlier.within(here)
    assert (here.guardian, here.launch, here.runners) == (21, 2, {"a": 4, "b": 1})
