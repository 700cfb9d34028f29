"""State of a run: replayed from journal records, and from snapshots."""

from __future__ import annotations

import pytest

from garrison.errors import ForbiddenTransition
from garrison.records.journal import Entry
from garrison.run.state import from_snapshot, replay_run, to_snapshot
from policy_support import (
    AT,
    RUNNING,
    death,
    journal,
    node,
    signal,
)


def test_a_snapshot_is_not_changed_by_what_comes_after_it() -> None:
    told = to_snapshot(journal(RUNNING, signal("1", heard={"name": "x", "value": 1})))
    journal(("snapshot", told), signal("2", heard={"name": "x", "value": 2}))
    assert told["heard"] == {"x": [1]}


def test_the_same_death_counts_once_and_a_signal_and_its_effect_are_one_record() -> None:
    change = {"node": "a", "status": "impl_complete", "attempt": 1}
    state = journal(node("a", "pending"), node("a", "active"), death("runner-a@r1", 1), death("runner-a@r1", 1),
                    death("runner-a@r1", 2), signal("s1", effect=change))
    assert [one.incarnation for one in state.deaths["runner-a@r1"]] == [1, 2]
    assert state.nodes["a"].status == "impl_complete" and state.applied == {"s1"}


def test_an_unlisted_step_in_the_journal_is_refused() -> None:
    with pytest.raises(ForbiddenTransition):
        journal(node("a", "pending"), node("a", "validated"))


def test_a_snapshot_holds_everything() -> None:
    state = journal(node("a", "pending"), node("a", "active"), death("runner-a@r1", 1), RUNNING,
                    signal("s0", resume={"x": 2}, run="running"),
                    ("spawn", {"full": "runner-a@r1", "incarnation": 4}), signal("s1"))
    assert from_snapshot(to_snapshot(state)) == state
    assert replay_run([Entry(1, 1, "t", AT, "snapshot", to_snapshot(state))]) == state


