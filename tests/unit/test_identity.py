"""Identities: the status table, endings, beats."""

from __future__ import annotations

from itertools import product

import pytest

from garrison.errors import ForbiddenTransition
from garrison.records import identity
from garrison.records.identity import ALIVE, STATUSES, Identity
from garrison.records.names import Key

NOW = "2026-01-31T13:00:00.000000Z"
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


def test_an_end_is_stamped_with_its_reason() -> None:
    crashed = identity.mark_ended(at("active"), "crashed", NOW, "process 7 is gone")
    assert (crashed.crashed_at, crashed.terminated_at, crashed.reason) == (NOW, None, "process 7 is gone")
    assert crashed.metadata["attempt"] == 2
    done = identity.mark_ended(at("active"), "terminated", NOW, "done", exit=0)
    assert (done.crashed_at, done.terminated_at, done.reason, done.exit) == (None, NOW, "done", 0)
    assert at("active").reason == ""


def test_a_heartbeat_changes_nothing_else() -> None:
    assert at("active").key == Key("runner", "a", "r1") and {"starting", "active", "held"} == ALIVE
    assert identity.record_heartbeat(at("active"), NOW) == identity.replace(at("active"), last_heartbeat=NOW)
