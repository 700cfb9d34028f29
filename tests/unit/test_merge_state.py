"""The state of a merge queue, replayed from its journal."""

from __future__ import annotations

import pytest

from garrison.errors import ForbiddenTransition, NotFound
from garrison.merge import records
from garrison.merge.entry import FINAL, TRANSITIONS, check_transition, entry_id
from garrison.merge.records import EntryCancelled, LandingStarted
from garrison.merge.state import QueueState
from garrison.records.journal import Entry as Stored
from garrison.values import fields_of


class Journal:
    """A journal in memory; `add` takes a record as it is stored."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.state = QueueState()

    def add(self, kind, **data):
        self.state.check(records.decode(kind, data))
        self.records.append(Stored(len(self.records) + 1, 1, "t", f"2026-01-01T00:00:00.{len(self.records):06d}Z", kind,
                                   data))
        self.state.apply(self.records[-1])
        return self.state

    def enq(self, name, node="n", attempt=1, supersedes=(), **more):
        return self.add("enq", entry=name, run="r", node=node, attempt=attempt, branch="b", oid=name * 10,
                        target="main", repo="/r", recipient="", supersedes=list(supersedes), **more)

    def start_gate(self, name, tree="t"):
        self.add("state", entry=name, status="candidate", base="b", tree=tree, commit="c")
        self.add("test", entry=name, of="entry", number=1, job=f"{name}.1", tree=tree, commit="c", slot=1, command="k",
                 log="l")


def test_every_status_of_the_table_is_known_and_final_ones_stay():
    assert {after for following in TRANSITIONS.values() for after in following} <= set(TRANSITIONS)
    assert {"landed", "undone", "conflict", "rejected", "cancelled", "superseded"} == FINAL
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


def test_a_whole_landing():
    journal = Journal()
    journal.add("config", gate="make", setup=None, no_gate=False, timeout=10.0, lock_files=[])
    journal.enq("e")
    journal.start_gate("e")
    assert journal.state.gate.job == "e.1"
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="green", reason="", log="l")
    assert journal.state.gate is None
    assert ("t", "k") in journal.state.green
    journal.add("landing", entry="e", old="b", new="c")
    assert journal.state.landing.new == "c"
    journal.add("landed", entry="e", commit="c", old="b", owed=["/checkout"])
    state = journal.state
    assert state.landing is None
    assert (state.entries["e"].status, state.entries["e"].landed_at) == ("landed", journal.records[-1].at)
    assert [(stale.path, stale.old, stale.new) for stale in state.stale_checkouts] == [("/checkout", "b", "c")]
    journal.add("moved", entry="", path="/checkout", old="b", new="c")
    assert state.stale_checkouts == ()
    assert [(outcome.type, outcome.seq) for outcome in state.outcomes] == [
        ("VALIDATION_PASSED", 5), ("MERGE_COMPLETE", 7)]
    assert state.unfinished() == []


def test_a_forbidden_step_is_refused_before_it_is_written():
    journal = Journal()
    journal.enq("e")
    with pytest.raises(ForbiddenTransition):
        journal.state.check(LandingStarted(("e",), "a", "b", ("b",)))
    with pytest.raises(NotFound):
        journal.state.check(EntryCancelled("unknown"))
    journal.add("cancel", entry="e")
    with pytest.raises(ForbiddenTransition):
        journal.add("state", entry="e", status="queued")
    assert journal.state.entries["e"].status == "cancelled"


@pytest.mark.parametrize("uncounted", [False, True])
def test_a_run_without_a_verdict_says_why_while_the_next_one_tests(uncounted):
    """Seen: with a full disk a node was "testing" for minutes, and nothing said that six runs had ended for want of
    room."""
    journal = Journal()
    journal.enq("e")
    journal.start_gate("e")
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="lost", reason="its disk is full",
                log="l", code=1, uncounted=uncounted)
    journal.add("test", entry="e", of="entry", number=2, job="e.2", tree="t", commit="c", slot=1, command="k", log="l")
    assert (journal.state.entries["e"].status, journal.state.entries["e"].reason) == ("testing", "its disk is full")
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="green", reason="", log="l")
    assert journal.state.entries["e"].reason == ""


def test_superseding_forgets_the_running_gate():
    journal = Journal()
    journal.enq("e")
    journal.start_gate("e")
    journal.enq("f", attempt=2, supersedes=["e"])
    assert journal.state.entries["e"].status == "superseded"
    assert journal.state.gate is None
    journal.add("verdict", entry="e", of="entry", tree="t", command="k", result="green", reason="", log="l")
    assert journal.state.entries["e"].status == "superseded"
    assert journal.state.outcomes == []


def test_the_verdict_of_another_launchs_preflight_leaves_a_running_gate_alone():
    journal = Journal()
    journal.enq("e")
    journal.start_gate("e")
    journal.add("verdict", entry="", of="preflight", tree="b", command="k", result="green", reason="", log="")
    assert journal.state.gate.job == "e.1"
    assert ("b", "k") in journal.state.green
    assert journal.state.verdicts.durations == []


def test_a_pause_returns_the_entry_in_the_same_record_and_a_new_gate_lifts_it():
    journal = Journal()
    journal.enq("e")
    journal.start_gate("e")
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
    assert journal.state.stale_checkouts == ()
    assert journal.state.entries["e"].status == status


def test_a_record_of_a_newer_version_is_counted_and_changes_nothing_else():
    journal = Journal()
    journal.enq("e")
    before = fields_of(journal.state)
    journal.state.apply(Stored(2, 4, "t", "2026-01-01T00:00:01.000000Z", "hologram", {"entry": "e"}))
    assert (journal.state.seq, journal.state.epoch) == (2, 4)
    changed = {name for name, value in fields_of(journal.state).items() if before[name] != value}
    assert changed == {"seq", "epoch", "updated_at"}
