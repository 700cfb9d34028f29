"""Start and end of incarnations: the races that the simulator found."""

from __future__ import annotations

import pytest

from garrison.errors import Fenced
from garrison.records.hook import Hook, next_hook
from garrison.records.identity import Identity
from garrison.records.names import Key
from garrison.supervise.decisions import ChildState, decide_cleanup
from garrison.supervise.incarnation import require_unfenced
from garrison.supervise.restart import Death
from garrison.supervise.verdict import is_spawn_due
from garrison.values import replace
from policy_support import AT, BOOT, NOW, RUN, life

KNOWN = [Death(1, NOW - 100, BOOT)]


def test_a_spawner_that_was_held_up_does_not_take_the_hook_back_from_a_later_incarnation() -> None:
    # Found by seed 330: its lease had lapsed and been given to another; then it linked the hook to its own life.
    hook = Hook("h2", "runner", "a", RUN, AT, AT, phase="executing", incarnation=2)
    with pytest.raises(Fenced, match=r"has a later incarnation \(2 > 1\)"):
        next_hook(hook, hook.key, 1, AT, "h3")
    assert next_hook(hook, hook.key, 2, AT, "h3") is hook
    assert next_hook(hook, hook.key, 3, AT, "h3").phase == "executing"


@pytest.mark.parametrize("status", ["crashed", "parked"])
def test_an_incarnation_that_was_declared_over_writes_nothing(status: str) -> None:
    # Found by seed 2691: told to be killed, its agent swept first, an orchestrator said that its agent had failed.
    identity = Identity("i", "orchestrator", "a", RUN, AT, status=status)
    with pytest.raises(Fenced, match=f"was declared {status}"):
        require_unfenced(identity, identity.key)
    with pytest.raises(Fenced, match="is gone"):
        require_unfenced(None, Key("orchestrator", "a", RUN))
    assert require_unfenced(replace(identity, status="active"), identity.key).status == "active"


@pytest.mark.parametrize(("view", "deaths", "kind"), [
    (ChildState(), [], None), (life("runner", "a"), [], None), (life("runner", "a", "terminated"), [], None),
    (life("runner", "a", state="dead"), [], "replace"), (life("runner", "a", "starting", "lapsed"), [], "replace"),
    (life("runner", "a", "crashed"), [], "record"), (life("runner", "a", "crashed"), KNOWN, None)])
def test_deaths_are_recorded_without_a_successor(view: ChildState, deaths: list[Death], kind: str | None) -> None:
    step = decide_cleanup(view, deaths)
    assert (step.kind if step else None) == kind


@pytest.mark.parametrize(("age", "due"), [(0.0, False), (1.9, False), (2.1, True), (-0.1, True), (-86400.0, True)])
def test_a_clock_set_back_does_not_keep_a_dead_start_alive(age: float, due: bool) -> None:
    # Found by seed 5817: the clock went back by a day, and for a day the dead process counted as about to start.
    assert is_spawn_due(1000.0, 1000.0 + age) is due


