"""Lack of processes, memory or descriptors: detection, waiting, and fewer active agents."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garrison.agents.base import AgentReport, WorkResult
from garrison.errors import GarrisonError, Shortage
from garrison.node.orchestrator import lacked_room
from garrison.supervise.restart import Death, Policy, apply_policy
from garrison.system import machine as limits
from garrison.system.git.repository import GitError
from garrison.system.machine import (
    RECOVERY,
    AgentLimit,
    Lack,
    LackWatch,
    find_shortage,
    is_shortage,
    reports_shortage,
    retry_pause,
)


@pytest.mark.parametrize(("error", "expected"), [
    (OSError(errno.EAGAIN, ""), True), (OSError(errno.ENOMEM, ""), True), (OSError(errno.EMFILE, ""), True),
    (OSError(errno.ENFILE, ""), True), (OSError(errno.ENOENT, ""), False), (OSError(errno.ENOSPC, ""), False),
    (Shortage("no room"), True), (MemoryError(), True), (ValueError(), False),
    (GarrisonError("no such program"), False),
    (GitError(["status"], 128, "fatal: cannot fork() for rev-list: Resource temporarily unavailable"), True),
    (GitError(["status"], 128, "fatal: not a git repository"), False),
    (GarrisonError("tmux: fork failed: Resource temporarily unavailable"), True)])
def test_what_counts_as_a_shortage(error: BaseException, expected: bool) -> None:
    assert is_shortage(error) is expected


@pytest.mark.parametrize("line", [
    "sh: 1: Cannot fork", "bash: fork: retry: Resource temporarily unavailable",
    "BlockingIOError: [Errno 11] Resource temporarily unavailable", "OSError: [Errno 24] Too many open files",
    "RuntimeError: can't start new thread", "OSError: [Errno 12] Cannot allocate memory"])
def test_a_shortage_is_recognised_in_output(line: str) -> None:
    assert reports_shortage(f"some output\n{line}\n")
    assert not reports_shortage("AssertionError: 1 != 2")


def machine(root: Path, available_kb: int, limit: str = "max", current: int = 100) -> tuple[Path, Path]:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 16000000 kB\nMemAvailable: {available_kb} kB\n")
    (root / "proc/self/cgroup").write_text("0::/user/ours\n")
    (root / "cgroup/user/ours").mkdir(parents=True)
    (root / "cgroup/user/pids.max").write_text(f"{limit}\n")
    (root / "cgroup/user/pids.current").write_text(f"{current}\n")
    return root / "proc", root / "cgroup"


@pytest.mark.parametrize(("memory", "limit", "expected"), [
    (8_000_000, "max", ""), (8_000_000, "1000", ""), (8_000_000, "107", "its cgroup allows only 7 more processes"),
    (8_000_000, "90", "its cgroup allows only 0 more processes"), (20_000, "max", "only 19 MiB of memory are left")])
def test_a_shortage_is_found_before_a_start(tmp_path: Path, memory: int, limit: str, expected: str) -> None:
    proc, cgroups = machine(tmp_path, memory, limit)
    assert find_shortage(proc=proc, cgroups=cgroups) == expected
    assert find_shortage(proc=tmp_path / "none", cgroups=tmp_path / "neither") == "", "without figures there is none"


def test_a_reported_failure_is_believed_unless_the_machine_has_a_shortage() -> None:
    output, reported = "test_pipes: OSError: Too many open files", AgentReport(status="fail")
    assert lacked_room(WorkResult("fail"), output, "")
    assert not lacked_room(WorkResult("fail", report=reported), output, "")
    assert lacked_room(WorkResult("fail", report=reported), output, "only 3 MiB of memory are left")
    assert not lacked_room(WorkResult("success"), output, "")
    assert not lacked_room(WorkResult("fail"), "2 failed", "no memory")


def test_running_work_needs_less_room_than_a_start(tmp_path: Path) -> None:
    """Otherwise agents that wait for each other's room would wait for ever."""
    proc, cgroups = machine(tmp_path, 8_000_000, "107")
    assert find_shortage(limits.MIN_PROCESSES, proc, cgroups) and not find_shortage(limits.MIN_FOR_WORK, proc, cgroups)


def test_a_start_without_room_is_tried_again_and_never_counted() -> None:
    known: list[Death] = []
    now = 1000.0
    for number in range(1, 200):
        known.append(Death(number, now, "b1", "could not be started", "shortage"))
        outcome = apply_policy(known, now, "b1", Policy(total=10))
        assert outcome.kind == "start" and outcome.at is not None and outcome.at == now + retry_pause(number)
        now = outcome.at
    assert retry_pause(1) == 5 and retry_pause(10**6) == 30
    crash = Death(200, now, "b1")
    assert apply_policy([*known, crash], now, "b1", Policy(total=10)).at == now, "its first death that counts"
    again = Death(201, now, "b1", kind="shortage")
    assert apply_policy([*known, crash, again], now, "b1", Policy(total=10)).at == now + 5


def test_the_limit_of_agents_drops_in_a_shortage_and_recovers_one_by_one() -> None:
    limit = AgentLimit.full(8).after(is_short=True, busy=5, now=0.0)
    assert limit.allowed == 4
    assert limit.after(is_short=True, busy=5, now=1.0).allowed == 4, "those at work are not stopped"
    assert limit.after(is_short=True, busy=4, now=9.0).allowed == 3
    assert limit.after(is_short=False, busy=4, now=RECOVERY - 1).allowed == 4
    later = limit.after(is_short=False, busy=4, now=RECOVERY)
    assert later.allowed == 5 and later.after(is_short=False, busy=4, now=RECOVERY + 1).allowed == 5


def test_a_lack_is_looked_for_at_most_once_in_so_many_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([None, Lack("memory", "then"), None])
    monkeypatch.setattr(limits, "find_lack", lambda: next(looks))
    watch = LackWatch(1.0)
    found = [watch.find(now) for now in (0.0, 0.5, 1.0, 1.9, 2.0)]
    assert [lack.what if lack else "" for lack in found] == ["", "", "memory", "memory", ""]


@given(st.integers(1, 64), st.lists(st.tuples(st.booleans(), st.integers(0, 64), st.floats(0, 200)), max_size=40))
def test_the_limit_stays_between_one_and_the_requested_number(most: int, turns: list[tuple[bool, int, float]]) -> None:
    limit, now = AgentLimit.full(most), 0.0
    for is_short, busy, seconds in turns:
        now += seconds
        limit = limit.after(is_short=is_short, busy=busy, now=now)
        assert 1 <= limit.allowed <= most
