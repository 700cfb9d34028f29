"""Journal records: every event survives the form of the first edition on disk; a damaged line is noticed."""

from __future__ import annotations

import json
import zlib
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.records import events
from garrison.records.journal import Entry, decode_line, encode_line

ON_DISK: list[tuple[events.Event, dict[str, Any]]] = [
    (events.ProcessOpened(2, 77), {"incarnation": 2, "pid": 77}),
    (events.ProcessOpened(2, 77, resume=False, why="x"), {"incarnation": 2, "pid": 77, "resume": False, "why": "x"}),
    (events.DecisionMade("start", "backoff", {"rule": "next_step"}),
     {"act": "start", "why": "backoff", "basis": {"rule": "next_step"}}),
    (events.ChildFenced("runner-a@r", 1, "dead", {}),
     {"full": "runner-a@r", "incarnation": 1, "why": "dead", "evidence": {}}),
    (events.ChildSwept("runner-a@r", 1, [7]), {"full": "runner-a@r", "incarnation": 1, "pids": [7]}),
    (events.ChildDied("runner-a@r", 1, 5.0, "b1", 2, "killed", "hung"),
     {"full": "runner-a@r", "incarnation": 1, "attempt": 2, "monotonic": 5.0, "boot_id": "b1", "why": "killed",
      "class": "hung"}),
    (events.ChildSpawned("runner-a@r", 2, 1, "again"),
     {"full": "runner-a@r", "incarnation": 2, "attempt": 1, "why": "again"}),
    (events.ChildSpawned("runner-a@r", 2, 1, "probe", probe=True, monotonic=5.0, boot_id="b1"),
     {"full": "runner-a@r", "incarnation": 2, "attempt": 1, "why": "probe", "probe": True, "monotonic": 5.0,
      "boot_id": "b1"}),
    (events.ChildParked("runner-a@r", 6, "six deaths", 5.0, "b1", 1, "2026-01-31T12:00:00Z"),
     {"full": "runner-a@r", "incarnation": 6, "why": "six deaths", "monotonic": 5.0, "boot_id": "b1", "attempt": 1,
      "probe_at": "2026-01-31T12:00:00Z"}),
    (events.ChildHealed("runner-a@r", 7, "healthy"), {"full": "runner-a@r", "incarnation": 7, "why": "healthy"}),
    (events.SignalRefused("f.json", "stale"), {"file": "f.json", "why": "stale"}),
    (events.RunChanged("running"), {"status": "running", "reason": ""}),
    (events.NodeChanged("a", "active"), {"node": "a", "status": "active", "attempt": 1}),
    (events.NodeChanged("a", "failed", 2, "red", "", "a#1:2", "gate"),
     {"node": "a", "status": "failed", "attempt": 2, "reason": "red", "step": "a#1:2", "kind": "gate"}),
    (events.NodeChanged("a", "validated", commit="c0ffee"),
     {"node": "a", "status": "validated", "attempt": 1, "commit": "c0ffee"}),
    (events.FlowAdvanced({"event": "finished", "place_id": "a#1", "outcome": {"status": "success"}, "attempt": 1}, "a",
                         "go"),
     {"event": "finished", "place_id": "a#1", "outcome": {"status": "success"}, "attempt": 1, "node": "a",
      "took": "go"}),
    (events.FlowAdvanced({"event": "timed_out"}), {"event": "timed_out"}),
    (events.WaitChanged("g#1", "g", body={"place": "g#1", "node": "g", "kind": "human"}),
     {"place": "g#1", "node": "g", "kind": "human"}),
    (events.ManagerCycled("m#1", "m", 2, "go on", 1),
     {"place": "m#1", "node": "m", "cycle": 2, "steer": "go on", "steered": 1}),
    (events.CandidatesRanked("a", "a#1:1", ["a__b", "a__a"], "7 and 5"),
     {"node": "a", "step": "a#1:1", "order": ["a__b", "a__a"], "why": "7 and 5"}),
    (events.CandidatesCompared("a", "a#1:1", 2, "a__b", "a__a", "none"),
     {"node": "a", "step": "a#1:1", "attempt": 2, "first": "a__b", "second": "a__a", "verdict": "none"}),
    (events.NodeChanged("a__b", "impl_complete", landing="kept", kept=events.Kept("c0ffee", 3, 7.0)),
     {"node": "a__b", "status": "impl_complete", "attempt": 1, "landing": "kept",
      "kept": {"commit": "c0ffee", "lines": 3, "score": 7.0, "label": ""}}),
    (events.NodeCancelled("a", 1, "not needed"), {"node": "a", "attempt": 1, "why": "not needed"}),
    (events.LandingChanged("requested", 2, oid="c0ffee"), {"status": "requested", "attempt": 2, "oid": "c0ffee"}),
    (events.PullRequestChanged("draft", 7, "https://forge/7", head="c0ffee", taken=["check:ci@c0ffee"], node="a"),
     {"state": "draft", "number": 7, "url": "https://forge/7", "head": "c0ffee", "taken": ["check:ci@c0ffee"],
      "node": "a"}),
    (events.LandingChanged("refused", 1, reason="red", failure_kind="rejected",
                           flow=events.FlowAdvanced({"event": "sent_back", "to": "a", "reason": "red"})),
     {"status": "refused", "attempt": 1, "reason": "red", "kind": "rejected",
      "flow": {"event": "sent_back", "to": "a", "reason": "red"}}),
    (events.ForeignMove("main", "a1", "b2", ["a"], "fix (Ann)", rewritten=True),
     {"branch": "main", "old": "a1", "new": "b2", "at_work": ["a"], "subject": "fix (Ann)", "rewritten": True}),
    (events.Warned("git", "changed", ["a"], "c0ffee", {"files": {"hooks/x": "1"}}),
     {"about": "git", "text": "changed", "at_work": ["a"], "state": "c0ffee", "changes": {"files": {"hooks/x": "1"}}}),
    (events.LaunchRecorded("{}", "digraph {}", {"inner": "digraph {}"}),
     {"launch": "{}", "graph": "digraph {}", "nested": {"inner": "digraph {}"}}),
    (events.NoteWritten("target", "it is gone"), {"who": "target", "text": "it is gone"}),
    (events.GuardianSignal("s1", "GUIDANCE", sender="launch-launch@r", incarnation=1, resume={}),
     {"id": "s1", "type": "GUIDANCE", "node": None, "attempt": 0, "from": "launch-launch@r", "incarnation": 1,
      "resume": {}}),
    (events.GuardianSignal("s1", "NODE_COMPLETE", "a", 1, "runner-a@r", 1,
                           effect=events.NodeChanged("a", "impl_complete")),
     {"id": "s1", "type": "NODE_COMPLETE", "node": "a", "attempt": 1, "from": "runner-a@r", "incarnation": 1,
      "effect": {"node": "a", "status": "impl_complete", "attempt": 1}}),
    (events.GuardianSignal("s1", "X", "a", 1, "f", 1, question=events.AgentQuestion("q", "why?"),
                           stuck=events.StuckAgent("w", "", 3), unstuck=0,
                           heard=events.PipelineSignal("go"), flow=events.FlowAdvanced({"event": "resumed"})),
     {"id": "s1", "type": "X", "node": "a", "attempt": 1, "from": "f", "incarnation": 1,
      "question": {"id": "q", "text": "why?"}, "stuck": {"why": "w", "probe_at": "", "life": 3}, "unstuck": 0,
      "heard": {"name": "go", "value": True}, "flow": {"event": "resumed"}}),
    (events.JournalSnapshot({"status": "running"}), {"status": "running"}),
    (events.LauncherSignal("s1", "ESCALATE", {"who": "a"}), {"id": "s1", "type": "ESCALATE", "payload": {"who": "a"}}),
    (events.NotificationSent("k", "done", "text"), {"key": "k", "event": "done", "text": "text"}),
    (events.GuardianUnparked("guardian-p@r", "resumed"), {"full": "guardian-p@r", "why": "resumed"}),
    (events.LauncherDetached(), {}),
    (events.LauncherEnded("done"), {"status": "done", "reason": ""}),
    (events.RunnerSignal("s1", "GUIDANCE", 1, cancel="no need"),
     {"id": "s1", "type": "GUIDANCE", "attempt": 1, "cancel": "no need"}),
    (events.FactRecorded("failed", "red", 1, "acceptance"),
     {"name": "failed", "value": "red", "attempt": 1, "kind": "acceptance"}),
    (events.JobStarted("setup", "make", 1), {"name": "setup", "command": "make", "attempt": 1}),
    (events.WorkSaved("refs/x", 1), {"ref": "refs/x", "attempt": 1}),
    (events.QueueTaken(3), {"epoch": 3}),
    (events.QueueStepDone("landed", "e1"), {"what": "landed", "entry": "e1"}),
]


@pytest.mark.parametrize(("event", "data"), ON_DISK, ids=lambda one: type(one).__name__)
def test_an_event_is_written_as_in_the_first_edition_and_read_back(event: events.Event, data: dict[str, Any]) -> None:
    assert events.encode(event) == data
    assert events.decode_data(event.kind, json.loads(json.dumps(data))) == event


def test_every_event_has_its_form_on_disk_checked() -> None:
    assert {type(event) for event, _ in ON_DISK} == set(get_args(events.Event))


def test_a_closed_gate_and_a_closed_manager_are_recorded_as_closed() -> None:
    assert events.encode(events.WaitChanged("g#1", "g", closed=True)) == {"place": "g#1", "node": "g", "closed": True}
    closed = events.decode_data("gate", {"place": "g#1", "node": "g", "closed": True})
    assert isinstance(closed, events.WaitChanged) and closed.closed
    manager = events.decode_data("manager", {"place": "m#1", "node": "m", "closed": True})
    assert isinstance(manager, events.ManagerCycled) and manager.closed


def test_missing_fields_of_older_records_are_filled_in_unknown_ones_ignored_and_needed_ones_required() -> None:
    died = events.decode_data("death", {"full": "guardian-p@r", "incarnation": 1, "monotonic": 1.0, "boot_id": "b"})
    assert isinstance(died, events.ChildDied) and (died.attempt, died.death_class) == (1, "crash")
    spawned = events.decode_data("spawn", {"full": "guardian-p@r", "incarnation": 1, "why": "started"})
    assert isinstance(spawned, events.ChildSpawned) and spawned.attempt == 1
    assert events.decode_data("run", {"status": "done", "reason": "", "colour": "blue"}) == events.RunChanged("done")
    assert events.decode_data("aurora", {"brightness": 3}) is None
    with pytest.raises(ValueError, match="missing required field `status`"):
        events.decode_data("node", {"node": "a"})


# ---- one journal line: there and back, and every damage noticed


TEXT = st.text(max_size=30)
ENTRIES = st.builds(Entry, st.integers(), st.integers(), TEXT, TEXT, TEXT,
                    st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=3))
ONE = Entry(7, 2, "guardian-demo@r1#3", "2026-01-31T12:00:00.000000Z", "node", {"node": "a", "text": "größer 🦀\r\n"})


@given(ENTRIES)
def test_any_entry_survives_its_line(entry: Entry) -> None:
    line = encode_line(entry)
    assert line.endswith(b"\n") and line.count(b"\n") == 1 and b"\r" not in line
    assert decode_line(line) == entry


def test_a_line_is_json_with_its_checksum_last_and_undecodable_bytes_survive() -> None:
    line = encode_line(ONE)
    body = json.loads(line)
    assert list(body) == ["seq", "epoch", "schema", "token", "at", "kind", "data", "crc"]
    assert body["crc"] == f"{zlib.crc32(line[:line.rindex(b',')] + b'}'):08x}"
    assert "größer 🦀" in line.decode()
    entry = Entry(1, 1, "t", "at", "note", {"text": "caf\udce9"})
    assert encode_line(entry).decode("utf-8", errors="strict")
    assert decode_line(encode_line(entry)) == entry


def test_every_flipped_bit_is_detected() -> None:
    line = encode_line(ONE)
    for place in range(len(line)):
        for bit in range(8):
            damaged = bytearray(line)
            damaged[place] ^= 1 << bit
            try:
                found = decode_line(bytes(damaged))
            except ValueError:
                continue
            assert found == ONE, (place, bit)  # only the case of a checksum digit may differ


def test_every_cut_and_every_repetition_is_detected() -> None:
    line = encode_line(ONE)
    for place in range(len(line)):
        for damaged in (line[:place], line[:place] + b"\n", line[place + 1:], line + line[place:]):
            if damaged != line + line[:0]:
                with pytest.raises(ValueError, match=r"checksum|journal record"):
                    decode_line(damaged)


@pytest.mark.parametrize("body", [[], {}, "x", 7, None, {"seq": 1, "epoch": 1, "token": "t", "at": "a", "kind": "k"}])
def test_a_foreign_line_with_a_correct_checksum_is_refused(body: Any) -> None:
    raw = json.dumps(body).encode()
    if not isinstance(body, dict):
        raw += b"}"
    line = raw[:-1] + b',"crc":"%08x"}\n' % zlib.crc32(raw)
    with pytest.raises(ValueError, match=r"journal record|JSON|Extra data|Expecting"):
        decode_line(line)
