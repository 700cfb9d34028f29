"""Snapshots of a queue's state restore it, at every record, and replay goes on alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    ("resume", {"reason": "a person said so"}), enq("d2", attempt=2, supersedes=["d1"]),
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


def test_a_snapshot_at_any_record_restores_the_state_and_goes_on_alike():
    for cut in range(len(RECORDS) + 1):
        state = replay(RECORDS[:cut])
        again = compacted(state)
        assert comparable(again) == comparable(state), cut
        assert again.snapshot_seq == cut
        assert comparable(replay(RECORDS[cut:], again)) == comparable(replay(RECORDS)), cut


@pytest.mark.parametrize("line", (Path(__file__).parent / "merge_snapshots_0_1.jsonl").read_text().splitlines())
def test_a_snapshot_of_version_0_1_restores_the_state_and_goes_on_alike(line):
    """Written by 0.1 from the same records: with a gate running, amid a landing, and paused."""
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
    """Return what is comparable of a state, without which entries landed together, which 0.1 kept in the journal alone,
    and how a gate ended, which it had in words only."""
    entries = {name: as_of_0_1(entry) for name, entry in state.entries.items()}
    outcomes = [replace(outcome, entry=as_of_0_1(outcome.entry)) for outcome in state.outcomes]
    landings = {old: (new, names[:1]) for old, (new, names) in state.landings.items()}
    return comparable(replace(state, entries=entries, outcomes=outcomes, landings=landings))


def as_of_0_1(entry):
    return replace(entry, together=(), code=None, note="", review="")


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
