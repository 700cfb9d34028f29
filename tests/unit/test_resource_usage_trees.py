"""Owner of a process, and its CPU time between two samples. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.system import resource_usage
from garrison.system.resource_usage import RESOLUTION, ProcessSample, add_usage, cpu_seconds, find_owners


def proc(pid: int, ppid: int = 1, *, cpu: float = 0, waited: float = 0, ticks: int = 0) -> ProcessSample:
    return ProcessSample(pid, ticks or pid, ppid, False, cpu, waited, 0)


def by_id(*procs: ProcessSample) -> dict[resource_usage.ProcessId, ProcessSample]:
    return {one.id: one for one in procs}


def test_a_process_belongs_to_its_own_marker_or_its_nearest_marked_ancestor() -> None:
    procs = [proc(1, 0), proc(10), proc(11, 10), proc(12, 11), proc(20, 12), proc(21, 20), proc(30)]
    found = find_owners(procs, {10: "runner", 20: "agent"})
    assert found == {10: "runner", 11: "runner", 12: "runner", 20: "agent", 21: "agent"}


@given(st.dictionaries(st.integers(1, 30), st.integers(0, 30), max_size=30), st.sets(st.integers(1, 30)))
def test_owners_are_found_in_torn_tables(parents: dict[int, int], marked: set[int]) -> None:
    """They have cycles and missing parents."""
    markers = {pid: f"life-{pid}" for pid in marked}
    found = find_owners([proc(pid, ppid) for pid, ppid in parents.items()], markers)
    for pid in parents:
        at, steps = pid, 0
        while at in parents and at not in markers and steps <= 31:
            at, steps = parents[at], steps + 1
        assert found.get(pid) == (markers.get(at) if at in parents else None)


@pytest.mark.parametrize(("before", "after", "worked"), [
    pytest.param([proc(10, cpu=100)], [proc(10, cpu=100.5), proc(11, 10, cpu=0.25)], {10: 0.5, 11: 0.25},
                 id="the difference, and a new process since its start"),
    pytest.param([proc(10, cpu=5, ticks=7)], [proc(10, cpu=0.5, ticks=8)], {10: 0.5}, id="a reused pid is a process"),
    pytest.param([proc(10), proc(11, 10, cpu=60)], [proc(10, waited=60.5 + 0.25)], {10: 0.75},
                 id="children that it reaped, and of one seen before only the rest"),
    pytest.param([proc(10), proc(11, 10, cpu=0.5), proc(12, 11, cpu=0.5)], [proc(10, waited=1.25)], {10: 0.25},
                 id="usage passed up by an ended parent is counted once"),
    # a subreaper collects an orphan's hour, and the first sample of a long-lived process has all its past
    pytest.param([proc(10), proc(11, 99, cpu=3600)], [proc(10, waited=3600.1), proc(12, 10, cpu=500)], {10: 0, 12: 0},
                 id="usage beyond what the machine can do is older")])
def test_cpu_time_between_two_samples(before: list[ProcessSample], after: list[ProcessSample],
                                      worked: dict[int, float]) -> None:
    assert cpu_seconds(by_id(*before), by_id(*after), 1, 2) == worked


@given(st.lists(st.tuples(st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5), st.floats(0, 1e5)), max_size=8),
       st.floats(0.001, 60), st.integers(1, 64))
def test_work_is_never_negative_and_never_more_than_the_machine_can_do(
        parts: list[tuple[float, float, float, float]], seconds: float, cores: int) -> None:
    old = by_id(*(proc(pid, pid - 1, cpu=cpu, waited=waited) for pid, (cpu, waited, _, _) in enumerate(parts, 2)))
    new = by_id(*(proc(pid, pid - 1, cpu=cpu, waited=waited) for pid, (_, _, cpu, waited) in enumerate(parts, 2)))
    worked = cpu_seconds(old, new, seconds, cores)
    assert all(0 <= one <= 2 * (seconds * cores * 1.1 + 2 * RESOLUTION) for one in worked.values())


def test_a_sum_has_a_cpu_time_if_one_of_its_parts_has() -> None:
    assert add_usage(resource_usage.NO_USAGE,
                     resource_usage.ResourceUsage(3.0, 10, 1)) == resource_usage.ResourceUsage(3.0, 10, 1)
    assert add_usage(resource_usage.NO_USAGE, resource_usage.ResourceUsage(None, 10, 1)).cpu is None
