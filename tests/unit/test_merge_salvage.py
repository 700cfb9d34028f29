"""A queue put together again from a journal with gaps, its repository and its signals."""

from __future__ import annotations

import pytest
from test_merge_snapshot import RECORDS, replay

from garrison.merge.entry import FINAL, MergeEntry, entry_id
from garrison.merge.recovery import Trace, Traces, salvage
from garrison.values import replace

AT = "2026-01-03T00:00:00.000000Z"
NO_TRACES = Traces("/q", "/r", "main")
LAST = replay(RECORDS)


def trace(node, attempt, oid, run="", **more):
    return Trace(entry_id("/q", run, node, attempt, oid), oid, AT, **more)


def test_whichever_record_is_gone_the_others_count():
    for gone, record in enumerate(RECORDS):
        found = salvage([*RECORDS[:gone], *RECORDS[gone + 1:]], NO_TRACES)
        lost = record.data["entry"] if record.kind == "enq" else ""
        assert set(LAST.entries) - set(found.state.entries) <= {lost}
        assert {entry.status for entry in found.state.unfinished()} <= {"queued", "held"}, gone
        assert found.state.gates == {}
        assert found.state.landing is None
        for entry in found.state.entries.values():  # no entry ends otherwise than it did
            assert entry.status == LAST.entries[entry.id].status or entry.status not in FINAL, (gone, entry)
        assert (found.state.config is None) == (gone == 0)


def test_what_a_landing_united_stays_with_its_entry_where_the_record_of_another_is_gone():
    records = [replace(each, data={**each.data, "united": [["b.md"], ["d.md"]]}) if each.kind == "landing" and
               "d2" in each.data["entries"] else each for each in RECORDS if each.data.get("entry") != "b1"
               or each.kind != "enq"]
    assert salvage(records, NO_TRACES).state.entries["d2"].united == ("d.md",)


def test_the_end_of_a_journal_alone_is_read():
    for first in (10, 20, 30, 40):
        found = salvage(RECORDS[first:], NO_TRACES)
        assert set(found.state.entries) == {record.data["entry"] for record in RECORDS[first:] if record.kind == "enq"}


def test_a_pinned_entry_of_this_queue_is_enqueued_again():
    pins = [trace("docs", 1, "a" * 40, branch="docs"), trace("docs", 2, "b" * 40), trace("of-run", 3, "c" * 40, "r1"),
            trace("other", 1, "d" * 40, "unknown-run"), Trace("no-name", "e" * 40, AT), Trace("", "e" * 40, AT)]
    found = salvage([], Traces("/q", "/r", "main", ["r1"], pins))
    entries = {entry.node: (entry.attempt, entry.run, entry.branch, entry.recipient, entry.status)
            for entry in found.state.entries.values() if entry.status != "superseded"}
    assert entries == {"docs": (2, "", "b" * 40, "", "queued"),
                    "of-run": (3, "r1", "c" * 40, "runner-of-run@r1", "queued")}
    assert [entry.status for entry in found.state.entries.values()] == ["superseded", "queued", "queued"]
    assert len(found.notes) == 3
    assert list(found.state.positions.values()) == [0, 1, 2]


def test_a_pinned_entry_of_work_that_a_person_has_to_approve_is_held_again():
    """Whether it was approved is lost with its record: it must not land unseen."""
    pins = [trace("docs", 1, "a" * 40, "r1"), trace("docs", 2, "b" * 40, "r1"), trace("code", 1, "c" * 40, "r1")]
    found = salvage([], Traces("/q", "/r", "main", ["r1"], pins, approvals={("r1", "docs", 2)}))
    states = {(entry.node, entry.attempt): (entry.status, entry.awaits_approval)
              for entry in found.state.entries.values()}
    assert states == {("docs", 1): ("superseded", False), ("docs", 2): ("held", True), ("code", 1): ("queued", False)}


def test_rejected_work_that_is_known_by_its_signal_has_to_be_approved_when_it_is_retried():
    rejected = MergeEntry(trace("docs", 1, "a" * 40, "r1").entry, "r1", "docs", 1, "docs", "a" * 40, "main",
                          status="rejected", reason="rejected in review: no")
    found = salvage([], Traces("/q", "/r", "main", ["r1"], signalled=[rejected], approvals={("r1", "docs", 1)}))
    assert found.state.entries[rejected.id].approval


@pytest.mark.parametrize("status", ["landed", "rejected", "queued"])
def test_an_earlier_attempt_that_is_known_by_its_pin_does_not_take_the_place_of_a_later_one(status):
    """Its pin stays when it fails: with its end forgotten it would land after, or instead of, what followed it."""
    pins, landed, signalled = [trace("docs", 9, "a" * 40, "r1")], [], []
    later = trace("docs", 10, "b" * 40, "r1", commit="c" * 40)
    if status == "landed":
        landed = [later]
    elif status == "queued":
        pins = [later, *pins]  # git has packed the pins: their order says nothing
    else:
        signalled = [MergeEntry(later.entry, "r1", "docs", 10, "docs", later.oid, "main", status=status)]
    found = salvage([], Traces("/q", "/r", "main", ["r1"], pins, landed, signalled))
    assert {entry.attempt: entry.status for entry in found.state.entries.values()} == {10: status}


def test_the_history_shows_what_landed_and_the_signals_what_failed():
    known, unknown = trace("a", 1, "1" * 40, commit="x" * 40), trace("b", 1, "2" * 40, commit="y" * 40)
    records = [record for record in RECORDS if record.kind in ("config", "lease")]
    begun = RECORDS[1]
    enq = type(begun)(3, 1, "t", AT, "enq", {**begun.data, "entry": known.entry, "run": "", "node": "a",
                                             "oid": known.oid})
    failed = MergeEntry(trace("f", 1, "3" * 40).entry, "", "f", 1, "f", "3" * 40, "main", status="conflict",
                        files=("x",), reason="conflict in x")
    found = salvage([*records, enq], Traces("/q", "/r", "main", [], [Trace(failed.id, failed.oid, AT)],
                                            [known, unknown], [failed]))
    assert found.landed == {known.entry: known.commit}
    assert found.state.entries[known.entry].status == "queued"  # recorded as landed by a record of its own
    assert found.state.entries[unknown.entry].status == "landed"
    assert found.state.entries[failed.id] == failed
    assert found.notes == []
