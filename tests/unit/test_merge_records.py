"""Journal records of a merge queue: their form on disk is frozen, and records of 0.1 are read."""

from __future__ import annotations

import json

import pytest

from garrison.merge import records
from garrison.merge.config import QueueConfig
from garrison.merge.records import (
    RECORDS,
    CheckoutUpdated,
    Configured,
    EntryAmended,
    EntryCancelled,
    EntryEnqueued,
    EntryLanded,
    GateStarted,
    LandingBlocked,
    LandingStarted,
    LandingsUndone,
    LeaseTaken,
    QueueHindered,
    QueuePaused,
    QueueResumed,
    SnapshotTaken,
    StatusChanged,
    TargetMoved,
    TurnAwaited,
    TurnEnded,
    TurnSuspended,
    TurnTimed,
    VerdictGiven,
)
from garrison.records.comments import ReviewComment

STORED = [
    (Configured(QueueConfig("make", keep=("*.o",))), "config",
     {"gate": "make", "setup": None, "no_gate": False, "timeout": 1800.0, "lock_files": [], "strategy": "merge",
      "clean": "untracked", "keep": ["*.o"], "gate_cores": 0, "guard": False,
      "hooks": "", "gate_from_target": [], "batch_history": "tip", "max_batch": 0, "beliefs": True,
      "commit_hook": "", "committer": "", "signer": None}),
    (EntryEnqueued("a-1", "r", "a", 1, "b", "o", "main", "/r", "runner-a@r", 0, (), "merge", "queued", ("x",)), "enq",
     {"entry": "a-1", "run": "r", "node": "a", "attempt": 1, "branch": "b", "oid": "o", "target": "main", "repo": "/r",
      "recipient": "runner-a@r", "priority": 0, "depends_on": [], "strategy": "merge", "status": "queued",
      "supersedes": ["x"]}),
    (EntryAmended("a-1", 2, ("b-1",), "squash"), "amend",
     {"entry": "a-1", "priority": 2, "depends_on": ["b-1"], "strategy": "squash"}),
    (LeaseTaken(), "lease", {}),
    (StatusChanged(("a", "b"), "candidate", base="t", trees=("1", "2"), commits=("3", "4")), "state",
     {"entry": "a", "entries": ["a", "b"], "status": "candidate", "base": "t", "trees": ["1", "2"],
      "commits": ["3", "4"]}),
    (StatusChanged(("a",), "conflict", "why", ("f",), "t"), "state",
     {"entry": "a", "entries": ["a"], "status": "conflict", "reason": "why", "files": ["f"], "base": "t"}),
    (StatusChanged(("a",), "conflict", "why", ("f",), "t", turn=900.0, moved=True), "state",
     {"entry": "a", "entries": ["a"], "status": "conflict", "reason": "why", "files": ["f"], "base": "t", "turn": 900.0,
      "moved": True}),
    (TurnAwaited("a", "r", "b", ("f",)), "awaits", {"entry": "a", "run": "r", "node": "b", "files": ["f"]}),
    (TurnTimed("r", "b", 3, 7.5), "turn_time", {"run": "r", "node": "b", "number": 3, "used": 7.5}),
    (TurnSuspended("r", "b", 3, waits=True), "turn_waits", {"run": "r", "node": "b", "number": 3, "waits": True}),
    (TurnEnded("r", "b", 3, "time"), "turn_over", {"run": "r", "node": "b", "number": 3, "end": "time"}),
    (GateStarted(("a",), "base", 2, "a.2", "c", "t", 1, "k", "l"), "test",
     {"entry": "a", "entries": ["a"], "of": "base", "number": 2, "job": "a.2", "commit": "c", "tree": "t", "slot": 1,
      "command": "k", "log": "l"}),
    (StatusChanged(("a",), "rejected", "r", review="v", comments=(ReviewComment("a.py", -2, "why", -3, ("x", "y")),)),
     "state", {"entry": "a", "entries": ["a"], "status": "rejected", "reason": "r", "review": "v", "comments": [
         {"path": "a.py", "line": -2, "text": "why", "last": -3, "quoted": ["x", "y"]}]}),
    (VerdictGiven(("a",), "entry", "t", "k", "red", "why", "l", "a.1", 1), "verdict",
     {"entry": "a", "entries": ["a"], "of": "entry", "tree": "t", "command": "k", "result": "red", "reason": "why",
      "log": "l", "job": "a.1", "code": 1}),
    (VerdictGiven((), "preflight", "t", "k", "green", "", ""), "verdict",
     {"entry": "", "entries": [], "of": "preflight", "tree": "t", "command": "k", "result": "green", "reason": "",
      "log": ""}),
    (VerdictGiven(("a",), "entry", "t", "k", "lost", "why", "l", "a.1", -1, uncounted=True), "verdict",
     {"entry": "a", "entries": ["a"], "of": "entry", "tree": "t", "command": "k", "result": "lost", "reason": "why",
      "log": "l", "job": "a.1", "code": -1, "uncounted": True}),
    (VerdictGiven(("a", "b"), "entry", "t", "k", "red", "why", "l", failing=("t.py::x",), suspicion=(6.0, 0.5)),
     "verdict", {"entry": "a", "entries": ["a", "b"], "of": "entry", "tree": "t", "command": "k", "result": "red",
                 "reason": "why", "log": "l", "failing": ["t.py::x"], "suspicion": [6.0, 0.5]}),
    (LandingStarted(("a", "b"), "o", "n", ("m", "n")), "landing",
     {"entry": "a", "entries": ["a", "b"], "old": "o", "new": "n", "commits": ["m", "n"]}),
    (LandingStarted(("a", "b"), "o", "n", ("m", "n"), ((), ("f",))), "landing",
     {"entry": "a", "entries": ["a", "b"], "old": "o", "new": "n", "commits": ["m", "n"], "united": [[], ["f"]]}),
    (CheckoutUpdated("a", "/c", "o", "n"), "moved", {"entry": "a", "path": "/c", "old": "o", "new": "n"}),
    (EntryLanded("a", "c", "o", stale_checkouts=("/c",)), "landed",
     {"entry": "a", "commit": "c", "old": "o", "owed": ["/c"]}),
    (LandingBlocked(("a",), "o", "why", ("f",)), "unlanded",
     {"entry": "a", "entries": ["a"], "old": "o", "reason": "why", "files": ["f"]}),
    (LandingsUndone(("a",), "o", "why", again=True), "undone",
     {"entry": "a", "entries": ["a"], "tip": "o", "reason": "why", "again": True}),
    (TargetMoved(("a",), "o", "why", "o", "x"), "foreign",
     {"entry": "a", "entries": ["a"], "old": "o", "reason": "why", "expected": "o", "found": "x"}),
    (QueuePaused(("a",), "base_red", "why", "t", "l"), "pause",
     {"entry": "a", "entries": ["a"], "reason": "base_red", "detail": "why", "tip": "t", "log": "l"}),
    (QueueResumed("why"), "resume", {"reason": "why"}),
    (QueueHindered("why"), "hindered", {"reason": "why"}),
    (QueueHindered(), "hindered", {}),
    (EntryCancelled("a", "why"), "cancel", {"entry": "a", "reason": "why"}),
    (SnapshotTaken({"count": 1}), "snapshot", {"count": 1}),
]

OF_0_1 = [
    ("enq", {"entry": "a-1", "run": "r", "node": "a", "attempt": 1, "branch": "b", "oid": "o", "target": "main",
             "repo": "/r", "recipient": "", "supersedes": []},
     EntryEnqueued("a-1", "r", "a", 1, "b", "o", "main", "/r", "", 0, (), "merge", "queued", ())),
    ("state", {"entry": "a", "status": "candidate", "base": "t", "tree": "1", "commit": "3"},
     StatusChanged(("a",), "candidate", base="t", trees=("1",), commits=("3",))),
    ("state", {"entry": "a", "status": "held", "reason": "why"}, StatusChanged(("a",), "held", "why")),
    ("state", {"entry": "a", "status": "rejected", "reason": "rejected in review: failed (exit 3)"},
     StatusChanged(("a",), "rejected", "rejected in review: failed (exit 3)", review="failed (exit 3)")),
    ("state", {"entry": "a", "status": "rejected", "reason": "red: rejected in review: x"},
     StatusChanged(("a",), "rejected", "red: rejected in review: x")),
    ("verdict", {"entry": "a", "of": "entry", "tree": "t", "command": "k", "result": "green", "reason": "", "log": "l"},
     VerdictGiven(("a",), "entry", "t", "k", "green", "", "l")),
    ("verdict", {"entry": "", "of": "preflight", "tree": "t", "command": "k", "result": "green", "reason": "",
                 "log": ""}, VerdictGiven((), "preflight", "t", "k", "green", "", "")),
    ("landing", {"entry": "a", "old": "o", "new": "n"}, LandingStarted(("a",), "o", "n", ("n",))),
    ("pause", {"reason": "asked", "detail": "lunch", "tip": ""}, QueuePaused((), "asked", "lunch", "")),
    ("landed", {"entry": "a", "commit": "c", "old": "o", "owed": []}, EntryLanded("a", "c", "o")),
    ("resume", {"reason": "why", "unknown": 1}, QueueResumed("why")),
]


@pytest.mark.parametrize(("record", "kind", "data"), STORED)
def test_a_record_is_stored_in_one_form_and_read_back(record, kind, data):
    assert (record.kind, json.loads(json.dumps(records.encode(record)))) == (kind, data)
    assert records.decode(kind, json.loads(json.dumps(data))) == record


def test_every_kind_has_its_record_and_an_unknown_kind_or_a_missing_field_has_none():
    assert {kind for _, kind, _ in STORED} == set(RECORDS)
    assert records.decode("hologram", {"entry": "a"}) is None
    with pytest.raises(ValueError, match="missing required field `commit`"):
        records.decode("landed", {"entry": "a"})


@pytest.mark.parametrize(("kind", "data", "record"), OF_0_1)
def test_records_of_earlier_versions_are_read(kind, data, record):
    assert records.decode(kind, data) == record
