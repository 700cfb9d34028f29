"""Reservations of money: calls in progress count, those of dead processes do not, and no sum exceeds a limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from garrison.records import costs
from garrison.records.budget import (
    LEAST,
    NO_LIMITS,
    SESSION_LOCK,
    Allowance,
    Grant,
    Limits,
    Meter,
    Purse,
    Reservation,
    Shortfall,
    find_shortfall,
    fit,
    limit_run,
)
from garrison.records.costs import UsageRecord
from garrison.records.life_lock import LifeLock
from garrison.sandbox.proxy.demand import Demand
from garrison.sandbox.proxy.ledger import Ledger
from garrison.sandbox.proxy.registration import Registration
from garrison.sandbox.proxy.token_counts import CallCounts


class Session:
    """A session of a node that runs."""

    def __init__(self, home: Path, node: str, limits: Limits, run: str = "r") -> None:
        nodes = f"usage/{run}" if "/" in run else f"runs/{run}/nodes"
        self.folder = home / nodes / node / "1/claude"
        self.folder.mkdir(parents=True)
        self.lock = LifeLock.try_acquire(self.folder / SESSION_LOCK)
        self.money = Reservation(Meter(home, run, node, limits), self.folder)

    def spend(self, usd: float) -> None:
        costs.append_usage(self.folder / "usage.jsonl", UsageRecord("call", "s", "2026-01-01", usd, message=str(usd)))


def test_reservations_of_other_living_sessions_count_in_runs_of_pipelines_as_well(tmp_path: Path) -> None:
    limits = Limits(run=1.0)
    one, two, three = (Session(tmp_path, node, limits) for node in "abc")
    one.spend(0.5)
    assert one.money.reserve(0.3) is None
    refused = two.money.reserve(0.3)
    assert refused.is_reserved
    assert refused.reason == ("$0.50 of the $1.00 for this run are spent, $0.30 are reserved for calls in progress, "
                              "and the next call may cost $0.30")
    assert two.money.reserve(0.2) is None
    one.money.reduce(0.1)
    assert three.money.reserve(0.1) is None
    assert one.lock is not None
    one.lock.release()  # its process has died
    three.money.release()
    assert three.money.reserve(0.3) is None
    home = tmp_path / "with pipelines"
    one, two = (Session(home, node, Limits(run=1.0), "pipelines/p-1") for node in "ab")
    other = Session(home, "a", Limits(run=1.0), "pipelines/p-2")
    assert one.money.reserve(0.8) is None
    assert two.money.reserve(0.3) is not None
    assert other.money.reserve(0.3) is None
    assert Session(home, "c", Limits(day=1.0)).money.reserve(0.3) is not None


def test_without_others_the_budget_is_used_up(tmp_path: Path) -> None:
    only = Session(tmp_path, "a", Limits(node=1.0))
    assert only.money.reserve(0.0) is None, "the first call's cost is not known"
    assert f'"usd": {LEAST}' in (only.folder / "reserved.json").read_text().replace('":', '": ').replace("  ", " ")
    only.spend(0.9)
    refused = only.money.reserve(0.2)
    assert not refused.is_reserved
    only.spend(0.1)
    spent = only.money.reserve(0.0)
    assert spent.reason == "$1.00 of the $1.00 for this node are spent"


@pytest.mark.parametrize("stated", [NO_LIMITS, Limits(run=9.0)])
def test_a_limit_of_a_run_applies_to_sessions_and_programs_until_it_is_raised(tmp_path: Path, stated: Limits) -> None:
    """The proxy of a run keeps running while the limit is raised, and sees the new one."""
    (tmp_path / "runs/r").mkdir(parents=True)
    limit_run(tmp_path, "r", "0.3")
    session, program = Session(tmp_path, "a", stated), Program(tmp_path, "b", stated)
    session.spend(0.2)
    refused = session.money.reserve(0.2)
    assert refused is not None and "of the $0.30 for this run" in refused.reason
    assert program.call() is True and program.granted < 32_000, "the answer is shortened to what is left"
    program.end()
    assert program.call() is False
    limit_run(tmp_path, "r", "2")
    assert (program.call(), session.money.reserve(0.2)) == (True, None)
    limit_run(tmp_path, "r", "none")
    assert session.money.reserve(5.0) is None


@pytest.mark.parametrize(("usd", "exceeds"), [(0.1, False), (0.11, True)])
def test_the_limit_itself_may_be_reached(usd: float, exceeds: bool) -> None:
    assert bool(find_shortfall(Limits(1.0, 2.0).against((0.6, 0.6, 0.0), (0.3, 0.3, 0.0)), usd)) is exceeds


class Program:
    """A command agent of a node, whose calls the proxy counts; each may cost $0.16 at most, and costs $0.12."""

    def __init__(self, home: Path, node: str, limits: Limits) -> None:
        self.ledger = Ledger(home, Registration("r", node, 1, str(home / "runs/r/nodes" / node / "1/network"),
                                                limits=limits))
        self.calls: list[int] = []
        self.demand = Demand("haiku", 0, 32_000)

    def call(self) -> bool | None:
        """Start a call; return None if it has to wait for others."""
        number, granted = self.ledger.open_call(self.demand)
        if isinstance(granted, Shortfall):
            return None if granted.is_reserved else False
        self.calls.append(number)
        self.granted = granted.output
        return True

    def end(self, counts: CallCounts | None = None) -> None:
        tokens = min(self.granted, 24_000)
        self.ledger.close_call(self.calls.pop(), counts or CallCounts("haiku", "m", {"output_tokens": tokens}))


@pytest.mark.parametrize("limits", [Limits(run=1.0), Limits(day=1.0)])
def test_command_agents_of_a_run_do_not_exceed_a_budget_together(tmp_path: Path, limits: Limits) -> None:
    """Four of them call as soon as they may, all at once, until none may."""
    programs = [Program(tmp_path, node, limits) for node in "abcd"]
    rounds = 0
    while any(list(map(Program.call, programs))):
        assert (rounds := rounds + 1) < 20
        for program in programs:
            if program.calls:
                program.end()
    assert [program.call() for program in programs] == [False] * 4
    assert 0.99 < max(Meter(tmp_path, "r", "a", limits).spent()) <= 1.0, "the last calls had shorter answers"
    for program in programs:
        program.ledger.close()
    assert not list(tmp_path.glob("runs/r/nodes/*/1/network/reserved.json"))


def test_calls_of_one_program_at_once_have_shorter_answers_or_wait(tmp_path: Path) -> None:
    only = Program(tmp_path, "a", Limits(node=0.4))
    assert only.call() and only.call()
    assert only.call() and only.granted == 16_000, "what is left"
    assert only.call() is None, "not even a short answer fits with the others"
    for _ in range(3):
        only.end(CallCounts("haiku", "m", {"output_tokens": 16_000}))
    assert only.call() and only.granted == 32_000


def test_an_attempt_may_make_so_many_calls_whatever_they_cost(tmp_path: Path) -> None:
    only = Program(tmp_path, "a", Limits(turns=3))
    for _ in range(2):
        assert only.call()
        only.end()
    assert only.call() and not only.call(), "the third is in progress"
    only.end()
    assert only.ledger.open_call()[1] == Shortfall("all 3 responses of this attempt are used up", False)
    assert not only.ledger.has_limits, "nothing is reserved for it"


def test_an_uncounted_call_and_one_of_a_dead_proxy_cost_what_was_reserved(tmp_path: Path) -> None:
    only = Program(tmp_path, "a", Limits(node=1.0))
    assert only.call()
    only.end(CallCounts("haiku", "m", {"output_tokens": 1}, estimated=True))
    assert Meter(tmp_path, "r", "a", Limits(node=1.0)).spent()[0] == pytest.approx(0.16)
    limits = Limits(node=0.17)
    if (proxy := os.fork()) == 0:
        os._exit(0 if Program(tmp_path, "b", limits).call() else 1)
    assert os.waitpid(proxy, 0)[1] == 0
    assert Program(tmp_path, "b", limits).call() is True
    assert Meter(tmp_path, "r", "b", limits).spent()[0] == pytest.approx(0.16)


def test_a_session_and_the_proxy_reserve_the_same_call_once_for_others(tmp_path: Path) -> None:
    limits = Limits(run=1.0)
    one, two = Session(tmp_path, "a", limits), Session(tmp_path, "b", limits)
    program = Program(tmp_path, "a", limits)
    assert one.money.reserve(0.6) is None
    assert program.call()
    assert two.money.reserve(0.4) is None


@pytest.mark.parametrize(("spent", "reserved", "running", "expected"), [
    (0.0, 0.0, 0.0, Grant(10_000, 0.2)), (0.85, 0.0, 0.0, Grant(6_666, 0.15)), (0.5, 0.2, 0.2, Grant(3_333, 0.1)),
    (0.96, 0.0, 0.0, False), (0.5, 0.3, 0.18, True), (0.96, 0.02, 0.0, False), (1.0, 0.0, 0.0, False)])
def test_a_call_gets_the_longest_answer_that_fits(spent: float, reserved: float, running: float,
                                                  expected: Grant | bool) -> None:
    """An input of $0.05, and up to 10,000 tokens of $15 a million: the shortest answer takes $0.065."""
    price = Demand("sonnet", 16_667, 10_000)
    found = fit(Limits(run=1.0), (0.0, spent, 0.0), (0.0, reserved, 0.0), running, price)
    if isinstance(found, Shortfall):
        assert found.is_reserved is expected
    else:
        assert isinstance(expected, Grant)
        assert abs(found.output - expected.output) < 9 and found.usd <= expected.usd + 1e-5
        assert spent + reserved + running + found.usd <= 1.0 + 1e-8


def test_parallel_specialists_keep_to_the_budget_of_a_message(tmp_path: Path) -> None:
    purse = Purse(tmp_path, "chat", "c", Allowance(task=1.0))
    log = purse.log("butler")

    def end(session: str, number: int) -> None:
        purse.recorded(session, 0.12, is_final=True)
        log.record({"kind": "usage", "message": f"{session}{number}", "model": "haiku",
                    "usage": {"output_tokens": 24_000}})

    assert purse.reserve("butler") is None
    end("butler", 0)
    for number in range(9):
        started = [name for name in "abcd" if purse.reserve(name) is None]
        for name in started:
            end(name, number)
        if not started:
            break
    refused = purse.reserve("a")
    assert refused is not None and not refused.is_reserved
    assert refused.reason == "$0.96 of the $1.00 for one message are spent, and the next call may cost $0.12"
    purse.begin()
    assert purse.reserve("a", 0.6) is None
    waits = purse.reserve("b", 0.6)
    assert waits is not None and waits.is_reserved
    purse.release("a")
    assert purse.reserve("b", 0.6) is None
