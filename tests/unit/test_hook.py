"""Hooks: the phase table, notes, succession."""

from __future__ import annotations

from itertools import product

import pytest

from garrison.errors import ForbiddenTransition, UsageError
from garrison.records import hook
from garrison.records.hook import PHASES, Hook
from garrison.records.names import Key

THEN, NOW = "2026-01-31T12:00:00.000000Z", "2026-01-31T13:00:00.000000Z"
STEPS = {("planning", "executing"), ("executing", "impl_complete"), ("impl_complete", "validating"),
         ("validating", "merged"),
         ("impl_complete", "executing"), ("validating", "executing")}


def at(phase: str) -> Hook:
    return Hook("h1", "runner", "a", "r1", THEN, THEN, phase=phase, last_committed_node="c0",
                resumption_instructions="go")


@pytest.mark.parametrize(("old", "new"), list(product(PHASES, PHASES)))
def test_every_pair_of_phases(old: str, new: str) -> None:
    before = at(old)
    if old == new:
        assert hook.change_phase(before, new, NOW) is before
    elif (old, new) in STEPS:
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
def test_no_phase(phase: str) -> None:
    with pytest.raises(UsageError, match="not a phase"):
        hook.change_phase(at("planning"), phase, NOW)
    with pytest.raises(ValueError, match="is none of planning"):
        at(phase)


def test_notes_leave_what_is_not_given() -> None:
    noted = hook.update_notes(at("executing"), NOW, text="new")
    assert (noted.resumption_instructions, noted.last_committed_node, noted.updated_at) == ("new", "c0", NOW)
    noted = hook.update_notes(at("executing"), NOW, last_committed="c1")
    assert (noted.resumption_instructions, noted.last_committed_node) == ("go", "c1")
    assert hook.update_notes(at("executing"), NOW, text="").resumption_instructions == ""


def test_a_successor_keeps_the_work_and_links_back() -> None:
    old = hook.change_phase(at("executing"), "impl_complete", NOW)
    new = hook.continue_hook(old, "h2", 2, NOW)
    assert (new.hook_id, new.predecessor_hook_id, new.incarnation) == ("h2", "h1", 2)
    assert (new.phase, new.phase_history, new.last_committed_node, new.resumption_instructions) == (
        old.phase, old.phase_history, "c0", "go")
    third = hook.continue_hook(new, "h3", 3, NOW)
    assert (third.predecessor_hook_id, third.last_committed_node, third.resumption_instructions) == ("h2", "c0", "go")
    assert third.key == Key("runner", "a", "r1")
