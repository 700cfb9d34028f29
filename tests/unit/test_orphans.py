"""How long a runner counts itself an orphan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from garrison.processes.supervisor import Parent
from garrison.records.names import Key


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
