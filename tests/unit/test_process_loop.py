"""The loop of a process: errors that repeat themselves, and how long a runner counts itself an orphan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from garrison.processes.loop import RepeatedErrors, strip_temporary_names
from garrison.processes.supervisor import Parent
from garrison.records.names import Key

FULL = "No space left on device: /home/.a.json.4711-{}.tmp"


def test_an_error_is_logged_once_although_a_temporary_file_has_another_name_each_time(capsys):
    errors = RepeatedErrors()
    for turn in range(5):
        errors.add(FULL.format(turn), 10.0 * turn)
    assert capsys.readouterr().err.splitlines() == [f"{FULL.format(0)}; trying again"]
    assert errors.has_lasted(35.0, 40.0)


def test_two_errors_that_alternate_are_logged_once_each_until_a_turn_succeeds(capsys):
    errors = RepeatedErrors()
    for _ in range(3):
        errors.add("one", 0.0)
        errors.add("two", 0.0)
    errors.clear()
    errors.add("one", 0.0)
    assert capsys.readouterr().err.split("; trying again\n") == ["one", "two", "one", ""]


@pytest.mark.parametrize(("one", "other"), [
    (FULL.format(1), FULL.format(22)),
    ("fatal: cannot create .git/objects/ab/tmp_obj_Xy12a_", "fatal: cannot create .git/objects/ab/tmp_obj_Zz99b_"),
    ("error: /r/.git/garrison/objects-12-abc_d/x", "error: /r/.git/garrison/objects-13-zz9/x"),
])
def test_messages_that_differ_in_a_temporary_name_mean_the_same(one, other):
    assert strip_temporary_names(one) == strip_temporary_names(other)


def test_messages_about_other_files_mean_something_else():
    assert strip_temporary_names("full: /h/.a.json.1-2.tmp") != strip_temporary_names("full: /h/.b.json.1-2.tmp")
    assert strip_temporary_names("code 128") != strip_temporary_names("code 129")


# ---- how long a runner counts itself an orphan


def orphan(clock: list[float], living: set[str]) -> Parent:
    """Return the parent of a runner; `clock` has its monotonic readings to come, `living` the roles that are alive."""
    runtime = SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: clock.pop(0)))
    supervisor: Any = SimpleNamespace(runtime=runtime, is_alive=lambda key: key.role in living)
    incarnation: Any = SimpleNamespace(identity=SimpleNamespace(parent={"role": "guardian", "name": "crew"}),
                                       key=Key("runner", "a", "r1"))
    task: Any = SimpleNamespace(node="a", attempt=1)
    return Parent(incarnation, supervisor, task)


def test_a_runner_is_an_orphan_from_when_neither_parent_nor_launcher_lives():
    living = {"launch"}
    parent = orphan([20.0, 50.0], living)
    assert parent.orphaned_for(10.0) is None
    living.clear()
    assert [parent.orphaned_for(20.0), parent.orphaned_for(25.0)] == [0.0, 5.0]
    living.add("guardian")
    assert parent.orphaned_for(30.0) is None
    living.clear()
    assert [parent.orphaned_for(50.0), parent.orphaned_for(51.0)] == [0.0, 1.0]


def test_a_suspension_between_reading_the_clock_and_looking_does_not_count_as_time_without_parents():
    """Seen in the simulator (519): launcher and guardian died after an hour's pause, and the runner left at once."""
    parent = orphan([3600.0], set())
    assert [parent.orphaned_for(10.0), parent.orphaned_for(3622.0)] == [0.0, 22.0]
