"""Identities and hooks: their tables of statuses and phases, ends, heartbeats, notes, succession."""

from __future__ import annotations

from itertools import product

import pytest

from garrison.errors import ForbiddenTransition, UsageError
from garrison.records import hook, identity
from garrison.records.hook import PHASES, Hook
from garrison.records.identity import ALIVE, STATUSES, Identity
from garrison.records.names import Key

THEN, NOW = "2026-01-31T12:00:00.000000Z", "2026-01-31T13:00:00.000000Z"
STEPS = {
    ("starting", "active"), ("starting", "crashed"), ("starting", "terminated"), ("starting", "starting"),
    ("active", "held"), ("active", "crashed"), ("active", "terminated"), ("active", "parked"), ("active", "active"),
    ("held", "active"), ("held", "crashed"), ("held", "terminated"),
    ("crashed", "starting"), ("crashed", "active"), ("crashed", "parked"), ("crashed", "terminated"),
    ("crashed", "crashed"),
    ("terminated", "starting"), ("terminated", "active"), ("terminated", "parked"), ("terminated", "terminated"),
    ("parked", "starting"), ("parked", "active"), ("parked", "terminated"), ("parked", "crashed"),
}


def at(status: str) -> Identity:
    return Identity("id", "runner", "a", "r1", NOW, status=status, metadata={"attempt": 2})


@pytest.mark.parametrize(("old", "new"), list(product(STATUSES, STATUSES)))
def test_every_pair_of_statuses(old: str, new: str) -> None:
    before = at(old)
    if (old, new) in STEPS:
        assert identity.change_status(before, new, pid=7) == identity.replace(before, status=new, pid=7)
        assert before.status == old
    else:
        with pytest.raises(ForbiddenTransition,
                           match=f"runner-a@r1 cannot go from {old} to {new}; allowed from {old}:"):
            identity.change_status(before, new)


def test_an_end_has_its_time_and_reason_and_a_heartbeat_changes_nothing_else() -> None:
    crashed = identity.mark_ended(at("active"), "crashed", NOW, "process 7 is gone")
    assert (crashed.crashed_at, crashed.terminated_at, crashed.reason) == (NOW, None, "process 7 is gone")
    assert crashed.metadata["attempt"] == 2
    done = identity.mark_ended(at("active"), "terminated", NOW, "done", exit=0)
    assert (done.crashed_at, done.terminated_at, done.reason, done.exit) == (None, NOW, "done", 0)
    assert at("active").reason == ""
    assert at("active").key == Key("runner", "a", "r1") and {"starting", "active", "held"} == ALIVE
    assert identity.record_heartbeat(at("active"), NOW) == identity.replace(at("active"), last_heartbeat=NOW)


# ---- hooks: the phase table, notes, succession


PHASE_STEPS = {("planning", "executing"), ("executing", "impl_complete"), ("impl_complete", "validating"),
               ("validating", "merged"), ("impl_complete", "executing"), ("validating", "executing")}


def in_phase(phase: str) -> Hook:
    return Hook("h1", "runner", "a", "r1", THEN, THEN, phase=phase, last_committed_node="c0",
                resumption_instructions="go")


@pytest.mark.parametrize(("old", "new"), list(product(PHASES, PHASES)))
def test_every_pair_of_phases(old: str, new: str) -> None:
    before = in_phase(old)
    if old == new:
        assert hook.change_phase(before, new, NOW) is before
    elif (old, new) in PHASE_STEPS:
        after = hook.change_phase(before, new, NOW)
        assert (after.phase, after.updated_at, after.created_at) == (new, NOW, THEN)
        assert after.phase_history[-1]["from"] == old and after.phase_history[-1]["to"] == new
        assert after.phase_history[-1]["at"] == NOW
        assert after.phase_history[-1].get("rework", False) is (new == "executing" and old != "planning")
        assert after.merged_at == (NOW if new == "merged" else None)
        assert hook.change_phase(after, new, "later") is after, "merged is stamped once"
        assert before.phase_history == []
    else:
        with pytest.raises(ForbiddenTransition, match=f"hook runner-a@r1 cannot go from {old} to {new}"):
            hook.change_phase(before, new, NOW)


@pytest.mark.parametrize("phase", ["", "done", "Planning"])
def test_an_unknown_phase_is_refused(phase: str) -> None:
    with pytest.raises(UsageError, match="not a phase"):
        hook.change_phase(in_phase("planning"), phase, NOW)
    with pytest.raises(ValueError, match="is none of planning"):
        in_phase(phase)


def test_notes_change_only_what_is_given() -> None:
    noted = hook.update_notes(in_phase("executing"), NOW, text="new")
    assert (noted.resumption_instructions, noted.last_committed_node, noted.updated_at) == ("new", "c0", NOW)
    noted = hook.update_notes(in_phase("executing"), NOW, last_committed="c1")
    assert (noted.resumption_instructions, noted.last_committed_node) == ("go", "c1")
    assert hook.update_notes(in_phase("executing"), NOW, text="").resumption_instructions == ""
