"""Loop of a process: repeated errors, and how long a runner has been an orphan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from garrison.processes.loop import RepeatedErrors, strip_temporary_names
from garrison.processes.supervisor import Parent
from garrison.records.names import Key

FULL = "No space left on device: /home/.a.json.4711-{}.tmp"


def test_repeated_errors_are_logged_once_each_until_a_turn_succeeds(capsys):
    errors = RepeatedErrors()
    for turn in range(5):
        errors.add(FULL.format(turn), 10.0 * turn)
    assert capsys.readouterr().err.splitlines() == [f"{FULL.format(0)}; trying again"]
    assert errors.has_lasted(35.0, 40.0)
    errors = RepeatedErrors()
    for _ in range(3):
        errors.add("one", 0.0)
        errors.add("two", 0.0)
    errors.clear()
    errors.add("one", 0.0)
    assert capsys.readouterr().err.split("; trying again\n") == ["one", "two", "one", ""]


@pytest.mark.parametrize(("one", "other", "is_same"), [
    (FULL.format(1), FULL.format(22), True),
    ("fatal: cannot create objects/ab/tmp_obj_Xy12a_", "fatal: cannot create objects/ab/tmp_obj_Zz99b_", True),
    ("error: /r/.git/garrison/objects-12-abc_d/x", "error: /r/.git/garrison/objects-13-zz9/x", True),
    ("full: /h/.a.json.1-2.tmp", "full: /h/.b.json.1-2.tmp", False), ("code 128", "code 129", False),
])
def test_messages_that_differ_only_in_a_temporary_name_are_the_same(one, other, is_same):
    assert (strip_temporary_names(one) == strip_temporary_names(other)) == is_same


def orphan(clock: list[float], living: set[str]) -> Parent:
    """Return the parent of a runner; `clock` has its next monotonic readings, `living` the roles that are alive."""
    runtime = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: clock.pop(0)))
    supervisor: Any = SimpleNamespace(runtime=runtime, is_alive=lambda key: key.role in living)
    incarnation: Any = SimpleNamespace(identity=SimpleNamespace(parent={"role": "guardian", "name": "crew"}),
                                       key=Key("runner", "a", "r1"))
    task: Any = SimpleNamespace(node="a", attempt=1)
    return Parent(incarnation, supervisor, task)


def test_a_runner_is_an_orphan_while_neither_parent_nor_launcher_lives():
    living = {"launch"}
    parent = orphan([20.0, 50.0], living)
    assert parent.orphaned_for(10.0) is None
    living.clear()
    assert [parent.orphaned_for(20.0), parent.orphaned_for(25.0)] == [0.0, 5.0]
    living.add("guardian")
    assert parent.orphaned_for(30.0) is None
    living.clear()
    assert [parent.orphaned_for(50.0), parent.orphaned_for(51.0)] == [0.0, 1.0]


def test_a_suspension_does_not_count_as_time_without_parents():
    """Seed 519 of the simulator: launcher and guardian died after an hour's pause, and the runner left at once."""
    parent = orphan([3600.0], set())
    assert [parent.orphaned_for(10.0), parent.orphaned_for(3622.0)] == [0.0, 22.0]
