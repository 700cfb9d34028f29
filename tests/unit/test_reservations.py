"""Reservations of money: calls in progress count, those of the dead do not, and a limit is not exceeded together."""

from __future__ import annotations

from pathlib import Path

import pytest

from garrison.records import costs
from garrison.records.costs import Limits, Meter, UsageRecord
from garrison.records.life_lock import LifeLock
from garrison.records.reservations import LEAST, SESSION_LOCK, Reservation, exceeding


class Session:
    """A session of a node that runs."""

    def __init__(self, home: Path, node: str, limits: Limits) -> None:
        self.folder = home / "runs/r/nodes" / node / "1/claude"
        self.folder.mkdir(parents=True)
        self.lock = LifeLock.try_acquire(self.folder / SESSION_LOCK)
        self.money = Reservation(Meter(home, "r", node, limits), self.folder)

    def spend(self, usd: float) -> None:
        costs.append_usage(self.folder / "usage.jsonl", UsageRecord("call", "s", "2026-01-01", usd, message=str(usd)))


def test_what_others_have_reserved_counts_while_they_live(tmp_path: Path) -> None:
    limits = Limits(run=1.0)
    one, two, three = (Session(tmp_path, node, limits) for node in "abc")
    one.spend(0.5)
    assert one.money.reserve(0.3) is None
    refused = two.money.reserve(0.3)
    assert refused is not None
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


def test_without_others_the_budget_is_used_up(tmp_path: Path) -> None:
    only = Session(tmp_path, "a", Limits(node=1.0))
    assert only.money.reserve(0.0) is None, "the first call's cost is not known"
    assert f'"usd": {LEAST}' in (only.folder / "reserved.json").read_text().replace('":', '": ').replace("  ", " ")
    only.spend(0.9)
    refused = only.money.reserve(0.2)
    assert refused is not None
    assert not refused.is_reserved
    only.spend(0.1)
    spent = only.money.reserve(0.0)
    assert spent is not None
    assert spent.reason == "$1.00 of the $1.00 for this node are spent"


@pytest.mark.parametrize(("usd", "exceeds"), [(0.1, False), (0.11, True)])
def test_the_limit_itself_may_be_reached(usd: float, exceeds: bool) -> None:
    assert bool(exceeding(Limits(1.0, 2.0), (0.6, 0.6, 0.0), (0.3, 0.3, 0.0), usd)) is exceeds
