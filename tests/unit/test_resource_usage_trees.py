"""Whose life a process belongs to, and how much it worked between two looks. Pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from garrison.system import resource_usage
from garrison.system.resource_usage import RESOLUTION, ProcessSample, add_usage, cpu_seconds, find_owners


def proc(pid: int, ppid: int = 1, *, cpu: float = 0, waited: float = 0, ticks: int = 0) -> ProcessSample:
    return ProcessSample(pid, ticks or pid, ppid, False, cpu, waited, 0)


def by_id(*procs: ProcessSample) -> dict[resource_usage.ProcessId, ProcessSample]:
    return {one.id: one for one in procs}


def test_a_process_is_its_own_markers_else_its_nearest_marked_ancestors() -> None:
    procs = [proc(1, 0), proc(10), proc(11, 10), proc(12, 11), proc(20, 12), proc(21, 20), proc(30)]
    found = find_owners(procs, {10: "runner", 20: "agent"})
    assert found == {10: "runner", 11: "runner", 12: "runner", 20: "agent", 21: "agent"}


@given(st.dictionaries(st.integers(1, 30), st.integers(0, 30), max_size=30), st.sets(st.integers(1, 30)))
def test_owners_is_what_climbing_gives_whatever_the_parents_are(parents: dict[int, int], marked: set[int]) -> None:
    """Torn tables have cycles and parents that are gone; neither hangs nor invents."""
    markers = {pid: f"life-{pid}" for pid in marked}
    found = find_owners([proc(pid, ppid) for pid, ppid in parents.items()], markers)
    for pid in parents:
        at, steps = pid, 0
        while at in parents and at not in markers and steps <= 31:
            at, steps = parents[at], steps + 1
        assert found.get(pid) == (markers.get(at) if at in parents else None)


def test_own_work_is_the_difference_and_a_new_process_worked_since_its_start() -> None:
    worked = cpu_seconds(by_id(proc(10, cpu=100)), by_id(proc(10, cpu=100.5), proc(11, 10, cpu=0.25)), 1, 2)
    assert worked == {10: 0.5, 11: 0.25}


def test_a_pid_that_is_another_process_now_is_a_new_one() -> None:
    worked = cpu_seconds(by_id(proc(10, cpu=5, ticks=7)), by_id(proc(10, cpu=0.5, ticks=8)), 1, 2)
    assert worked == {10: 0.5}


def test_children_that_lived_between_two_samples_count_for_the_process_that_reaped_them() -> None:
    """And of one seen before, only what it did since."""
    old = by_id(proc(10), proc(11, 10, cpu=60))
    assert cpu_seconds(old, by_id(proc(10, waited=60.5 + 0.25)), 1, 2) == {10: 0.75}


def test_usage_passed_up_by_a_parent_that_ended_is_not_counted_again() -> None:
    old = by_id(proc(10), proc(11, 10, cpu=0.5), proc(12, 11, cpu=0.5))
    assert cpu_seconds(old, by_id(proc(10, waited=1.25)), 1, 2) == {10: 0.25}


def test_usage_beyond_what_the_machine_can_do_is_older() -> None:
    """A subreaper collects an orphan's hour; a look that comes first to a long-lived process sees all its past."""
    old = by_id(proc(10), proc(11, 99, cpu=3600))
    assert cpu_seconds(old, by_id(proc(10, waited=3600.1), proc(12, 10, cpu=500)), 1, 2) == {10: 0, 12: 0}


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5)), max_size=8),
       st.floats(0.001, 60), st.integers(1, 64))
def test_work_is_never_negative_and_never_more_than_the_machine_can_do(
        parts: list[tuple[float, float, float, float]], seconds: float, cores: int) -> None:
    old = by_id(*(proc(pid, pid - 1, cpu=cpu, waited=waited) for pid, (cpu, waited, _, _) in enumerate(parts, 2)))
    new = by_id(*(proc(pid, pid - 1, cpu=cpu, waited=waited) for pid, (_, _, cpu, waited) in enumerate(parts, 2)))
    worked = cpu_seconds(old, new, seconds, cores)
    assert all(0 <= one <= 2 * (seconds * cores * 1.1 + 2 * RESOLUTION) for one in worked.values())


def test_a_sum_knows_its_cpu_as_far_as_its_parts_do() -> None:
    assert add_usage(resource_usage.NO_USAGE,
                     resource_usage.ResourceUsage(3.0, 10, 1)) == resource_usage.ResourceUsage(3.0, 10, 1)
    assert add_usage(resource_usage.NO_USAGE, resource_usage.ResourceUsage(None, 10, 1)).cpu is None
