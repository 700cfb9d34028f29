"""Snapshots of a queue's state restore it at every record; and a queue restored from what is left of its journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from garrison.merge.entry import FINAL, MergeEntry, entry_id
from garrison.merge.recovery import Trace, Traces, salvage
from garrison.merge.state import QueueState, snapshot
from garrison.records.journal import Entry as Stored
from garrison.values import fields_of, replace

CONFIG = {"gate": "make", "setup": None, "no_gate": False, "timeout": 10.0, "lock_files": ["a"], "keep": ["*.o"]}


def enq(name, **more):
    return "enq", {"entry": name, "run": "r", "node": name[0], "attempt": 1, "branch": "b", "oid": name * 10,
                   "target": "main", "repo": "/r", "recipient": f"runner-{name}@r", "supersedes": [], **more}


def several(kind, *names, **more):
    return kind, {"entry": names[0], "entries": list(names), **more}


def gate_run(job, result, *names, of="entry", **more):
    where = {"tree": f"t{job}", "command": "k", "job": job, "log": "l", "of": of}
    return [several("test", *names, number=1, commit="c", slot=1, **where),
            several("verdict", *names, result=result, code=1, reason="why", **where, **more)]


STORY = [
    ("config", CONFIG), enq("a1"), enq("b1", priority=3, depends_on=["a1"]), enq("c1", strategy="rebase"), enq("d1"),
    ("lease", {}), several("state", "a1", "c1", status="candidate", base="b", trees=["t", "u"], commits=["x", "y"]),
    *gate_run("1", "red", "a1", "c1"), *gate_run("2", "lost", "a1", "c1", uncounted=True), *gate_run("3", "lost", "a1"),
    *gate_run("4", "green", "a1"), *gate_run("5", "red", "c1"), *gate_run("6", "red", "c1", of="base"),
    *gate_run("7", "green", "c1", of="base"),
    several("landing", "a1", old="b", new="x", commits=["x"]),
    ("landed", {"entry": "a1", "commit": "x", "old": "b", "owed": ["/one", "/two"]}),
    ("moved", {"entry": "", "path": "/one", "old": "b", "new": "x"}),
    ("state", {"entry": "c1", "status": "rejected", "reason": "red"}),
    ("amend", {"entry": "b1", "priority": 1, "depends_on": [], "strategy": "squash"}),
    several("state", "b1", "d1", status="candidate", base="x", trees=["v", "w"], commits=["m", "n"]),
    *gate_run("8", "missing", "b1", "d1"),
    several("pause", "b1", "d1", reason="gate_broken", detail="no such command", tip="x", log="l"),
    ("resume", {"reason": "by hand"}), enq("d2", attempt=2, supersedes=["d1"]),
    several("state", "b1", "d2", status="candidate", base="x", trees=["v", "w"], commits=["m", "n"]),
    several("landing", "b1", "d2", old="x", new="n", commits=["m", "n"]),
    ("landed", {"entry": "b1", "commit": "m", "old": "x"}),
    ("landed", {"entry": "d2", "commit": "n", "old": "x", "owed": []}),
    enq("e1", status="held"), ("cancel", {"entry": "e1", "reason": "no"}), enq("f1"),
    ("state", {"entry": "f1", "status": "conflict", "files": ["a", "b"], "base": "n", "reason": "both"}),
    ("pause", {"reason": "asked", "detail": "lunch", "tip": ""}),
]
RECORDS = [Stored(seq, 1 + seq // 20, "t", f"2026-01-01T00:00:00.{seq:06d}Z", kind, data)
           for seq, (kind, data) in enumerate(STORY, 1)]


def replay(records, state=None):
    state = state or QueueState()
    for record in records:
        state.apply(record)
    return state


def compacted(state, **kept):
    data = json.loads(json.dumps(snapshot(state, **kept).state))
    return replay([Stored(state.seq, state.epoch, "t", "2027-01-01T00:00:00.000000Z", "snapshot", data)])


def comparable(state):
    return {name: value for name, value in fields_of(state).items() if name != "snapshot_seq"}


def test_a_snapshot_at_any_record_restores_the_state_and_the_rest_of_the_journal_leads_to_the_same_end():
    for cut in range(len(RECORDS) + 1):
        state = replay(RECORDS[:cut])
        again = compacted(state)
        assert comparable(again) == comparable(state), cut
        assert again.snapshot_seq == cut
        assert comparable(replay(RECORDS[cut:], again)) == comparable(replay(RECORDS)), cut


@pytest.mark.parametrize("line", (Path(__file__).parent / "merge_snapshots_0_1.jsonl").read_text().splitlines())
def test_a_snapshot_of_version_0_1_restores_the_state_and_the_rest_of_the_journal_leads_to_the_same_end(line):
    """Written by 0.1 from the same records: with a gate running, in the middle of a landing, and paused."""
    stored = json.loads(line)
    cut = stored["records"]
    restored = replay([Stored(stored["seq"], stored["epoch"], "t", "2027-01-01T00:00:00.000000Z", "snapshot",
                              stored["data"])])
    kept = replay(RECORDS[:cut])
    assert restored.moves == {}, "0.1 kept none"
    restored.moves |= kept.moves
    assert restored.landings == {}, "0.1 kept none"
    restored.landings |= kept.landings
    assert without_companions(restored) == without_companions(kept)
    assert without_companions(replay(RECORDS[cut:], restored)) == without_companions(replay(RECORDS))


def without_companions(state):
    """Return the comparable fields of a state, except two: which entries landed together, which 0.1 kept only in
    the journal, and how a gate ended, which it had only in words."""
    def as_of_0_1(entry):
        return replace(entry, together=(), code=None, note="", review="")

    entries = {name: as_of_0_1(entry) for name, entry in state.entries.items()}
    outcomes = [replace(outcome, entry=as_of_0_1(outcome.entry)) for outcome in state.outcomes]
    landings = {old: (new, names[:1]) for old, (new, names) in state.landings.items()}
    return comparable(replace(state, entries=entries, outcomes=outcomes, landings=landings))


def test_old_entries_are_forgotten_but_not_those_that_others_wait_for():
    more = [enq("g1"), ("cancel", {"entry": "g1", "reason": "no"}), enq("h1", depends_on=["c1"])]
    state = replay([*RECORDS, *(Stored(100 + at, 9, "t", "2026-01-02T00:00:00.000000Z", *one)
                              for at, one in enumerate(more))])
    again = compacted(state, kept_entries=2, kept_verdicts=3)
    assert list(again.entries) == ["c1", "f1", "g1", "h1"]
    assert [again.positions[name] for name in again.entries] == [2, 6, 7, 8]
    assert [entry.id for entry in again.unmet_dependencies(again.entries["h1"])] == ["c1"]
    assert {outcome.entry.id for outcome in again.outcomes} <= set(again.entries)
    assert len(again.verdicts.green) <= 3
    assert again.enqueued == 9


def test_the_order_of_waiting_entries_stays_when_others_are_forgotten():
    story = [enq("x1")]
    for number in range(30):
        story += [enq(f"a{number}"), ("cancel", {"entry": f"a{number}", "reason": "no"})]
    story.append(enq("y1", priority=3))
    state = replay([Stored(at, 1, "t", "2026-01-02T00:00:00.000000Z", *one) for at, one in enumerate(story, 1)])
    again = compacted(state, kept_entries=0)
    assert [entry.id for entry in state.ranked()] == [entry.id for entry in again.ranked()] == ["x1", "y1"]


# ---- a queue restored from a journal with gaps, its repository and its signals


AT = "2026-01-03T00:00:00.000000Z"
NO_TRACES = Traces("/q", "/r", "main")
LAST = replay(RECORDS)


def trace(node, attempt, oid, run="", **more):
    return Trace(entry_id("/q", run, node, attempt, oid), oid, AT, **more)


def test_each_record_or_the_whole_start_may_be_missing_and_the_others_count():
    for gone, record in enumerate(RECORDS):
        found = salvage([*RECORDS[:gone], *RECORDS[gone + 1:]], NO_TRACES)
        lost = record.data["entry"] if record.kind == "enq" else ""
        assert set(LAST.entries) - set(found.state.entries) <= {lost}
        assert {entry.status for entry in found.state.unfinished()} <= {"queued", "held"}, gone
        assert found.state.gates == {}
        assert found.state.landing is None
        for entry in found.state.entries.values():  # no entry ends in another way than it did
            assert entry.status == LAST.entries[entry.id].status or entry.status not in FINAL, (gone, entry)
        assert (found.state.config is None) == (gone == 0)
    for first in (10, 20, 30, 40):
        found = salvage(RECORDS[first:], NO_TRACES)
        assert set(found.state.entries) == {record.data["entry"] for record in RECORDS[first:] if record.kind == "enq"}


def test_what_a_landing_united_stays_with_its_entry_if_the_record_of_another_is_missing():
    records = [replace(each, data={**each.data, "united": [["b.md"], ["d.md"]]}) if each.kind == "landing" and
               "d2" in each.data["entries"] else each for each in RECORDS if each.data.get("entry") != "b1"
               or each.kind != "enq"]
    assert salvage(records, NO_TRACES).state.entries["d2"].united == ("d.md",)


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


def test_work_that_needs_approval_waits_for_it_again_and_also_when_it_was_rejected():
    """The approval is lost with its record: the work must not land unseen."""
    pins = [trace("docs", 1, "a" * 40, "r1"), trace("docs", 2, "b" * 40, "r1"), trace("code", 1, "c" * 40, "r1")]
    found = salvage([], Traces("/q", "/r", "main", ["r1"], pins, approvals={("r1", "docs", 2)}))
    states = {(entry.node, entry.attempt): (entry.status, entry.awaits_approval)
              for entry in found.state.entries.values()}
    assert states == {("docs", 1): ("superseded", False), ("docs", 2): ("held", True), ("code", 1): ("queued", False)}
    rejected = MergeEntry(trace("docs", 1, "a" * 40, "r1").entry, "r1", "docs", 1, "docs", "a" * 40, "main",
                          status="rejected", reason="rejected in review: no")
    found = salvage([], Traces("/q", "/r", "main", ["r1"], signalled=[rejected], approvals={("r1", "docs", 1)}))
    assert found.state.entries[rejected.id].approval


@pytest.mark.parametrize("status", ["landed", "rejected", "queued"])
def test_an_earlier_attempt_known_by_its_pin_does_not_replace_a_later_one(status):
    """Its pin stays when it fails: without a record of its end it would land after, or instead of, its successor."""
    pins, landed, signalled = [trace("docs", 9, "a" * 40, "r1")], [], []
    later = trace("docs", 10, "b" * 40, "r1", commit="c" * 40)
    if status == "landed":
        landed = [later]
    elif status == "queued":
        pins = [later, *pins]  # git has packed the pins: their order means nothing
    else:
        signalled = [MergeEntry(later.entry, "r1", "docs", 10, "docs", later.oid, "main", status=status)]
    found = salvage([], Traces("/q", "/r", "main", ["r1"], pins, landed, signalled))
    assert {entry.attempt: entry.status for entry in found.state.entries.values()} == {10: status}


def test_the_history_shows_what_landed_and_the_signals_what_failed():
    known, unknown = trace("a", 1, "1" * 40, commit="x" * 40), trace("b", 1, "2" * 40, commit="y" * 40)
    records = [record for record in RECORDS if record.kind in ("config", "lease")]
    enqueued = Stored(3, 1, "t", AT, "enq", {**RECORDS[1].data, "entry": known.entry, "run": "", "node": "a",
                                             "oid": known.oid})
    failed = MergeEntry(trace("f", 1, "3" * 40).entry, "", "f", 1, "f", "3" * 40, "main", status="conflict",
                        files=("x",), reason="conflict in x")
    found = salvage([*records, enqueued], Traces("/q", "/r", "main", [], [Trace(failed.id, failed.oid, AT)],
                                            [known, unknown], [failed]))
    assert found.landed == {known.entry: known.commit}
    assert found.state.entries[known.entry].status == "queued"  # recorded as landed by a record of its own
    assert found.state.entries[unknown.entry].status == "landed"
    assert found.state.entries[failed.id] == failed
    assert found.notes == []
