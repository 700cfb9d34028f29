from __future__ import annotations

import pytest

from garrison.errors import ForbiddenTransition, NotFound
from garrison.merge.entry import FINAL, TRANSITIONS, check_transition, entry_id
from garrison.merge.state import QueueState
from garrison.records.journal import Entry as Record


class Journal:
    def __init__(self) -> None:
        self.records: list[Record] = []
        self.state = QueueState()

    def add(self, kind, **data):
        self.state.check(kind, data)
        self.records.append(Record(len(self.records) + 1, 1, "t", f"2026-01-01T00:00:00.{len(self.records):06d}Z", kind,
                                   data))
        self.state.apply(self.records[-1])
        return self.state

    def enq(self, name, node="n", attempt=1, supersedes=()):
        return self.add("enq", entry=name, run="r", node=node, attempt=attempt, branch="b", oid=name * 10,
                        target="main", repo="/r", recipient="", supersedes=list(supersedes))


def test_every_status_of_the_table_is_known_and_final_ones_stay():
    assert {after for following in TRANSITIONS.values() for after in following} <= set(TRANSITIONS)
    assert {"landed", "conflict", "rejected", "cancelled", "superseded"} == FINAL
    for old, following in TRANSITIONS.items():
        for new in TRANSITIONS:
            if new in following:
                check_transition("e", old, new)
            else:
                with pytest.raises(ForbiddenTransition):
                    check_transition("e", old, new)


def test_one_id_for_one_thing():
    ids = {entry_id(*key) for key in (("q", "r", "n", 1, "a"), ("q", "r", "n", 1, "b"), ("q", "r", "n", 2, "a"),
                                      ("q", "s", "n", 1, "a"), ("p", "r", "n", 1, "a"))}
    assert len(ids) == 5
    assert entry_id("q", "r", "n", 1, "a") == entry_id("q", "r", "n", 1, "a")


def test_a_landing_in_full():
    journal = Journal()
    journal.add("config", gate="make", setup=None, no_gate=False, timeout=10.0, lock_files=[])
    journal.enq("e")
    journal.add("state", entry="e", status="candidate", base="b", tree="t", commit="c")
    journal.add("test", entry="e", of="entry", number=1, job="e.1", tree="t", commit="c", slot=1, command="k", log="l")
    assert journal.state.test.job == "e.1"
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="green", reason="", log="l")
    assert journal.state.test is None
    assert ("t", "k") in journal.state.green
    journal.add("landing", entry="e", old="b", new="c")
    assert journal.state.landing.new == "c"
    journal.add("landed", entry="e", commit="c", old="b", owed=["/checkout"])
    state = journal.state
    assert state.landing is None
    assert (state.entries["e"].status, state.entries["e"].landed_at) == ("landed", journal.records[-1].at)
    assert [(owed.path, owed.old, owed.new) for owed in state.owed] == [("/checkout", "b", "c")]
    journal.add("moved", entry="", path="/checkout", old="b", new="c")
    assert state.owed == ()
    assert [(one.type, one.seq) for one in state.outcomes] == [("VALIDATION_PASSED", 5), ("MERGE_COMPLETE", 7)]
    assert state.unfinished() == []


def test_what_the_table_forbids_is_refused_before_it_is_written():
    journal = Journal()
    journal.enq("e")
    with pytest.raises(ForbiddenTransition):
        journal.state.check("landing", {"entry": "e", "old": "a", "new": "b"})
    with pytest.raises(NotFound):
        journal.state.check("cancel", {"entry": "nobody"})
    journal.add("cancel", entry="e")
    with pytest.raises(ForbiddenTransition):
        journal.add("state", entry="e", status="queued")
    assert journal.state.entries["e"].status == "cancelled"


def test_superseding_forgets_the_running_test():
    journal = Journal()
    journal.enq("e")
    journal.add("state", entry="e", status="candidate", base="b", tree="t", commit="c")
    journal.add("test", entry="e", of="entry", number=1, job="e.1", tree="t", commit="c", slot=1, command="k", log="l")
    journal.enq("f", attempt=2, supersedes=["e"])
    assert journal.state.entries["e"].status == "superseded"
    assert journal.state.test is None
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="green", reason="", log="l")
    assert journal.state.entries["e"].status == "superseded"
    assert journal.state.outcomes == []


def test_a_pause_gives_the_entry_back_in_the_same_record_and_a_new_gate_lifts_it():
    journal = Journal()
    journal.enq("e")
    journal.add("state", entry="e", status="candidate", base="b", tree="t", commit="c")
    journal.add("test", entry="e", of="entry", number=1, job="e.1", tree="t", commit="c", slot=1, command="k", log="l")
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="missing", reason="?", log="l")
    journal.add("verdict", entry="e", of="base", tree="b", command="k", result="missing", reason="?", log="l")
    assert journal.state.base.result == "missing"
    journal.add("pause", entry="e", reason="gate_broken", detail="?", tip="b")
    assert (journal.state.entries["e"].status, journal.state.entries["e"].verdict) == ("queued", "")
    assert journal.state.pause.reason == "gate_broken"
    journal.add("config", gate="make", setup=None, no_gate=False, timeout=10.0, lock_files=[])
    assert journal.state.pause is None


@pytest.mark.parametrize(("kind", "data", "status"), [
    ("foreign", {"old": "b", "reason": "moved"}, "queued"),
    ("unlanded", {"old": "b", "reason": "in the way", "files": ["f"]}, "landing_blocked")])
def test_a_landing_that_did_not_happen(kind, data, status):
    journal = Journal()
    journal.enq("e")
    journal.add("state", entry="e", status="candidate", base="b", tree="t", commit="c")
    journal.add("landing", entry="e", old="b", new="c")
    journal.add(kind, entry="e", **data)
    assert journal.state.landing is None
    assert journal.state.owed == ()
    assert journal.state.entries["e"].status == status
