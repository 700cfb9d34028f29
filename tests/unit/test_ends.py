"""How a command or a process ended is a value; only records of earlier versions have it in words."""

from __future__ import annotations

import pytest

from garrison.ends import Departure, End, EndKind
from garrison.records import earlier
from garrison.records.events import ChildSpawned, NoteWritten
from garrison.records.identity import Identity, mark_ended
from garrison.values import replace


@pytest.mark.parametrize(("end", "kind", "number"), [
    (End(0), EndKind.EXIT, 0), (End(3), EndKind.EXIT, 0), (End(128), EndKind.EXIT, 0), (End(255), EndKind.EXIT, 0),
    (End(126), EndKind.NOT_RUN, 0), (End(127), EndKind.NOT_RUN, 0), (End(129 + 31), EndKind.EXIT, 0),
    (End(-9), EndKind.SIGNAL, 9), (End(137), EndKind.SIGNAL, 9), (End(130), EndKind.SIGNAL, 2),
    (End(-15, timed_out=True), EndKind.TIMEOUT, 0), (End(0, timed_out=True), EndKind.TIMEOUT, 0),
    (End(None), EndKind.LOST, 0),
], ids=str)
def test_an_exit_code_is_read_as_shells_give_it(end: End, kind: EndKind, number: int) -> None:
    assert (end.kind, end.signal) == (kind, number)
    assert end.ok is (end == End(0))
    assert end.killed is (number == 9)


# ---- what only the words of earlier versions tell


NOW = "2026-01-31T13:00:00.000000Z"
ALIVE = Identity("id", "runner", "a", "r1", NOW)


@pytest.mark.parametrize(("reason", "departure"), [
    ("done", Departure.DONE), ("failed", Departure.FAILED), ("stopped", Departure.STOPPED),
    ("orphaned", Departure.ORPHANED), ("its terminal is gone", Departure.HANGUP), ("marked by hand", Departure.EARLY)])
def test_only_without_a_departure_an_identitys_reason_tells_how_it_ended(reason: str, departure: Departure) -> None:
    recorded = replace(ALIVE, status="terminated", metadata={"reason": reason})
    assert recorded.departure is departure
    assert mark_ended(ALIVE, "terminated", NOW, reason).departure is Departure.EARLY
    assert mark_ended(ALIVE, "terminated", NOW, "words", departure).departure is departure
    assert mark_ended(ALIVE, "crashed", NOW, reason).departure is None


def test_a_departure_of_a_later_version_is_an_early_end_and_each_other_sentence_of_earlier_ones_is_read() -> None:
    later = replace(ALIVE, status="terminated", metadata={"reason": "done", "departure": "sold"})
    assert later.departure is Departure.EARLY
    assert earlier.branch_of_merge("Merge garrison/r1/a into main") == "garrison/r1/a"
    assert earlier.branch_of_merge("Mend a") == ""
    assert earlier.modes_of("sandbox: bubblewrap; agent a: landlock 4, which leaves gaps") == ["landlock"]
    assert earlier.modes_of("sandbox: bubblewrap") == []
    assert [earlier.has_gaps(line) for line in ("sandbox: bubblewrap", "sandbox: none (it can do whatever you can)")] \
        == [False, True]
    assert earlier.claim_of("r1/a/2.1 of laptop") == "r1/a/2.1"
    assert earlier.reason_of_rescue("garrison: what a left when it failed") == "left when it failed"
    assert earlier.reason_of_rescue("Mend a") == ""
    assert [earlier.step_of_error(error) for error in ("Step 'a' failed: ValueError", "it took too long")] == ["a", ""]


@pytest.mark.parametrize(("event", "is_so"), [
    (ChildSpawned("x", 2, why="process 7 is gone"), True), (ChildSpawned("x", 2, why="attempt 2"), False),
    (ChildSpawned("x", 2, why="attempt 2", follows="death"), True),
    (ChildSpawned("x", 2, why="process 7 is gone", follows="nothing"), False)])
def test_only_without_what_it_follows_the_reason_of_a_start_tells_a_restart(event: ChildSpawned, is_so: bool) -> None:
    assert event.is_respawn is is_so


@pytest.mark.parametrize(("event", "is_so"), [
    (NoteWritten("a", "waiting for approval"), True), (NoteWritten("a", "held by a person"), False),
    (NoteWritten("a", "waiting for approval", approval=False), False), (NoteWritten("a", "x", approval=True), True)])
def test_only_in_an_earlier_journal_a_notes_text_tells_that_it_waits_for_approval(event: NoteWritten, is_so: bool,
                                                                                  ) -> None:
    assert event.is_for_approval is is_so
