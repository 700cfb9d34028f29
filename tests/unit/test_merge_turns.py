"""Turns: which entry waits for which after a lost conflict, for how long, and the cost of a loss."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garrison.merge import records
from garrison.merge.config import QueueConfig
from garrison.merge.records import (
    Configured,
    EntryCancelled,
    EntryEnqueued,
    EntryLanded,
    QueueRecord,
    StatusChanged,
    TurnAwaited,
    TurnEnded,
    TurnSuspended,
    TurnTimed,
    encode,
)
from garrison.merge.state import QueueState, restore, snapshot
from garrison.merge.touched import Touched
from garrison.merge.turns import (
    MAX_FREE_LOSSES,
    TurnClock,
    TurnEnd,
    describe_wait,
    find_running,
    find_waits,
    free_of_turns,
    is_free_loss,
)
from garrison.records.journal import Entry
from garrison.values import replace

FILES = ("a", "b", "c", "d")


class Journal:
    """A queue's state, and the records that led to it."""

    def __init__(self) -> None:
        self.state, self.entries = QueueState(), list[Entry]()
        self.add(Configured(QueueConfig(no_gate=True)))

    def add(self, record: QueueRecord) -> None:
        seq = len(self.entries) + 1
        stored = Entry(seq, 1, "t", f"2026-01-01T00:00:{seq % 60:02}.000000Z", record.kind, encode(record))
        self.state.check(record)
        self.state.apply(stored)
        self.entries.append(stored)

    def enqueue(self, node: str, attempt: int = 1, needs: tuple[str, ...] = (), status: str = "queued") -> str:
        name = f"{node}-{attempt}"
        self.add(EntryEnqueued(name, "r", node, attempt, node, "0" * 40, "main", "repo", f"runner-{node}@r", 0, needs,
                               "merge", status, ()))
        return name

    def lose(self, node: str, *files: str, attempt: int = 1, turn: float = 60.0) -> None:
        self.add(StatusChanged((self.enqueue(node, attempt),), "conflict", "conflict", files, turn=turn, moved=True))

    def waits(self, **touched: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Return node → (node it waits for, files) of the waiting entries, of which each changes these files."""
        waiting = self.state.waiting()
        found = find_waits(self.state, waiting, {
            each.id: Touched(tuple(touched.get(each.node, "")), len(touched.get(each.node, ""))) for each in waiting})
        return {self.state.entries[name].node: (wait.turn.node, wait.files) for name, wait in found.items()}


@pytest.fixture
def journal() -> Journal:
    return Journal()


def test_an_entry_that_changes_a_file_of_the_conflict_waits_and_all_others_land(journal: Journal) -> None:
    journal.lose("b", "a", "c")
    for node in ("x", "y", "z"):
        journal.enqueue(node)
    assert journal.waits(x="ab", y="b", z="cd") == {"x": ("b", ("a",)), "z": ("b", ("c",))}
    journal.enqueue("b", 2)
    assert journal.waits(x="ab", y="b", z="cd", b="ac").keys() == {"x", "z"}
    assert journal.state.waiting()[0].node == "b"


def test_losers_on_one_file_land_in_the_order_of_their_losses(journal: Journal) -> None:
    journal.lose("b", "a")
    journal.lose("c", "a")
    for node, attempt in (("c", 2), ("x", 1), ("b", 2)):
        journal.enqueue(node, attempt)
    assert journal.waits(b="a", c="a", x="a") == {"c": ("b", ("a",)), "x": ("b", ("a",))}
    assert [turn.node for turn in find_running(journal.state, {})] == []
    journal.add(EntryLanded("b-2", "1" * 40, "0" * 40))
    assert journal.waits(c="a", x="a") == {"x": ("c", ("a",))}


def test_a_second_loss_keeps_the_place_and_protects_both_files(journal: Journal) -> None:
    journal.lose("b", "a")
    journal.lose("c", "a")
    journal.lose("b", "d", attempt=2)
    turn = journal.state.turns["r", "b"]
    assert (turn.files, turn.number < journal.state.turns["r", "c"].number) == (("a", "d"), True)


def test_a_dependency_of_the_holder_does_not_wait_for_it(journal: Journal) -> None:
    first = journal.enqueue("first")
    journal.lose("b", "a")
    journal.enqueue("b", 2, (first,))
    journal.enqueue("later")
    assert journal.waits(first="a", b="a", later="a") == {"later": ("b", ("a",))}


def test_an_entry_that_needs_a_waiting_one_waits_with_it_and_a_huge_one_for_every_turn(journal: Journal) -> None:
    journal.lose("b", "a")
    journal.enqueue("x")
    journal.enqueue("y", needs=("x-1",))
    journal.enqueue("z")
    waiting = journal.state.waiting()
    waits = find_waits(journal.state, waiting, {
        "x-1": Touched(("d",), 3000), "y-1": Touched(("b",), 1), "z-1": Touched()})
    assert set(waits) == {"x-1"}
    assert [entry.node for entry in free_of_turns(journal.state, waiting, waits)] == ["z"]


ENDS: dict[str, QueueRecord] = {
    "time": TurnEnded("r", "b", 3, TurnEnd.TIME), "asks": TurnEnded("r", "b", 3, TurnEnd.ASKS),
    "cancelled": EntryCancelled("b-2"), "held": StatusChanged(("b-2",), "held", "by hand"),
    "landed": EntryLanded("b-2", "1" * 40, "0" * 40)}


@pytest.mark.parametrize("end", ENDS)
def test_a_turn_ends_with_the_landing_or_earlier_and_a_record_of_an_earlier_turn_changes_nothing(
        journal: Journal, end: str) -> None:
    journal.lose("b", "a")
    journal.enqueue("b", 2)
    assert journal.state.turns["r", "b"].number == 3
    journal.add(TurnEnded("r", "b", 2, TurnEnd.TIME))
    assert ("r", "b") in journal.state.turns
    journal.add(ENDS[end])
    assert journal.state.turns == {}


def test_an_entry_that_needs_approval_ends_the_turn_and_a_returned_one_does_not(journal: Journal) -> None:
    journal.lose("b", "a")
    journal.add(StatusChanged((journal.enqueue("b", 2),), "candidate", base="0" * 40))
    journal.add(StatusChanged(("b-2",), "queued"))
    assert journal.state.turns
    journal.enqueue("b", 3, status="held")
    assert not journal.state.turns


def test_time_runs_while_the_holder_works_and_not_while_it_waits_or_is_judged(journal: Journal) -> None:
    journal.lose("b", "a")
    assert [turn.node for turn in find_running(journal.state, {})] == ["b"]
    journal.add(TurnSuspended("r", "b", 3, waits=True))
    assert find_running(journal.state, {}) == []
    journal.add(TurnSuspended("r", "b", 3, waits=False))
    journal.enqueue("b", 2)
    assert find_running(journal.state, {}) == []
    journal.add(StatusChanged(("b-2",), "candidate", base="0" * 40))
    assert find_running(journal.state, {}) == []


def test_the_clock_counts_steps_but_no_pause_and_records_now_and_then(journal: Journal) -> None:
    journal.lose("b", "a", turn=100.0)

    def step(clock: TurnClock, now: float) -> float:
        """Take a step at that time; return what is recorded, 0 for nothing."""
        for turn, used in clock.measure(now, find_running(journal.state, {})):
            journal.add(TurnTimed(*turn.key, turn.number, used))
            return used
        return 0.0

    clock = TurnClock()
    assert [step(clock, 1000.0 + second) for second in range(12)] == [0.0] * 10 + [10.0, 0.0]
    assert step(clock, 9000.0) == 0.0  # the machine slept: 5 s at most, after 1 s that was not recorded
    clock.stop()
    assert [step(clock, 20000.0 + second) for second in range(5)] == [0.0] * 4 + [20.0]
    after_crash = TurnClock()
    for second in range(81):
        step(after_crash, float(second))
    turn = journal.state.turns["r", "b"]
    assert turn.used >= turn.limit


def test_a_loss_is_free_unless_the_node_lost_in_these_files_before(journal: Journal) -> None:
    assert is_free_loss(["a"], journal.state.entries_of("r", "b"))
    journal.lose("b", "a")
    earlier = journal.state.entries_of("r", "b")
    assert not is_free_loss(["a"], earlier)
    assert is_free_loss(["a", "b"], earlier)
    assert not is_free_loss(["z"], [replace(earlier[0], files=(str(index),)) for index in range(MAX_FREE_LOSSES)])
    journal.enqueue("b", 2)
    journal.add(EntryLanded("b-2", "1" * 40, "0" * 40))
    assert is_free_loss(["a"], journal.state.entries_of("r", "b"))


def test_the_reason_for_a_wait_is_described_and_forgotten(journal: Journal) -> None:
    journal.enqueue("x")
    journal.add(TurnAwaited("x-1", "r", "b", ("CHANGELOG.md",)))
    entry = journal.state.entries["x-1"]
    assert describe_wait(entry.waits_for[1], entry.files) == "waits for b (CHANGELOG.md)"
    assert describe_wait("b", ("1", "2", "3")) == "waits for b (1, 2 and 1 more)"
    journal.add(TurnAwaited("x-1"))
    assert (journal.state.entries["x-1"].waits_for, journal.state.entries["x-1"].files) == ((), ())


def test_turns_outlive_a_snapshot_and_earlier_journals_have_none(journal: Journal) -> None:
    journal.lose("b", "a")
    journal.add(TurnTimed("r", "b", 3, 7.5))
    made, old = QueueState(), QueueState()
    data = snapshot(journal.state).state
    restore(made, data)
    assert made.turns == journal.state.turns
    restore(old, {key: value for key, value in data.items() if key != "turns"})
    assert old.turns == {}
    before = records.decode("state", {"entry": "b-1", "status": "conflict", "files": ["a"], "base": "0" * 40})
    assert isinstance(before, StatusChanged)
    assert (before.turn, before.moved) == (0.0, False)


# ------------------------------------------------------------------------------------------------------- deadlock-free

LOSSES = st.lists(st.tuples(st.sampled_from("bcdef"), st.sets(st.sampled_from(FILES), min_size=1)), max_size=6)
WORK = st.dictionaries(st.sampled_from("bcdefxyz"), st.sets(st.sampled_from(FILES)), min_size=1)


@settings(max_examples=200)
@given(LOSSES, WORK, st.lists(st.tuples(st.sampled_from("bcdefxyz"), st.sampled_from("bcdefxyz")), max_size=4))
def test_no_two_entries_wait_for_each_other_and_all_land(losses, work, needs) -> None:
    """Repeatedly the first entry that waits for nothing lands; in the end all have landed."""
    journal = Journal()
    attempts: dict[str, int] = {}
    for node, files in losses:
        attempts[node] = attempts.get(node, 0) + 1
        journal.lose(node, *sorted(files), attempt=attempts[node])
    for node in sorted(work):
        own = [f"{need}-{attempts.get(need, 0) + 1}" for left, need in needs if left == node and need < node
               and need in work]
        journal.enqueue(node, attempts.get(node, 0) + 1, tuple(own))
    touched = {f"{node}-{attempts.get(node, 0) + 1}": Touched(tuple(sorted(files)), len(files))
               for node, files in work.items()}
    while waiting := journal.state.waiting():
        waits = find_waits(journal.state, waiting, touched)
        free = free_of_turns(journal.state, waiting, waits)
        absent = {turn.node for turn in journal.state.turns.values()} - {entry.node for entry in waiting}
        if not free:  # the holders that work now would enqueue; their turns end, at the latest, by time
            assert absent
            for node in absent:
                journal.add(TurnEnded("r", node, journal.state.turns["r", node].number, TurnEnd.TIME))
            continue
        for wait in waits.values():
            assert wait.turn.number <= max(turn.number for turn in journal.state.turns.values())
        journal.add(EntryLanded(free[0].id, "1" * 40, "0" * 40))
    assert all(entry.is_final for entry in journal.state.entries.values())
